"""Call the package in any form of the surface, and say what is right."""

import itertools
import math
from typing import Any

from . import angles
from .forms import FORWARD, QKV_HEADS
from .package_calls import Rotation, leaves

FUNCTIONS = {
    "angles": "apply_rotary_pos_emb",
    "qk": "apply_qk_rotary_pos_emb",
    "qkv": "apply_fused_qkv_rotary_pos_emb",
    "tables": "apply_rotary_emb",
    "qktables": "apply_qk_rotary_emb",
    "attention": "rotary_embedding",
}
"""Names in a form, and the public functions."""
BY_ANGLES = ("angles", "qk", "qkv")
ROUNDINGS = {"": "once", "rtables": "tables", "reach": "each"}
CP_SIZE, CP_RANK = 2, 1
# Layouts that are no option of a form: those of models and of calls by name.
TAIL = "of"  # e.g. "of192": the last channels of a row of 192
PACKED = "packed"  # of [.., heads, channels]: a token's heads in one row, and values after them
UNALIGNED = ("odd", "misaligned")  # layouts whose rows are aligned to one element
OFFSET = 3  # rows of the tables, where one offset is given for all sequences


class SurfaceCall(Rotation):
    """A call in one of the forms; see ``package_calls.Rotation``.

    Where sequences or heads have angles of their own, these grow with the index of the sequence and
    the head.
    """

    cell: Any  # a ``surface.FormCell``, which makes this

    def __init__(self, cell, device: str):
        form = self._form = cell.of
        self.by_angles = form.function in BY_ANGLES
        self.interleaved, self.in_place = bool(form.interleaved), bool(form.inplace)
        self.rounding = ROUNDINGS[form.rounding]
        self._partial = form.rotated < form.channels
        self.rotated = tuple(itertools.chain.from_iterable(self._rotated_parts(cell)))
        super().__init__(cell, device)
        if self.rounding != "once":
            self.slack = _rounding_slack(self.rounding, self.cell.dtype)
        # By one radian more: a token at position 0, as in decoding, would not be rotated.
        self._cell_angles = _for_each(self._freqs[..., : form.rotated // 2], cell) + 1
        self._arguments = self._tables()

    def _rotated_parts(self, cell):
        for index in range(len(cell.shapes)):
            turned = self._form.function != "qkv" or index < 2
            yield (turned, False) if self._partial else (turned,)

    def _find(self):
        import rope_triton

        name = FUNCTIONS[self._form.function]
        try:
            return getattr(rope_triton, name)
        except AttributeError:
            raise ImportError(f"rope_triton has no {name}") from None

    def _more(self, device) -> dict:
        """The keyword arguments besides tensors and tables."""
        import torch

        form, cell = self._form, self.cell
        options: dict = {"interleaved": self.interleaved}
        if self.by_angles:
            options["tensor_format"] = form.format
        if self.rounding != "once":
            options["rounding"] = self.rounding
        if form.inplace:
            options["inplace"] = True
        if form.parallel and self.by_angles:
            options |= {"cp_size": CP_SIZE, "cp_rank": CP_RANK}
        if form.format == "thd":
            whole = CP_SIZE if form.parallel else 1
            bounds = itertools.accumulate((whole * each for each in cell.lengths), initial=0)
            options["cu_seqlens"] = torch.tensor(list(bounds), dtype=torch.int32, device=device)
        if form.position == "starts":
            name = "start_positions" if self.by_angles else "seqlen_offsets"
            options[name] = torch.tensor(cell.starts, dtype=torch.int32, device=device)
        if form.position == "offset":
            options["seqlen_offsets"] = OFFSET
        if form.position == "ids":
            options["position_ids"] = self._positions(device).to(torch.int32)
        return options

    def _tables(self) -> tuple:
        """The angles or the tables as the function takes them."""
        form, given = self._form, self._cell_angles
        if self.by_angles:
            freqs = angles.by_channel(given, self.interleaved)
            if form.function == "qkv":
                return freqs, freqs, self._qkv_channels()
            return (freqs,)
        dtype = self._table_dtype()
        tables = tuple(table.to(dtype) for table in (given.double().cos(), given.double().sin()))
        if form.parallel:  # ready-made tables know no ranks: these have the rows of one
            tables = tuple(table[self._positions(given.device)[0]] for table in tables)
        if not form.tables:
            return tuple(table[:, 0, 0] for table in tables)
        if form.function != "attention":
            return tuple(table[:, :, 0].transpose(0, 1) for table in tables)
        return tuple(table.permute(1, 2, 0, 3) for table in tables)

    def _table_dtype(self):
        import torch

        return torch.float32 if self._form.table_dtype else getattr(torch, self.cell.dtype)

    def _qkv_channels(self) -> list[int]:
        """Channels of queries, keys and values in a group."""
        return [count * self._form.channels for count in QKV_HEADS]

    def forward(self, x):
        tensors, options = x if isinstance(x, tuple) else (x,), self._options
        if self.in_place and tensors[0].requires_grad:  # a leaf, which cannot change
            tensors, options = (tensors[0].clone(),), options | {"inplace_gradient": True}
        out = self._function(*tensors, *self._arguments, **options)
        if self.in_place and out.data_ptr() != tensors[0].data_ptr():
            raise AssertionError("the call did not rotate in place: its output is a new tensor")
        return out

    def operand(self, x):
        return self._views(x, self.cell.given_shapes)

    def leaf(self, x):
        given = self.operand(x)
        return leaves(given) if isinstance(given, tuple) else given.detach().requires_grad_()

    def cotangent(self, x):
        return self._views(x, self.cell.shapes)

    def given(self, x, direction: str):
        return self.operand(x) if direction == FORWARD else self.cotangent(x)

    def copies(self, x, copy=None):
        # Not all of x, which has room for strides.
        return super().copies(x[: self.cell.bytes_moved // 2 // x.element_size()], copy)

    def bytes_read(self) -> int:
        form, cell = self._form, self.cell
        alone = form.tables in ("perbatch", "pereach")  # each sequence has rows of its own
        rows = sum(cell.lengths) if alone else cell.distinct_positions
        heads = form.heads if form.tables in ("perhead", "pereach") else 1
        return rows * heads * form.rotated * self._arguments[0].element_size()

    def _views(self, x, shapes):
        """Tensors of these shapes in the memory of ``x``, in the form's layout."""
        split = _packed if self._form.layout == PACKED else _one_after_the_other
        views = split(x, shapes, self._form.layout)
        return views if len(views) > 1 else views[0]

    def split(self, whole) -> tuple:
        form = self._form
        tensors = whole if isinstance(whole, tuple) else (whole,)
        if form.function == "qkv" and len(tensors) == 1:
            parts = tensors[0].split(self._qkv_channels(), dim=-1)
            tensors = tuple(
                part.unflatten(-1, (-1, form.channels)).flatten(-3, -2) for part in parts
            )
        if not self._partial:
            return tensors
        sizes = [form.rotated, form.channels - form.rotated]
        return tuple(itertools.chain.from_iterable(each.split(sizes, -1) for each in tensors))

    def cos_sin(self) -> tuple:
        token = self.token_angles().double()
        tables = token.cos(), token.sin()
        if self.by_angles:
            return tables
        dtype = self._table_dtype()
        return tuple(table.to(dtype).double() for table in tables)

    def token_angles(self):
        """Each token's angles, float32, in the order of an output's dimensions: 1 or all heads."""
        import torch

        cell, given = self.cell, self._cell_angles
        sequences = torch.arange(len(cell.lengths), device=given.device)
        if self._form.format == "thd":
            sequences = sequences.repeat_interleave(sequences.new_tensor(cell.lengths))
        else:
            sequences = sequences[:, None]
        if given.shape[1] == 1:
            sequences = sequences * 0
        token = given[self._positions(given.device), sequences]  # [b, s or t, h or 1, rotated / 2]
        if self._form.format == "sbhd":
            token = token.transpose(0, 1)
        if self._form.format == "bhsd":
            token = token.transpose(1, 2)
        return token

    def _positions(self, device):
        """Each token's row of the table: ``[b, s]``, or ``[t]`` of packed sequences."""
        import torch

        starts, lengths = (
            torch.tensor(each, device=device) for each in (self.cell.starts, self.cell.lengths)
        )
        if self._form.format == "thd":
            before = (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
            index = torch.arange(len(before), device=device) - before
            starts, lengths = (each.repeat_interleave(lengths) for each in (starts, lengths))
        else:
            index = torch.arange(self.cell.lengths[0], device=device)
            starts, lengths = starts[:, None], lengths[:, None]
        if self._form.parallel:  # the rank's two chunks, each half of its tokens
            chunk = lengths // 2
            second = 2 * CP_SIZE - 1 - CP_RANK
            index = torch.where(
                index < chunk, index + CP_RANK * chunk, index + (second - 1) * chunk
            )
        return starts + index


def _rounding_slack(rounding: str, dtype: str) -> float:
    """What rounding may cost that is not rounded alike, over the length of a pair of channels.

    A cosine whose last bit differs, though its error is within float32's, may be rounded to either
    neighbour, and so may a product.
    """
    import torch

    eps = torch.finfo(getattr(torch, dtype)).eps
    return eps if rounding == "tables" else 2 * eps


def _for_each(given, cell):
    """Angles ``[positions, 1 or b, 1 or h, n]``: those of later sequences and heads are larger."""
    import torch

    form = cell.of
    batch = len(cell.lengths) if form.tables in ("perbatch", "pereach") else 1
    heads = form.heads if form.tables in ("perhead", "pereach") else 1
    if batch == heads == 1:
        return given
    steps = torch.arange(batch * heads, device=given.device, dtype=given.dtype)
    return given * (1 + steps.view(1, batch, heads, 1) / 64)


def _one_after_the_other(x, shapes, layout: str) -> tuple:
    """Tensors of these shapes, each in its own part of the flat memory ``x``."""
    views, begin = [], 0
    for shape in shapes:
        view, elements = _view(x, begin, shape, layout)
        views.append(view)
        begin += elements
    return tuple(views)


def _view(x, begin: int, shape: tuple[int, ...], layout: str) -> tuple:
    """A tensor of this shape in the flat memory ``x`` from ``begin`` on, and how much it took."""
    rows, channels = math.prod(shape[:-1]), shape[-1]
    if layout == "misaligned":
        begin += 1
        return x[begin : begin + rows * channels].view(shape), rows * channels + 1
    if not layout:
        return x[begin : begin + rows * channels].view(shape), rows * channels
    if layout == "transposed":  # heads before positions; where they are, positions before heads
        order = [1, 0, 2] if len(shape) == 3 else [0, 2, 1, 3]
        memory = [shape[dim] for dim in order]
        return x[begin : begin + rows * channels].view(memory).permute(order), rows * channels
    width = row_width(channels, layout)
    row = x[begin : begin + rows * width].view(*shape[:-1], width)
    if layout == "strided":
        return row[..., ::2], rows * width
    first = width - channels if layout.startswith(TAIL) else 0
    return row[..., first : first + channels], rows * width


def _packed(x, shapes, layout: str) -> tuple:
    """Views of ``[.., heads of all and values, channels]`` in the flat memory ``x``."""
    rows = x[: stored_elements(shapes, layout)].view(*shapes[0][:-2], _packed_heads(shapes), -1)
    return tuple(rows.split([*(each[-2] for each in shapes), shapes[-1][-2]], dim=-2)[:-1])


def _packed_heads(shapes) -> int:
    """Heads in a token's row: those of the tensors, and values, as many as the last has."""
    return sum(shape[-2] for shape in shapes) + shapes[-1][-2]


def stored_elements(shapes, layout: str) -> int:
    """Elements of the memory in which tensors of these shapes lie; room for their strides."""
    channels = shapes[0][-1]
    if layout == PACKED:
        return math.prod(shapes[0][:-2]) * _packed_heads(shapes) * channels
    rows = sum(math.prod(shape[:-1]) for shape in shapes)
    return rows * row_width(channels, layout) + len(shapes)


def row_width(channels: int, layout: str) -> int:
    """The channels of the row of memory in which a head lies."""
    if layout.startswith(TAIL):
        return int(layout.removeprefix(TAIL))
    return {"sliced": 2 * channels, "strided": 2 * channels, "odd": channels + 1}.get(
        layout, channels
    )
