"""The sweep's experiments: which cells each measures, and the figures that show them.

``published.json`` has what the seeds' authors saw. Imports no torch.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..._engine.subject import BACKWARD, FORWARD
from ..._subjects.rope import models
from ..._subjects.rope.models import DECODE, MODELS, TRAINING
from ..._subjects.rope.names import ITEM_BYTES
from .peer_cells import PeerCell, peer_cell, peer_model_cell, peer_named_cell
from .providers import MODEL_CALLS, PROVIDERS

HALF, FORMAT = "float16", "sbhd"
HIDDEN_SIZE, HEADS = 128, 64
OURS, OURS_BY_TABLES, COPY = "rope-triton", "rope-triton-tables", "copy"
RIVALS = ("flash-attention", "quack", "liger")
"""The kernels by tables that the package's are to be as fast as."""
_TENSOR = f"{HEADS} heads of {HIDDEN_SIZE}"

AXES: dict[str, tuple[str, Callable[[PeerCell], float | str]]] = {
    "seq_len": ("sequence length [tokens]", lambda cell: cell.lengths[0]),
    "hidden_size": ("hidden size of a head [channels]", lambda cell: cell.call_name.channels),
    "heads": ("heads", lambda cell: sum(cell.call_name.heads)),
    "batch": ("batch [sequences]", lambda cell: len(cell.lengths)),
    "mib": ("size of the tensor [MiB]", lambda cell: cell.bytes_moved / 2 / 2**20),
    "model": ("model", lambda cell: cell.values[1]),
    "name": ("call", lambda cell: cell.values[1]),
}
"""What a figure varies -> its label, and where a cell lies."""


class Figure(NamedTuple):
    """A table and a plot: ``metric`` over ``axis``, a line for each provider of the cells.

    ``metric``: a key of ``tables.METRICS``. ``axis``: one of :data:`AXES`; one of names is not
    plotted. ``doubles``: whether the axis is logarithmic.
    """

    name: str
    title: str
    direction: str
    metric: str
    axis: str
    cells: tuple[PeerCell, ...]
    doubles: bool = True

    @property
    def drawn(self) -> bool:
        return self.axis not in ("model", "name")

    @property
    def providers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell.provider for cell in self.cells))

    def position(self, cell: PeerCell) -> Any:
        """Where a cell lies on the axis."""
        return AXES[self.axis][1](cell)


class Timing(NamedTuple):
    direction: str
    cell: PeerCell


class Experiment(NamedTuple):
    """Figures, and what each provider calls for them.

    ``various``: whether hardly two calls share a kernel. ``judged``: whether the package's calls
    are held to ``targets``.
    """

    name: str
    title: str
    figures: tuple[Figure, ...]
    about: Mapping[str, str] = PROVIDERS
    various: bool = False
    judged: bool = False

    @property
    def timings(self) -> list[Timing]:
        """All that the figures show, once each, in the order in which it is measured."""
        shown = (Timing(figure.direction, cell) for figure in self.figures for cell in figure.cells)
        return list(dict.fromkeys(shown))

    def of(self, providers: Iterable[str]) -> "Experiment":
        """The same experiment with these providers only."""
        names = set(providers)
        return self.where(lambda cell: cell.provider in names)

    def where(self, wanted: Callable[[PeerCell], bool]) -> "Experiment":
        figures = (
            figure._replace(cells=tuple(filter(wanted, figure.cells))) for figure in self.figures
        )
        return self._replace(figures=tuple(figures))


def _cells(providers: Iterable[str], points: Iterable[dict]) -> tuple[PeerCell, ...]:
    """Every provider at every point, the providers of a point one after the other."""
    usual = {"hidden_size": HIDDEN_SIZE, "heads": HEADS, "batch": 1, "dtype": HALF}
    return tuple(
        peer_cell(provider, format=FORMAT, **(usual | point))
        for point, provider in itertools.product(points, providers)
    )


