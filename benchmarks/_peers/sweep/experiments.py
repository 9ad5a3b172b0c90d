"""What each experiment measures, and the figures that show it. Imports no torch.

``published.json`` has where each comes from, and what its author saw.
"""

import itertools
from collections.abc import Iterable
from typing import NamedTuple

from ..._cells.forms import BACKWARD, FORWARD, ITEM_BYTES
from ..cells import PeerCell

HALF, FORMAT = "float16", "sbhd"
HIDDEN_SIZE, HEADS = 128, 64

OURS, TABLES, COPY = "rope-triton", "rope-triton-tables", "copy"
ENGINE, SEED = "transformer-engine", "seed"
COMPILE, COMPILE_ANGLES = "compile", "compile-angles"
FLASH, LIGER, FLA, PYTORCH = "flash-attention", "liger", "fla", "pytorch"

GBPS, MILLISECONDS, SHARE = "gbps", "milliseconds", "share"


class Axis(NamedTuple):
    """What a figure varies: a field of :class:`PeerCell` or "mib", the tensor's size."""

    name: str
    label: str
    doubles: bool


SEQ_LEN = Axis("seq_len", "sequence length [tokens]", doubles=True)
EVEN_SEQ_LEN = SEQ_LEN._replace(doubles=False)
SIZE = Axis("mib", "size of the tensor [MiB]", doubles=True)
AXES = {
    "seq_len": SEQ_LEN,
    "hidden_size": Axis("hidden_size", "hidden size of a head [channels]", doubles=True),
    "heads": Axis("heads", "heads", doubles=True),
    "batch": Axis("batch", "batch [sequences]", doubles=True),
}


class Figure(NamedTuple):
    """A plot and a table: ``metric`` over ``axis``, a line for each provider of the cells."""

    name: str
    title: str
    direction: str
    metric: str
    axis: Axis
    cells: tuple[PeerCell, ...]

    @property
    def providers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell.provider for cell in self.cells))


class Timing(NamedTuple):
    """A cell in one direction."""

    direction: str
    cell: PeerCell


class Experiment(NamedTuple):
    name: str
    title: str
    figures: tuple[Figure, ...]

    @property
    def timings(self) -> list[Timing]:
        """All that the figures show, once each, in the order in which it is measured."""
        shown = (Timing(each.direction, cell) for each in self.figures for cell in each.cells)
        return list(dict.fromkeys(shown))

    def of(self, providers: Iterable[str]) -> "Experiment":
        """The same experiment with these providers only."""
        kept = set(providers)
        figures = (
            each._replace(cells=tuple(cell for cell in each.cells if cell.provider in kept))
            for each in self.figures
        )
        return self._replace(figures=tuple(figures))


def position(axis: Axis, cell: PeerCell) -> float:
    """Where a cell lies on an axis."""
    if axis is SIZE or axis.name == SIZE.name:
        return cell.bytes_moved / 2 / 2**20
    return getattr(cell, axis.name)


def _cells(providers: Iterable[str], points: Iterable[dict]) -> tuple[PeerCell, ...]:
    """Every provider at every point, the providers of a point one after the other."""
    usual = {"hidden_size": HIDDEN_SIZE, "heads": HEADS, "batch": 1, "dtype": HALF}
    return tuple(
        PeerCell(provider, format=FORMAT, **(usual | point))
        for point, provider in itertools.product(points, providers)
    )


# --- bandwidth over the sequence length, for four batches -----------------------------------------

_THROUGHPUT = (OURS, TABLES, COPY, ENGINE, SEED, COMPILE, FLASH, LIGER, FLA)


def _throughput(steps: Iterable[int], batches: Iterable[int]) -> Experiment:
    figures = [
        Figure(
            f"throughput-batch-{batch}",
            f"Bandwidth, batch {batch}, forward ({HEADS} heads of {HIDDEN_SIZE}, {HALF}, {FORMAT})",
            FORWARD,
            GBPS,
            EVEN_SEQ_LEN,
            _cells(_THROUGHPUT, ({"seq_len": 128 * step, "batch": batch} for step in steps)),
        )
        for batch in batches
    ]
    return Experiment("throughput", "Bandwidth over the sequence length", tuple(figures))


# --- milliseconds of short sequences --------------------------------------------------------------

