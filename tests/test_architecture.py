"""The import arrows, read from the sources without importing them.

``__init__ -> {api, frequencies}``, ``api -> {reference, ops}``, ``ops -> kernels``; the benchmarks
use the package's public names only, because they also measure its old commits.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = sorted((ROOT / "rope_triton").rglob("*.py"))
BENCHMARKS = sorted((ROOT / "benchmarks").rglob("*.py"))

ARROWS = {
    "__init__": {"api", "frequencies"},
    "api": {"reference", "ops"},
    "ops": {"kernels"},
    "kernels": set(),
    "reference": set(),
    "frequencies": set(),
}
PUBLIC = {"apply_rotary_pos_emb", "RotaryPositionEmbedding"}
# Seconds to import, and discovery imports every file of the benchmarks in every process.
HEAVY = {"torch", "triton", "rope_triton", "transformer_engine", "flash_attn", "liger_kernel"}


def imports(nodes: Iterator[ast.AST], package: str) -> set[str]:
    """Dotted names that these nodes of a file in ``package`` import, "a.b" for ``from a import b``.

    Whether "a.b" is a module or a name in one, only a look at "a" could tell.
    """
    names = set()
    for node in nodes:
        match node:
            case ast.Import():
                names |= {alias.name for alias in node.names}
            case ast.ImportFrom():
                names |= {f"{_origin(node, package)}.{alias.name}" for alias in node.names}
            case ast.Call(
                func=ast.Name(id="__import__" | "import_module")
                | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                names.add(name)
    return names


def _origin(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module
    parents = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join(parents + ([node.module] if node.module else []))


def run_on_import(node: ast.AST) -> Iterator[ast.AST]:
    """Every node below, except in the bodies of functions."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from run_on_import(child)


def root(name: str) -> str:
    return name.partition(".")[0]


def arrows(source: str) -> set[str]:
    """Modules of the package that one of its files imports; "__init__" is the package itself."""
    names = imports(ast.walk(ast.parse(source)), "rope_triton")
    parts = [name.split(".") for name in names if root(name) == "rope_triton"]
    return {part[1] if len(part) > 1 and part[1] in ARROWS else "__init__" for part in parts}


def package_violations(module: str, source: str) -> set[str]:
    if module not in ARROWS:
        return {f"{module} has no arrows yet: draw them in ARROWS"}
    names = imports(ast.walk(ast.parse(source)), "rope_triton")
    outside = {name for name in names if root(name) in {"benchmarks", "tests"}}
    return outside | (arrows(source) - ARROWS[module])


def benchmark_violations(source: str) -> set[str]:
    tree = ast.parse(source)
    everywhere = imports(ast.walk(tree), "benchmarks")
    at_import = imports(run_on_import(tree), "benchmarks")
    public = {"rope_triton"} | {f"rope_triton.{name}" for name in PUBLIC}
    private = {name for name in everywhere if root(name) == "rope_triton"} - public
    heavy = {f"{name} at module level" for name in at_import if root(name) in HEAVY}
    tests = {name for name in everywhere if root(name) == "tests"}
    return private | heavy | tests | private_attributes(tree)


def private_attributes(tree: ast.AST) -> set[str]:
    """Attributes of the imported package that are neither public nor metadata."""
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
    aliases = [alias for node in imported for alias in node.names if alias.name == "rope_triton"]
    bound = {alias.asname or alias.name for alias in aliases}
    return {
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in bound
        and node.attr not in PUBLIC | {"__version__", "__file__"}
    }


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", PACKAGE, ids=name_of)
def test_package(path):
    module = path.relative_to(ROOT / "rope_triton").with_suffix("").as_posix()
    assert not package_violations(module, path.read_text())


def test_oracle_and_kernel_never_meet():
    def reach(module):
        path = ROOT / "rope_triton" / f"{module}.py"
        return {module}.union(*(reach(target) for target in arrows(path.read_text())))

    assert reach("ops") == {"ops", "kernels"}
    assert reach("reference") == {"reference"}


@pytest.mark.parametrize("path", BENCHMARKS, ids=name_of)
def test_benchmarks(path):
    assert not benchmark_violations(path.read_text())


@pytest.mark.parametrize(
    ("module", "source", "violation"),
    [
        ("ops", "from rope_triton import kernels, reference", "reference"),
        ("ops", "from rope_triton.reference import rotate", "reference"),
        ("ops", "def f():\n    import rope_triton.reference", "reference"),
        ("ops", "from . import reference", "reference"),
        ("ops", "from .api import apply_rotary_pos_emb", "api"),
        ("ops", "import importlib\nimportlib.import_module('rope_triton.reference')", "reference"),
        ("reference", "from rope_triton.kernels import rope_kernel", "kernels"),
        ("kernels", "import rope_triton", "__init__"),
        ("frequencies", "from rope_triton import apply_rotary_pos_emb", "__init__"),
        ("frequencies", "from . import apply_rotary_pos_emb", "__init__"),
        ("api", "from benchmarks import _grid", "benchmarks._grid"),
        ("api", "import tests.oracle", "tests.oracle"),
        ("extra", "import torch", "extra has no arrows yet: draw them in ARROWS"),
    ],
)
def test_forbidden_arrow_in_the_package_is_seen(module, source, violation):
    assert package_violations(module, source) == {violation}


@pytest.mark.parametrize(
    ("source", "violation"),
    [
        ("import torch", "torch at module level"),
        ("import os, torch.nn as nn", "torch.nn at module level"),
        ("from triton.testing import do_bench", "triton.testing.do_bench at module level"),
        ("if True:\n    import triton", "triton at module level"),
        ("try:\n    import torch\nexcept ImportError:\n    pass", "torch at module level"),
        ("class Suite:\n    import torch", "torch at module level"),
        ("__import__('torch')", "torch at module level"),
        ("import rope_triton", "rope_triton at module level"),
        ("def f():\n    import rope_triton.ops", "rope_triton.ops"),
        ("def f():\n    from rope_triton import ops", "rope_triton.ops"),
        ("def f():\n    from rope_triton import _private", "rope_triton._private"),
        ("def f():\n    from rope_triton import *", "rope_triton.*"),
        ("def f():\n    from rope_triton.ops import rotate", "rope_triton.ops.rotate"),
        ("def f():\n    import rope_triton\n    rope_triton.ops.rotate()", "rope_triton.ops"),
        ("def f():\n    import rope_triton as r\n    r._private", "r._private"),
        ("def f():\n    from tests import oracle", "tests.oracle"),
    ],
)
def test_forbidden_arrow_in_the_benchmarks_is_seen(source, violation):
    assert benchmark_violations(source) == {violation}


ALLOWED = """
import itertools
from . import _grid
from benchmarks._workload import workload

class Suite:
    def setup(self):
        import torch
        import rope_triton
        from rope_triton import RotaryPositionEmbedding, apply_rotary_pos_emb
        rope_triton.apply_rotary_pos_emb(torch.ones(1), rope_triton.__version__)
"""


def test_allowed_imports_pass():
    assert not benchmark_violations(ALLOWED)
    assert not package_violations("api", "import torch\nfrom rope_triton import ops, reference")
