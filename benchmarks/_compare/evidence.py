"""``python -m benchmarks evidence``: can the comparison be trusted, and what can it see?

Three files of ``benchmarks/evidence``, made on a GPU and checked by a test from the data in them:
``aa.json`` (a version against itself), ``power.json`` (slowdowns of known size) and
``mutants.json`` (bad changes of the kinds that pass review).
"""

import argparse
import dataclasses
import json
import random
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from .. import _machine, _verdict
from .._grid import GRIDS, Cell, cells
from .._progress import say
from .._verdict import Answer, Exact, Family, Subject
from . import arms, exact, findings, mutants, planted, rounds, session, watch
from .command import COULD_NOT_RUN, RESULTS, ROOT, SCRATCH
from .state import State, write_atomically

DIRECTORY = RESULTS.parent / "evidence"
ROUNDS = 12
COMPARISONS, POOL_ROUNDS = 20, 20
DOSES = {"slow-1": 0.01, "slow-2": 0.02, "slow-5": 0.05}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("aa", "power", "mutants"))
    parser.add_argument("--commit", default="HEAD", help="the version to start from; default: HEAD")
    parser.add_argument("--budget", type=float, default=60.0, metavar="MINUTES")


def run(what: str, commit: str, budget: float) -> int:
    """Make one file of evidence anew; 0 when it is written, 3 when it could not be."""
    try:
        bench = _Bench(commit, time.monotonic() + 60 * budget)
        document = {"aa": _aa, "power": _power, "mutants": _mutants}[what](bench)
    except session.EXPECTED as error:
        print(f"could not run: {error}", file=sys.stderr)
        return COULD_NOT_RUN
    head = {
        "command": f"python -m benchmarks evidence {what} --commit {bench.base.sha}",
        "machine": dict(bench.machine),
        "rounds": ROUNDS,
        "rules": {name: dataclasses.asdict(rules) for name, rules in findings.RULES.items()},
    }
    DIRECTORY.mkdir(exist_ok=True)
    path = DIRECTORY / f"{what}.json"
    write_atomically(path, (_text(head | document) + "\n").encode())
    print(f"{path}\n{summary(what, document)}")
    return 0


def summary(what: str, document: Mapping) -> str:
    """What a file of evidence says, in a few lines."""
    if what == "aa":
        each = document["comparisons"]
        failed = sum(bool(one["failed"]) for one in each)
        return f"{failed} of {len(each)} comparisons of a version with itself have a failed cell"
    if what == "power":
        return "\n".join(
            f"{dose['planted']:.0%}: seen in {dose['seen']} of {dose['timings']} timings, in "
            f"{dose['seen_above_4_mb']} of {dose['timings_above_4_mb']} above 4 MB; "
            f"measured {dose['median_effect']:+.2%} in the median"
            for dose in document["doses"]
        )
    return "\n".join(
        f"{'caught' if one['caught'] else 'SURVIVED'}: {one['name']}: {one['by']}"
        for one in document["mutants"]
    )


