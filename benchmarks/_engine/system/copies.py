"""Several versions of a package in one process, each a copy under a name of its own."""

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path


def write(package: str, roots: Mapping[str, Path], directory: Path) -> dict[str, str]:
    """Write a copy of each version's package into a directory; by version, the copy's name.

    In its sources, and so in the namespaces of its PyTorch operators, this name stands for the
    package's. ``roots``: the directory that holds the package of each version.
    """
    names = {version: f"{package}_{number}" for number, version in enumerate(roots)}
    word = re.compile(rf"\b{package}\b")
    for version, name in names.items():
        ignored = shutil.ignore_patterns("__pycache__")
        copy = shutil.copytree(roots[version] / package, directory / name, ignore=ignored)
        for file in copy.rglob("*.py"):
            source = file.read_text(encoding="utf-8")
            file.write_text(word.sub(name, source), encoding="utf-8")
    return names


@contextlib.contextmanager
def imported_as(package: str, name: str) -> Iterator[None]:
    """Let ``import package``, and imports of its modules, give the copy of this name meanwhile."""
    finder = _Finder(package, name)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for module in [*sys.modules]:
            if module.partition(".")[0] == package:
                del sys.modules[module]


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, package: str, name: str):
        self._package, self._name = package, name

    def find_spec(self, fullname, path=None, target=None):
        if fullname.partition(".")[0] != self._package:
            return None
        return importlib.machinery.ModuleSpec(fullname, self)

    def create_module(self, spec):
        module = importlib.import_module(self._name + spec.name.removeprefix(self._package))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module):
        module.__spec__ = module.__spec__.loader_state  # it has been executed under its own name
