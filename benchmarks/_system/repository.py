"""Ask git about a commit: the tree of its package, and what the package requires.

Reads git's objects and runs nothing of them.
"""

import hashlib
import os
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

PACKAGE = "rope_triton"

Requirements = Mapping[str, str]
"""Each dependency of the package -> its specifier, and its pin in constraints.txt."""

MAX_BYTES = 20_000
"""Size limit of pyproject.toml and constraints.txt: both are untrusted, and tomllib can be slow."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def git(repository: Path, *arguments: str) -> bytes | None:
    """What git prints, None if it fails.

    Raises
    ------
    FileNotFoundError
        If there is no git.
    """
    done = subprocess.run(["git", "-C", str(repository), *arguments], capture_output=True)
    return None if done.returncode else done.stdout


class GitError(RuntimeError):
    """git failed, or is not installed; the message says why."""


def git_text(repository: Path, *arguments: str, **variables: str) -> str:
    """What git prints, as text without its last newline; ``variables`` go over the environment.

    Raises
    ------
    GitError
        If git fails or is not installed.
    """
    command, environment = ["git", "-C", str(repository), *arguments], os.environ | variables
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    except FileNotFoundError:
        raise GitError("git is not on the PATH") from None
    if done.returncode:
        raise GitError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


# Without what may stand before the host: a token, say.
_GITHUB = re.compile(
    r"(?:https://|ssh://)?(?:[^@/]+@)?github\.com[:/]([\w-]+/[\w.-]+?)(?:\.git)?/?"
)


def page(repository: Path) -> str:
    """The address of the repository's page on GitHub, "" where neither CI nor a remote says it."""
    server, name = (os.environ.get(f"GITHUB_{key}") for key in ("SERVER_URL", "REPOSITORY"))
    if server and name:
        return f"{server}/{name}"
    origin = git(repository, "remote", "get-url", "origin") or b""
    found = _GITHUB.fullmatch(origin.decode(errors="replace").strip())
    return f"https://github.com/{found[1]}" if found else ""


def package_tree(repository: Path, commit: str) -> str:
    """A hash of the files of ``rope_triton`` in a commit, Markdown aside.

    Raises
    ------
    ValueError
        If the repository has no such commit, or the commit no package.
    """
    listed = git(repository, "ls-tree", "-r", "-z", "--end-of-options", f"{commit}:{PACKAGE}")
    if listed is None:
        raise ValueError(f"{repository} has no commit {commit!r} with {PACKAGE}/")
    files = [line for line in listed.split(b"\0") if not line.endswith(b".md")]
    return hashlib.sha256(b"\0".join(files)).hexdigest()


def requirements(repository: Path, commit: str) -> Requirements:
    """What the package of a commit requires.

    Raises
    ------
    ValueError
        If the commit's pyproject.toml cannot be read, or it or constraints.txt is too long.
    """
    return requirements_of(lambda name: git(repository, "show", f"{commit}:{name}"))


def requirements_of(read: Callable[[str], bytes | None]) -> Requirements:
    """The requirements by the files that ``read`` returns: a content, or None for no such file.

    Raises
    ------
    ValueError
        If pyproject.toml cannot be read.
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
    found = project.get("dependencies", []) if isinstance(project, dict) else None
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ValueError(f"project.dependencies of pyproject.toml must be texts, got {found!r:.80}")
    return found


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
