"""Apply known bad changes to the package, to test that the suite catches them.

``benchmarks/mutants`` holds a patch for each and an index that says which metrics must fail.
"""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ..._engine.system.process import SUITE
from ..._engine.system.repository import PACKAGE
from ..._engine.verdict.rules import Key

PATCHES = SUITE / "mutants"


@dataclass(frozen=True)
class Mutant:
    """A change for the worse.

    ``change`` says what it does, ``caught_by`` names the metrics that must each fail for it, in a
    subject whose parameters include all of ``where``. ``needs_gpu``: whether those need a GPU.
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
        """Whether a failure of this subject counts as catching the mutant."""
        return subject.metric in self.caught_by and set(self.where) <= set(subject.params)


def load() -> dict[str, Mutant]:
    """The mutants of the index, by name, in its order.

    Raises
    ------
    ValueError
        If the index and the patches beside it do not name the same mutants.
    """
    entries = json.loads((PATCHES / "index.json").read_bytes())
    mutants = [
        Mutant(**entry | {key: tuple(entry[key]) for key in ("caught_by", "where")})
        for entry in entries
    ]
    by_name = {mutant.name: mutant for mutant in mutants}
    patches = {path.stem for path in PATCHES.glob("*.patch")}
    if len(by_name) != len(mutants) or by_name.keys() != patches:
        raise ValueError(
            f"{PATCHES}: index.json names {sorted(mutant.name for mutant in mutants)}, "
            f"the patches are {sorted(patches)}"
        )
    return by_name


def apply(name: str, root: Path, destination: Path) -> Path:
    """Copy the package in ``root`` to ``destination`` and make it the mutant ``name``.

    Returns
    -------
    Path
        ``destination``, a root that now holds the mutated package.

    Raises
    ------
    ValueError
        If there is no such mutant.
    ModuleNotFoundError
        If ``root`` holds no package.
    FileExistsError
        If ``destination`` already holds one.
    RuntimeError
        If the patch does not apply: the package has changed, and the patch must follow.
    """
    mutants = load()
    if name not in mutants:
        raise ValueError(f"expected one of {list(mutants)}, got {name!r}")
    root, destination = Path(root).resolve(), Path(destination).resolve()
    package = root / PACKAGE
    if not (package / "__init__.py").is_file():
        raise ModuleNotFoundError(f"no {PACKAGE} in {root}")
    shutil.copytree(
        package,
        destination / PACKAGE,
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    patch(mutants[name].patch, destination)
    return destination


def patch(file: Path, directory: Path) -> None:
    """Apply a unified diff to the package in a directory; RuntimeError if it does not apply."""
    # Inside a repository git would take the paths to start at its top, and skip them in silence.
    environment = {name: value for name, value in os.environ.items() if name != "GIT_DIR"}
    environment["GIT_CEILING_DIRECTORIES"] = str(directory.parent)
    done = subprocess.run(
        ["git", "apply", str(file)],
        cwd=directory,
        env=environment,
        capture_output=True,
        encoding="utf-8",
    )
    if done.returncode:
        raise RuntimeError(f"{file} does not apply to the package: {done.stderr.strip()}")
