"""Simulate how often :mod:`.slowdowns` tells a slowdown that is none, and what it finds.

A simulated site has every latency that an H200 stored, on 100 results. A timing's noise is that of
timings as long in ``evidence/aa.json``, outliers and the processes that disturb many timings at
once included; its copy has noise of its own. It is taken around the median of each run of
``aa.json``, because those runs were on several machines, and a site has one. With each result the
machine may move to another state, in which timings and copies are slower or faster by a multiple
of what they were between ``STATES``, two stored commits of the same machine code. Of cells for
which ``asv.conf.json`` names a larger threshold, some have two times 11 % apart, as it says there.
"""

import functools
import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .._system import process
from .._system.files import write_atomically
from .._system.process import ROOT, SUITE
from . import figures, slowdowns
from .timelines import Timing, references

EVIDENCE = SUITE / "evidence" / "slowdowns.json"
COMMAND = "python -m benchmarks._site simulate"

MACHINE = SUITE / "results" / "nvidia-h200"
STATES = ("6c8b895", "9ce172c")
MOVES = 0.15
"""Share of results with which the machine moves to another state."""

OWN_STATE = 0.001
"""Standard deviation of how a state differs for the copies of one class of sizes."""

RESULTS = 100
TOOLCHAINS = (30, 50, 70)
"""Results with which a new toolchain begins, where a scenario has them."""

WITHIN = 5
"""Commits after a slowdown has 2 % by which it must be told."""

_CLASSES = np.log([5e-6, 11e-6, 50e-6])  # seconds
_NEAR, _SMOOTH = 8, 41  # timings as long as a timing


class Measured(NamedTuple):
    """What the simulation takes from stored results; arrays begin with [timings]."""

    timings: list[Timing]
    floors: np.ndarray
    seconds: np.ndarray  # natural logarithms
    own_state: np.ndarray
    copy_state: np.ndarray
    near: np.ndarray  # columns of ``residuals``
    residuals: np.ndarray  # [processes, timings of aa.json]


@functools.cache
def measured() -> Measured:
    """Read it. Imports asv, for its settings."""
    from asv.config import Config

    before, after = (figures.load_values(next(MACHINE.glob(f"{c}*.json"))) for c in STATES)
    names = [f"{s}.{d}.track_" for s in ("rope", "paths") for d in ("Forward", "Backward")]
    timings = [
        Timing(f"{name}latency", at, params)
        for name in names
        for at, params in enumerate(after[f"{name}latency"])
        if params in before[f"{name}latency"]
    ]
    own, ratio = (
        np.log(
            [
                [of[t.benchmark.replace("latency", m)][t.params] for of in (before, after)]
                for t in timings
            ]
        )
        for m in ("latency", "copy_ratio")
    )
    document = json.loads((SUITE / "evidence" / "aa.json").read_bytes())
    subjects, seconds = document["pool"]["subjects"], document["pool"]["seconds"]
    columns = [i for i, (metric, _) in enumerate(subjects) if "latency" in metric]
    both = np.log(np.stack([*seconds.values()])[:, :, columns])  # [versions, rounds, timings]
    usual = np.median(both, axis=(0, 1))
    runs = both.reshape(len(both), -1, document["rounds"], len(columns))
    residuals = runs - np.median(runs, axis=(0, 2), keepdims=True)
    near = np.argsort(np.abs(own[:, 1:] - usual), axis=1)[:, :_NEAR]
    alike = np.argsort(np.abs(own[:, 1:] - own[:, 1]), axis=1)[:, :_SMOOTH]
    own_state, ratio_state = (np.median(np.diff(x)[alike, 0], axis=1) for x in (own, ratio))
    thresholds = Config.load(str(ROOT / "asv.conf.json")).regressions_thresholds
    least = slowdowns.floors((timing.name for timing in timings), thresholds)
    return Measured(
        timings,
        least,
        own[:, 1],
        own_state,
        own_state - ratio_state,
        near,
        residuals.reshape(-1, len(columns)),
    )