_COMPILED = ("compile", "compile-angles")
_BY_TABLES = ("flash-attention", "liger", "fla")
_THROUGHPUT = (OURS, "rope-triton-tables", COPY, "transformer-engine", "seed", "compile")
_MILLISECONDS = (OURS, "rope-triton-tables", COPY, "pytorch", *_COMPILED)
_STUDY = (OURS, "transformer-engine", "liger", "flash-attention", *_COMPILED, "pytorch")
_BANDWIDTH = (OURS, "rope-triton-tables", "transformer-engine", "seed", *_COMPILED)


def _throughput(steps: Iterable[int], batches: Iterable[int]) -> Experiment:
    """Bandwidth over the sequence length, one figure per batch."""
    figures = [
        Figure(
            f"throughput-batch-{batch}",
            f"Bandwidth, batch {batch}, forward ({_TENSOR}, {HALF}, {FORMAT})",
            FORWARD,
            "gbps",
            "seq_len",
            _cells(
                (*_THROUGHPUT, *_BY_TABLES),
                ({"seq_len": 128 * step, "batch": batch} for step in steps),
            ),
            doubles=False,
        )
        for batch in batches
    ]
    return Experiment("throughput", "Bandwidth over the sequence length", tuple(figures))


def _milliseconds(seq_lens: Iterable[int]) -> Experiment:
    """Latency of short sequences."""
    providers = (*_MILLISECONDS, "transformer-engine", "seed", *_BY_TABLES)
    figures = [
        Figure(
            f"milliseconds-{direction}",
            f"Time a call, {direction} (batch 1, {_TENSOR}, {HALF}, {FORMAT})",
            direction,
            "milliseconds",
            "seq_len",
            _cells(providers, ({"seq_len": seq_len} for seq_len in seq_lens)),
        )
        for direction in (FORWARD, BACKWARD)
    ]
    return Experiment("milliseconds", "Milliseconds of short sequences", tuple(figures))


_STUDY_POINT = {"seq_len": 2048, "hidden_size": 128, "heads": 32, "batch": 4}


def _study(**values: Iterable[int]) -> Experiment:
    """Fused, fused and unfused calls around one point; each figure varies one of its values."""
    figures = []
    for direction, (name, along) in itertools.product((FORWARD, BACKWARD), values.items()):
        rest = {key: value for key, value in _STUDY_POINT.items() if key != name}
        where = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in rest.items())
        figures.append(
            Figure(
                f"study-{direction}-{name.replace('_', '-')}",
                f"Fused or not, {direction} ({where}, {HALF}, {FORMAT})",
                direction,
                "gbps",
                name,
                _cells(_STUDY, (_STUDY_POINT | {name: value} for value in along)),
            )
        )
    return Experiment("study", "Fused against fused against unfused", tuple(figures))


