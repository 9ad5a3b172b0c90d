"""Read a comparison from an artifact that anybody may have written, within limits.

Nothing of the archive is unpacked to the disk. It holds one file, stored or deflated, and no more
is inflated of it than a file may have.

A comparison is accepted if it is the measurement that was asked for: of these commits, on this GPU
or of machine code alone, of subjects that this branch's suite has, and for a pass of all of them.
What the commits themselves say is asked of git, never of the artifact. Whether the numbers are true
cannot be checked here.
"""

import functools
import io
import itertools
import re
import zipfile
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from .._subjects import candidates, listed_cell, metrics
from .._system.machine import slug
from .._system.repository import (
    GitError,
    committed_files,
    digest,
    requirement_changes,
    requirements,
)
from .._system.untrusted import load_json
from .._verdict.rules import UNITS, Answer, Subject, changed
from .._verdict.schema import Comparison, from_json

GRID = "small"
ARCHITECTURES = {"nvidia-h200": "sm_90"}
"""The GPUs that pull requests are measured on, as asv names their machines, and what compilers call
them."""

MEMBER = "comparison.json"
MAX_ARCHIVE_BYTES = 3_000_000
MAX_DOCUMENT_BYTES = 4_000_000  # the full grid takes 0.6 MB
_KINDS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_SHA = re.compile(r"[0-9a-f]{40}")


class ArtifactError(ValueError):
    """The artifact is not what the job writes; the message says what is wrong with it."""


class NoGpuError(ArtifactError):
    """The GPU that was asked for was not there."""


@dataclass(frozen=True)
class Request:
    """What was to be measured, from the trusted side.

    base, head: the commits. current: the pull request's head now. run_url: page of the job. gpu:
    asv's name of the machine; None if no GPU was to be used, and machine code alone compared.
    behind: commits of main that the base does not have.
    """

    base: str
    head: str
    current: str
    run_url: str
    gpu: str | None
    behind: int = 0

    def __post_init__(self):
        for name in ("base", "head", "current"):
            if not _SHA.fullmatch(getattr(self, name)):
                raise ValueError(f"{name} must be a full SHA, got {getattr(self, name)!r:.80}")
        if self.gpu is not None and self.gpu not in ARCHITECTURES:
            raise ValueError(f"gpu must be one of {list(ARCHITECTURES)}, got {self.gpu!r:.80}")
        if self.behind < 0:
            raise ValueError(f"behind must be 0 or more, got {self.behind}")

    @property
    def page(self) -> str:
        """The repository's page."""
        return self.run_url.rpartition("/actions/")[0]

    @property
    def command(self) -> str:
        """The command that the job runs, and that anybody can run."""
        exact = " --exact-only" if self.gpu is None else ""
        return f"python -m benchmarks compare {self.base} {self.head}{exact}"


class Commits(NamedTuple):
    """What git says of the two commits: whether they have the same package, and which requirements
    differ."""

    same_sources: bool
    requirement_changes: tuple[str, ...]


def commits(repository: Path, base: str, head: str) -> Commits:
    """What a git repository that has the objects of both commits says of them.

    Raises
    ------
    ArtifactError
        If it lacks one, or a commit has no such package or a pyproject.toml that cannot be read.
    """
    try:
        digests = {digest(committed_files(repository, commit)) for commit in (base, head)}
        asked = [requirements(repository, commit) for commit in (base, head)]
    except (GitError, ValueError) as error:
        raise ArtifactError(f"the commits cannot be compared: {error}") from None
    return Commits(len(digests) == 1, tuple(requirement_changes(*asked)))


def read_artifact(archive: bytes, request: Request, found: Commits) -> Comparison:
    """The comparison in an artifact, a ZIP archive of the one file ``comparison.json``.

    Raises
    ------
    ArtifactError
        If it is anything else or not the measurement that was asked for.
    """
    document = content(archive)
    try:
        comparison = from_json(load_json(document))
    except ValueError as error:
        raise ArtifactError(f"{MEMBER} is no comparison: {error}") from None
    require_asked(comparison, request, found)
    return comparison


def require_asked(
    comparison: Comparison, request: Request, found: Commits, complete: bool = True
) -> None:
    """Refuse a comparison that is not the measurement that was asked for.

    Parameters
    ----------
    complete : bool
        Whether a pass must have all that this branch's suite has.

    Raises
    ------
    ArtifactError
        If it is of other commits, another GPU or other subjects, or needs a GPU and none was asked
        for.
    """
    if request.gpu is None:
        _require_machine_code_only(comparison)
    else:
        machine, gpu = (comparison.machine.get(name, "none") for name in ("machine", "gpu"))
        if not machine == slug(gpu) == request.gpu or not gpu.isascii():
            what = f"{machine!r:.80}, a GPU {gpu!r:.80}"
            raise NoGpuError(f"the GPU {request.gpu} was not there, only {what}")
    _require_what_was_asked(comparison, request, found)
    for what, these in _differences(comparison, request, found, complete):
        if these:
            first, more = min(these), f" and {len(these) - 1} more"
            raise ArtifactError(f"{what}: {first.words}{more if len(these) > 1 else ''}")


def require(condition: object, otherwise: str) -> None:
    """Raise :class:`ArtifactError` with the message unless the condition holds."""
    if not condition:
        raise ArtifactError(otherwise)


def _require_machine_code_only(comparison: Comparison) -> None:
    timed = [comparison.families, comparison.rounds, comparison.discarded, comparison.clocks]
    of_timings = [comparison.identical, comparison.represented, comparison.wrong]
    none = not any([*timed, *of_timings])
    require(none, "machine code alone was to be compared, it has what needs a GPU")
    gpu = comparison.machine.get("gpu", "none")
    require(gpu == "none", f"no GPU was to be used, it names {gpu!r:.80}")


