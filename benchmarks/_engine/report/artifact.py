"""Read a comparison from an artifact that anybody may have written, within limits.

Nothing of the archive is unpacked to the disk. It holds one file, stored or deflated, and no more
is inflated of it than a file may have.

A comparison is accepted if it is the measurement that was asked for: of these commits, on this GPU
or of machine code alone, and for a pass with every family of timings and every exact metric. What
the commits themselves say is asked of git, never of the artifact. Whether the numbers are true
cannot be checked here.
"""

import argparse
import io
import re
import shlex
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from ..subject import DEFAULT, load, timings
from ..system.machine import slug
from ..system.repository import (
    GitError,
    committed_files,
    digest,
    requirement_changes,
    requirements,
)
from ..system.untrusted import load_json
from ..verdict.release import only_words
from ..verdict.rules import Answer, Key, changed
from ..verdict.schema import Comparison, from_json

GPUS = ("nvidia-h200",)
"""The GPUs that pull requests are measured on, as asv names their machines."""

MEMBER = "comparison.json"
MAX_ARCHIVE_BYTES = 3_000_000
MAX_DOCUMENT_BYTES = 4_000_000  # the full grid takes 0.6 MB
_CODE = ("codegen.", "host_cost.")
_KINDS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_SHA = re.compile(r"[0-9a-f]{40}")

T = TypeVar("T")


class ArtifactError(ValueError):
    """The artifact is not what the job writes; the message says what is wrong with it."""


class NoGpuError(ArtifactError):
    """The GPU that was asked for was not there."""


@dataclass(frozen=True)
class Request:
    """What was to be measured, from the trusted side.

    base, head: the commits. run_url: page of the job. gpu: asv's name of the machine; None if no
    GPU was to be used, and machine code alone compared. behind: commits of main that the base does
    not have. only: the keys that alone were to be measured, if any.
    """

    base: str
    head: str
    run_url: str
    gpu: str | None
    behind: int = 0
    only: tuple[Key, ...] = ()

    def __post_init__(self):
        for name in ("base", "head"):
            if not _SHA.fullmatch(getattr(self, name)):
                raise ValueError(f"{name} must be a full SHA, got {getattr(self, name)!r:.80}")
        if self.gpu is not None and self.gpu not in GPUS:
            raise ValueError(f"gpu must be one of {list(GPUS)}, got {self.gpu!r:.80}")
        if self.behind < 0:
            raise ValueError(f"behind must be 0 or more, got {self.behind}")

    @property
    def page(self) -> str:
        """The repository's page."""
        return self.run_url.rpartition("/actions/")[0]

    @property
    def command(self) -> str:
        """The command that the job runs, and that anybody can run."""
        words = ["python -m benchmarks compare", self.base, self.head]
        words += ["--exact-only"] if self.gpu is None else []
        return " ".join([*words, *map(shlex.quote, only_words(self.only))])


def add_options(parser: argparse.ArgumentParser, needs_gpu: bool) -> None:
    """The options of a program that reports on an artifact: what was asked for, and the files."""
    for name in ("base", "head", "run-url"):
        parser.add_argument(f"--{name}", required=True)
    without = "" if needs_gpu else "; without it the report is of machine code alone"
    parser.add_argument("--gpu", required=needs_gpu, help=f"asv's name of the machine{without}")
    parser.add_argument("--repository", type=Path, required=True, help="has these commits")
    parser.add_argument("--artifact", type=Path, required=True, help="may be absent")


class Commits(NamedTuple):
    """What git says of the two commits: whether they have the same package, and which requirements
    differ."""

    same_sources: bool
    requirement_changes: tuple[str, ...]


def commits(repository: Path, base: str, head: str) -> Commits:
    """What a git repository that has the objects of both commits says of them.

    Raises ArtifactError if it lacks one, or a commit has no such package or a pyproject.toml that
    cannot be read.
    """
    try:
        digests = {digest(committed_files(repository, commit)) for commit in (base, head)}
        asked = [requirements(repository, commit) for commit in (base, head)]
    except (GitError, ValueError) as error:
        raise ArtifactError(f"the commits cannot be compared: {error}") from None
    return Commits(len(digests) == 1, tuple(requirement_changes(*asked)))


def read_artifact(archive: bytes, request: Request, by_git: Commits) -> Comparison:
    """The comparison in an artifact; see ``parsed`` and ``require_asked`` for what is refused."""
    comparison = parsed(archive, from_json)
    require_asked(comparison, request, by_git)
    return comparison


