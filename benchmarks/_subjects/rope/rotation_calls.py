"""Call the package's functions of the rotation, and check what they return.

The check is the suite's own formula on the angles or tables that the call gets, never the measured
commit's.
"""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

from ..._engine.subject import FORWARD
from ..calls import Call, leaves
from . import angles, formula
from .names import FUNCTIONS, PACKED, QKV_HEADS, TAIL

CP_SIZE, CP_RANK = 2, 1
OFFSET = 3  # rows of the tables, where one offset is given for all sequences
_ROUNDINGS = {"": "once", "rtables": "tables", "reach": "each"}


class Rotation(Call):
    """A call by its name, with angles or precomputed tables of its own.

    Inputs and cotangents lie one after the other in flat memory ``x``. Where sequences or heads
    have angles of their own, these grow with the index of the sequence and the head.
    """

    cell: Any
    # Whether results depend on this package's own module of angles, which is then checked, too.
    checks_angles = True
    # Error that the call's arithmetic may add to the rounding of the result, relative to the length
    # of the rotated pair of channels.
    slack = 0.0

    def __init__(self, cell, device: str):
        call = self._call = cell.call_name
        super().__init__(cell)
        self.interleaved, self.rounding = bool(call.interleaved), _ROUNDINGS[call.rounding]
        if self.rounding != "once":
            self.slack = _rounding_slack(self.rounding, cell.dtype)
        self._angles = self._make_angles(device)
        self._options = self._more(device)
        self._arguments = self._tables()
        single = len(cell.input_shapes) == 1
        self._alone = single and not (call.inplace or call.then)
        self._read: list = []  # keeps copies: memory that is written again would stay in L2

    @functools.cached_property
    def in_place(self) -> bool:
        return bool(self._call.inplace)

    @functools.cached_property
    def rotated(self) -> tuple[bool, ...]:
        """Whether each part of the output is rotated, or only copied."""
        turned = [self._call.function != "qkv" or i < 2 for i in range(len(self.cell.shapes))]
        if self._call.rotated < self._call.channels:
            return tuple(itertools.chain.from_iterable((part, False) for part in turned))
        return tuple(turned)

    def _find(self):
        import rope_triton

        name = FUNCTIONS[self._call.function]
        try:
            return getattr(rope_triton, name)
        except AttributeError:
            raise ImportError(f"rope_triton has no {name}") from None

    # --- arguments --------------------------------------------------------------------------------

    def _make_angles(self, device: str):
        """Radians of pairs of channels, float32 ``[positions, 1 or batch, 1 or heads, pairs]``."""
        import torch

        call, cell = self._call, self.cell
        radians = angles.exact(cell.first, cell.positions, call.rotated, device).float()
        if cell.positions == 1:
            radians = radians + 1  # position 0 would not be rotated
        batch = len(cell.lengths) if call.tables in ("perbatch", "pereach") else 1
        heads = call.heads[0] if call.tables in ("perhead", "pereach") else 1
        if batch == heads == 1:
            return radians
        steps = torch.arange(batch * heads, device=device, dtype=radians.dtype)
        return radians * (1 + steps.view(1, batch, heads, 1) / 64)

    def _more(self, device) -> dict:
        """The keyword arguments besides tensors and tables."""
        import torch

        call, cell = self._call, self.cell
        options: dict = {"tensor_format": call.format} if call.with_angles else {}
        if self.interleaved:
            options["interleaved"] = True
        if self.rounding != "once":
            options["rounding"] = self.rounding
        if call.inplace:
            options["inplace"] = True
        if call.parallel and call.with_angles:
            options |= {"cp_size": CP_SIZE, "cp_rank": CP_RANK}
        if call.format == "thd":
            share = CP_SIZE if call.parallel else 1
            bounds = itertools.accumulate((share * n for n in cell.lengths), initial=0)
            options["cu_seqlens"] = torch.tensor(list(bounds), dtype=torch.int32, device=device)
        if call.position == "starts":
            name = "start_positions" if call.with_angles else "seqlen_offsets"
            options[name] = torch.tensor(cell.starts, dtype=torch.int32, device=device)
        if call.position == "offset":
            options["seqlen_offsets"] = OFFSET
        if call.position == "ids":
            options["position_ids"] = self._positions(device).to(torch.int32)
        return options

    def _tables(self) -> tuple:
        """The angles or the tables as the function takes them."""
        call, radians = self._call, self._angles
        if call.with_angles:
            freqs = angles.by_channel(radians, self.interleaved)
            return (freqs, freqs, self._qkv_channels()) if call.function == "qkv" else (freqs,)
        dtype = self._table_dtype()
        tables = radians.double().cos().to(dtype), radians.double().sin().to(dtype)
        if call.parallel:  # precomputed tables know no ranks: these have the rows of one
            tables = tuple(table[self._positions(radians.device)[0]] for table in tables)
        if not call.tables:
            return tuple(table[:, 0, 0] for table in tables)
        if call.function != "attention":
            return tuple(table[:, :, 0].transpose(0, 1) for table in tables)
        return tuple(table.permute(1, 2, 0, 3) for table in tables)

    def _table_dtype(self):
        import torch

        return torch.float32 if self._call.table_dtype else getattr(torch, self.cell.dtype)

    def _qkv_channels(self) -> list[int]:
        """Channels of queries, keys and values in a group."""
        return [count * self._call.channels for count in QKV_HEADS]

    def _positions(self, device):
        """Each token's row of the table: ``[b, s]``, or ``[t]`` of packed sequences."""
        import torch

        starts, lengths = (
            torch.tensor(values, device=device) for values in (self.cell.starts, self.cell.lengths)
        )
        if self._call.format == "thd":
            before = (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
            index = torch.arange(len(before), device=device) - before
            starts, lengths = (t.repeat_interleave(lengths) for t in (starts, lengths))
        else:
            index = torch.arange(self.cell.lengths[0], device=device)
            starts, lengths = starts[:, None], lengths[:, None]
        if self._call.parallel:  # the rank's two chunks, half of its tokens in either
            chunk = lengths // 2
            second = 2 * CP_SIZE - 1 - CP_RANK
            index = torch.where(
                index < chunk, index + CP_RANK * chunk, index + (second - 1) * chunk
            )
        return starts + index

    # --- the call ---------------------------------------------------------------------------------

    def forward(self, operand):
        if self._alone:  # as its user calls it: the host's time of this is measured
            return self._function(operand, *self._arguments, **self._options)
        tensors, options = operand if isinstance(operand, tuple) else (operand,), self._options
        if self.in_place and tensors[0].requires_grad:  # a leaf, which cannot change
            tensors, options = (tensors[0].clone(),), options | {"inplace_gradient": True}
        out = self._function(*tensors, *self._arguments, **options)
        if self.in_place and out.data_ptr() != tensors[0].data_ptr():
            raise AssertionError("the call did not rotate in place: its output is a new tensor")
        if self._call.then:
            self._read.append(out.clone())
        return out

    def operand(self, x):
        return self._views(x, self.cell.input_shapes)

    def leaf(self, x):
        operand = self.operand(x)
        return leaves(operand) if isinstance(operand, tuple) else leaves((operand,))[0]

    def cotangent(self, x):
        return self._views(x, self.cell.shapes)

    def _views(self, x, shapes):
        """Tensors of these shapes in the memory of ``x``, in the call's layout."""
        split = _packed if self._call.layout == PACKED else one_after_the_other
        views = split(x, shapes, self._call.layout)
        return views if len(views) > 1 else views[0]

    def copies(self, x, copy: Callable | None = None):
        # Not all of x, which has room for strides.
        first = super().copies(x[: sum(map(math.prod, self.cell.shapes))], copy)
        return (first, first.clone()) if self._call.then else first

    def bytes_read(self) -> int:
        """Bytes of angles or tables that a call needs, each row once."""
        call, cell = self._call, self.cell
        alone = call.tables in ("perbatch", "pereach")  # each sequence has rows of its own
        rows = sum(cell.lengths) if alone else cell.distinct_positions
        heads = call.heads[0] if call.tables in ("perhead", "pereach") else 1
        return rows * heads * call.rotated * self._arguments[0].element_size()

    # --- what is right ----------------------------------------------------------------------------

    def split(self, output) -> tuple:
        """The tensors in an output, an input or a gradient, in the order of the output."""
        call, tensors = self._call, output if isinstance(output, tuple) else (output,)
        if call.function == "qkv" and len(tensors) == 1:
            parts = tensors[0].split(self._qkv_channels(), dim=-1)
            tensors = tuple(
                part.unflatten(-1, (-1, call.channels)).flatten(-3, -2) for part in parts
            )
        if call.rotated == call.channels:
            return tensors
        sizes = [call.rotated, call.channels - call.rotated]
        return tuple(itertools.chain.from_iterable(tensor.split(sizes, -1) for tensor in tensors))

    def check(self, output, x, direction: str) -> None:
        """Raise AssertionError unless ``output`` is that of the call for ``x``.

        ``x`` is the input, or in the backward the memory of the cotangents. Checked slice by slice,
        with torch.testing.assert_close's tolerance for the dtype, beyond the slack.
        """
        if self.checks_angles and self._call.with_angles:
            angles.check_package(self.cell.positions, self._call.rotated, x.device.type)
        tables = [table.float() for table in self.cos_sin()]
        parts = zip(self.split(output), self.parts(x, direction), self.rotated, strict=True)
        for result, part, rotated in parts:
            formula.check_part(result, part, tables if rotated else None, self, direction)

    def exact(self, x, direction: str) -> tuple:
        """The parts of the exact result for ``x``, float64 on the device of ``x``."""
        return self.exact_by(self.cos_sin(), x, direction)

    def exact_by(self, cos_sin: tuple, x, direction: str) -> tuple:
        """The same by these cosines and sines, as :meth:`cos_sin` has them."""
        cos, sin = (table.to(x.device) for table in cos_sin)
        sin = sin if direction == FORWARD else -sin
        return tuple(
            formula.rotated(part.double(), cos, sin, self.interleaved) if rotated else part.double()
            for part, rotated in zip(self.parts(x, direction), self.rotated, strict=True)
        )

    def parts(self, x, direction: str) -> tuple:
        """The parts of what is rotated: the input, or the cotangents in the memory of ``x``."""
        return self.split(self.operand(x) if direction == FORWARD else self.cotangent(x))

    def cos_sin(self) -> tuple:
        """Cosine and sine of every token's angles, float64, to be broadcast to an output's."""
        token = self.token_angles().double()
        tables = token.cos(), token.sin()
        if self._call.with_angles:
            return tables
        dtype = self._table_dtype()
        return tuple(table.to(dtype).double() for table in tables)

    def token_angles(self):
        """Each token's angles, float32, in the order of an output's dimensions: 1 or all heads."""
        import torch

        cell, radians, format = self.cell, self._angles, self._call.format
        if cell.spans == {(0, cell.positions)} and radians.shape[1] == 1 and format != "thd":
            return radians.movedim(0, format.index("s"))  # alike in all sequences
        sequences = torch.arange(len(cell.lengths), device=radians.device)
        if format == "thd":
            sequences = sequences.repeat_interleave(sequences.new_tensor(cell.lengths))
        else:
            sequences = sequences[:, None]
        if radians.shape[1] == 1:
            sequences = sequences * 0
        # [b, s or t, h or 1, pairs]
        token = radians[self._positions(radians.device), sequences]
        if format == "sbhd":
            token = token.transpose(0, 1)
        return token.transpose(1, 2) if format == "bhsd" else token


def _rounding_slack(rounding: str, dtype: str) -> float:
    """What rounding may cost that is not rounded alike, over the length of a pair of channels.

    A cosine whose last bit differs, though its error is within float32's, may be rounded to either
    neighbour, and so may a product.
    """
    import torch

    eps = torch.finfo(getattr(torch, dtype)).eps
    return eps if rounding == "tables" else 2 * eps


# --- tensors in memory ----------------------------------------------------------------------------


def one_after_the_other(x, shapes, layout: str = "") -> tuple:
    """Tensors of these shapes, each in its own part of the flat memory ``x``."""
    views, begin = [], 0
    for shape in shapes:
        elements = stored_elements([shape], layout)
        views.append(_view(x[begin : begin + elements], shape, layout))
        begin += elements
    return tuple(views)


def _view(memory, shape: tuple[int, ...], layout: str):
    """A tensor of this shape in flat memory."""
    if layout == "misaligned":
        return memory[1:].view(shape)
    if layout in ("transposed", "exchanged"):
        # Heads before positions, where they are, positions before heads; all in pairs.
        order = [1, 0, 2] if len(shape) == 3 else [0, 2, 1, 3]
        order = [1, 0, 3, 2] if layout == "exchanged" else order
        return memory.view([shape[dim] for dim in order]).permute(order)
    rows = memory.view(*shape[:-1], row_width(shape[-1], layout))
    if layout == "strided":
        return rows[..., ::2]
    first = rows.shape[-1] - shape[-1] if layout.startswith(TAIL) else 0
    return rows[..., first : first + shape[-1]]


def _packed(x, shapes, layout: str) -> tuple:
    """Views of ``[.., heads of all and values, channels]`` in the flat memory ``x``."""
    rows = x[: stored_elements(shapes, layout)].view(*shapes[0][:-2], _packed_heads(shapes), -1)
    return tuple(rows.split([*(shape[-2] for shape in shapes), shapes[-1][-2]], dim=-2)[:-1])


def _packed_heads(shapes) -> int:
    """Heads in a token's row: those of the tensors, and values, as many as the last has."""
    return sum(shape[-2] for shape in shapes) + shapes[-1][-2]


def stored_elements(shapes, layout: str) -> int:
    """Elements of the memory in which tensors of these shapes lie, with room for their strides."""
    if layout == PACKED:
        return math.prod(shapes[0][:-2]) * _packed_heads(shapes) * shapes[0][-1]
    one_more = 1 if layout == "misaligned" else 0
    return sum(math.prod(shape[:-1]) * row_width(shape[-1], layout) + one_more for shape in shapes)


def row_width(channels: int, layout: str) -> int:
    """The channels of the row of memory in which a head lies."""
    if layout.startswith(TAIL):
        return int(layout.removeprefix(TAIL))
    wider = {"sliced": 2 * channels, "strided": 2 * channels, "odd": channels + 1}
    return wider.get(layout, channels)