def site(rng: np.random.Generator, results: int, own_state: float) -> tuple[np.ndarray, np.ndarray]:
    """The latencies of a site where nothing changes, and the copies [timings, results]."""
    of = measured()
    state = np.cumsum(rng.random(results) < MOVES)
    amount = rng.normal(size=state[-1] + 1)[state]
    own = _noise(rng, results) + of.own_state[:, None] * amount
    copies = _noise(rng, results) + of.copy_state[:, None] * amount
    classes = np.digitize(of.seconds, _CLASSES)
    copies += rng.normal(0, own_state, (len(_CLASSES) + 1, state[-1] + 1))[classes][:, state]
    unsteady = (of.floors > slowdowns.FLOOR) & (rng.random(len(own)) < 0.25)
    often = np.where(unsteady, rng.uniform(0.03, 0.5, len(own)), 0)[:, None]
    for values in (own, copies):
        values += 0.11 * (rng.random(values.shape) < often)
    return own, references(of.timings, copies)


def _noise(rng: np.random.Generator, results: int) -> np.ndarray:
    """Timings that share a column of the pool take other processes, the rest take the same."""
    of = measured()
    rows = np.arange(len(of.near))
    column = of.near[rows, rng.integers(0, _NEAR, len(rows))]
    order = np.argsort(column, kind="stable")
    first = np.searchsorted(column[order], column[order])
    use = np.empty(len(rows), int)
    use[order] = rows - first
    process = rng.integers(0, len(of.residuals), (use.max() + 1, results))
    return of.residuals[process[use], column[:, None]]


_COMMITS = {"ramp": 1, "slow ramp": 3}  # for each +0.4 %


