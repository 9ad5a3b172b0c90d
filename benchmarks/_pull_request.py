"""From the artifact of a job that ran a pull request's code to a comment and a commit status.

``python -m benchmarks._pull_request`` runs where the token may write, and the artifact may be
anything: whoever can change what is measured can write it. So nothing of it is unpacked or run, it
is read within limits, and only what ``_comparison`` accepts of exactly the two commits that were
asked for is shown. Which pull request and which commits, the caller says. That the numbers are
true, nobody can check here: a pull request whose author is not trusted can forge those too.
"""

import argparse
import dataclasses
import json
import re
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ._artifact import MAX_ARCHIVE_BYTES, MEMBER, ArtifactError, read
from ._comparison import Comparison, from_json
from ._gfm import escaped
from ._report import markdown
from ._verdict import Answer

CONTEXT = "gpu"
MARKER = "<!-- rope-triton gpu report -->"
MAX_COMMENT_BYTES = 65_000  # GitHub takes 65,536 characters
MAX_ROUNDS, MAX_MINUTES, MAX_SECONDS = 1000, 1440, 3600
OUTCOMES = ("success", "failure", "cancelled", "skipped")

_SHA = re.compile(r"[0-9a-f]{40}")
_STATE = {Answer.PASS: "success", Answer.FAIL: "failure", Answer.CANNOT_TELL: "error"}


@dataclass(frozen=True)
class Request:
    """What was to be measured, from the trusted side.

    base, head: the commits. current: the pull request's head now. run_url: page of the job.
    """

    base: str
    head: str
    current: str
    run_url: str

    def __post_init__(self):
        for name in ("base", "head", "current"):
            if not _SHA.fullmatch(getattr(self, name)):
                raise ValueError(f"{name} must be a full SHA, got {getattr(self, name)!r:.80}")

    @property
    def command(self) -> str:
        """What the job runs, and anybody can."""
        return f"python -m benchmarks compare {self.base} {self.head}"


def read_artifact(archive: bytes, request: Request) -> Comparison:
    """The comparison in an artifact, a ZIP archive of the one file ``comparison.json``.

    Raises
    ------
    ArtifactError
        If it is anything else, of other commits, or outside the limits of a real measurement.
    """
    document = read(archive)
    try:
        comparison = from_json(document)
    except ValueError as error:
        raise ArtifactError(f"{MEMBER} is no comparison: {error}") from None
    _check(comparison, request)
    return comparison


def comment(request: Request, comparison: Comparison) -> str:
    """The comment on what was measured, in Markdown, below GitHub's limit."""
    return _bounded(request, markdown(comparison))


def comment_without(request: Request, reason: str) -> str:
    """The comment where there is no comparison; ``reason`` is reduced to words."""
    text = f"## ❔ NO VERDICT\n\n**{escaped(_inert(reason))}.** This says nothing about speed.\n\n"
    text += f"`{request.command}` measures it anywhere."
    return _bounded(request, text)


def status(request: Request, answer: Answer | None, run_failed: bool = False) -> dict:
    """The body of the commit status of the head, for GitHub's API.

    answer: None without a verdict, then ``run_failed`` says whether that is the change's fault.
    """
    if answer is None:
        state, text = ("failure", "tests failed") if run_failed else ("error", "no verdict")
    else:
        state, text = _STATE[answer], str(answer.value)
    described = f"{text}, against {request.base[:10]}"
    return {
        "state": state,
        "context": CONTEXT,
        "description": described,
        "target_url": request.run_url,
    }


def is_stale(request: Request) -> bool:
    """Whether the pull request has moved on since this was asked for."""
    return request.head != request.current


# What it says.


def _check(comparison: Comparison, request: Request) -> None:
    for side, sha in ((comparison.base, request.base), (comparison.head, request.head)):
        if (side.name, side.sha) != (sha, sha):
            got = f"{side.name!r:.50} at {side.sha!r:.50}"
            raise ArtifactError(f"commit {sha} was to be measured, {MEMBER} is of {got}")
    if comparison.reproduce != request.command:
        raise ArtifactError("it gives another command than the one that was run")
    for reason in _impossible(comparison):
        raise ArtifactError(f"no measurement gives this: {reason}")


