"""``python -m benchmarks evidence``: the false alarms of ``compare``, and what it detects.

Four files of ``benchmarks/evidence``, checked by tests from the data in them. Three are made on a
GPU: ``aa.json`` (a version against itself), ``power.json`` (slowdowns of known size) and
``mutants.json`` (bad changes of the kinds that pass review). ``simulation.json`` needs none.
"""

import dataclasses
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from .._subjects.rope.grid import all_cells
from .._system.files import write_atomically
from .._system.process import SUITE
from .._system.progress import say
from .._verdict import rules
from .._verdict.rules import Answer
from . import caught, measure, mutants, planted, session, simulation
from .bench import AA_ROUNDS, ROUNDS, Bench, EvidenceError, pooled, small_grid
from .pool import Pool
from .rounds import BudgetError

DIRECTORY = SUITE / "evidence"
ALIKE = "machine", "rounds", "rules"
"""What mutants must have in common to be in one file; each says which commit it is of."""
AA_RUNS = 10


def run(what: str, commit: str, budget: float, only: Sequence[str] = ()) -> int:
    """Make one file of evidence anew, or ``only`` some mutants of it; 0 when it is written."""
    path = DIRECTORY / f"{what}.json"
    if only and what != "mutants":
        raise EvidenceError(f"--only is for mutants, got {what}")
    if what == "simulation":
        return _simulate(path)
    bench = Bench(commit, time.monotonic() + 60 * budget)
    head = {
        "command": f"python -m benchmarks evidence {what} --commit {bench.base.sha}",
        "machine": dict(bench.machine),
        "rounds": AA_ROUNDS if what == "aa" else ROUNDS,
        "suite": session.suite_digest(),
        "rules": {name: dataclasses.asdict(each) for name, each in rules.RULES.items()},
    }
    if what == "mutants":
        kept = stored(path, head, ALIKE)
        found = _mutants(bench, kept["mutants"] if kept else [], only)
        documents: Iterable[dict] = [{"mutants": found}]
    elif what == "aa":
        kept = stored(path, head, head.keys())
        documents = _aa(bench, Pool.from_json(kept["pool"]) if kept else None)
    else:
        documents = [_power(bench)]
    DIRECTORY.mkdir(exist_ok=True)
    for document in documents:
        write_atomically(path, (_text(head | document) + "\n").encode())
    print(f"{path}\n{summary(what, document)}")
    return 0


def stored(path: Path, head: Mapping, keys: Iterable[str]) -> dict | None:
    """A file that is gone on with: what is there has the same under these keys."""
    if not path.exists():
        return None
    there = json.loads(path.read_bytes())
    if other := [key for key in keys if there.get(key) != head[key]]:
        say(f"{path} is of another {' and '.join(other)}: all is made anew")
        return None
    return there


def _simulate(path: Path) -> int:
    pool = Pool.from_json(json.loads((DIRECTORY / "aa.json").read_bytes())["pool"])
    found = simulation.simulate(path, pool, "python -m benchmarks evidence simulation")
    for model, figures in found.items():
        said = ", ".join(f"{name} {share:.1%}" for name, share in figures.items())
        print(f"{model}: {said}")
    print(path)
    return 0


def summary(what: str, document: Mapping) -> str:
    """What a file of evidence says, in a few lines."""
    if what == "aa":
        runs = document["comparisons"]
        failed, unsure = (
            sum(one["answer"] == str(answer) for one in runs)
            for answer in (Answer.FAIL, Answer.CANNOT_TELL)
        )
        left = AA_RUNS - len(runs)
        return (
            f"of {len(runs)} independent comparisons of a version with itself {failed} failed and "
            f"{unsure} could not tell" + f"; the same command makes the other {left}" * (left > 0)
        )
    if what == "power":
        return "\n".join([*map(_gpu_line, document["doses"]), *map(_host_line, document["host"])])
    lines = [
        f"{'caught' if one['caught'] else 'SURVIVED'}: {one['name']}: {one['by']}"
        for one in document["mutants"]
    ]
    if left := len(mutants.load()) - len(lines):
        lines.append(f"the same command makes the other {left}")
    return "\n".join(lines)


def _gpu_line(dose: Mapping) -> str:
    return (
        f"{dose['planted']:.0%}: detected in {dose['seen']} of {dose['timings']} timings, in "
        f"{dose['seen_above_4_mb']} of {dose['timings_above_4_mb']} above 4 MB; measured "
        f"{dose['measured']:+.2%}, {dose['measured_up_to_4_mb']:+.2%} up to 4 MB and "
        f"{dose['measured_above_4_mb']:+.2%} above{_claim(dose)}"
    )


