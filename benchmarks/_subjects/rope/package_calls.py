"""Call the package through its public names, and check what it returns.

The check is the suite's own formula on the tables that the call gets, never the measured commit's.
"""

import itertools
from collections.abc import Callable

from ..._subject import Unavailable as Unavailable
from . import angles, formula
from .forms import FORWARD, QK_HEADS, QKV_HEADS, BaseCell


class Call:
    """A call of a function of the package, and what is right.

    A subclass says which function, its arguments, and what they return. Inputs and cotangents lie
    in tensors ``x`` of the cell's shape and dtype.

    Raises
    ------
    NotImplementedError
        If the measured commit lacks the function. One that lacks an argument refuses when called.
    """

    # Whether it takes angles, as the package's own module makes them.
    by_angles = False
    # Whether it may overwrite its input.
    in_place = False

    def __init__(self, cell: BaseCell):
        self.cell, self._function = cell, self._public()

    def _public(self):
        try:
            return self._find()
        except ModuleNotFoundError:
            raise
        except ImportError as error:  # of a name; the package's path says nothing
            reason = str(error).removesuffix(f" ({error.path})")
            raise NotImplementedError(reason) from None

    def _find(self):
        raise NotImplementedError

    def call_through(self, change: Callable) -> None:
        """From now on, call the package's function with every argument changed by ``change``."""
        function = self._function
        self._function = lambda *args, **options: function(
            *map(change, args), **{name: change(value) for name, value in options.items()}
        )

    def operand(self, x):
        """The argument of ``forward``, in the memory of ``x``."""
        return x

    def leaf(self, x):
        """The same, requiring a gradient."""
        return x.requires_grad_()

    def forward(self, operand):
        """The package's output for an operand."""
        raise NotImplementedError

    def cotangent(self, x):
        """A gradient for the output, in the memory of ``x``."""
        return x

    def split(self, whole) -> tuple:
        """The tensors in an output, an input or a gradient, in the order of the output."""
        return (whole,)

    def check(self, output, x, direction: str) -> None:
        """See :func:`check`."""
        raise NotImplementedError


