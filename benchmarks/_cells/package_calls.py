"""Call the package through its public names, and check what it returns.

The check is the suite's own formula on the tables that the call gets, never the measured commit's.
"""

import itertools
from collections.abc import Callable

from .forms import BACKWARD, FORWARD, QK_HEADS, QKV_HEADS, BaseCell

CHECKED_BYTES = 512 << 20  # of inputs and outputs that are checked at once


class Unavailable(NotImplementedError):
    """A library that is not installed here, or cannot do what a cell asks for."""


class Rotation:
    """A call on one tensor by angles.

    Parameters
    ----------
    cell : BaseCell
        The call, and its tensor.
    freqs : torch.Tensor
        Angles in radians, float32 ``[s2, 1, 1, hidden_size]`` with ``s2 >= cell.positions``, in
        half-rotation order, on the device of the call.
    **options
        Further keyword arguments of the package's function.

    Raises
    ------
    NotImplementedError
        If the measured commit lacks the function. One that lacks an argument refuses when called.
    """

    # Whether each part of the output is rotated, or only copied.
    rotated: tuple[bool, ...] = (True,)
    # Whether it takes angles, as the package's own module makes them.
    by_angles = True
    # Whether it may overwrite its input.
    in_place = False
    # Whether pairs of channels are neighbours, and what is rounded besides the result.
    interleaved = False
    rounding = "once"
    # Error that the call's arithmetic may add to the rounding of the result, relative to the length
    # of the rotated pair of channels.
    slack = 0.0

    def __init__(self, cell: BaseCell, freqs, **options):
        self._function = self._public()
        self.cell, self._freqs = cell, freqs
        self._options = self._more(freqs.device) | options

    def _public(self):
        try:
            return self._find()
        except ModuleNotFoundError:
            raise
        except ImportError as error:  # of a name; the package's path says nothing
            reason = str(error).removesuffix(f" ({error.path})")
            raise NotImplementedError(reason) from None

    def call_through(self, change: Callable) -> None:
        """From now on, call the package's function with every argument changed by ``change``."""
        function = self._function
        self._function = lambda *args, **options: function(
            *map(change, args), **{name: change(value) for name, value in options.items()}
        )

    def _find(self):
        from rope_triton import apply_rotary_pos_emb

        return apply_rotary_pos_emb

    def _more(self, device) -> dict:
        return {"tensor_format": self.cell.format}

    def operand(self, x):
        """The argument of ``forward``, in the memory of ``x`` of the cell's shape and dtype."""
        return x

    def leaf(self, x):
        """The same, requiring a gradient."""
        return x.requires_grad_()

    def forward(self, x):
        """The package's output for an operand."""
        return self._function(x, self._freqs, **self._options)

    def copies(self, x, copy: Callable | None = None):
        """Copies of as many bytes, which ``forward`` is compared with.

        ``copy``: what makes the first of them, of a contiguous tensor; default: ``clone``.
        """
        return copy(x) if copy else x.clone()

    def bytes_read(self) -> int:
        """Bytes of angles or tables that a call needs, each row once; 0 where nobody knows."""
        return self.cell.distinct_positions * self.cell.hidden_size * self._freqs.element_size()

    def cotangent(self, x):
        """A gradient for the output, in the memory of ``x``."""
        return x

    def given(self, x, direction: str):
        """What is rotated: the input, or the cotangents in the memory of ``x``."""
        return x if direction == FORWARD else self.cotangent(x)

    def split(self, whole) -> tuple:
        """The tensors in an output, an input or a gradient, in the order of the output."""
        return (whole,)

    def cos_sin(self) -> tuple:
        """Cosine and sine of every token's angles, float64, ``[..., hidden_size / 2]``."""
        angle = self._token_freqs()[..., : self.cell.hidden_size // 2].double()
        return angle.cos(), angle.sin()

    def _token_freqs(self):
        return self._freqs[: self.cell.positions].transpose(0, seq_dim(self.cell))


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

    def __init__(self, cell: BaseCell, freqs):
        import torch

        super().__init__(cell, freqs)
        angle = freqs[: cell.positions, 0, 0, : cell.hidden_size // 2].double()
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

    def __init__(self, cell: BaseCell, freqs):
        super().__init__(cell, freqs)
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


def seq_dim(cell: BaseCell) -> int:
    """The tensor's dimension of positions; in packed sequences, that of tokens."""
    return max(cell.format.find("s"), 0)


def check(output, x, call: Rotation, direction: str) -> None:
    """Raise AssertionError unless ``output`` is that of the call for ``x``, slice by slice.

    By the suite's own float32 formula, with torch.testing.assert_close's tolerance for the dtype,
    beyond the slack that the call documents. ``x`` is the input, or in the backward the memory of
    the cotangents.
    """
    given = call.split(call.given(x, direction))
    cos_sin = [each.float() for each in call.cos_sin()]
    parts = zip(call.split(output), given, call.rotated, strict=True)
    for found, part, rotated in parts:
        _check_part(found, part, cos_sin if rotated else None, call, direction)


def _check_part(output, x, cos_sin, call: Rotation, direction: str) -> None:
    import torch

    dim = seq_dim(call.cell)
    positions = x.shape[dim]
    rows = max(1, CHECKED_BYTES // (2 * x.nbytes // positions))
    for start in range(0, positions, rows):
        here = dim, start, min(rows, positions - start)
        expected, found = x.narrow(*here), output.narrow(*here)
        if cos_sin:
            cos, sin = (each.narrow(*here) for each in cos_sin)
            part, expected = expected, _rotated(expected, cos, sin, call, direction).to(x.dtype)
            found = _without_slack(found, expected, part, call) if call.slack else found
        torch.testing.assert_close(found, expected)


def _without_slack(found, expected, x, call: Rotation):
    """``found``, moved towards ``expected`` by the call's slack of the length of each pair."""
    import torch

    length = torch.hypot(*_pairs(x.float(), call.interleaved)) * call.slack
    allowed = _joined((length, length), call.interleaved)
    off = found.float() - expected.float()
    return (expected.float() + (off - off.clamp(-allowed, allowed))).to(found.dtype)


def _rotated(x, cos, sin, call: Rotation, direction: str):
    rounded = {"once": (False, False), "tables": (True, False), "each": (True, True)}
    tables_too, products_too = rounded[call.rounding]
    first, second = _pairs(x.float(), call.interleaved)
    if tables_too:
        cos, sin = (table.to(x.dtype).float() for table in (cos, sin))
    if direction == BACKWARD:
        sin = -sin
    products = first * cos, second * sin, second * cos, first * sin
    if products_too:
        products = tuple(product.to(x.dtype).float() for product in products)
    turned = products[0] - products[1], products[2] + products[3]
    return _joined(turned, call.interleaved)


def _pairs(x, interleaved: bool) -> tuple:
    return (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)


def _joined(pair: tuple, interleaved: bool):
    import torch

    return torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