def slowdown(kind: str, begin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A slowdown of each timing [timings, commits], and the commit with which it has 2 %."""
    since = np.arange(RESULTS) - begin[:, None]
    if kind == "step":
        return 0.02 * (since >= 0), begin
    commits = _COMMITS[kind]
    return 0.004 * np.clip(since // commits + 1, 0, 10), begin + 4 * commits


class Drawn(NamedTuple):
    """A site's history as it would be stored: some commits are there by two toolchains."""

    own: np.ndarray
    ratio: np.ndarray
    commits: np.ndarray  # of each result
    toolchains: np.ndarray
    pairs: list[tuple[int, int]]

    def until(self, newest: int) -> tuple[np.ndarray, np.ndarray]:
        """Both arrays as :mod:`.slowdowns` takes them, of all up to a result."""
        if not self.pairs:
            return self.own[:, : newest + 1], self.ratio[:, : newest + 1]
        known = [pair for pair in self.pairs if pair[1] <= newest]
        numbers = self.toolchains[: newest + 1].tolist()
        anew = measured().floors > slowdowns.FLOOR
        return tuple(
            slowdowns.aligned(each[:, : newest + 1], numbers, known, anew)
            for each in (self.own, self.ratio)
        )

    def told(self) -> np.ndarray:
        """Whether each timing is found slower at each result, by what is known then."""
        least, results = measured().floors, range(len(self.commits))
        if not self.pairs:
            return slowdowns.slower(self.own, self.ratio, least, results)
        return np.concatenate([_judged(*self.until(at), least) for at in results], axis=1)


def _judged(own: np.ndarray, ratio: np.ndarray, least: np.ndarray) -> np.ndarray:
    """:func:`slowdowns.slower` at the newest result, of timings some of which began anew."""
    found = np.zeros((len(own), 1), bool)
    whole = ~np.isnan(own[:, 0])
    found[whole] = slowdowns.slower(own[whole], ratio[whole], least[whole])
    if not whole.all():
        begin = int(np.isnan(own[~whole][0]).sum())
        rest = own[~whole, begin:], ratio[~whole, begin:]
        found[~whole] = slowdowns.slower(*rest, least[~whole])
    return found


def draw(
    rng: np.random.Generator,
    slower: np.ndarray | float = 0.0,
    own_state: float = OWN_STATE,
    toolchains: Sequence[int] = (),
) -> Drawn:
    """A site; each toolchain costs each timing something else, 1 % in standard deviation.

    The ``slowdowns.PAIRS`` newest commits are measured again with each.
    """
    twice = [begin - 1 - n for begin in toolchains for n in range(slowdowns.PAIRS)]
    commits = np.sort([*range(RESULTS), *twice])
    again = np.concatenate([[False], commits[1:] == commits[:-1]])
    numbers = np.searchsorted(toolchains, commits, side="right") + again
    own, copies = site(rng, len(commits), own_state)
    costs = rng.normal(0, 0.01, (len(own), numbers.max() + 1)).cumsum(axis=1)
    own += np.broadcast_to(slower, (len(own), RESULTS))[:, commits] + costs[:, numbers]
    pairs = [(at - 1, at) for at in np.flatnonzero(again).tolist()]
    return Drawn(own, own - copies, commits, numbers, pairs)


def alarms(seed: int, **history) -> int:
    """Timings of a site without any slowdown that are found slower at any of its results."""
    return int(draw(np.random.default_rng(seed), **history).told().any(axis=1).sum())


def _near(named: np.ndarray, kind: str, begin: int) -> bool:
    """Whether a step's commit is found within two, or half of a ramp's commits are named."""
    if kind == "step":
        return abs(int(named[0]) - begin) <= 2
    length = 9 * _COMMITS[kind]
    return min(int(named[1]), begin + length) - max(int(named[0]), begin) >= length / 2


class Told(NamedTuple):
    """Of a site where each timing gets slower once, on its own: counts of timings."""

    timings: int
    in_time: int
    kept: int
    """Of those in time: still told at the end of the history."""
    named: int
    """Of those: called a step or a ramp as it is, with its commits (:func:`_near`)."""


def told(seed: int, kind: str, **history) -> Told:
    """What is found of slowdowns of a kind, except those that a larger threshold leaves out."""
    rng = np.random.default_rng(seed)
    begin = rng.integers(15, 80, len(measured().floors))
    more, due = slowdown(kind, begin)
    drawn = draw(rng, more, **history)
    found = drawn.told()
    first = drawn.commits[found.argmax(axis=1)]
    counts = measured().floors == slowdowns.FLOOR
    in_time = counts & found.any(axis=1) & (first >= begin) & (first <= due + WITHIN)
    own, ratio = drawn.until(len(drawn.commits) - 1)
    kept = named = 0
    for row in np.flatnonzero(in_time).tolist():
        rise = slowdowns.rise(own[row], ratio[row], int(np.flatnonzero(found[row])[-1]))
        if rise is not None:
            kept += 1
            commits = drawn.commits[[rise.first, rise.last]]
            named += rise.kind == kind.rpartition(" ")[2] and _near(commits, kind, int(begin[row]))
    return Told(int(counts.sum()), int(in_time.sum()), kept, named)


class Scenario(NamedTuple):
    """What a site's history has, and how many sites are simulated without and with slowdowns."""

    history: dict
    sites: int
    slower_sites: int


SCENARIOS = {
    "as measured": Scenario({}, 400, 4),
    "copies move by 0.3 % of their own": Scenario({"own_state": 0.003}, 100, 2),
    "three changes of toolchain": Scenario({"toolchains": TOOLCHAINS}, 120, 12),
}
KINDS = {
    "step": "one step of +2 %",
    "ramp": "10 × +0.4 %, every commit",
    "slow ramp": "10 × +0.4 %, every third commit",
}


_AT_ONCE = 25  # sites of a process, which takes a second to read what was measured


def simulate() -> dict:
    """All of ``evidence/slowdowns.json``: of each site, in the order of its seed, what was told."""
    tasks = [
        (name, what, range(sites)[first : first + _AT_ONCE])
        for name, of in SCENARIOS.items()
        for what, sites in {"alarms": of.sites, **dict.fromkeys(KINDS, of.slower_sites)}.items()
        for first in range(0, sites, _AT_ONCE)
    ]
    scenarios: dict[str, dict[str, list]] = {name: {} for name in SCENARIOS}
    each = process.map_calls(_sites, *zip(*tasks, strict=True))
    for (name, what, _), found in zip(tasks, each, strict=True):
        scenarios[name].setdefault(what, []).extend(found)
    return {
        "command": COMMAND,
        "timings": len(measured().timings),
        "results": RESULTS,
        "kinds": KINDS,
        "scenarios": scenarios,
    }


def _sites(name: str, what: str, seeds: Sequence[int]) -> list:
    history = SCENARIOS[name].history
    if what == "alarms":
        return [alarms(seed, **history) for seed in seeds]
    return [told(seed, what, **history) for seed in seeds]


def write() -> None:
    """Simulate, and write what ships."""
    write_atomically(EVIDENCE, (json.dumps(simulate(), indent=1) + "\n").encode())
