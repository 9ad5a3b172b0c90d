"""The comparison in an artifact that may be anything: read within limits, or refused.

Nothing of the archive is unpacked to the disk. Only what GitHub's own uploader writes is read: one
ordinary file, stored or deflated. What the archive says of itself is checked before memory is spent
on it, and no more is inflated than a file may have.

A comparison is accepted if it is the measurement that was asked for: of these commits, on this GPU,
of subjects that this branch's suite has, and for a pass of all of them. What the commits themselves
say is asked of git, never of the artifact. That the numbers are true, nobody can check here.
"""

import functools
import io
import itertools
import json
import re
import stat
import struct
import zipfile
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from .._cells import subjects
from .._cells.grid import all_cells
from .._system import repository as _sources
from .._verdict.rules import UNITS, Answer, Subject
from .._verdict.schema import Comparison, from_json

GRID = "small"
ARCHITECTURES = {"nvidia-h200": "sm_90"}
"""The GPUs that pull requests are measured on, as asv names their machines, and what compilers call
them."""

MEMBER = "comparison.json"
MAX_ARCHIVE_BYTES = 2_000_000
MAX_DOCUMENT_BYTES = 4_000_000  # the full grid takes 0.6 MB
_MAX_DIRECTORY_BYTES = 1000  # one entry takes some 70

_KINDS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# How hard it was deflated, that the sizes follow the content, that the name is UTF-8.
_FLAGS = 0x806 | 0x8
# The record that ends an archive, and the beginning of the one before it in an archive of ZIP64.
_END = struct.Struct("<4s4H2LH")
_END_SIGNATURE, _ZIP64_SIGNATURE, _ZIP64_BYTES = b"PK\5\6", b"PK\6\7", 20

_MAX_ROUNDS, _MAX_MINUTES, _MAX_SECONDS = 1000, 1440, 3600
_SHA = re.compile(r"[0-9a-f]{40}")


class ArtifactError(ValueError):
    """The artifact is not what the job writes; the message says what is wrong with it."""


class NoGpuError(ArtifactError):
    """The GPU that was asked for was not there."""


@dataclass(frozen=True)
class Request:
    """What was to be measured, from the trusted side.

    base, head: the commits. current: the pull request's head now. run_url: page of the job. gpu:
    asv's name of the machine. behind: commits of main that the base does not have.
    """

    base: str
    head: str
    current: str
    run_url: str
    gpu: str
    behind: int = 0

    def __post_init__(self):
        for name in ("base", "head", "current"):
            if not _SHA.fullmatch(getattr(self, name)):
                raise ValueError(f"{name} must be a full SHA, got {getattr(self, name)!r:.80}")
        if self.gpu not in ARCHITECTURES:
            raise ValueError(f"gpu must be one of {list(ARCHITECTURES)}, got {self.gpu!r:.80}")
        if self.behind < 0:
            raise ValueError(f"behind must be 0 or more, got {self.behind}")

    @property
    def command(self) -> str:
        """What the job runs, and anybody can."""
        return f"python -m benchmarks compare {self.base} {self.head}"


class Commits(NamedTuple):
    """What git says of the two commits: whether their package is the same, and what they ask to run
    on that is not."""

    same_sources: bool
    requirement_changes: tuple[str, ...]


def commits(repository: Path, base: str, head: str) -> Commits:
    """What a git repository that has the objects of both commits says of them.

    Raises
    ------
    ValueError
        If it lacks one, or a commit's pyproject.toml cannot be read.
    """
    trees = [_sources.package_tree(repository, commit) for commit in (base, head)]
    asked = [_sources.requirements(repository, commit) for commit in (base, head)]
    return Commits(trees[0] == trees[1], tuple(_sources.requirement_changes(*asked)))


