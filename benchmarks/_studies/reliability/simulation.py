"""The study ``simulation``: how often the verdict is wrong, by kind of noise.

Simulates whole comparisons, both looks, and judges them with the code that judges real ones. The
timings and their durations are those of ``aa.json``; the noise is that of a model (``noise``), or
drawn from the rounds of ``aa.json`` with replacement, around the median of each run: its runs were
on several machines, and a comparison is on one. Every replicate has a seed of its own, so that a
part can be made again alone.
"""

import functools
import hashlib
import itertools
import json
import statistics
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..._engine.compare import findings, selection, session
from ..._engine.compare.pool import Pool
from ..._engine.system import process, suite
from ..._engine.verdict import rules
from ..._engine.verdict.rules import FAMILIES, Answer, Key, Timing
from ..runner import Keep, Task
from . import noise
from .bench import AA_ROUNDS, ROUNDS, Document

POOL, _POOL_IS = "pool", "the rounds of aa.json, drawn with replacement"
MODELS = [*noise.MODELS, POOL]
# A change of these is another judge, or other noise.
_JUDGING = ("_engine/verdict/*.py", "_engine/compare/findings.py", "_studies/reliability/noise.py")
_MODEL_SECONDS = 120.0  # an estimate, on two cores
_MANY_ROUNDS = 4000
_LETTERS = {Answer.PASS: "p", Answer.FAIL: "f", Answer.CANNOT_TELL: "c"}


class Scenario(NamedTuple):
    """Timings that changed, and those of them that became slower.

    size: the slowdown, a share; None: what a comparison under the same noise gives as the minimum
    detectable effect. changed: how many GPU timings changed, None: all; the others run the same
    machine code, and if all do, none is timed. slower: how many timings of the family became
    slower. replicates: how many comparisons are simulated.
    """

    size: float | None
    changed: int | None
    slower: int
    replicates: int
    family: str = "gpu"


SCENARIOS = {
    "same": Scenario(0.0, None, 0, 200),
    "plus 1": Scenario(0.01, None, 1, 100),
    "plus 2": Scenario(0.02, None, 1, 30),
    "plus 5": Scenario(0.05, None, 1, 30),
    "mde": Scenario(None, None, 1, 50),
    "one changed": Scenario(0.01, 1, 1, 200),
    "eight changed": Scenario(0.01, 8, 8, 30),
    "host plus 5": Scenario(0.05, None, 1, 50, "host"),
    "Python": Scenario(0.0, 0, 0, 200),
    "Python plus 5": Scenario(0.05, 0, 1, 100, "host"),
}


