"""The study ``training``: rounds of a training step by the providers, in turns on one GPU."""

import argparse
import functools
import itertools
import time
from collections.abc import Iterator, Sequence

from ..._engine.system import gpu_monitor
from ..._engine.system.process import ROOT
from ..._engine.system.progress import say
from .. import runner
from ..runner import Keep, Notes, Part, Place, Task
from . import measuring, results
from .functions import PROVIDERS
from .sizes import POINTS, STEP, Point

EVIDENCE = ROOT / "benchmarks" / "evidence" / "training"
ROUNDS = 6  # the fewest with an interval of 95 %

# Their versions are part of what is measured. Liger has other kernels where CuTe DSL is installed.
DISTRIBUTIONS = ("liger-kernel", "nvidia-cutlass-dsl", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12")
# A change of these is another measurement.
NETWORK = (
    "_studies/compiling.py",
    *(f"_studies/training/{name}.py" for name in ("network", "functions", "sizes")),
)
_MEASURING = (*NETWORK, "_studies/training/measuring.py")

# Of a round of all providers, on an H200 with 16 cores; the first one compiles besides.
_ROUND_SECONDS = {"410M": 65.0, "840M": 85.0, "1.4B": 122.0}
_FIRST_SECONDS = 50.0


def _parts(options: argparse.Namespace, place: Place) -> list[Part]:
    names = [name for name in PROVIDERS if name in options.only] or list(PROVIDERS)
    points = [name for name in options.only if name in POINTS] or list(POINTS)
    more = [f"--only {name}" for name in names] if len(names) < len(PROVIDERS) else []
    more += [f"--rounds {options.rounds}"] if options.rounds != ROUNDS else []
    parts: list[Part] = []
    for name in dict.fromkeys(points):
        words = [f"training --only {name}", *more]
        header = runner.header_of(results.FORMAT, words, place, _MEASURING, DISTRIBUTIONS)
        header |= {"point": name, "batch": POINTS[name].batch, "providers": names}
        parts.append(_Steps(POINTS[name], header, options.rounds, place))
    return parts


class _Steps(Part):
    """A size at a context; its entries are rounds."""

    def __init__(self, point: Point, header: dict, rounds: int, place: Place | None = None):
        self.name, self.header = str(point), header
        self._point, self._rounds, self._place = point, rounds, place
        complete = header["providers"] == list(PROVIDERS) and rounds >= ROUNDS
        self.why_not_shipped = "" if complete else f"it needs every provider and {ROUNDS} rounds"

    def tasks(self, entries: list[dict]) -> list[Task]:
        share = len(self.header["providers"]) / len(PROVIDERS)
        seconds = share * _ROUND_SECONDS[self._point.size]
        return [
            Task(
                f"round {number + 1} of {self._rounds}",
                seconds if number else seconds + share * _FIRST_SECONDS,
                functools.partial(self._round, number, entries),
            )
            for number in range(len(entries), self._rounds)
        ]

    def _round(self, number: int, entries: Sequence[dict], keep: Keep) -> None:
        """Measure a round; what failed in an earlier one is not called again."""
        place, start = self._place, time.monotonic()
        assert place
        earlier = itertools.chain.from_iterable(entry["rows"].items() for entry in entries)
        rows = {name: row for name, row in earlier if "parts" not in row}
        left = [name for name in self.header["providers"] if name not in rows]
        with gpu_monitor.Watch(place.uuid) as watching:
            runner.in_processes(
                *(measure, left[:: -1 if number % 2 else 1], self._point, number == 0),
                place=place,
                keep=rows.update,
                failed=lambda name, why: (name, {"error": why}),
            )
        watched = watching.summary()
        disturbed = gpu_monitor.why_invalid(watched, [entry["watch"] for entry in entries])
        if disturbed:
            say(f"{self.name}: round {number + 1} was disturbed: {disturbed}")
        ordered = {name: rows[name] for name in self.header["providers"]}
        keep({"rows": ordered, "seconds": time.monotonic() - start, "watch": watched})

    def page(self, header: dict, entries: list[dict], drawn: bool) -> Iterator[str]:
        return results.page(header, results.of_entries(header, entries))

    def lines(self, header: dict, entries: list[dict]) -> Iterator[str]:
        return results.tables(results.of_entries(header, entries))

    def failures(self, header: dict, entries: list[dict]) -> list[str]:
        return [
            f"FAILED: {figure.provider}: {figure.why}"
            for figure in results.of_entries(header, entries)
            if figure.status == "failed" and figure.part == STEP
        ]


def measure(names: Sequence[str], alone: bool, notes: Notes, point: Point, profiled: bool) -> None:
    """In a fresh process: note the row of each provider when all have taken their turns."""
    begin = {name: functools.partial(notes.begin, index) for index, name in enumerate(names)}
    rows = measuring.measured(point, names, profiled=profiled, note=lambda name: begin[name]())
    for row in rows.items():
        notes.row(row)


def _stored(header: dict, entries: list[dict]) -> Part:
    return _Steps(POINTS[header["point"]], header, len(entries))


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    rounds = f"rounds to measure; default: {ROUNDS}"
    parser.add_argument("--rounds", type=_rounds, default=ROUNDS, metavar="N", help=rounds)


def _rounds(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"a whole number above 0 is needed, got {text!r}")
    return int(text)


STUDY = runner.Study(
    about="a training step of a transformer, and what RoPE adds to it",
    description="""\
Measure a training step of a transformer, and one attention sublayer: eager and compiled PyTorch,
with this package's RoPE, with the plain formula and without RoPE. Each round is a fresh process, in
which the providers take turns. A library that is not installed is n/a.""",
    names=lambda: (*POINTS, *PROVIDERS),
    parts=_parts,
    evidence=lambda machine: EVIDENCE,
    format=results.FORMAT,
    stored=_stored,
    add_arguments=_add_arguments,
)