class _Bench:
    """The machine, the version to start from, and rounds of any arms on this GPU."""

    def __init__(self, commit: str, deadline: float):
        self.base = arms.from_commit(commit, ROOT, SCRATCH / "sources")
        self.machine, self.arch = _machine.probe()
        self.deadline = deadline
        self.uuid = watch.gpu_uuid()

    def measured(self, name: str, versions: dict[str, arms.Arm], count: int, job: dict) -> list:
        """Rounds of the versions, reversed in turns; kept, so that a killed run goes on."""
        plan = rounds.Plan(versions, self._caches(versions), self.uuid, self.deadline)
        with watch.gpu_lock(self.uuid, 0.0), self._state(name, plan, job) as state:
            state.discard_incomplete_rounds()
            rounds.run(plan, state, name, count, {"task": "measure"} | job, say)
            return state.rounds(name)

    def facts(self, name: str, versions: dict[str, arms.Arm]) -> dict[str, dict]:
        """What is exact of each version on this GPU."""
        plan = rounds.Plan(versions, self._caches(versions), self.uuid, self.deadline)
        job = {"task": "check", "cells": []}
        with watch.gpu_lock(self.uuid, 0.0), self._state(name, plan, job) as state:
            answers = rounds.check(plan, state, job, say)
        return {arm: findings.facts_of(answer) for arm, answer in answers.items()}

    def once(self, arm: arms.Arm, job: dict) -> dict[Subject, float]:
        """Medians of a single process, which count for nothing but to set something up."""
        plan = rounds.Plan({"arm": arm}, self._caches({"arm": arm}), self.uuid, self.deadline)
        with watch.gpu_lock(self.uuid, 0.0), rounds.Processes(plan) as processes:
            watch.require_free(self.uuid)
            answer = processes.answer("arm", {"task": "measure", "seed": 0} | job, None)
        return rounds.medians_of(answer)

    def mutant(self, name: str) -> arms.Arm:
        return arms.from_directory(
            name, SCRATCH / "sources", lambda to: mutants.apply(name, self.base.root, to)
        )

    def _state(self, name: str, plan: rounds.Plan, job: dict) -> State:
        manifest = {
            "digests": {arm: version.digest for arm, version in plan.arms.items()},
            "job": job,
            "machine": dict(self.machine),
            "suite": session.suite_digest(),
        }
        directory = (
            SCRATCH / "evidence" / f"{name}-{self.base.digest[:8]}-{self.machine['machine']}"
        )
        return State.open(directory, manifest, plan.arms)

    def _caches(self, versions: Mapping[str, arms.Arm]) -> dict[str, Path]:
        return {
            name: session.cache(SCRATCH, self.machine, arm.digest[:16])
            for name, arm in versions.items()
        }


def _grid() -> list[Cell]:
    return cells(GRIDS["small"])


def _job(grid: Sequence[Cell], host: bool) -> dict:
    return {"cells": [dataclasses.astuple(cell) for cell in grid], "host": host}


# --- a version against itself ---------------------------------------------------------------------


def _aa(bench: _Bench) -> dict:
    versions = {"one": bench.base, "other": bench.base}
    measured = bench.measured("aa", versions, POOL_ROUNDS, _job(_grid(), host=True))
    pool = Pool.of(measured, list(versions))
    return {
        "how": (
            f"{POOL_ROUNDS} rounds of two fresh processes of one commit, their order alternating; "
            f"each comparison draws {ROUNDS // 2} of the {POOL_ROUNDS // 2} blocks of two rounds "
            "without replacement, and which of the two is called the head, by a seed"
        ),
        "comparisons": aa_comparisons(pool),
        "pool": pool.as_json(),
    }


