"""Several versions of a package live in one process, each with its own modules and operators."""

import importlib
import sys

import pytest
import torch

from benchmarks._engine.system import copies

INIT = """
import torch
from own_package.part import VALUE
library = torch.library.Library("own_package", "FRAGMENT")
library.define("value() -> int")
library.impl("value", lambda: VALUE, "CompositeExplicitAutograd")
def value():
    from own_package import late
    return VALUE, late.VALUE, torch.ops.own_package.value()
"""


@pytest.fixture
def names(tmp_path, monkeypatch):
    """The names of the copies of two versions, which can be imported."""
    for version, value in (("base", 1), ("head", 2)):
        package = tmp_path / version / "own_package"
        (package / "__pycache__").mkdir(parents=True)
        (package / "__pycache__" / "part.pyc").write_text("stale")
        (package / "__init__.py").write_text(INIT)
        for module in ("part", "late"):
            (package / f"{module}.py").write_text(f"VALUE = {value}\n")
    roots = {version: tmp_path / version for version in ("base", "head")}
    monkeypatch.syspath_prepend(tmp_path / "copies")
    before = {*sys.modules}
    yield copies.write("own_package", roots, tmp_path / "copies")
    for module in {*sys.modules} - before:
        if module.startswith("own_package"):
            del sys.modules[module]


def test_each_has_its_own_modules_and_operators_and_no_others(names):
    functions = {}
    for version, name in names.items():
        with copies.imported_as("own_package", name):
            functions[version] = importlib.import_module("own_package").value
            late = importlib.import_module("own_package.late")
        assert late is sys.modules[f"{name}.late"] and late.__spec__.name == f"{name}.late"
    assert {version: value() for version, value in functions.items()} == {
        "base": (1, 1, 1),
        "head": (2, 2, 2),
    }
    assert not any(module.partition(".")[0] == "own_package" for module in sys.modules)
    assert torch.ops.own_package_1.value() == 2
    with (
        copies.imported_as("own_package", names["head"]),
        pytest.raises(ModuleNotFoundError, match="own_package_1.missing"),
    ):
        importlib.import_module("own_package.missing")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("own_package")
