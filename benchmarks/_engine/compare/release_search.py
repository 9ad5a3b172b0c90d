"""``python -m benchmarks release``: is HEAD slower than the last release, and since which commit?

One comparison with the last release (``system.baseline``), then, if that fails by the margins of
``verdict.release``, comparisons of the commits between on what failed. Each is what ``compare``
measures: it is stored, and the same command goes on from there.
"""

import argparse
import dataclasses
import json as json_
import math
import time
from collections.abc import Sequence
from pathlib import Path

from ..report.release_text import sentences
from ..system import baseline, errors
from ..system.arguments import COULD_NOT_RUN, output_file, positive_minutes
from ..system.files import write_atomically
from ..system.progress import say
from ..system.repository import git_text
from ..verdict import release
from ..verdict.release import Search, SinceRelease, Step
from ..verdict.rules import Key
from ..verdict.schema import Comparison
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
    results = _searched(SinceRelease(comparison), commits, deadline)
    if json:
        text = json_.dumps(release.to_json(results), indent=1, allow_nan=False)
        write_atomically(json, text.encode())
    print(*sentences(results, commits), sep="\n")
    return command.STATUS[release.cumulative(comparison).answer]


def _searched(results: SinceRelease, commits: Sequence[str], deadline: float) -> SinceRelease:
    """With a step for each commit that is worth comparing, as many as there is time for."""
    base, keys = results.comparison.base.sha, release.targets(results.comparison)
    minutes = results.comparison.minutes  # on fewer timings than all, a step takes less
    if Search(results, commits).next_commit() is not None:
        few, many = math.ceil(math.log2(len(commits))), len(commits) - 1
        say(
            f"searching {len(commits)} commits on {len(keys)} of what failed: {few} comparisons "
            f"if one commit did it, up to {many} if many did, of at most {minutes:.1f} minutes "
            f"each: {few * minutes:.0f} to {many * minutes:.0f} minutes"
        )
    while (commit := Search(results, commits).next_commit()) is not None:
        if len(results.steps) == release.MOST_STEPS or time.monotonic() > deadline:
            say(
                f"stopped before {commit[:10]}, after {len(results.steps)} commits: the same "
                "command goes on from there"
            )
            break
        comparison = _compared(base, commit, keys, deadline)
        if comparison is None and time.monotonic() > deadline - 60 * minutes:
            say(f"there may have been too little time for {commit[:10]}: it is not skipped")
            break
        step = Step(commit, comparison and release.trimmed(comparison, keys))
        results = dataclasses.replace(results, steps=(*results.steps, step))
        if Search(results, commits).skipped(step):
            say(f"{commit[:10]} is skipped: it could not be compared, or not surely enough")
    return results


def _compared(base: str, head: str, keys: Sequence[Key], deadline: float) -> Comparison | None:
    """What ``compare`` finds with these arguments; None if it could not run."""
    minutes = max(1.0, (deadline - time.monotonic()) / 60)
    words = [base, head, "--budget", f"{minutes:.2f}", "--wait", str(_WAIT_SECONDS)]
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    try:
        return command.compare(parser.parse_args([*words, *release.only_words(keys)]))
    except OSError:
        raise  # of the environment: no other commit would do better
    except Exception as error:
        errors.status_of(error)
        return None
