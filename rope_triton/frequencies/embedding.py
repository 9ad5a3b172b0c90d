"""The module that computes a model's angles once, for every call."""

import torch

from rope_triton.frequencies.angles import by_channel
from rope_triton.scalings import check_positive, length_of


class RotaryPositionEmbedding(torch.nn.Module):
    """Angles of rotary position embedding, ``position x inverse frequency``.

    The inverse frequencies are ``rotary_base ** (-2 i / dim)`` for ``i = 0 .. dim/2 - 1``
    (Su et al., https://arxiv.org/abs/2104.09864, equation 15); the signature and the layout of the
    result are those of ``transformer_engine.pytorch.RotaryPositionEmbedding``.

    Parameters
    ----------
    dim : int
        Size of a head, before ``rotary_percent`` is applied.
    rotary_percent : float
        Share of ``dim`` that is rotated, in (0, 1]; ``int(dim * rotary_percent)`` must be even.
    seq_len_interpolation_factor : float, optional
        Divides positions (Chen et al., https://arxiv.org/abs/2306.15595). Takes effect only
        together with ``pretrained_max_position_embeddings``, as upstream.
    pretrained_max_position_embeddings : int, optional
        Longest sequence the model was trained on. Sequences longer than this times the factor are
        squeezed into it, whatever the factor.
    rotary_base : float
        Base of the inverse frequencies.
    interleaved : bool
        Whether angle ``i`` belongs to the pair ``(2i, 2i + 1)`` instead of ``(i, i + dim/2)``.
    device : torch.device or str, optional
        Where the angles are. By default as upstream: on the current CUDA device, if there is one
        and torch's default device is the CPU; else on torch's default device.

    Raises
    ------
    TypeError
        If ``dim`` is not an int, or another number is none.
    ValueError
        If the rotated size is not a positive even number, or a factor, length or base is not
        positive, or only one of the two interpolation arguments is given.
    """

    def __init__(
        self,
        dim: int,
        rotary_percent: float = 1.0,
        seq_len_interpolation_factor: float | None = None,
        pretrained_max_position_embeddings: int | None = None,
        rotary_base: float = 10000.0,
        interleaved: bool = False,
        *,
        device: torch.device | str | None = None,
    ):
        super().__init__()
        numbers = {
            "rotary_percent": rotary_percent,
            "seq_len_interpolation_factor": seq_len_interpolation_factor,
            "pretrained_max_position_embeddings": pretrained_max_position_embeddings,
            "rotary_base": rotary_base,
        }
        check_positive(**{name: value for name, value in numbers.items() if value is not None})
        if rotary_percent > 1:
            raise ValueError(f"rotary_percent must be at most 1, got {rotary_percent}")
        rotated = int(length_of("dim", dim) * rotary_percent)
        if rotated <= 0 or rotated % 2:
            raise ValueError(
                "int(dim * rotary_percent) must be a positive even number, "
                f"got {rotated} from dim={dim}, rotary_percent={rotary_percent}"
            )
        if (seq_len_interpolation_factor is None) != (pretrained_max_position_embeddings is None):
            raise ValueError(
                "seq_len_interpolation_factor and pretrained_max_position_embeddings work only "
                f"together, got {seq_len_interpolation_factor} and "
                f"{pretrained_max_position_embeddings}"
            )
        self.rotary_base = rotary_base
        self.seq_len_interpolation_factor = seq_len_interpolation_factor
        self.pretrained_max_position_embeddings = pretrained_max_position_embeddings
        self.interleaved = interleaved
        self.register_buffer("inv_freq", torch.empty(rotated // 2, device="meta"))
        self.inv_freq = self._formula().to(_usual_device() if device is None else device)

    def reset_parameters(self) -> None:
        """Compute the inverse frequencies anew, where they are: they may be uninitialized."""
        self.inv_freq = self._formula().to(self.inv_freq.device)

    def _formula(self):
        # On the CPU, whatever the device: the same bits everywhere.
        rotated = 2 * self.inv_freq.shape[0]
        exponent = torch.arange(0, rotated, 2, dtype=torch.float32, device="cpu") / rotated
        return 1.0 / self.rotary_base**exponent

    def _apply(self, fn, recurse=True):
        # model.half() must not round the frequencies: long positions would be off by whole radians.
        exact = self.inv_freq
        super()._apply(fn, recurse)
        if exact.is_meta and not self.inv_freq.is_meta:
            self.reset_parameters()
        elif self.inv_freq.dtype != exact.dtype:
            self.inv_freq = exact.to(self.inv_freq.device)
        return self

    def _load_from_state_dict(self, state_dict, prefix, *others):
        """Take frequencies of a checkpoint in half precision for those of the formula."""
        name = prefix + "inv_freq"
        stored = state_dict.get(name)
        if isinstance(stored, torch.Tensor) and stored.dtype != torch.float32:
            exact = self._formula().to(stored.device)
            if stored.dtype == torch.float64:
                exact = stored.float()
            elif not stored.is_meta and not torch.equal(stored, exact.to(stored.dtype)):
                others[-1].append(
                    f"{name} has the dtype {stored.dtype} and other frequencies than this module; "
                    "their exact values are not known"
                )
            state_dict = {**state_dict, name: exact}
        super()._load_from_state_dict(state_dict, prefix, *others)

    def forward(self, max_seq_len: int | torch.Tensor, offset: int = 0) -> torch.Tensor:
        """Angles of the positions ``offset .. offset + max_seq_len - 1``, in radians.

        Parameters
        ----------
        max_seq_len : int or torch.Tensor
            Tokens. Reading a tensor, an integer without dimensions, synchronizes with its device.
        offset : int
            Position of the first token.

        Returns
        -------
        torch.Tensor
            Shape ``[max_seq_len, 1, 1, int(dim * rotary_percent)]``, float32, on the device of
            ``inv_freq``; each angle appears twice, at both members of its pair.

        Raises
        ------
        TypeError
            If ``max_seq_len`` is no integer, or something cast ``inv_freq`` without ``to()``.
        ValueError
            If ``max_seq_len`` is negative, or a tensor with dimensions or without a value.
        """
        max_seq_len = length_of("max_seq_len", max_seq_len)
        if max_seq_len < 0:
            raise ValueError(f"max_seq_len must not be negative, got {max_seq_len}")
        inv_freq = self.inv_freq
        if inv_freq.dtype != torch.float32:
            raise TypeError(
                f"inv_freq must be torch.float32, got {inv_freq.dtype}: reset_parameters() "
                "computes it anew"
            )
        positions = torch.arange(max_seq_len, device=inv_freq.device, dtype=torch.float32)
        positions = (positions + offset) * self._position_scale(max_seq_len)
        # A product of elements, which autocast leaves alone: the meta device has no autocast.
        angles = positions[:, None] * inv_freq
        return by_channel(angles, self.interleaved)[:, None, None, :]

    def _position_scale(self, max_seq_len: int) -> float:
        trained = self.pretrained_max_position_embeddings
        factor = self.seq_len_interpolation_factor
        if trained is None or factor is None:
            return 1.0
        return 1 / (max_seq_len / trained) if max_seq_len > trained * factor else 1 / factor


def _usual_device() -> torch.device:
    default = torch.get_default_device()
    if default.type == "cpu" and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return default
