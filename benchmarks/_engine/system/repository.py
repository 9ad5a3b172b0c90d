"""Ask git about a commit: the files of its package, and what the package requires.

Reads git's objects and runs nothing of them. The package of a commit is what git's tree says: a
path and a blob for each file, whatever attributes, filters, modes and caches make of them.
"""

import hashlib
import io
import os
import re
import stat
import subprocess
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from .errors import CouldNotRunError

PACKAGE = "rope_triton"

Files = Mapping[str, str]
"""The path of each file below a folder -> git's name of its content, the SHA-1 of a blob."""

Requirements = Mapping[str, str]
"""Each dependency of the package -> its specifier, and its pin in constraints.txt."""

MAX_BYTES = 20_000
"""Size limit of pyproject.toml and constraints.txt: both are untrusted, and tomllib can be slow."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_COMMIT = re.compile(r"([0-9a-f]{40,64}) commit")
_CACHE = "__pycache__"


class GitError(CouldNotRunError):
    """git lacks what was asked for, or cannot answer; the message is the reason, in one line."""


def git(repository: Path, *arguments: str, stdin: bytes = b"", **variables: str) -> bytes:
    """What git prints for ``stdin`` on its input; ``variables`` go over the environment.

    Raises GitError if git fails or is not installed.
    """
    command, environment = ["git", "-C", str(repository), *arguments], os.environ | variables
    try:
        done = subprocess.run(command, env=environment, input=stdin, capture_output=True)
    except OSError as error:
        why = "is not on the PATH" if isinstance(error, FileNotFoundError) else error.strerror
        raise GitError(f"git {why}") from None
    if done.returncode:
        reason = " ".join(done.stderr.decode(errors="replace").split())
        raise GitError(f"git {arguments[0]}: {reason or f'exit status {done.returncode}'}")
    return done.stdout


def git_text(repository: Path, *arguments: str, stdin: str = "", **variables: str) -> str:
    """What :func:`git` prints, as text without white space around it."""
    printed = git(repository, *arguments, stdin=stdin.encode(), **variables)
    return printed.decode(errors="replace").strip()


def commit_of(repository: Path, name: str) -> str:
    """The full SHA of a commit, by any name of it.

    Raises GitError if there is no such commit.
    """
    # A name on git's input is no option, and one that is missing no failure of git.
    says = ("cat-file", "--batch-check=%(objectname) %(objecttype)")
    match = _COMMIT.fullmatch(git_text(repository, *says, stdin=f"{name}^{{commit}}\n"))
    if match is None:
        cut = git_text(repository, "rev-parse", "--is-shallow-repository") == "true"
        why = ", which is a shallow clone: `git fetch --unshallow` brings the rest" if cut else ""
        raise GitError(f"{name!r} is no commit or branch of {repository}{why}")
    return match[1]


def committed_files(repository: Path, commit: str, folder: str = PACKAGE) -> Files:
    """The files of a folder in a commit; see :func:`_counts` for those that are left out.

    Raises GitError if there is no such commit or folder, or anything but ordinary files in it.
    """
    tree = commit_of(repository, commit)
    try:
        listed = git(repository, "ls-tree", "-r", "-z", "--end-of-options", f"{tree}:{folder}")
    except GitError as error:
        raise GitError(f"commit {commit!r} has no {folder}/: {error}") from None
    files = {}
    for line in listed.split(b"\0")[:-1]:
        about, _, name = line.partition(b"\t")
        (mode, _, blob), path = about.decode().split(), os.fsdecode(name)
        parts = path.split("/")
        if mode not in ("100644", "100755") or {"", ".", "..", _CACHE} & {*parts}:
            what = "a file that Python makes" if _CACHE in parts else "no ordinary file"
            raise GitError(f"commit {commit!r} has {what}: {f'{folder}/{path}'!r}")
        if _counts(path):
            files[path] = blob
    return files


def files_on_disk(folder: Path) -> Files:
    """The files of a folder on the disk, as :func:`committed_files` has them of a commit.

    Caches of Python are left out. Raises GitError if there is no such folder, or anything but
    ordinary files in it.
    """
    if not folder.is_dir():
        raise GitError(f"no {folder.name} in {folder.parent}")
    files = {}
    for path in folder.rglob("*"):
        name, kind = path.relative_to(folder).as_posix(), stat.S_IFMT(path.lstat().st_mode)
        if _CACHE in path.parts[len(folder.parts) :] or not _counts(name) or kind == stat.S_IFDIR:
            continue
        if kind != stat.S_IFREG:
            raise GitError(f"{path} is no ordinary file")
        content = path.read_bytes()
        files[name] = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    return files


def _counts(path: str) -> bool:
    """Whether a file counts for what a version is: documentation does not."""
    return not path.endswith(".md")


def digest(files: Files) -> str:
    """SHA-256 of the paths and contents of files: equal for what is the same, wherever it lies."""
    lines = (f"{path}\0{files[path]}\n" for path in sorted(files))
    return hashlib.sha256(os.fsencode("".join(lines))).hexdigest()


def write_files(repository: Path, files: Files, folder: Path) -> None:
    """Write files of a commit below a folder, byte by byte as git has them.

    Raises GitError if the repository lacks one of them.
    """
    for path, content in zip(files, _contents(repository, files.values()), strict=True):
        if content is None:
            raise GitError(f"{repository} lacks the content of {path!r}")
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def content(repository: Path, commit: str, path: str) -> bytes | None:
    """A file of a commit, None if the commit has none of this path."""
    return next(_contents(repository, [f"{commit}:{path}"]))


def _contents(repository: Path, names: Iterable[str]) -> Iterator[bytes | None]:
    """The blobs of these names, None for each that is missing."""
    names = list(names)
    asked = "".join(f"{name}\n" for name in names)
    stream = io.BytesIO(git(repository, "cat-file", "--batch", stdin=os.fsencode(asked)))
    for _ in names:
        *_, kind, size = stream.readline().split()
        if not size.isdigit():
            yield None
            continue
        blob = stream.read(int(size))
        yield blob if kind == b"blob" else None
        stream.read(1)  # a line ends


# Without what may stand before the host: a token, say.
_GITHUB = re.compile(
    r"(?:https://|ssh://)?(?:[^@/]+@)?github\.com[:/]([\w-]+/[\w.-]+?)(?:\.git)?/?"
)


def page(repository: Path) -> str:
    """The address of the repository's page on GitHub, "" where neither CI nor a remote says it."""
    server, name = (os.environ.get(f"GITHUB_{key}") for key in ("SERVER_URL", "REPOSITORY"))
    if server and name:
        return f"{server}/{name}"
    try:
        match = _GITHUB.fullmatch(git_text(repository, "remote", "get-url", "origin"))
    except GitError:
        return ""
    return f"https://github.com/{match[1]}" if match else ""


