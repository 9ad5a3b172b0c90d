"""Copy the package of a commit, a branch or the working tree into a directory of its own."""

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from .repository import (
    PACKAGE,
    GitError,
    Requirements,
    commit_of,
    committed_files,
    content,
    digest,
    files_on_disk,
    requirements_of,
    write_files,
)

WORKING_TREE = "working tree"


@dataclass(frozen=True)
class Version:
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


def from_commit(name: str, repository: Path, sources: Path, package: str = PACKAGE) -> Version:
    """The package as a commit has it, written below ``sources``.

    Raises GitError if the repository has no such commit, or the commit no such package.
    """
    commit = commit_of(repository, name)
    files = committed_files(repository, name, package)
    return _written(
        *(name, commit, sources, package),
        fill=lambda directory: write_files(repository, files, directory / package),
        read=lambda file: content(repository, commit, file),
    )


def from_working_tree(repository: Path, sources: Path, package: str = PACKAGE) -> Version:
    """The package as it lies in the working tree, copied below ``sources``.

    Its ``sha`` is HEAD's where the package is HEAD's. Raises GitError if there is no package.
    """
    files, sha = files_on_disk(repository / package), ""
    if (repository / ".git").exists():
        head = commit_of(repository, "HEAD")
        sha = head if digest(committed_files(repository, head, package)) == digest(files) else ""

    def copy(directory: Path) -> None:
        ignored = shutil.ignore_patterns("__pycache__", "*.md")
        shutil.copytree(repository / package, directory / package, ignore=ignored)

    def read(file: str) -> bytes | None:
        path = repository / file
        return path.read_bytes() if path.is_file() else None

    return _written(WORKING_TREE, sha, sources, package, copy, read)


def from_directory(
    name: str, sources: Path, fill: Callable[[Path], object], package: str = PACKAGE
) -> Version:
    """A version that is no commit: ``fill`` writes its files into the directory that it gets."""
    return _written(name, "", sources, package, fill, read=lambda file: None)


def differs(part: str, base: Version, head: Version, package: str = PACKAGE) -> bool:
    """Whether a folder or file of the package is not the same in both; one may lack it."""
    of_base, of_head = (files_on_disk(version.root / package).items() for version in (base, head))
    return any(f"{path}/".startswith(f"{part}/") for path, _ in of_base ^ of_head)


def _written(
    name: str,
    sha: str,
    sources: Path,
    package: str,
    fill: Callable[[Path], object],
    read: Callable[[str], bytes | None],
) -> Version:
    """Fill a directory that is named by its content, so that equal versions share one.

    ``read`` returns a file of the repository that says what the version requires.
    """
    try:
        required = requirements_of(read)
    except ValueError as error:
        raise GitError(f"what {name!r} asks to run on cannot be read: {error}") from None
    sources.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=sources, prefix=".new-"))
    try:
        fill(scratch)
        made = digest(files_on_disk(scratch / package))
        root = sources / made[:16]
        try:
            os.rename(scratch, root)
        except OSError:
            if not root.is_dir():  # nor has another process made it
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if (root / package).is_dir() and digest(files_on_disk(root / package)) == made:
        return Version(name, sha, made, root, required)
    raise GitError(f"{root} was changed since it was made: delete it")
