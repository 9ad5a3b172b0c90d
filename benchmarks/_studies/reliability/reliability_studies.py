"""The studies of how reliable ``compare`` is; numpy is imported where they run."""

import argparse
import functools

from ..._engine.system.process import SUITE
from ..runner import Part, Place, Study
from . import mutants

EVIDENCE = SUITE / "evidence"


def _parts(options: argparse.Namespace, place: Place) -> list[Part]:
    from . import caught, power, repeats, simulation
    from .bench import Bench

    if options.study == "simulation":
        return [simulation.Simulation(EVIDENCE / "aa.json")]
    bench = Bench(place)
    if options.study == "mutants":
        return [caught.Caught(bench, options.only)]
    return [power.Power(bench) if options.study == "power" else repeats.Repeats(bench)]


_study = functools.partial(
    Study, names=tuple, parts=_parts, evidence=lambda machine: EVIDENCE, needs="commit"
)

STUDIES = {
    "aa": _study(
        "false alarms of compare: a version against itself",
        "Compare a version with itself ten times, in processes of their own.",
    ),
    "power": _study(
        "slowdowns of known size: which of them compare detects",
        "Measure versions whose kernels and calls wait first, for a time that is measured, too.",
    ),
    "mutants": _study(
        "known bad changes: whether compare detects each",
        "Measure the package with each of the known bad changes of _studies/reliability/patches.",
        names=mutants.load,
    ),
    "simulation": _study(
        "how often the verdict is wrong, by kind of noise; needs no GPU",
        "Simulate comparisons under kinds of noise, and judge them; reads aa.json of the evidence.",
        needs="",
    ),
}
"""By name."""