class Simulator:
    """Comparisons of the timings of a pool of A/A rounds, under the noise of one model."""

    def __init__(self, model: str, pool: Pool):
        self.model, self._pool = model, pool
        self._usual = np.median(np.concatenate(list(pool.seconds.values())), axis=0)
        self._columns = {
            name: np.flatnonzero([key.metric.startswith(prefixes) for key in pool.subjects])
            for name, prefixes in FAMILIES.items()
        }

    def comparison(self, scenario: str, replicate: int) -> tuple[str, str, str, float]:
        """A comparison, whose seed follows from the model, the scenario and the replicate.

        The answers after the first look and after both, and whether a slower timing failed, each a
        letter as :func:`outcomes` has them; the share of GPU timings, or of all if these are none,
        whose interval of the first look holds the truth.
        """
        asked = SCENARIOS[scenario]
        seed = [MODELS.index(self.model), list(SCENARIOS).index(scenario), replicate]
        generator = np.random.default_rng(seed)
        gpu = generator.permutation(self._columns["gpu"])
        same = gpu[len(gpu) if asked.changed is None else asked.changed :]
        slower = (gpu if asked.family == "gpu" else self._columns[asked.family])[: asked.slower]
        # Of what runs the same machine code a sample is timed, in both directions.
        untimed = same[2 * selection.SAME_CODE_CELLS if asked.changed != 0 else 0 :]
        subjects = self._pool.subjects
        identical = frozenset(subjects[column] for column in same)
        timed = frozenset(subjects) - {subjects[column] for column in untimed}
        size = asked.size
        if size is None:
            control = self._look(generator, ROUNDS, timed, np.zeros(len(subjects)), identical)
            size = _of(control, subjects[slower[0]]).mde
        planted = np.zeros(len(subjects))
        planted[slower] = np.log1p(size)
        look = functools.partial(self._look, generator, planted=planted, identical=identical)
        first, second = look(ROUNDS, timed), findings.no_look()
        if open_ := findings.inconclusive(first, identical):
            second = look(session.EXTENSION_ROUNDS, open_)
        both = findings.joined(first, second)
        failed = any(_of(both, subjects[c]).answer is Answer.FAIL for c in slower)
        answer_of_first, answer = (
            _LETTERS[rules.overall(result.families.values(), (), identical)]
            for result in (first, both)
        )
        return answer_of_first, answer, "-+"[failed], self._covered(first, planted)

    def _look(
        self,
        generator: np.random.Generator,
        rounds: int,
        timed: Set[Key],
        planted: np.ndarray,
        identical: Set[Key],
    ) -> findings.Look:
        base, head = self._drawn(generator, rounds)
        seconds = {"base": self._usual * np.exp(base), "head": self._usual * np.exp(head + planted)}
        families = Pool(self._pool.subjects, seconds).judged(
            *findings.SIDES, only=timed, identical=identical
        )
        return findings.Look(rounds, families, [], [])

    def _drawn(self, generator: np.random.Generator, rounds: int) -> noise.Pair:
        """Logarithms of time over usual time of every timing: [rounds, timings] of each version."""
        if self.model == POOL:
            # Blocks of two rounds, because such a block has both orders.
            first = 2 * generator.integers(self._noise.shape[1] // 2, size=rounds // 2)
            one, other = self._noise[:, np.stack([first, first + 1], axis=1).ravel()]
            swapped = generator.integers(2, size=(rounds, 1)) == 1
            return np.where(swapped, other, one), np.where(swapped, one, other)
        processes = np.zeros((2 * rounds, len(self._usual)))
        of_head, model = noise.drawn_order(generator, rounds), noise.MODELS[self.model]
        host_calls = functools.partial(noise.host_calls, noise=model.host)
        for family, draw in (
            ("gpu", model.draw),
            ("host", host_calls),
            ("start", noise.first_calls),
        ):
            columns = self._columns[family]
            processes[:, columns] = draw(generator, of_head, self._usual[columns])
        return noise.by_version(processes, of_head)

    @functools.cached_property
    def _noise(self) -> np.ndarray:
        """Logarithms of the times over their median in a run: versions x rounds x timings."""
        logs = np.log(np.stack(list(self._pool.seconds.values())))
        runs = np.split(logs, range(AA_ROUNDS, logs.shape[1], AA_ROUNDS), axis=1)
        return np.concatenate([run - np.median(run, axis=(0, 1)) for run in runs], axis=1)

    @functools.cached_property
    def _centres(self) -> np.ndarray:
        """What would be estimated of each timing's log ratio from no end of rounds, about."""
        if self.model == POOL or noise.MODELS[self.model].alike:
            return np.zeros(len(self._usual))
        base, head = self._drawn(np.random.default_rng(0), _MANY_ROUNDS)
        ratios, shuffled = head - base, np.random.default_rng(1)
        pairs = [ratios + shuffled.permutation(ratios) for _ in range(4)]
        return np.median(np.concatenate(pairs), axis=0) / 2

    def _covered(self, look: findings.Look, planted: np.ndarray) -> float:
        truth = dict(zip(self._pool.subjects, np.expm1(planted + self._centres), strict=True))
        timings = look.families.get("gpu", look.families["host"]).timings
        return statistics.fmean(t.low <= truth[t.key] <= t.high for t in timings)


def _of(look: findings.Look, subject: Key) -> Timing:
    timings = itertools.chain.from_iterable(family.timings for family in look.families.values())
    return next(timing for timing in timings if timing.key == subject)


# --- many of them ---------------------------------------------------------------------------------


def outcomes(pool: Pool, model: str, scenario: str, replicates: int) -> dict:
    """The first comparisons of a scenario: the texts have a letter for each.

    first, both: p, f or c for pass, fail, cannot tell. failed: + if a slower timing failed, else -.
    covered: the mean of the shares of intervals that hold the truth.
    """
    simulator = Simulator(model, pool)
    comparisons = (simulator.comparison(scenario, replicate) for replicate in range(replicates))
    first, both, failed, covered = zip(*comparisons, strict=True)
    letters = {"first": first, "both": both, "failed": failed}
    texts = {key: "".join(letters_of) for key, letters_of in letters.items()}
    return texts | {"covered": statistics.fmean(covered)}


FIGURES = {
    "fails": ("same", "both", "f"),
    "cannot tell, first look": ("same", "first", "c"),
    "cannot tell": ("same", "both", "c"),
    "passes": ("same", "both", "p"),
    "intervals hold the truth": ("same", "covered", ""),
    "+1 % fails": ("plus 1", "failed", "+"),
    "+1 % passes": ("plus 1", "both", "p"),
    "+2 % fails": ("plus 2", "failed", "+"),
    "+5 % fails": ("plus 5", "failed", "+"),
    "MDE fails": ("mde", "failed", "+"),
    "one changed, +1 % passes": ("one changed", "both", "p"),
    "eight changed, +1 % pass": ("eight changed", "both", "p"),
    "a host call, +5 % fails": ("host plus 5", "failed", "+"),
    "a host call, +5 % passes": ("host plus 5", "both", "p"),
    "Python alone, cannot tell": ("Python", "both", "c"),
    "Python alone, fails": ("Python", "both", "f"),
    "Python alone, +5 % in a call fails": ("Python plus 5", "failed", "+"),
}
"""Columns of the table: the share of a scenario's comparisons whose outcome has this letter."""


def figures(scenarios: Mapping[str, Mapping]) -> dict[str, float]:
    """What the outcomes of a model's scenarios say: shares of comparisons, and of intervals."""
    shares = {}
    for name, (scenario, key, letter) in FIGURES.items():
        outcome = scenarios[scenario][key]
        shares[name] = outcome.count(letter) / len(outcome) if letter else outcome
    return shares


class Simulation(Document):
    """All of it, without a GPU, from ``aa.json``; an entry has the outcomes of a model."""

    name = "simulation"

    def __init__(self, repeats: Path):
        document = repeats.read_bytes()
        self._pool = Pool.from_json(json.loads(document)["pool"])
        self.header = {
            "command": "python -m benchmarks study simulation",
            "pool": hashlib.sha256(document).hexdigest(),
            "suite": suite.digest(_JUDGING),
        }

    def tasks(self, entries: list[dict]) -> list[Task]:
        there = {entry["model"] for entry in entries}
        left = [model for model in MODELS if model not in there]
        jobs = [
            (model, name, asked.replicates) for model in left for name, asked in SCENARIOS.items()
        ]
        # One iterator, so that processes begin the next model while the last of this one end.
        simulated = process.map_calls(
            outcomes, itertools.repeat(self._pool), *zip(*jobs, strict=True)
        )

        def simulate(model: str, keep: Keep) -> None:
            keep({"model": model} | {name: next(simulated) for name in SCENARIOS})

        return [Task(model, _MODEL_SECONDS, functools.partial(simulate, model)) for model in left]

    def document(self, header: dict, entries: list[dict], stored: dict) -> dict:
        by_model = {entry["model"]: entry for entry in entries}
        models = {
            model: {"figures": figures(by_model[model])}
            | {name: by_model[model][name] for name in SCENARIOS}
            for model in MODELS
            if model in by_model
        }
        return {
            "command": header["command"],
            "noise": {name: model.what for name, model in noise.MODELS.items()} | {POOL: _POOL_IS},
            "unlike": [name for name, model in noise.MODELS.items() if not model.alike],
            "models": models,
        }

    def lines(self, header: dict, entries: list[dict]) -> Iterator[str]:
        for entry in entries:
            shares = (f"{name} {share:.1%}" for name, share in figures(entry).items())
            yield f"{entry['model']}: {', '.join(shares)}"