def aa_comparisons(pool: "Pool") -> list[dict]:
    """Verdicts on comparisons of a version with itself, drawn from a pool of rounds."""
    draw, found = random.Random(0), []
    for _ in range(COMPARISONS):
        blocks = sorted(draw.sample(range(len(pool.seconds["one"]) // 2), ROUNDS // 2))
        chosen = [row for block in blocks for row in (2 * block, 2 * block + 1)]
        sides = ["one", "other"]
        draw.shuffle(sides)
        base, head = sides
        families = pool.judged(base, head, chosen)
        timings = [timing for family in families.values() for timing in family.timings]
        found.append(
            {
                "blocks": blocks,
                "head": head,
                "failed": sum(timing.answer is Answer.FAIL for timing in timings),
                "cannot_tell": sum(timing.answer is Answer.CANNOT_TELL for timing in timings),
                "faster": sum(timing.change == "faster" for timing in timings),
                "control_failed": sum(family.control.failed for family in families.values()),
                "floor": families["gpu"].control.floor,
                "answer": str(_verdict.overall(families.values(), ())),
            }
        )
    return found


@dataclasses.dataclass(frozen=True)
class Pool:
    """Medians of fresh processes, seconds: [rounds, subjects] for each arm."""

    subjects: list[Subject]
    seconds: dict[str, np.ndarray]

    @classmethod
    def of(cls, measured: Sequence, names: Sequence[str]) -> "Pool":
        rows = {name: rounds.medians(measured, name) for name in names}
        subjects = sorted(set.intersection(*(set(row) for all_ in rows.values() for row in all_)))
        return cls(
            subjects,
            {name: np.array([[r[s] for s in subjects] for r in rows[name]]) for name in names},
        )

    @classmethod
    def from_json(cls, document: Mapping) -> "Pool":
        subjects = [Subject(metric, tuple(params)) for metric, params in document["subjects"]]
        return cls(subjects, {arm: np.array(rows) for arm, rows in document["seconds"].items()})

    def as_json(self) -> dict:
        return {
            "subjects": [[subject.metric, list(subject.params)] for subject in self.subjects],
            "seconds": {arm: rows.tolist() for arm, rows in self.seconds.items()},
        }

    def judged(self, base: str, head: str, chosen: Sequence[int]) -> dict[str, Family]:
        """The verdicts, by family, on these rounds."""
        families = {}
        for name, prefixes in findings.FAMILIES.items():
            columns = [i for i, s in enumerate(self.subjects) if s.metric.startswith(prefixes)]
            if columns:
                index = np.ix_(list(chosen), columns)
                families[name] = _verdict.judge(
                    [self.subjects[i] for i in columns],
                    self.seconds[base][index],
                    self.seconds[head][index],
                    findings.RULES[name],
                )
        return families


# --- slowdowns of known size ----------------------------------------------------------------------


def _power(bench: _Bench) -> dict:
    job = _job(_grid(), host=False)
    versions = {"base": bench.base} | planted.versions(bench, DOSES, job, SCRATCH)
    pool = Pool.of(bench.measured("power", versions, ROUNDS, job), list(versions))
    return {
        "how": (
            "the programs that the GPU starts a kernel with wait for a number of cycles, which one "
            "process of the base and one of a slower version set for each cell; every version is "
            "compared with the base as two commits are"
        ),
        "doses": [dose_seen(pool, name, DOSES[name]) for name in DOSES],
        "pool": pool.as_json(),
    }


def dose_seen(pool: Pool, name: str, planted_share: float) -> dict:
    """In how many timings a planted slowdown was seen, and how large it was measured."""
    timings = pool.judged("base", name, range(ROUNDS))["gpu"].timings
    large = [timing for timing in timings if _tensor_bytes(timing.subject) > 4e6]
    return {
        "planted": planted_share,
        "timings": len(timings),
        "seen": sum(timing.answer is Answer.FAIL for timing in timings),
        "timings_above_4_mb": len(large),
        "seen_above_4_mb": sum(timing.answer is Answer.FAIL for timing in large),
        "median_effect": float(np.median([timing.effect for timing in timings])),
        "least_effect": min(timing.effect for timing in timings),
        "largest_effect": max(timing.effect for timing in timings),
    }


def _tensor_bytes(subject: Subject) -> float:
    seq_len, hidden_size, batch, dtype, fmt = subject.params
    return Cell(int(seq_len), int(hidden_size), int(batch), dtype, fmt).bytes_moved / 2


# --- bad changes ----------------------------------------------------------------------------------


def _mutants(bench: _Bench) -> dict:
    known = mutants.load()
    failures: dict[str, list[dict]] = {name: [] for name in known}
    for name, failed in _by_code(bench, [m for m in known.values() if not m.needs_gpu]).items():
        failures[name] += failed
    groups: dict[str, list[str]] = {"facts": [], "host": [], "speed": []}
    for mutant in known.values():
        if mutant.needs_gpu:
            groups[_group(mutant)].append(mutant.name)
    for group, judge in (("facts", _by_facts), ("host", _by_clock), ("speed", _by_clock)):
        for name, failed in judge(bench, group, groups[group]).items():
            failures[name] += failed
    return {"mutants": [outcome(mutant, failures[mutant.name]) for mutant in known.values()]}


def _group(mutant: mutants.Mutant) -> str:
    if any(metric.startswith(findings.FAMILIES["gpu"]) for metric in mutant.caught_by):
        return "speed"
    return "host" if mutant.caught_by[0].startswith(findings.FAMILIES["host"]) else "facts"


def outcome(mutant: mutants.Mutant, failed: list[dict]) -> dict:
    relevant = [
        one for one in failed if mutant.concerns(Subject(one["metric"], tuple(one["params"])))
    ]
    metrics = {one["metric"] for one in relevant}
    worst = max(relevant, key=lambda one: one["change"], default=None)
    return {
        "name": mutant.name,
        "change": mutant.change,
        "must_fail": list(mutant.caught_by),
        "caught": set(mutant.caught_by) <= metrics,
        "by": "nothing that must fail failed"
        if worst is None
        else f"{len(relevant)} failed, the worst {worst['metric']} {tuple(worst['params'])}: "
        f"{worst['base']:.6g} -> {worst['head']:.6g}",
        "failed": relevant,
    }


def _by_code(bench: _Bench, chosen: Sequence[mutants.Mutant]) -> dict[str, list[dict]]:
    subset = {"arch": ("sm_90", "gfx942"), "dtype": ("float16",)}
    base = exact.codegen_facts(bench.base.root, **subset).values
    found = {}
    for mutant in chosen:
        head = exact.codegen_facts(bench.mutant(mutant.name).root, **subset).values
        found[mutant.name] = _failed_exact(exact.compare(base, head))
        say(f"{mutant.name}: {len(found[mutant.name])} exact values failed")
    return found


def _by_facts(bench: _Bench, group: str, names: list[str]) -> dict[str, list[dict]]:
    versions = {"base": bench.base} | {name: bench.mutant(name) for name in names}
    facts = bench.facts(f"mutants-{group}", versions)
    return {name: _failed_exact(exact.compare(facts["base"], facts[name])) for name in names}


def _by_clock(bench: _Bench, group: str, names: list[str]) -> dict[str, list[dict]]:
    versions = {"base": bench.base} | {name: bench.mutant(name) for name in names}
    job = _job(_grid(), host=False) if group == "speed" else _job([], host=True)
    pool = Pool.of(bench.measured(f"mutants-{group}", versions, ROUNDS, job), list(versions))
    return {
        name: [
            _failure(timing.subject, timing.base, timing.head)
            for family in pool.judged("base", name, range(ROUNDS)).values()
            for timing in family.timings
            if timing.answer is Answer.FAIL
        ]
        for name in names
    }


def _failed_exact(verdicts: Sequence[Exact]) -> list[dict]:
    return [
        _failure(each.subject, each.base, each.head)
        for each in verdicts
        if each.answer is Answer.FAIL and each.base is not None and each.head is not None
    ]


def _failure(subject: Subject, base: float, head: float) -> dict:
    change = head - base if base == 0 else head / base - 1
    return {
        "metric": subject.metric,
        "params": list(subject.params),
        "base": base,
        "head": head,
        "change": change,
    }


def _text(value, indent: str = "") -> str:
    """JSON with a line for each entry, down to the rows of a table."""
    inner = indent + " "
    if isinstance(value, Mapping) and len(indent) < 3:
        entries = [f"{inner}{json.dumps(key)}: {_text(item, inner)}" for key, item in value.items()]
    elif isinstance(value, list) and value and isinstance(value[0], (list, dict)):
        entries = [inner + json.dumps(item, allow_nan=False) for item in value]
    else:
        return json.dumps(value, allow_nan=False)
    opening, closing = "{}" if isinstance(value, Mapping) else "[]"
    return f"{opening}\n" + ",\n".join(entries) + f"\n{indent}{closing}"