class Rotation(Call):
    """A call on one tensor by angles.

    Parameters
    ----------
    cell : BaseCell
        The call, and its tensor.
    device : str
        The device of the call, which has the angles; on "meta" these have no values.
    """

    # Whether each part of the output is rotated, or only copied.
    rotated: tuple[bool, ...] = (True,)
    by_angles = True
    # Whether pairs of channels are neighbours, and what is rounded besides the result.
    interleaved = False
    rounding = "once"
    # Error that the call's arithmetic may add to the rounding of the result, relative to the length
    # of the rotated pair of channels.
    slack = 0.0

    def __init__(self, cell: BaseCell, device: str):
        super().__init__(cell)
        self._freqs = self._radians(device)
        self._options = self._more(device)

    def _radians(self, device: str):
        """Radians, float32 ``[positions, 1, 1, hidden_size]``, in half-rotation order."""
        return angles.of_cell(self.cell, device)

    def _find(self):
        from rope_triton import apply_rotary_pos_emb

        return apply_rotary_pos_emb

    def _more(self, device) -> dict:
        return {"tensor_format": self.cell.format}

    def forward(self, x):
        return self._function(x, self._freqs, **self._options)

    def copies(self, x, copy: Callable | None = None):
        """Copies of as many bytes, which ``forward`` is compared with.

        ``copy``: what makes the first of them, of a contiguous tensor; default: ``clone``.
        """
        return copy(x) if copy else x.clone()

    def bytes_read(self) -> int:
        """Bytes of angles or tables that a call needs, each row once; 0 where nobody knows."""
        return self.cell.distinct_positions * self.cell.hidden_size * self._freqs.element_size()

    def given(self, x, direction: str):
        """What is rotated: the input, or the cotangents in the memory of ``x``."""
        return x if direction == FORWARD else self.cotangent(x)

    def check(self, output, x, direction: str) -> None:
        if self.by_angles:
            angles.check_package(self.cell.positions, self.cell.hidden_size, x.device.type)
        given = self.split(self.given(x, direction))
        cos_sin = [each.float() for each in self.cos_sin()]
        for found, part, rotated in zip(self.split(output), given, self.rotated, strict=True):
            formula.check_part(found, part, cos_sin if rotated else None, self, direction)

    def exact(self, x, direction: str) -> tuple:
        """The parts of the exact result for ``x``, float64 on the CPU."""
        return self._exact(x, direction, self.cos_sin())

    def _exact(self, x, direction: str, cos_sin: tuple) -> tuple:
        import torch

        factor = torch.complex(*(part.cpu() for part in cos_sin))
        factor = factor if direction == FORWARD else factor.conj()
        parts = self.split(self.given(x, direction))
        return tuple(
            formula.multiplied(part, factor, self.interleaved) if rotated else part.double()
            for part, rotated in zip(parts, self.rotated, strict=True)
        )

    def cos_sin(self) -> tuple:
        """Cosine and sine of every token's angles, float64, ``[..., hidden_size / 2]``."""
        angle = self._token_freqs().double()
        half = slice(None, None, 2) if self.interleaved else slice(self.cell.hidden_size // 2)
        angle = angle[..., half]
        return angle.cos(), angle.sin()

    def _token_freqs(self):
        return self._freqs[: self.cell.positions].transpose(0, formula.seq_dim(self.cell))


class FirstPosition(Rotation):
    """Positions from the cell's first one on."""

    def _radians(self, device: str):
        self.interleaved = self.cell.interleaved
        first, width = self.cell.first, self.cell.hidden_size
        pairs = angles.exact(first, self.cell.seq_len, width, device).float()
        return angles.by_channel(pairs, self.interleaved)

    def _more(self, device) -> dict:
        return super()._more(device) | {"interleaved": self.interleaved}


class _Packed(Rotation):
    """Packed sequences."""

    def _more(self, device) -> dict:
        import torch

        bounds = [0, *itertools.accumulate(self.cell.lengths)]
        return super()._more(device) | {
            "cu_seqlens": torch.tensor(bounds, dtype=torch.int32, device=device)
        }

    def _token_freqs(self):
        positions = [p for length in self.cell.lengths for p in range(length)]
        return self._freqs[positions, 0]


class _StartPositions(Rotation):
    """A batch of sequences, each with a start position of its own."""

    def _more(self, device) -> dict:
        import torch

        starts = torch.tensor(self.cell.starts, dtype=torch.int32, device=device)
        return super()._more(device) | {"start_positions": starts}

    def _token_freqs(self):
        import torch

        sequences = zip(self.cell.starts, self.cell.lengths, strict=True)
        return torch.stack([self._freqs[start : start + n, 0] for start, n in sequences])


class _Partial(Rotation):
    """Heads whose first channels alone are rotated."""

    rotated = (True, False)

    def split(self, whole) -> tuple:
        return whole.split([self.cell.hidden_size, whole.shape[-1] - self.cell.hidden_size], -1)


class _Tables(Rotation):
    """Ready-made cosines and sines in the dtype of the tensor, as flash-attention keeps them."""

    by_angles = False

    def __init__(self, cell: BaseCell, device: str):
        import torch

        super().__init__(cell, device)
        angle = self._freqs[:, 0, 0, : cell.hidden_size // 2].double()
        dtype = getattr(torch, cell.dtype)
        self._cos, self._sin = angle.cos().to(dtype), angle.sin().to(dtype)

    def _find(self):
        from rope_triton import apply_rotary_emb

        return apply_rotary_emb

    def _more(self, device) -> dict:
        return {}

    def bytes_read(self) -> int:  # a cosine and a sine for two channels
        return self.cell.distinct_positions * self.cell.hidden_size * self._cos.element_size()

    def forward(self, x):
        return self._function(x, self._cos, self._sin, **self._options)

    def cos_sin(self) -> tuple:
        return tuple(table.double()[None, :, None] for table in (self._cos, self._sin))


class _Attention(_Tables):
    """The same tables, for a tensor in the order of attention, ``bhsd``."""

    def _find(self):
        from rope_triton import rotary_embedding

        return rotary_embedding

    def cos_sin(self) -> tuple:
        return tuple(table.double()[None, None] for table in (self._cos, self._sin))


class _InPlace(_Tables):
    """The same tables, in place."""

    in_place = True

    def _more(self, device) -> dict:
        return {"inplace": True}

    def forward(self, x):
        out = super().forward(x)
        if out.data_ptr() != x.data_ptr():
            raise AssertionError("the call did not rotate in place: its output is a new tensor")
        return out


class _ThenRead(Rotation):
    """A call and a copy of its output, which stands for the kernel that reads it next."""

    def __init__(self, cell: BaseCell, device: str):
        super().__init__(cell, device)
        self._read: list = []  # keeps the copies: memory that is written again would stay in L2

    def forward(self, x):
        out = super().forward(x)
        self._read.append(out.clone())
        return out

    def copies(self, x, copy: Callable | None = None):
        first = super().copies(x, copy)
        return first, first.clone()


class _Qkv(Rotation):
    """Queries, keys and values in one tensor, split and rotated."""

    rotated = (True, True, False)

    def _find(self):
        from rope_triton import apply_fused_qkv_rotary_pos_emb

        return apply_fused_qkv_rotary_pos_emb

    def forward(self, x):
        tables = self._freqs, self._freqs
        return self._function(x, *tables, self._channels(), **self._options)

    def _channels(self) -> list[int]:
        return [count * self.cell.hidden_size for count in QKV_HEADS]

    def cotangent(self, x):
        return split_heads(x, [x.shape[2] * count for count in QKV_HEADS], self.cell.hidden_size)

    def split(self, whole) -> tuple:
        if isinstance(whole, tuple):
            return whole
        parts = whole.split(self._channels(), dim=-1)
        return tuple(part.reshape(*part.shape[:2], -1, self.cell.hidden_size) for part in parts)


class _QueriesKeys(Rotation):
    """Queries and keys, in two tensors."""

    rotated = (True, True)

    def _find(self):
        from rope_triton import apply_qk_rotary_pos_emb

        return apply_qk_rotary_pos_emb

    def operand(self, x):
        return self.cotangent(x)

    def leaf(self, x):
        return leaves(self.cotangent(x))

    def forward(self, x):
        return self._function(*x, self._freqs, **self._options)

    def cotangent(self, x):
        return split_heads(x, QK_HEADS, self.cell.hidden_size)

    def split(self, whole) -> tuple:
        return whole if isinstance(whole, tuple) else self.cotangent(whole)


def split_heads(x, heads, hidden_size: int) -> tuple:
    """Divide the memory of ``x`` into contiguous tensors, one for each count of ``heads``.

    Their shapes are ``[*x.shape[:2], count, hidden_size]``.
    """
    tokens = x.shape[:2]
    parts = x.flatten().split([tokens.numel() * count * hidden_size for count in heads])
    pairs = zip(parts, heads, strict=True)
    return tuple(part.view(*tokens, count, hidden_size) for part, count in pairs)


def leaves(parts: tuple) -> tuple:
    """The same tensors, requiring gradients."""
    return tuple(part.detach().requires_grad_() for part in parts)


def gradient(output, leaf, cotangent):
    """The gradient of a call's leaf, a tensor or tuple as that is; the output's graph is kept."""
    import torch

    gradients = torch.autograd.grad(output, leaf, cotangent, retain_graph=True)
    return gradients if isinstance(leaf, tuple) else gradients[0]


PATH_CALLS: dict[str, type[Rotation]] = {
    **{"thd": _Packed, "thd-short": _Packed, "starts": _StartPositions},
    **{"qkv": _Qkv, "qk": _QueriesKeys},
    **{"tables": _Tables, "tables-inplace": _InPlace, "tables-bhsd": _Attention},
    **{"partial": _Partial, "head-96": Rotation, "then-read": _ThenRead},
}


def check(output, x, call: Call, direction: str) -> None:
    """Raise AssertionError unless ``output`` is that of the call for ``x``.

    ``x`` is the input, or in the backward the memory of the cotangents. A rotation is checked slice
    by slice, by the suite's own float32 formula, with torch.testing.assert_close's tolerance for
    the dtype, beyond the slack that the call documents.
    """
    call.check(output, x, direction)
