"""The studies of how reliable ``compare`` is; numpy is imported where they run."""

import argparse
from collections.abc import Callable, Iterable

from ..._engine.system.process import SUITE
from ..runner import Part, Place, Study
from . import mutants

EVIDENCE = SUITE / "evidence"


def _repeats(options: argparse.Namespace, place: Place) -> list[Part]:
    from .bench import Bench
    from .repeats import Repeats

    return [Repeats(Bench(place))]


def _power(options: argparse.Namespace, place: Place) -> list[Part]:
    from .bench import Bench
    from .power import Power

    return [Power(Bench(place))]


def _mutants(options: argparse.Namespace, place: Place) -> list[Part]:
    from .bench import Bench
    from .caught import Caught

    return [Caught(Bench(place), options.only)]


def _simulation(options: argparse.Namespace, place: Place) -> list[Part]:
    from .simulation import Simulation

    return [Simulation(EVIDENCE / "aa.json")]


def _study(
    about: str,
    description: str,
    parts: Callable[[argparse.Namespace, Place], list[Part]],
    names: Callable[[], Iterable[str]] = tuple,
    needs: str = "commit",
) -> Study:
    return Study(about, description, names, parts, lambda machine: EVIDENCE, needs=needs)


STUDIES = {
    "aa": _study(
        "false alarms of compare: a version against itself",
        "Compare a version with itself ten times, in processes of their own.",
        _repeats,
    ),
    "power": _study(
        "slowdowns of known size: which of them compare detects",
        "Measure versions whose kernels and calls wait first, for a time that is measured, too.",
        _power,
    ),
    "mutants": _study(
        "known bad changes: whether compare detects each",
        "Measure the package with each of the known bad changes of benchmarks/mutants.",
        _mutants,
        names=mutants.load,
    ),
    "simulation": _study(
        "how often the verdict is wrong, by kind of noise; needs no GPU",
        "Simulate comparisons under kinds of noise, and judge them; reads aa.json of the evidence.",
        _simulation,
        needs="",
    ),
}
"""By name."""