def _require_what_was_asked(comparison: Comparison, request: Request, found: Commits) -> None:
    for side, sha in ((comparison.base, request.base), (comparison.head, request.head)):
        got = f"{side.name!r:.50} at {side.sha!r:.50}"
        asked = f"commit {sha} was to be measured, {MEMBER} is of {got}"
        require((side.name, side.sha) == (sha, sha), asked)
    command, grid = comparison.reproduce, comparison.grid
    require(command == request.command, "it gives another command than the one that was run")
    require(grid == GRID, f"the {GRID} grid was to be measured, not {grid!r:.80}")
    same = f"by git the head has {'the same' if found.same_sources else 'another'} package as the "
    require(comparison.same_sources == found.same_sources, f"{same}base, it says otherwise")
    measured = comparison.families or comparison.exact or comparison.identical or comparison.rounds
    nothing = "both commits have the same package, so nothing was to be measured"
    require(not (found.same_sources and measured), nothing)
    listed = set(found.requirement_changes) <= set(comparison.unmeasured)
    require(listed, "it leaves out what changed of what the package runs on")


def _differences(
    comparison: Comparison, request: Request, found: Commits, complete: bool
) -> Iterator[tuple[str, Set[Subject]]]:
    """Names that the suite does not have; and what a pass of two packages must have, but lacks."""
    arch = None if request.gpu is None else ARCHITECTURES[request.gpu]
    timed, exact = timed_subjects(), exact_subjects(arch)
    for name, family in comparison.families.items():
        ours = {timing.subject for timing in family.timings}
        yield f"the suite has no such timing of {name}", ours - timed[name]
    of_code = comparison.identical | comparison.represented
    yield "the suite has no such timing with machine code", of_code - timed["gpu"]
    values = {each.subject for each in comparison.exact}
    yield "the suite has no such exact value", values.difference(*exact.values())
    if complete and comparison.answer is Answer.PASS and not found.same_sources:
        if arch is not None:
            times = {timing.subject for timing in comparison.timings}
            gpu = comparison.families.get("gpu")
            differing = gpu and changed(gpu.timings, comparison.identical)
            yield "a pass lacks GPU times", timed["gpu"] - times - of_code
            yield "a pass lacks any GPU time", set() if gpu else timed["gpu"]
            yield "nothing was timed for", set() if differing else comparison.represented
            yield "a pass lacks host times", (timed["host"] | timed["start"]) - times
            for family in comparison.families.values():
                differing = [] if family.spread else changed(family.timings, comparison.identical)
                yield "a pass lacks the spread of", {timing.subject for timing in differing}
        for what, needed in exact.items():
            yield f"a pass lacks {what}", needed - values


# The subjects of this branch's suite.


@functools.cache
def timed_subjects() -> dict[str, frozenset[Subject]]:
    """All that is timed for a pull request, by family."""
    gpu = {
        Subject(metric, cell.params) for cell in candidates() for metric in cell.metrics.values()
    }
    host = itertools.starmap(Subject, metrics.host_keys(*metrics.CALLS))
    starts = (metrics.IMPORT, metrics.COMPILE, metrics.WARM_START)
    start = frozenset(Subject(name, ()) for name in starts)
    return {"gpu": frozenset(gpu), "host": frozenset(host), "start": start}


@functools.cache
def exact_subjects(arch: str | None) -> dict[str, frozenset[Subject]]:
    """All that is exact for a pull request: its machine code for ``arch``, and what a GPU gives.

    Without ``arch`` its machine code for every architecture that the suite compiles for.
    """
    suites = (
        ("codegen.Codegen.", metrics.CODE_PARAMS),
        ("codegen.Variants.", metrics.VARIANT_PARAMS),
        ("codegen.Surface.", metrics.SURFACE_PARAMS),
    )
    code = {
        Subject(metric, tuple(map(str, call)))
        for prefix, params in suites
        for metric in UNITS
        if metric.startswith(prefix)
        for call in itertools.product(
            params["target"] if arch is None else (arch,), *[*params.values()][1:]
        )
        if "form" not in params or call[2] in listed_cell(call[1]).directions
    }
    if arch is None:
        return {"machine code": frozenset(code)}
    host = itertools.starmap(Subject, metrics.host_keys(*metrics.EXACT))
    return {"machine code": frozenset(code), "memory, launches and error": frozenset(host)}


# The archive.


def content(archive: bytes) -> bytes:
    """The one file ``comparison.json`` of a ZIP archive that anybody may have written.

    Raises
    ------
    ArtifactError
        If it is anything else.
    """
    fits = len(archive) <= MAX_ARCHIVE_BYTES
    require(fits, f"the archive has more than {MAX_ARCHIVE_BYTES} bytes")
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            # ``filename`` ends at a byte 0, ``orig_filename`` does not.
            names = [each.orig_filename for each in opened.infolist()]
            require(names == [MEMBER], f"only {MEMBER} may be in it, got {names[:5]!r:.200}")
            (member,) = opened.infolist()
            # The other kinds take memory before they give a byte.
            known, fits = member.compress_type in _KINDS, member.file_size <= MAX_DOCUMENT_BYTES
            require(known, f"{MEMBER} is neither stored nor deflated")
            require(fits, f"{MEMBER} has more than {MAX_DOCUMENT_BYTES} bytes")
            with opened.open(member) as file:
                return file.read(member.file_size + 1)  # which then compares the checksum
    except ArtifactError:
        raise
    except Exception as error:  # of a dozen types, which are nowhere listed
        what = f"{type(error).__name__}: {error!s:.200}"
        raise ArtifactError(f"no archive can be read: {what}") from None