def _bandwidth(sizes: Iterable[int]) -> Experiment:
    """Speed as a share of a copy's over the tensor's size in MiB."""
    figures = []
    for direction, dtype in itertools.product((FORWARD, BACKWARD), ITEM_BYTES):
        token_bytes = HEADS * HIDDEN_SIZE * ITEM_BYTES[dtype]
        points = [{"seq_len": (mib << 20) // token_bytes, "dtype": dtype} for mib in sizes]
        figures.append(
            Figure(
                f"bandwidth-{direction}-{dtype}",
                f"Share of a copy's speed, {direction}, {dtype} (batch 1, {_TENSOR}, {FORMAT})",
                direction,
                "share",
                "mib",
                _cells((*_BANDWIDTH, *_BY_TABLES), points),
            )
        )
    return Experiment("bandwidth", "Share of the device's own copy", tuple(figures))


_FORWARD_ONLY = ("vllm", "flashinfer")
_JUDGED = (OURS, OURS_BY_TABLES, *RIVALS)
RANDOM = "random"
_SEEDS = 3


def _models(names: Iterable[str], chosen: Sequence[str]) -> Experiment:
    """The calls that models make, and chosen ones; a figure for each step and direction."""
    figures = []
    for step, direction in ((TRAINING, FORWARD), (TRAINING, BACKWARD), (DECODE, FORWARD)):
        providers = [p for p in MODEL_CALLS if direction == FORWARD or p not in _FORWARD_ONLY]
        figures.append(
            Figure(
                f"models-{step}-{direction}",
                f"Share of a copy's speed, {step}, {direction} (bfloat16, batch first)",
                direction,
                "share",
                "model",
                tuple(
                    peer_model_cell(provider, name, step)
                    for name in names
                    for provider in providers
                ),
            )
        )
    figures += _by_name("chosen", chosen)
    title = "The calls that models make, and some others"
    return Experiment("models", title, tuple(figures), MODEL_CALLS, various=True, judged=True)


def _by_name(what: str, names: Sequence[str]) -> list[Figure]:
    """The calls of these names, in the directions that they have."""
    figures = []
    for direction in (FORWARD, BACKWARD):
        cells = tuple(peer_named_cell(provider, name) for name in names for provider in _JUDGED)
        timed = tuple(cell for cell in cells if direction in cell.directions)
        title = f"Share of a copy's speed, {what} calls, {direction} (batch first)"
        figures.append(Figure(f"{what}-{direction}", title, direction, "share", "name", timed))
    return figures


def _at_random(commit: str, calls: int) -> Experiment:
    """So many calls drawn at random, by three seeds that follow from the commit's hash."""
    shares = (calls * (seed + 1) // _SEEDS - calls * seed // _SEEDS for seed in range(_SEEDS))
    drawn = (models.draw(commit, seed, share) for seed, share in enumerate(shares))
    return _random(list(dict.fromkeys(itertools.chain.from_iterable(drawn))))


def _random(names: Sequence[str]) -> Experiment:
    figures = tuple(_by_name(RANDOM, names))
    title = f"{len(names)} calls drawn at random"
    return Experiment(RANDOM, title, figures, MODEL_CALLS, various=True, judged=True)


def _grid(*experiments: Experiment) -> dict[str, Experiment]:
    return {experiment.name: experiment for experiment in experiments}


GRIDS: dict[str, dict[str, Experiment]] = {
    # The seeds' own points. 1 MiB fits in any L2 and 1 GiB in none.
    "full": _grid(
        _throughput(range(2, 32), (1, 2, 4, 8)),
        _milliseconds((32, 64, 128, 256, 512)),
        _study(
            seq_len=(256, 512, 1024, 2048, 4096, 8192, 16384),
            hidden_size=(32, 64, 96, 128, 192, 256),
            heads=(4, 8, 16, 32, 64, 128),
            batch=(1, 2, 4, 8, 16, 32),
        ),
        _bandwidth([2**power for power in range(11)]),
        _models(MODELS, models.CHOSEN),
    ),
    # Every figure with its ends and a middle, to see in minutes that all of it works.
    "small": _grid(
        _throughput((2, 16, 31), (1, 2, 4, 8)),
        _milliseconds((32, 128, 512)),
        _study(
            seq_len=(256, 2048, 8192),
            hidden_size=(64, 128, 256),
            heads=(8, 32, 128),
            batch=(1, 4, 16),
        ),
        _bandwidth((1, 32, 256)),
        _models(("llama-3-8b", "deepseek-v3-q", "phi-2", "qwen-2-vl-7b"), models.CHOSEN[::9]),
    ),
}
_RANDOM_CALLS = {"full": 200, "small": 12}
EXPERIMENTS = (*GRIDS["full"], RANDOM)


def planned(name: str, grid: str, commit: str) -> Experiment:
    return _at_random(commit, _RANDOM_CALLS[grid]) if name == RANDOM else GRIDS[grid][name]


def measured(name: str, grid: str, timings: Iterable[Timing]) -> Experiment:
    """The experiment that these timings are of, with the providers and calls by name of theirs.

    A later version draws other calls, and its list of chosen ones is longer.
    """
    cells = [timing.cell for timing in timings]
    names = dict.fromkeys(cell.values[1] for cell in cells if cell.suite == "peer_named")
    every = _random(list(names)) if name == RANDOM else GRIDS[grid][name]
    every = every.where(lambda cell: cell.suite != "peer_named" or cell.values[1] in names)
    return every.of(cell.provider for cell in cells)
