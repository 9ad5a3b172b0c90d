"""Copy the package of a commit, a branch or the working tree into a directory of its own."""

import contextlib
import hashlib
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from .repository import PACKAGE, Requirements, git, requirements, requirements_of

WORKING_TREE = "working tree"


class ArmError(RuntimeError):
    """A version that is not there; the message says which was asked for."""


@dataclass(frozen=True)
class Arm:
    """A version of the package.

    name: what it was called. sha: its commit, "" for a working tree that differs from HEAD.
    digest: SHA-256 of the package's files. root: directory that holds the package. requirements:
    what it asks to run on.
    """

    name: str
    sha: str
    digest: str
    root: Path
    requirements: Requirements = field(default_factory=dict)


def from_commit(name: str, repository: Path, sources: Path) -> Arm:
    """The package as a commit has it, unpacked below ``sources``.

    Raises
    ------
    ArmError
        If the repository has no such commit, or the commit no such package.
    """
    sha = _git(
        repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"
    )
    if sha is None:
        raise ArmError(f"{name!r} is no commit or branch of {repository}")
    commit = sha.decode().strip()
    archive = _git(repository, "archive", "--format=tar", commit, PACKAGE)
    if archive is None:
        raise ArmError(f"commit {name!r} has no {PACKAGE}/")

    def unpack(directory: Path) -> None:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(directory, filter="data")

    asked = _asked(name, lambda: requirements(repository, commit))
    return _arm(name, commit, sources, unpack, asked)


def from_working_tree(repository: Path, sources: Path) -> Arm:
    """The package as it lies in the working tree, copied below ``sources``.

    Its ``sha`` is HEAD's where the package does not differ from HEAD's.

    Raises
    ------
    ArmError
        If there is no package.
    """
    if not (repository / PACKAGE / "__init__.py").is_file():
        raise ArmError(f"no {PACKAGE} in {repository}")
    changed = _git(repository, "status", "--porcelain", "--", PACKAGE)
    head = _git(repository, "rev-parse", "--verify", "HEAD")
    sha = head.decode().strip() if head and changed == b"" else ""

    def copy(directory: Path) -> None:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(repository / PACKAGE, directory / PACKAGE, ignore=ignored)

    def read(file: str) -> bytes | None:
        path = repository / file
        return path.read_bytes() if path.is_file() else None

    return _arm(
        WORKING_TREE, sha, sources, copy, _asked(WORKING_TREE, lambda: requirements_of(read))
    )


def from_directory(name: str, sources: Path, fill: Callable[[Path], object]) -> Arm:
    """A version that is no commit: ``fill`` writes its files into the directory that it gets."""
    return _arm(name, "", sources, fill, {})


def digest(root: Path) -> str:
    """SHA-256 of the names and contents of the package's files in a root, Markdown aside.

    Raises
    ------
    ModuleNotFoundError
        If the root holds no package.
    """
    package = root / PACKAGE
    if not (package / "__init__.py").is_file():
        raise ModuleNotFoundError(f"no {PACKAGE} in {root}")
    return _digest_of(package)


def differs(part: str, base: Arm, head: Arm) -> bool:
    """Whether a folder or file of the package is not the same in both; one may lack it."""
    return len({_digest_of(arm.root / PACKAGE / part) for arm in (base, head)}) > 1


def _digest_of(folder: Path) -> str:
    found = hashlib.sha256()
    for path in [folder] if folder.is_file() else sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".md" and "__pycache__" not in path.parts:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            found.update(f"{path.relative_to(folder)}\0{content}\n".encode())
    return found.hexdigest()


def _asked(name: str, find: Callable[[], Requirements]) -> Requirements:
    try:
        return find()
    except ValueError as error:
        raise ArmError(f"what {name!r} asks to run on cannot be read: {error}") from None


def _arm(
    name: str,
    sha: str,
    sources: Path,
    fill: Callable[[Path], object],
    asked: Requirements,
) -> Arm:
    """Fill a directory that is named by its content, so that equal versions share one."""
    sources.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=sources, prefix=".new-"))
    try:
        fill(scratch)
        content = digest(scratch)
        root = sources / content[:16]
        try:
            os.rename(scratch, root)
        except OSError:
            if not root.is_dir():  # nor has another process made it
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    with contextlib.suppress(ModuleNotFoundError):
        if digest(root) == content:
            return Arm(name, sha, content, root, asked)
    raise ArmError(f"{root} was changed since it was made: delete it")


def _git(repository: Path, *arguments: str) -> bytes | None:
    """What git prints, None if it fails."""
    try:
        return git(repository, *arguments)
    except FileNotFoundError:
        raise ArmError("git is not on the PATH; versions come from it") from None