def _impossible(comparison: Comparison) -> Iterator[str]:
    if comparison.rounds > MAX_ROUNDS or comparison.extension > comparison.rounds:
        yield f"{comparison.rounds} rounds, {comparison.extension} of them added"
    if not 0 <= comparison.minutes <= MAX_MINUTES:
        yield f"{comparison.minutes:g} minutes"
    for timing in comparison.timings:
        if max(timing.base, timing.head) > MAX_SECONDS:
            yield f"{timing.subject} took more than {MAX_SECONDS} s"


# Pieces.


def _bounded(request: Request, text: str) -> str:
    lines = [MARKER]
    if is_stale(request):
        lines += [
            f"> **Stale:** of {request.head}; the pull request is at {request.current} now.",
            "",
        ]
    lines += [text, "", f"Commit {request.head} on a GPU: [log of the run]({request.run_url})", ""]
    whole = "\n".join(lines)
    if len(whole.encode()) > MAX_COMMENT_BYTES:
        raise ValueError(f"a comment has at most {MAX_COMMENT_BYTES} bytes, got {len(whole)}")
    return whole


def _inert(text: str) -> str:
    """Words alone, no links and one line: a message of ``ArtifactError`` can quote the artifact."""
    words = re.sub(r"[^\w .,:;()'-]|_|:/|::|www\.", " ", text, flags=re.ASCII | re.IGNORECASE)
    return " ".join(words.split())[:400]


def _absence(tests: str, job: str) -> str:
    if tests == "failure":
        return "The tests failed on the GPU, so nothing was measured"
    return f"The job on the GPU ended without a measurement ({job})"


def main(arguments: list[str] | None = None) -> int:
    """Write the comment and the status; 0 whatever they say, for their reader to see it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks._pull_request")
    for field in dataclasses.fields(Request):
        parser.add_argument(f"--{field.name.replace('_', '-')}", required=True)
    parser.add_argument("--job", required=True, choices=OUTCOMES)
    parser.add_argument("--tests", choices=(*OUTCOMES, ""), default="", help="the step's outcome")
    parser.add_argument("--artifact", type=Path, required=True, help="may be absent")
    parser.add_argument("--comment", type=Path, required=True, metavar="FILE", help="written")
    parser.add_argument("--status", type=Path, required=True, metavar="FILE", help="written")
    options = parser.parse_args(arguments)
    request = Request(options.base, options.head, options.current, options.run_url)
    text, state = _result(request, options)
    options.comment.write_text(text, encoding="utf-8")
    options.status.write_text(json.dumps(state), encoding="utf-8")
    return 0


def _result(request: Request, options: argparse.Namespace) -> tuple[str, dict]:
    """The comment and the status."""
    if options.job != "success":
        reason = _absence(options.tests, options.job)
        failed = options.tests == "failure"
        return comment_without(request, reason), status(request, None, failed)
    try:
        comparison = read_artifact(_bytes(options.artifact), request)
        return comment(request, comparison), status(request, comparison.answer)
    except ArtifactError as error:
        reason = _inert(f"The artifact was refused: {error}")
        print(reason, file=sys.stderr)
    except Exception as error:  # without a comment and a status those of an earlier run would stay
        where = traceback.extract_tb(error.__traceback__)[-1].name
        reason = f"The artifact could not be read or shown: {type(error).__name__} in {where}"
        print(reason, file=sys.stderr)
    return comment_without(request, reason), status(request, None)


def _bytes(path: Path) -> bytes:
    """The file, no more than one byte past the limit of it."""
    if not path.is_file():
        raise ArtifactError("there is none")
    with path.open("rb") as file:
        return file.read(MAX_ARCHIVE_BYTES + 1)


if __name__ == "__main__":
    sys.exit(main())
