"""Apply known bad changes to the package, to test that the suite catches them.

``patches`` holds a patch for each and an index that says which metrics must fail.
"""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ..._engine.system.repository import PACKAGE
from ..._engine.verdict.rules import Key

PATCHES = Path(__file__).with_name("patches")


@dataclass(frozen=True)
class Mutant:
    """A change for the worse.

    ``caught_by``: the metrics that must each fail for it, in a subject whose parameters include all
    of ``where``. ``needs_gpu``: whether those need a GPU.
    """

    name: str
    change: str
    caught_by: tuple[str, ...]
    where: tuple[str, ...]
    needs_gpu: bool

    @property
    def patch(self) -> Path:
        return PATCHES / f"{self.name}.patch"

    def concerns(self, subject: Key) -> bool:
        return subject.metric in self.caught_by and set(self.where) <= set(subject.params)


def load() -> dict[str, Mutant]:
    """The mutants of the index, by name, in its order."""
    entries = json.loads((PATCHES / "index.json").read_bytes())
    return {
        entry["name"]: Mutant(**entry | {key: tuple(entry[key]) for key in ("caught_by", "where")})
        for entry in entries
    }


def apply(name: str, root: Path, destination: Path) -> Path:
    """Copy the package in ``root`` to ``destination``, as the mutant ``name``; ``destination``."""
    patched_copy(load()[name].patch, root, destination)
    return destination


def patched_copy(patch: Path, root: Path, directory: Path) -> None:
    """Copy the package in ``root`` to a directory and apply a unified diff to it.

    RuntimeError if it does not apply: the package has changed, and the patch must follow.
    """
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(root / PACKAGE, directory / PACKAGE, ignore=ignored)
    # Inside a repository git would take the paths to start at its top, and skip them in silence.
    environment = {name: value for name, value in os.environ.items() if name != "GIT_DIR"}
    environment["GIT_CEILING_DIRECTORIES"] = str(directory.resolve().parent)
    done = subprocess.run(
        ["git", "apply", str(patch)],
        cwd=directory,
        env=environment,
        capture_output=True,
        encoding="utf-8",
    )
    if done.returncode:
        raise RuntimeError(f"{patch} does not apply to the package: {done.stderr.strip()}")
