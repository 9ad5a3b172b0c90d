"""``python -m benchmarks creep``: is HEAD slower than the last release, all in all, and since when?

One comparison with the baseline (``_system.baseline``), then, if its timings add up to more than
the margins of ``_verdict.creep``, comparisons of the commits between on what failed. Each is what
``compare`` measures: it is kept, and the same command goes on from there.
"""

import argparse
import dataclasses
import json
import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from .._report.creep import sentences
from .._system import baseline, errors
from .._system.arguments import COULD_NOT_RUN, output_file, positive_minutes
from .._system.files import write_atomically
from .._system.progress import say
from .._system.repository import git_text
from .._system.untrusted import load_json
from .._verdict import creep
from .._verdict.creep import Creep, Search, Step
from .._verdict.rules import Key
from .._verdict.schema import Comparison, from_json
from . import command

BUDGET_MINUTES = 90
_WAIT_SECONDS = 600


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Compare HEAD with the last release, or with the commit that benchmarks/baseline.json "
        "names. If a timing is slower by more than its margin (1 % on the GPU), compare the "
        "commits in between to find those that made it slower. Exit status: as for compare."
    )
    parser.add_argument(
        "--budget",
        type=positive_minutes,
        default=BUDGET_MINUTES,
        metavar="MINUTES",
        help=f"time limit; default: {BUDGET_MINUTES}",
    )
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write the result as JSON")


def run(budget: float, json: Path | None) -> int:
    """Compare, search, print, write; the exit status."""
    head = git_text(command.ROOT, "rev-parse", "--verify", "HEAD")
    base, reason = baseline.baseline(command.ROOT, head)
    commits = baseline.commits_since(command.ROOT, base, head)
    say(f"baseline {base[:10]} ({reason}); {len(commits)} commits changed the package since")
    deadline = time.monotonic() + 60 * budget
    comparison = _compared(base, head, (), deadline)
    if comparison is None:
        return COULD_NOT_RUN  # which said why
    found = _searched(Creep(comparison), commits, deadline)
    if json:
        _write(json, found)
    print(*sentences(found, commits), sep="\n")
    return command.STATUS[creep.cumulative(comparison).answer]


def _searched(found: Creep, commits: Sequence[str], deadline: float) -> Creep:
    """With a step for each commit that is worth comparing, as many as there is time for."""
    base, wanted = found.comparison.base.sha, creep.targets(found.comparison)
    first, each = Search(found, commits).next_commit(), found.comparison.minutes
    if first is not None:
        # On fewer timings than all: each takes less than the first.
        few, many = math.ceil(math.log2(len(commits))), len(commits) - 1
        say(
            f"searching {len(commits)} commits on {len(wanted)} of what failed: {few} comparisons "
            f"if one commit did it, up to {many} if many did, of at most {each:.1f} minutes each: "
            f"{few * each:.0f} to {many * each:.0f} minutes"
        )
    while (commit := Search(found, commits).next_commit()) is not None:
        if len(found.steps) == creep.MOST_STEPS or time.monotonic() > deadline:
            say(
                f"stopped before {commit[:10]}, after {len(found.steps)} commits: the same command "
                "goes on from there"
            )
            break
        comparison = _compared(base, commit, wanted, deadline)
        if comparison is None and time.monotonic() > deadline - 60 * each:
            say(f"there may have been too little time for {commit[:10]}: it is not skipped")
            break
        step = Step(commit, comparison and creep.trimmed(comparison, wanted))
        found = dataclasses.replace(found, steps=(*found.steps, step))
        if Search(found, commits).skipped(step):
            say(f"{commit[:10]} is skipped: it could not be compared, or not surely enough")
    return found


def _compared(base: str, head: str, wanted: Sequence[Key], deadline: float) -> Comparison | None:
    """What ``compare`` finds with these arguments; None if it could not run."""
    minutes = max(1.0, (deadline - time.monotonic()) / 60)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "comparison.json")
        words = [base, head, "--json", str(file), "--budget", f"{minutes:.2f}"]
        words += ["--wait", str(_WAIT_SECONDS), *creep.only_words(wanted)]
        parser = argparse.ArgumentParser()
        command.add_arguments(parser)
        try:
            command.run(**vars(parser.parse_args(words)))
        except OSError:
            raise  # of the environment: no other commit would do better
        except Exception as error:
            errors.status_of(error)
            return None
        return from_json(load_json(file.read_bytes()))


def _write(path: Path, found: Creep) -> None:
    write_atomically(path, json.dumps(creep.to_json(found), indent=1, allow_nan=False).encode())