def read_artifact(archive: bytes, request: Request, found: Commits) -> Comparison:
    """The comparison in an artifact, a ZIP archive of the one file ``comparison.json``.

    Raises
    ------
    ArtifactError
        If it is anything else or not the measurement that was asked for.
    """
    document = _document(_content(archive))
    try:
        comparison = from_json(document)
    except ValueError as error:
        raise ArtifactError(f"{MEMBER} is no comparison: {error}") from None
    _require_gpu(comparison, request.gpu)
    _require_what_was_asked(comparison, request, found)
    for reason in _impossible(comparison):
        raise ArtifactError(f"no measurement gives this: {reason}")
    for what, strange in _unknown(comparison, ARCHITECTURES[request.gpu]):
        raise ArtifactError(f"the suite has no such {what}: {_listed(strange)}")
    if comparison.answer is Answer.PASS and not found.same_sources:
        for what, missing in _missing(comparison, ARCHITECTURES[request.gpu]):
            raise ArtifactError(f"a pass lacks {what}: {_listed(missing)}")
    return comparison


# What was asked for.


def _require_gpu(comparison: Comparison, gpu: str) -> None:
    machine = comparison.machine.get("machine", "none")
    if machine != gpu or comparison.machine.get("gpu", "none") == "none":
        raise NoGpuError(f"the GPU {gpu} was not there, the comparison is of {machine!r:.80}")


def _require_what_was_asked(comparison: Comparison, request: Request, found: Commits) -> None:
    for side, sha in ((comparison.base, request.base), (comparison.head, request.head)):
        if (side.name, side.sha) != (sha, sha):
            got = f"{side.name!r:.50} at {side.sha!r:.50}"
            raise ArtifactError(f"commit {sha} was to be measured, {MEMBER} is of {got}")
    if comparison.reproduce != request.command:
        raise ArtifactError("it gives another command than the one that was run")
    if comparison.grid != GRID:
        raise ArtifactError(f"the {GRID} grid was to be measured, not {comparison.grid!r:.80}")
    if comparison.same_sources != found.same_sources:
        same = "the same" if found.same_sources else "another"
        raise ArtifactError(f"by git the head has {same} package as the base, it says otherwise")
    measured = comparison.families or comparison.exact or comparison.identical or comparison.rounds
    if found.same_sources and measured:
        raise ArtifactError("both commits have the same package, so nothing was to be measured")
    if not set(found.requirement_changes) <= set(comparison.unmeasured):
        raise ArtifactError("it leaves out what changed of what the package runs on")


def _impossible(comparison: Comparison) -> Iterator[str]:
    if comparison.rounds > _MAX_ROUNDS or comparison.extension > comparison.rounds:
        yield f"{comparison.rounds} rounds, {comparison.extension} of them added"
    if not 0 <= comparison.minutes <= _MAX_MINUTES:
        yield f"{comparison.minutes:g} minutes"
    for timing in comparison.timings:
        if max(timing.base, timing.head) > _MAX_SECONDS:
            yield f"{timing.subject} took more than {_MAX_SECONDS} s"
        if timing.high > 1e6:
            yield f"{timing.subject} may be slower by a factor of a million"


# The subjects of this branch's suite.


@functools.cache
def timed_subjects() -> dict[str, frozenset[Subject]]:
    """Of each family, all that is timed of a pull request."""
    gpu = {
        Subject(metric, tuple(str(value) for value in vars(cell).values()))
        for cell in all_cells(GRID)
        for metric in cell.metrics.values()
    }
    host = itertools.starmap(Subject, subjects.host_keys(*subjects.CALLS))
    start = itertools.starmap(Subject, subjects.host_keys(subjects.FIRST_CALL))
    return {"gpu": frozenset(gpu), "host": frozenset(host), "start": frozenset(start)}


@functools.cache
def exact_subjects(arch: str) -> dict[str, frozenset[Subject]]:
    """All that is exact of a pull request: an architecture's machine code, and what a GPU gives."""
    suites = (
        ("codegen.Codegen.", subjects.CODE_PARAMS),
        ("codegen.Variants.", subjects.VARIANT_PARAMS),
    )
    code = {
        Subject(metric, tuple(map(str, call)))
        for prefix, params in suites
        for metric in UNITS
        if metric.startswith(prefix)
        for call in itertools.product((arch,), *[*params.values()][1:])
    }
    host = itertools.starmap(Subject, subjects.host_keys(*subjects.EXACT))
    return {"machine code": frozenset(code), "memory, launches and error": frozenset(host)}


