"""Make an issue from the artifact of the nightly comparison.

``python -m benchmarks._engine.report.release_issue`` runs where the token may write, with nothing
installed. It takes numbers and commits from the artifact and nothing else that is not escaped: the
comparison of the baseline with main, and of the baseline with commits that git says lie between.
Every answer is derived again. It writes requests to GitHub, which the next step of the workflow
sends, and prints the answer. An artifact that is not what was asked for makes no request: the
status is 1.

There is one issue for a baseline. It is opened when the comparison fails, follows it from night to
night, is closed when it passes or the baseline moves, and opened again if it fails again. A
comparison that cannot tell leaves it as it is.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ..subject import DEFAULT, load
from ..system.baseline import commits_since
from ..verdict import release
from ..verdict.release import SinceRelease
from ..verdict.rules import Answer
from . import artifact
from .artifact import ArtifactError, Request, require
from .github_markdown import escaped
from .release_text import body, sentences, title

MARKER = "<!-- rope-triton release {} -->"
"""First line of an issue, with its baseline."""

_ISSUE = re.compile(r"(\d{1,10})\t(open|closed)\t" + MARKER.format("([0-9a-f]{40})"))


class Issue(NamedTuple):
    """An issue that this program wrote."""

    number: int
    is_open: bool
    baseline: str


class Call(NamedTuple):
    """A request to GitHub's API below the repository."""

    method: str
    path: str
    body: dict[str, str]


def read_artifact(
    archive: bytes, request: Request, repository: Path
) -> tuple[SinceRelease, list[str]]:
    """The results, and the commits since the release, in a repository that has them all.

    Raises ArtifactError if the archive is anything else, or not what was asked for.
    """
    results = artifact.parsed(archive, release.from_json)
    commits = commits_since(repository, request.base, request.head)
    by_git = artifact.commits(repository, request.base, request.head)
    # By the answer that closes the issue: it is a pass where the comparison's own may be none.
    artifact.require_asked(release.cumulative(results.comparison), request, by_git)
    measured, only = [s.commit for s in results.steps], release.targets(results.comparison)
    once = len(measured) == len({*measured}) and {*measured} <= {*commits[:-1]}
    require(once, "a commit comes twice, or is none between the baseline and main")
    require(only or not measured, "nothing failed, so no commit between was to be measured")
    for commit, comparison in results.steps:
        if comparison is not None:
            step = replace(request, head=commit, only=only)
            by_git = artifact.commits(repository, request.base, commit)
            artifact.require_asked(comparison, step, by_git)
    return results, commits


def issues(lines: Sequence[str]) -> list[Issue]:
    """The issues by lines of a number, a state and a first line, with tabs between.

    Raises ValueError if a line is of anything else.
    """
    parsed = []
    for line in lines:
        match = _ISSUE.fullmatch(line)
        if match is None:
            raise ValueError(f"an issue's number, state and baseline are needed, got {line!r:.80}")
        parsed.append(Issue(int(match[1]), match[2] == "open", match[3]))
    return parsed


def calls(
    results: SinceRelease, commits: Sequence[str], existing: Sequence[Issue], run_url: str
) -> Iterator[Call]:
    """What to ask of GitHub after a comparison, with the ``existing`` issues there."""
    base, head = results.comparison.base.sha, results.comparison.head.sha
    answer = release.cumulative(results.comparison).answer
    own = [issue for issue in existing if issue.baseline == base]
    if answer is Answer.FAIL:
        text = f"{MARKER.format(base)}\n{body(results, commits, run_url)}"
        content = {"title": title(results, commits), "body": text}
        if own:
            yield Call("PATCH", f"issues/{own[0].number}", content | {"state": "open"})
        else:
            yield Call("POST", "issues", content)
    for issue in existing:
        moved = issue.baseline != base
        if issue.is_open and (moved or answer is Answer.PASS):
            why = f"The baseline is {base} now." if moved else f"As fast as the baseline at {head}."
            reason = {"state": "closed", "state_reason": "not_planned" if moved else "completed"}
            yield Call("PATCH", f"issues/{issue.number}", reason)
            text = f"{why} [Log of the run]({run_url})"
            yield Call("POST", f"issues/{issue.number}/comments", {"body": text})


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    artifact.add_options(parser, needs_gpu=True)
    parser.add_argument("--issues", type=Path, required=True, help="a line for each: see issues()")
    parser.add_argument("--requests", type=Path, required=True, metavar="DIR", help="written")
    parser.add_argument("--summary", type=Path, required=True, metavar="FILE", help="added to")
    options = parser.parse_args(arguments)
    request = Request(options.base, options.head, options.run_url, options.gpu)
    try:
        archive = artifact.archive_at(options.artifact)
        results, commits = read_artifact(archive, request, options.repository)
    except ArtifactError as error:
        print(f"the artifact was refused: {error!s:.500}", file=sys.stderr)
        return 1
    existing = issues(options.issues.read_text(encoding="utf-8").splitlines())
    options.requests.mkdir()
    with (options.requests / "list").open("w", encoding="utf-8") as listed:
        for number, call in enumerate(calls(results, commits, existing, request.run_url)):
            print(call.method, call.path, f"{number}.json", file=listed)
            (options.requests / f"{number}.json").write_text(
                json.dumps(call.body), encoding="utf-8"
            )
    with options.summary.open("a", encoding="utf-8") as summary:
        print("\n\n".join(map(escaped, sentences(results, commits))), file=summary)
    print(release.cumulative(results.comparison).answer.value)
    return 0


if __name__ == "__main__":
    load(DEFAULT)
    sys.exit(main())
