"""``python -m benchmarks evidence``: the false alarms of ``compare``, and what it detects.

Four files of ``benchmarks/evidence``, checked by tests from the data in them. Three are made on a
GPU: ``aa.json`` (a version against itself), ``power.json`` (slowdowns of known size) and
``mutants.json`` (bad changes of the kinds that pass review). ``simulation.json`` needs none.
"""

import dataclasses
import json
import random
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from .._cells.grid import all_cells, cell_of
from .._system.files import write_atomically
from .._system.process import SUITE
from .._system.progress import missing
from .._verdict import rules
from .._verdict.rules import Answer
from . import caught, measure, planted, session, simulation
from .bench import ROUNDS, Bench, small_grid
from .command import COULD_NOT_RUN
from .pool import Pool

DIRECTORY = SUITE / "evidence"
COMPARISONS, POOL_ROUNDS = 20, 20
DOSES = {"slow-1": 0.01, "slow-2": 0.02, "slow-5": 0.05}


def run(what: str, commit: str, budget: float, only: Sequence[str] = ()) -> int:
    """Make one file of evidence anew, or ``only`` some mutants of it.

    0 when it is written, 3 when it could not be.
    """
    path = DIRECTORY / f"{what}.json"
    try:
        if only and what != "mutants":
            raise caught.EvidenceError(f"--only is for mutants, got {what}")
        if what == "simulation":
            return _simulate(path)
        bench = Bench(commit, time.monotonic() + 60 * budget)
        head = {
            "command": f"python -m benchmarks evidence {what} --commit {bench.base.sha}",
            "machine": dict(bench.machine),
            "rounds": ROUNDS,
            "rules": {name: dataclasses.asdict(each) for name, each in rules.RULES.items()},
        }
        if what == "mutants":
            kept = caught.kept(path, head) if only else []
            document = {"mutants": caught.in_order([*kept, *caught.made(bench, only)])}
        else:
            document = {"aa": _aa, "power": _power}[what](bench)
    except (*session.EXPECTED, caught.EvidenceError) as error:
        if missing(error):
            raise  # the command line says how to install it
        print(f"could not run: {error}", file=sys.stderr)
        return COULD_NOT_RUN
    DIRECTORY.mkdir(exist_ok=True)
    write_atomically(path, (_text(head | document) + "\n").encode())
    print(f"{path}\n{summary(what, document)}")
    return 0


def _simulate(path: Path) -> int:
    pool = Pool.from_json(json.loads((DIRECTORY / "aa.json").read_text())["pool"])
    found = simulation.simulate(path, pool, "python -m benchmarks evidence simulation")
    for model, figures in found.items():
        said = ", ".join(f"{name} {share:.1%}" for name, share in figures.items())
        print(f"{model}: {said}")
    print(path)
    return 0


def summary(what: str, document: Mapping) -> str:
    """What a file of evidence says, in a few lines."""
    if what == "aa":
        each = document["comparisons"]
        failed = sum(bool(one["failed"]) for one in each)
        return f"{failed} of {len(each)} comparisons of a version with itself have a failed cell"
    if what == "power":
        return "\n".join(
            f"{dose['planted']:.0%}: detected in {dose['seen']} of {dose['timings']} timings, in "
            f"{dose['seen_above_4_mb']} of {dose['timings_above_4_mb']} above 4 MB; "
            f"measured {dose['median_effect']:+.2%} in the median"
            for dose in document["doses"]
        )
    return "\n".join(
        f"{'caught' if one['caught'] else 'SURVIVED'}: {one['name']}: {one['by']}"
        for one in document["mutants"]
    )


# --- a version against itself ---------------------------------------------------------------------


def _aa(bench: Bench) -> dict:
    versions = {"one": bench.base, "other": bench.base}
    asked = measure.timing_job(all_cells("small"), host=True)
    pool = Pool.of(bench.rounds("aa", versions, POOL_ROUNDS, asked), versions)
    return {
        "how": (
            f"{POOL_ROUNDS} rounds of two fresh processes of one commit, their order alternating; "
            f"each comparison draws {ROUNDS // 2} of the {POOL_ROUNDS // 2} blocks of two rounds "
            "without replacement, and which of the two is called the head, by a seed"
        ),
        "comparisons": aa_comparisons(pool),
        "pool": pool.as_json(),
    }


def aa_comparisons(pool: Pool) -> list[dict]:
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
                "answer": str(rules.overall(families.values(), ())),
            }
        )
    return found


# --- slowdowns of known size ----------------------------------------------------------------------


def _power(bench: Bench) -> dict:
    asked = measure.timing_job(small_grid(), host=False)
    versions = planted.versions(bench, DOSES, asked)
    pool = Pool.of(bench.rounds("power", versions, ROUNDS, asked), versions)
    return {
        "how": (
            "the programs that the GPU starts a kernel with wait for a number of cycles, which one "
            "process of the base and one of a slower version set for each cell; every version is "
            "compared as two commits are with a base that waits for none"
        ),
        "doses": [dose_seen(pool, name, DOSES[name]) for name in DOSES],
        "pool": pool.as_json(),
    }


def dose_seen(pool: Pool, name: str, planted_share: float) -> dict:
    """In how many timings a planted slowdown was detected, and how large it was measured."""
    timings = pool.judged("base", name)["gpu"].timings
    # A tensor's bytes, in and out.
    large = [timing for timing in timings if cell_of(*timing.subject).bytes_moved > 2 * 4e6]
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