def _unknown(comparison: Comparison, arch: str) -> Iterator[tuple[str, Set[Subject]]]:
    """What is named in a comparison and is in no suite, if anything."""
    timed, exact = timed_subjects(), frozenset().union(*exact_subjects(arch).values())
    found: dict[str, Set[Subject]] = {
        f"timing of {name}": {timing.subject for timing in family.timings} - timed[name]
        for name, family in comparison.families.items()
    }
    found["timing with machine code"] = comparison.identical - timed["gpu"]
    found["exact value"] = {each.subject for each in comparison.exact} - exact
    return ((what, strange) for what, strange in found.items() if strange)


def _missing(comparison: Comparison, arch: str) -> Iterator[tuple[str, Set[Subject]]]:
    """What is in the suite and of which a comparison says nothing, if anything."""
    timed = {timing.subject for timing in comparison.timings}
    exact = {each.subject for each in comparison.exact}
    needed = timed_subjects()
    found: dict[str, Set[Subject]] = {
        "GPU times": needed["gpu"] - timed - comparison.identical,
        "any GPU time": needed["gpu"] if "gpu" not in comparison.families else frozenset(),
        "host times": needed["host"] - timed,
        **{what: subjects - exact for what, subjects in exact_subjects(arch).items()},
    }
    return ((what, missing) for what, missing in found.items() if missing)


def _listed(subjects: Set[Subject]) -> str:
    first = min(subjects)
    more = f" and {len(subjects) - 1} more" if len(subjects) > 1 else ""
    return " ".join([first.metric, *first.params]) + more


# The archive.


def _content(archive: bytes) -> bytes:
    if len(archive) > MAX_ARCHIVE_BYTES:
        raise ArtifactError(f"the archive has more than {MAX_ARCHIVE_BYTES} bytes")
    try:
        _require_small_directory(archive)
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            member = _member(opened)
            with opened.open(member) as file:
                return file.read(member.file_size + 1)  # which then compares the checksum
    except ArtifactError:
        raise
    except Exception as error:  # of a dozen types, which are nowhere listed
        what = f"{type(error).__name__}: {error!s:.200}"
        raise ArtifactError(f"no archive can be read: {what}") from None


def _require_small_directory(archive: bytes) -> None:
    """Refuse what makes ``zipfile`` read a directory of many entries."""
    if len(archive) < _END.size:
        raise ArtifactError("no archive can be read: it is too short")
    signature, *disks, here, members, size, _, comment = _END.unpack(archive[-_END.size :])
    if signature != _END_SIGNATURE or comment:
        raise ArtifactError("no archive can be read: its end is missing")
    if archive[: -_END.size][-_ZIP64_BYTES:].startswith(_ZIP64_SIGNATURE):
        raise ArtifactError("no archive can be read: it is one of ZIP64")
    if any(disks):
        raise ArtifactError("no archive can be read: it is a part of one")
    if here != members or members != 1 or size > _MAX_DIRECTORY_BYTES:
        raise ArtifactError(f"only {MEMBER} may be in the archive, got {members} files")


def _member(opened: zipfile.ZipFile) -> zipfile.ZipInfo:
    """The only file, if it is an ordinary one of an acceptable size."""
    members = opened.infolist()
    # ``filename`` ends at a byte 0, ``orig_filename`` does not.
    if [each.orig_filename for each in members] != [MEMBER]:
        names = [each.orig_filename for each in members[:5]]
        raise ArtifactError(f"only {MEMBER} may be in the archive, got {names!r:.200}")
    (member,) = members
    if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG):
        raise ArtifactError(f"{MEMBER} is no ordinary file")
    if member.flag_bits & ~_FLAGS or member.volume:
        raise ArtifactError(f"no archive can be read: {MEMBER} is encrypted, patched or split")
    if member.compress_type not in _KINDS:
        raise ArtifactError(f"no archive can be read: {MEMBER} is neither stored nor deflated")
    if member.file_size > MAX_DOCUMENT_BYTES:
        raise ArtifactError(f"{MEMBER} has more than {MAX_DOCUMENT_BYTES} bytes")
    return member


def _document(content: bytes):
    """What JSON says, as ``json.loads`` gives it."""
    try:
        return json.loads(
            content.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_object
        )
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{MEMBER} is no JSON: {error!s:.200}") from None


def _no_constant(name: str):
    raise ValueError(f"{name} is no number")


def _object(pairs: list[tuple]) -> dict:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key comes twice in one object")
    return made