def require_asked(comparison: Comparison, request: Request, by_git: Commits) -> None:
    """Refuse a comparison that is not the measurement that was asked for.

    Raises ArtifactError if it is of other commits or another GPU, needs a GPU and none was asked
    for, or is a pass that lacks something.
    """
    if request.gpu is None:
        _require_machine_code_only(comparison)
    else:
        machine, gpu = (comparison.machine.get(name, "none") for name in ("machine", "gpu"))
        if not machine == slug(gpu) == request.gpu or not gpu.isascii():
            what = f"{machine!r:.80}, a GPU {gpu!r:.80}"
            raise NoGpuError(f"the GPU {request.gpu} was not there, only {what}")
    _require_what_was_asked(comparison, request, by_git)
    if not request.only and comparison.answer is Answer.PASS and not by_git.same_sources:
        _require_complete(comparison, request)


def require(condition: object, otherwise: str) -> None:
    """Raise :class:`ArtifactError` with the message unless the condition holds."""
    if not condition:
        raise ArtifactError(otherwise)


def _require_machine_code_only(comparison: Comparison) -> None:
    unjudged = comparison.rounds and not comparison.families
    families = comparison.families.keys() - {"host"}
    timed = [families, unjudged, comparison.discarded, comparison.clocks]
    of_timings = [comparison.identical, comparison.represented, comparison.wrong]
    none = not any([*timed, *of_timings])
    require(none, "machine code alone was to be compared, it has what needs a GPU")
    gpu = comparison.machine.get("gpu", "none")
    require(gpu == "none", f"no GPU was to be used, it names {gpu!r:.80}")


def _require_what_was_asked(comparison: Comparison, request: Request, by_git: Commits) -> None:
    for side, sha in ((comparison.base, request.base), (comparison.head, request.head)):
        got = f"{side.name!r:.50} at {side.sha!r:.50}"
        asked = f"commit {sha} was to be measured, {MEMBER} is of {got}"
        require((side.name, side.sha) == (sha, sha), asked)
    another = "it gives another command than the one that was run"
    require(comparison.reproduce == request.command, another)
    same = f"by git the head has {'the same' if by_git.same_sources else 'another'} package as the "
    require(comparison.same_sources == by_git.same_sources, f"{same}base, it says otherwise")
    measured = comparison.families or comparison.exact or comparison.identical or comparison.rounds
    nothing = "both commits have the same package, so nothing was to be measured"
    require(not (by_git.same_sources and measured), nothing)
    listed = set(by_git.requirement_changes) <= {note.reason for note in comparison.unmeasured}
    require(listed, "it leaves out what changed of what the package runs on")


def _require_complete(comparison: Comparison, request: Request) -> None:
    """Of a pass of two packages: every family of timings and every exact metric."""
    on_gpu, subject = request.gpu is not None, load(DEFAULT)
    exact = {value.key.metric for value in comparison.exact}
    lacking = [
        metric
        for metric, unit in subject.UNITS.items()
        if unit.exact and (on_gpu or metric.startswith(_CODE)) and metric not in exact
    ]
    for name, keys in timings(subject).items() if on_gpu else ():
        family = comparison.families.get(name)
        if family is None:
            lacking += [f"{name} timings"] * (not keys <= comparison.identical)
        elif family.spread is None and changed(family.timings, comparison.identical):
            lacking.append(f"the spread of {name} timings")
    require(not lacking, f"a pass lacks {', '.join(lacking)}")


# The archive.


def archive_at(path: Path) -> bytes:
    """The file, no more than one byte past the limit of it."""
    require(path.is_file(), "there is none")
    with path.open("rb") as file:
        return file.read(MAX_ARCHIVE_BYTES + 1)


def parsed(archive: bytes, from_json: Callable[[dict], T]) -> T:
    """What ``from_json`` makes of the one file ``comparison.json`` of a ZIP archive.

    Raises ArtifactError if the archive is anything else, or ``from_json`` raises a ValueError.
    """
    fits = len(archive) <= MAX_ARCHIVE_BYTES
    require(fits, f"the archive has more than {MAX_ARCHIVE_BYTES} bytes")
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            # ``filename`` ends at a byte 0, ``orig_filename`` does not.
            names = [entry.orig_filename for entry in opened.infolist()]
            require(names == [MEMBER], f"only {MEMBER} may be in it, got {names[:5]!r:.200}")
            (member,) = opened.infolist()
            # The other kinds take memory before they give a byte.
            supported, fits = member.compress_type in _KINDS, member.file_size <= MAX_DOCUMENT_BYTES
            require(supported, f"{MEMBER} is neither stored nor deflated")
            require(fits, f"{MEMBER} has more than {MAX_DOCUMENT_BYTES} bytes")
            with opened.open(member) as file:
                document = file.read(member.file_size + 1)  # which then compares the checksum
    except ArtifactError:
        raise
    except Exception as error:  # of a dozen types, which are nowhere listed
        what = f"{type(error).__name__}: {error!s:.200}"
        raise ArtifactError(f"no archive can be read: {what}") from None
    try:
        return from_json(load_json(document))
    except ValueError as error:
        raise ArtifactError(f"{MEMBER} is not what the job writes: {error}") from None