SHORT_SEQ_LENS = (32, 64, 128, 256, 512)
_COMPILED = COMPILE, COMPILE_ANGLES
_MILLISECONDS = (OURS, TABLES, COPY, PYTORCH, *_COMPILED, ENGINE, SEED, FLASH, LIGER, FLA)


def _milliseconds(seq_lens: Iterable[int]) -> Experiment:
    points = [{"seq_len": seq_len} for seq_len in seq_lens]
    figures = [
        Figure(
            f"milliseconds-{direction}",
            f"Time a call, {direction} (batch 1, {HEADS} heads of {HIDDEN_SIZE}, {HALF}, {FORMAT})",
            direction,
            MILLISECONDS,
            SEQ_LEN,
            _cells(_MILLISECONDS, points),
        )
        for direction in (FORWARD, BACKWARD)
    ]
    return Experiment("milliseconds", "Milliseconds of short sequences", tuple(figures))


# --- fused, fused and not fused -------------------------------------------------------------------

_STUDY = (OURS, ENGINE, LIGER, FLASH, *_COMPILED, PYTORCH)
_STUDY_POINT = {"seq_len": 2048, "hidden_size": 128, "heads": 32, "batch": 4}


def _study(**values: Iterable[int]) -> Experiment:
    figures = []
    for direction, (name, along) in itertools.product((FORWARD, BACKWARD), values.items()):
        rest = {key: value for key, value in _STUDY_POINT.items() if key != name}
        where = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in rest.items())
        points = [_STUDY_POINT | {name: value} for value in along]
        title = f"Fused or not, {direction} ({where}, {HALF}, {FORMAT})"
        figures.append(
            Figure(
                f"study-{direction}-{name.replace('_', '-')}",
                title,
                direction,
                GBPS,
                AXES[name],
                _cells(_STUDY, points),
            )
        )
    return Experiment("study", "Fused against fused against unfused", tuple(figures))


# --- share of a copy's speed ----------------------------------------------------------------------

_BANDWIDTH = (OURS, TABLES, ENGINE, SEED, *_COMPILED, FLASH, LIGER, FLA)


def _bandwidth(sizes: Iterable[int]) -> Experiment:
    figures = []
    for direction, dtype in itertools.product((FORWARD, BACKWARD), ITEM_BYTES):
        token_bytes = HEADS * HIDDEN_SIZE * ITEM_BYTES[dtype]
        points = [{"seq_len": (mib << 20) // token_bytes, "dtype": dtype} for mib in sizes]
        figures.append(
            Figure(
                f"bandwidth-{direction}-{dtype}",
                f"Share of a copy's speed, {direction}, {dtype} (batch 1, {HEADS} heads of "
                f"{HIDDEN_SIZE}, {FORMAT})",
                direction,
                SHARE,
                SIZE,
                _cells(_BANDWIDTH, points),
            )
        )
    return Experiment("bandwidth", "Share of the device's own copy", tuple(figures))


def _by_name(*experiments: Experiment) -> dict[str, Experiment]:
    return {each.name: each for each in experiments}


GRIDS: dict[str, dict[str, Experiment]] = {
    # The seeds' own points. 1 MiB fits in any L2 and 1 GiB in none.
    "full": _by_name(
        _throughput(range(2, 32), (1, 2, 4, 8)),
        _milliseconds(SHORT_SEQ_LENS),
        _study(
            seq_len=(256, 512, 1024, 2048, 4096, 8192, 16384),
            hidden_size=(32, 64, 96, 128, 192, 256),
            heads=(4, 8, 16, 32, 64, 128),
            batch=(1, 2, 4, 8, 16, 32),
        ),
        _bandwidth([2**power for power in range(11)]),
    ),
    # Every figure with its ends and a middle, to see in minutes that all of it works.
    "small": _by_name(
        _throughput((2, 16, 31), (1, 2, 4, 8)),
        _milliseconds((32, 128, 512)),
        _study(
            seq_len=(256, 2048, 8192),
            hidden_size=(64, 128, 256),
            heads=(8, 32, 128),
            batch=(1, 4, 16),
        ),
        _bandwidth((1, 32, 256)),
    ),
}
EXPERIMENTS = tuple(GRIDS["full"])