def requirements(repository: Path, commit: str) -> Requirements:
    """What the package of a commit requires.

    Raises ValueError if the commit's pyproject.toml cannot be read, or it or constraints.txt is too
    long.
    """
    return requirements_of(lambda name: content(repository, commit, name))


def requirements_of(read: Callable[[str], bytes | None]) -> Requirements:
    """The requirements by the files that ``read`` returns: a content, or None for no such file.

    Raises ValueError if pyproject.toml cannot be read.
    """
    pins = dict(_pins(_text(read("constraints.txt"))))
    asked = {}
    for specifier in _dependencies(_text(read("pyproject.toml"))):
        name = _NAME.match(specifier)
        if not name:
            raise ValueError(f"{specifier!r:.80} of pyproject.toml is no dependency")
        pin = pins.get(_normal(name[0]))
        asked[_normal(name[0])] = specifier + (f" (pinned to {pin})" if pin else "")
    return asked


def _dependencies(pyproject: str) -> list[str]:
    project = tomllib.loads(pyproject).get("project", {})
    listed = project.get("dependencies", []) if isinstance(project, dict) else None
    if not isinstance(listed, list) or not all(isinstance(item, str) for item in listed):
        raise ValueError(
            f"project.dependencies of pyproject.toml must be texts, got {listed!r:.80}"
        )
    return listed


def requirement_changes(base: Requirements, head: Requirements) -> list[str]:
    """A sentence for each dependency whose requirement differs between the sides."""
    return [
        f"{name}: the base asks for {base.get(name, 'none')}, the head for "
        f"{head.get(name, 'none')}; both ran on what is installed, so this change was not measured"
        for name in sorted({*base, *head})
        if base.get(name) != head.get(name)
    ]


def _pins(constraints: str) -> Iterator[tuple[str, str]]:
    for line in constraints.splitlines():
        name, equals, version = line.partition("#")[0].partition("==")
        if equals:
            yield _normal(name.strip()), version.strip()


def _normal(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _text(content: bytes | None) -> str:
    if content is not None and len(content) > MAX_BYTES:
        raise ValueError(f"a file of {len(content)} bytes, at most {MAX_BYTES} are read")
    return "" if content is None else content.decode()
