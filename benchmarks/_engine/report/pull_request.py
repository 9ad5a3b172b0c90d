"""Make a comment and a commit status from the artifact of a pull request's job.

``python -m benchmarks._engine.report.pull_request`` runs where the token may write, with nothing
installed, and the artifact may be anything: whoever can change what is measured can write it. So
only what ``artifact`` accepts is shown, and whatever goes wrong is a comment and a status too.
The caller says which pull request, which commits and which GPU; without a GPU, the report is of
what needs none, in a comment of its own. Whether the numbers are true cannot be checked here: a
pull request whose author is not trusted can forge those too, and the comment says so.
"""

import argparse
import json
import re
import sys
import traceback
from pathlib import Path

from ..subject import DEFAULT, load
from ..verdict.rules import Answer
from ..verdict.schema import Comparison
from . import artifact
from .artifact import ArtifactError, NoGpuError, Request
from .github_markdown import escaped
from .markdown import markdown
from .text import count

CONTEXT = "gpu"
MARKER = "<!-- rope-triton gpu report -->"
CODE_MARKER = "<!-- rope-triton machine code report -->"
"""First lines of the two comments."""

OUTCOMES = ("success", "failure", "cancelled", "skipped")

_STATE = {Answer.PASS: "success", Answer.FAIL: "failure", Answer.CANNOT_TELL: "error"}
_TRUST = (
    "These figures were made by a process that ran the pull request's code, which could have "
    "changed them. If you do not trust its author, measure it yourself."
)


def comment(request: Request, comparison: Comparison) -> str:
    """The comment on what was measured, in Markdown, below GitHub's limit."""
    lines = [markdown(comparison, request.page), _TRUST]
    if request.behind:
        lines.append(f"The base is {count(request.behind, 'commit')} behind main.")
    return _comment(request, "\n\n".join(lines))


def comment_without(request: Request, reason: str) -> str:
    """The comment where there is no comparison; ``reason`` is reduced to words."""
    what = "the machine code" if request.gpu is None else "speed"
    text = f"## ❔ NO VERDICT\n\n**{escaped(_inert(reason))}.** This says nothing about {what}.\n\n"
    text += f"`{request.command}` measures it anywhere."
    return _comment(request, text)


def _comment(request: Request, text: str) -> str:
    marker, where = MARKER, "on a GPU"
    if request.gpu is None:
        marker, where = CODE_MARKER, "on a machine without a GPU"
    log = f"Commit {request.head} {where}: [log of the run]({request.run_url})"
    return f"{marker}\n{text}\n\n{log}\n"


def _inert(text: str) -> str:
    """Words alone, no links and one line: a message of ``ArtifactError`` can quote the artifact."""
    words = re.sub(r"[^\w .,:;()'-]|_|:/|::|www\.", " ", text, flags=re.ASCII | re.IGNORECASE)
    return " ".join(words.split())[:400]


def main(arguments: list[str] | None = None) -> int:
    """Write the comment and the status; 0 whatever they say, for their reader to see it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks._engine.report.pull_request")
    artifact.add_options(parser, needs_gpu=False)
    parser.add_argument("--behind", type=int, required=True, help="commits of main after the base")
    parser.add_argument("--job", default="success", choices=OUTCOMES, help="the GPU job's outcome")
    parser.add_argument("--tests", choices=(*OUTCOMES, ""), default="", help="the step's outcome")
    parser.add_argument("--comment", type=Path, required=True, metavar="FILE", help="written")
    parser.add_argument("--status", type=Path, metavar="FILE", help="written, of a GPU's report")
    options = parser.parse_args(arguments)
    request = Request(options.base, options.head, options.run_url, options.gpu, options.behind)
    text, state, description = _result(request, options)
    options.comment.write_text(text, encoding="utf-8")
    if options.status:
        status = {"state": state, "description": description}
        status |= {"context": CONTEXT, "target_url": request.run_url}
        options.status.write_text(json.dumps(status), encoding="utf-8")
    return 0


def _result(request: Request, options: argparse.Namespace) -> tuple[str, str, str]:
    """The comment, and the state and the description of the head's commit status."""
    against, why = f"against {request.base[:10]}", "no verdict"
    if options.job != "success":
        reason, state = f"The job on the GPU ended without a measurement ({options.job})", "error"
        if options.tests == "failure":
            reason, state = "The tests failed on the GPU, so nothing was measured", "failure"
            why = "tests failed"
        return comment_without(request, reason), state, f"{why}, {against}"
    try:
        archive = artifact.archive_at(options.artifact)
        commits = artifact.commits(options.repository, request.base, request.head)
        comparison = artifact.read_artifact(archive, request, commits)
        answer = comparison.answer
        description = f"{answer.value}, {against}; the change could alter its figures"
        return comment(request, comparison), _STATE[answer], description
    except NoGpuError as error:
        why = "could not run"
        reason = f"Could not run: {error}"
    except ArtifactError as error:
        reason = f"The artifact was refused: {error}"
    except Exception as error:  # without a comment and a status those of an earlier run would stay
        where = traceback.extract_tb(error.__traceback__)[-1].name
        reason = f"The artifact could not be read or shown: {type(error).__name__} in {where}"
    print(_inert(reason), file=sys.stderr)
    return comment_without(request, reason), "error", f"{why}, {against}"


if __name__ == "__main__":
    load(DEFAULT)
    sys.exit(main())