def _host_line(dose: Mapping) -> str:
    return (
        f"{1e6 * dose['planted_seconds']:g} us of Python: detected in {dose['seen']} of "
        f"{dose['timings']} calls, in {dose['seen_from_5_percent']} of "
        f"{dose['timings_from_5_percent']} that take 20 times as long or less; measured "
        f"{1e6 * dose['measured_seconds']:.2f} us{_claim(dose)}"
    )


def _claim(dose: Mapping) -> str:
    return "" if dose["as_claimed"] else f": NOT AS CLAIMED within {planted.TOLERANCE:.0%}"


# --- a version against itself ---------------------------------------------------------------------


def _aa(bench: Bench, kept: Pool | None) -> Iterator[dict]:
    """The runs that there is time for, after those that are ``kept``; a document with each.

    Raises
    ------
    BudgetError
        If there is not time for one.
    """
    versions = {"one": bench.base, "other": bench.base}
    asked = measure.timing_job(all_cells("small"), host=True)
    pools = [] if kept is None else [kept]
    if kept is not None:
        yield aa_document(kept)
    for number in range(0 if kept is None else _runs(kept), AA_RUNS):
        try:
            pools.append(pooled(bench, f"aa-{number + 1}", versions, AA_ROUNDS, asked))
        except BudgetError:
            if not pools:
                raise
            break
        yield aa_document(_joined(pools))


def aa_document(pool: Pool) -> dict:
    """What the runs of a pool say, ``AA_ROUNDS`` of its rounds each."""
    return {
        "how": (
            f"runs of {AA_ROUNDS} rounds each, a round of two fresh processes of one commit, their "
            "order alternating; every run is compared by itself, as two commits are by their first "
            "look"
        ),
        "comparisons": [
            _aa_comparison(pool, range(number * AA_ROUNDS, (number + 1) * AA_ROUNDS))
            for number in range(_runs(pool))
        ],
        "pool": pool.as_json(),
    }


def _runs(pool: Pool) -> int:
    return len(pool.seconds["one"]) // AA_ROUNDS


def _joined(pools: Sequence[Pool]) -> Pool:
    """The rounds of all, with the subjects that every one has."""
    subjects = sorted(set.intersection(*(set(pool.subjects) for pool in pools)))
    columns = [[pool.subjects.index(subject) for subject in subjects] for pool in pools]
    return Pool(
        subjects,
        {
            arm: np.concatenate(
                [pool.seconds[arm][:, at] for pool, at in zip(pools, columns, strict=True)]
            )
            for arm in pools[0].seconds
        },
    )


def _aa_comparison(pool: Pool, rows: Sequence[int]) -> dict:
    families = pool.judged("one", "other", rows)
    timings = [timing for family in families.values() for timing in family.timings]
    return {
        "failed": sum(timing.answer is Answer.FAIL for timing in timings),
        "cannot_tell": sum(timing.answer is Answer.CANNOT_TELL for timing in timings),
        "faster": sum(timing.change == "faster" for timing in timings),
        "control_failed": sum(family.control.failed for family in families.values()),
        "floor": families["gpu"].control.floor,
        "answer": str(rules.overall(families.values(), ())),
    }


# --- mutants --------------------------------------------------------------------------------------


def _mutants(bench: Bench, kept: list[dict], only: Sequence[str]) -> list[dict]:
    """Mutants, all of this commit or ``only`` some, that there is time for, after those ``kept``.

    Raises
    ------
    BudgetError
        If there is not time for one more.
    """
    entries = list(kept)
    try:
        for several in caught.made(bench, only or caught.missing(kept, bench.base.sha)):
            entries += several
    except BudgetError:
        if len(entries) == len(kept):
            raise
    return caught.in_order(entries)


# --- slowdowns of known size ----------------------------------------------------------------------


def _power(bench: Bench) -> dict:
    versions = planted.versions(bench)
    asked = measure.timing_job(small_grid(), host=True)
    pool, verification = (
        pooled(bench, name, versions, count, asked)
        for name, count in (("power", ROUNDS), ("verification", planted.VERIFICATION_ROUNDS))
    )
    return {
        "how": (
            "the programs that the GPU starts a kernel with wait, and so does each call on the "
            "host, in Python; how long a step of waiting takes is found for each cell by a line "
            f"through the times at four waits, {planted.CALIBRATION_ROUNDS} processes each; every "
            "version is compared as two commits are with a base that waits for a few steps, and "
            f"{planted.VERIFICATION_ROUNDS} more processes of each measure how large its dose is"
        ),
        "doses": [planted.gpu_dose(pool, verification, name) for name in planted.DOSES],
        "host": [planted.host_dose(pool, verification, name) for name in planted.DOSES],
        "pool": pool.as_json(),
        "verification": verification.as_json(),
    }


# --- what is written ----------------------------------------------------------------------------


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
