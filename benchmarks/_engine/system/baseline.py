"""The commit that main is compared with every night, and the commits since.

It is the last release: of the tags ``vX.Y.Z`` that main has, the one of the highest version.
``benchmarks/baseline.json`` names a commit until there is a release, and a later one than the
release if main may be slower than it: CONTRIBUTING says when.

``python -m benchmarks._engine.system.baseline`` prints the baseline of HEAD, HEAD, and a digest of
what a comparison of both depends on besides. Exit status: 0, or 3 if there is no baseline.
"""

import hashlib
import re
import sys
from pathlib import Path
from typing import Annotated, NamedTuple

from .arguments import COULD_NOT_RUN
from .errors import CouldNotRunError
from .process import ROOT
from .repository import PACKAGE, GitError, commit_of, content, git, git_text
from .untrusted import Text, load_json, validated

FILE = "benchmarks/baseline.json"
_MEASURED = (PACKAGE, "benchmarks", "pyproject.toml", "constraints.txt")
_UNMEASURED = (":!*.md", ":!benchmarks/results", ":!benchmarks/evidence")
_RELEASE = re.compile(r"v(\d{1,6})\.(\d{1,6})\.(\d{1,6})")


class BaselineError(CouldNotRunError):
    """There is no baseline, or it is none; the message says why."""


class Baseline(NamedTuple):
    """A full SHA, and what it is: a tag, or the reason that the file gives."""

    commit: Annotated[str, Text("[0-9a-f]{40}")]
    reason: Annotated[str, Text(r"\S.*", 300)]


def baseline(repository: Path, head: str) -> Baseline:
    """What ``head`` is compared with, by the tags and the file that it has.

    Raises BaselineError if ``head`` has neither a release nor the file, if the file cannot be read,
    or if the commit in it is no ancestor of ``head``.
    """
    release, named = _last_release(repository, head), _named(repository, head)
    if named is not None and not is_ancestor(repository, named.commit, head):
        raise BaselineError(f"{FILE} names {named.commit}, which is no ancestor of {head}")
    if named is None or (release and not is_ancestor(repository, release.commit, named.commit)):
        named = release
    if named is None:
        raise BaselineError(f"{head} has neither a release, such as v1.0.0, nor {FILE}")
    return named


def commits_since(repository: Path, base: str | None, head: str) -> list[str]:
    """Full SHAs of the commits that changed the package after ``base``, or ever, oldest first.

    Those of the first-parent line of ``head``: a merged branch is one commit. A commit of Markdown
    alone changes nothing. Raises GitError if the repository lacks one of the commits.
    """
    commits = head if base is None else f"{base}..{head}"
    line = ("rev-list", "--first-parent", "--reverse", "--end-of-options", commits)
    return git_text(repository, *line, "--", PACKAGE, f":!{PACKAGE}/*.md").split()


def measured_content(repository: Path) -> str:
    """A digest of the package, the suite and the requirements in git's index, without documents."""
    files = git_text(repository, "ls-files", "--stage", "--", *_MEASURED, *_UNMEASURED)
    return hashlib.sha256(files.encode()).hexdigest()


def is_ancestor(repository: Path, commit: str, of: str) -> bool:
    """Whether ``of`` is the commit or descends from it."""
    line = ("rev-list", "--max-count=1", "--end-of-options", commit_of(repository, commit))
    return not git(repository, *line, f"^{of}")


def _last_release(repository: Path, head: str) -> Baseline | None:
    tags = git_text(repository, "tag", "--list", "v*", "--merged", head).split()
    releases = [match for tag in tags if (match := _RELEASE.fullmatch(tag))]
    if not releases:
        return None
    tag = max(releases, key=lambda match: [*map(int, match.groups())])[0]
    return Baseline(
        git_text(repository, "rev-parse", "--verify", f"refs/tags/{tag}^{{commit}}"), tag
    )


def _named(repository: Path, head: str) -> Baseline | None:
    text = content(repository, head, FILE)
    if text is None:
        return None
    try:
        return validated(Baseline, load_json(text), FILE)
    except ValueError as error:
        raise BaselineError(str(error)) from None


if __name__ == "__main__":
    try:
        HEAD = git_text(ROOT, "rev-parse", "--verify", "HEAD")
        print(baseline(ROOT, HEAD).commit, HEAD, measured_content(ROOT))
    except (BaselineError, GitError) as problem:
        print(f"could not run: {problem}", file=sys.stderr)
        sys.exit(COULD_NOT_RUN)
