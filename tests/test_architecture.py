"""The import arrows, read from the sources without importing them: ARROWS.

The benchmarks use the package's public names only, because they also measure its old commits.
"""

import ast
import graphlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Module -> modules beside it that it may import.
ARROWS = {
    "rope_triton": {
        "__init__": {"angles", "api", "configs", "frequencies", "scalings", "tables"},
        "api": {"checks", "reference", "ops", "qk", "qkv", "plans", "learned"},
        "tables": {"checks", "reference", "ops", "qk", "plans", "learned"},
        "learned": {"ops"},
        "checks": set(),
        "ops": {"checks", "launch", "plans", "kernels"},
        **dict.fromkeys(("qk", "qkv"), {"checks", "launch", "plans", "kernels", "ops"}),
        "plans": {"launch", "tiles"},
        **dict.fromkeys(("launch", "tiles"), set()),
        "kernels": {"rotation"},
        "rotation": {"positions", "trigonometry"},
        **dict.fromkeys(("positions", "trigonometry"), set()),
        "reference": set(),
        "frequencies": {"angles", "scalings"},
        "configs": {"scalings"},
        **dict.fromkeys(("angles", "scalings"), set()),
    },
    "benchmarks": {
        "__init__": set(),
        "__main__": {
            *("_figures", "_grid", "_machine", "_process", "_progress"),
            *("_compare.command", "_compare.evidence", "_compare.mutants"),
            *("_sweep.command", "_readme.command"),
        },
        "rope": {"_workload", "_grid"},
        "paths": {"rope", "_workload", "_grid"},
        "peers": {"rope", "host", "_workload", "_peers.cells", "_peers.host", "_grid"},
        "codegen": {"_fingerprint", "_grid"},
        "host": {"_host", "_host_error", "_host_inputs", "_host_steps"},
        "_figures": {"_grid"},
        "_machine": {"_process"},
        "_host": {
            *("_first_call", "_host_error", "_host_keys", "_host_steps", "_host_time"),
            *("_workload", "_process", "_progress", "_grid"),
        },
        "_host_keys": {"_host_error", "_host_inputs", "_host_steps", "_grid"},
        "_host_time": {"_host_inputs", "_workload", "_calls", "_grid"},
        "_first_call": {
            *("_host_inputs", "_workload", "_calls", "_process", "_progress", "_grid"),
        },
        "_host_error": {"_host_inputs", "_angles", "_calls", "_grid"},
        "_host_steps": {"_host_inputs", "_grid"},
        "_host_inputs": {"_angles", "_calls", "_grid"},
        "_angles": {"_grid"},
        "_workload": {
            *("_angles", "_calls", "_clock", "_process", "_progress", "_grid"),
            *("_peers.calls", "_peers.cells", "_peers.providers"),
        },
        "_calls": {"_grid"},
        "_fingerprint": {"_calls", "_sass", "_sources", "_standin", "_workers", "_grid"},
        "_workers": {"_process", "_progress"},
        "_report": {"_markdown", "_wording", "_comparison", "_verdict"},
        "_markdown": {"_map", "_gfm", "_wording", "_groups", "_comparison", "_verdict"},
        "_map": {"_gfm", "_wording", "_groups", "_comparison"},
        "_gfm": {"_wording"},
        "_wording": {"_groups", "_comparison", "_verdict"},
        "_groups": {"_verdict"},
        "_comparison": {"_verdict"},
        "_judge": {"_randomization", "_verdict"},
        "_verdict": {"_units"},
        **dict.fromkeys(("_clock", "_grid", "_process", "_progress", "_randomization"), set()),
        **dict.fromkeys(("_sass", "_sources", "_standin", "_suite", "_units"), set()),
        "_pull_request": {
            *("_artifact", "_comparison", "_gfm", "_report", "_verdict", "_wording"),
        },
        "_artifact": {"_comparison", "_grid", "_host_keys", "_sources", "_verdict", "codegen"},
        "_peers.__init__": set(),
        "_peers.host": {
            *("_host", "_host_error", "_host_inputs", "_host_time"),
            *("_workload", "_angles", "_calls", "_grid"),
            *("_peers.calls", "_peers.cells", "_peers.providers"),
        },
        "_peers.calls": {
            *("_peers.cells", "_peers.libraries", "_peers.pairs", "_peers.plain", "_peers.seed"),
            "_calls",
        },
        **dict.fromkeys(("_peers.pairs", "_peers.seed"), {"_peers.adapter"}),
        "_peers.libraries": {"_peers.adapter", "_peers.providers"},
        "_peers.plain": {"_peers.adapter", "_calls"},
        "_peers.adapter": {"_peers.cells", "_peers.providers", "_calls"},
        "_peers.cells": {"_peers.providers", "_grid"},
        "_peers.providers": set(),
        "_site.__init__": {
            *("_site.libraries", "_site.overview", "_site.page", "_site.peers"),
            *("_site.regressions", "_site.summaries"),
        },
        # What the sweep stored, of which it measures nothing: none of this imports torch.
        "_site.peers": {
            *("_sweep.experiments", "_sweep.state", "_sweep.tables", "_peers.providers"),
            "_site.overview",
        },
        "_site.__main__": {"_site.accept", "_site.branch", "_site.measure"},
        "_site.measure": {"_site.branch", "_compare.arms", "_compare.watch", "_grid"},
        "_site.accept": {"_site.branch"},
        "_site.branch": {"_site.thin"},
        "_site.thin": {"_compare.state"},
        **dict.fromkeys(("_site.overview", "_site.libraries", "_site.page"), set()),
        **dict.fromkeys(("_site.regressions", "_site.summaries"), set()),
        "_sweep.__init__": set(),
        "_sweep.command": {
            *("_sweep.experiments", "_sweep.gpus", "_sweep.plots"),
            *("_sweep.state", "_sweep.tables", "_peers.providers"),
            *("_compare.arms", "_compare.watch", "_machine", "_progress", "_suite"),
        },
        "_sweep.gpus": {
            *("_sweep.experiments", "_sweep.state", "_workload", "_process", "_progress"),
        },
        "_sweep.worker": {
            *("_sweep.closeness", "_sweep.experiments", "_sweep.state"),
            *("_workload", "_peers.cells"),
        },
        "_sweep.plots": {"_sweep.experiments", "_sweep.state", "_sweep.tables"},
        "_sweep.tables": {
            *("_sweep.closeness", "_sweep.experiments", "_sweep.state", "_peers.cells", "_grid"),
        },
        "_sweep.closeness": {"_sweep.experiments", "_peers.cells", "_angles"},
        "_sweep.state": {"_sweep.experiments", "_compare.state", "_workload", "_peers.cells"},
        "_sweep.experiments": {"_peers.cells", "_grid"},
        "_readme.__init__": set(),
        "_readme.command": {"_readme.tables", "_sweep.state"},
        "_readme.tables": {
            *("_sweep.command", "_sweep.experiments", "_sweep.state", "_sweep.tables"),
            *("_figures", "_grid"),
        },
        "_compare.__init__": set(),
        "_compare.command": {
            *("_compare.arms", "_compare.findings", "_compare.rounds", "_compare.session"),
            *("_compare.state", "_report", "_verdict", "_sources"),
            *("_machine", "_progress", "_grid"),
        },
        "_compare.evidence": {
            *("_compare.command", "_compare.session", "_compare.arms", "_compare.caught"),
            *("_compare.findings", "_compare.mutants", "_compare.planted", "_compare.pool"),
            *("_compare.measure", "_compare.rounds", "_compare.state", "_compare.watch"),
            *("_verdict", "_machine", "_progress", "_grid"),
        },
        "_compare.caught": {
            *("_compare.arms", "_compare.exact", "_compare.mutants"),
            *("_compare.measure", "_compare.pool", "_verdict", "_progress", "_grid"),
        },
        "_compare.pool": {"_compare.rounds", "_judge", "_verdict", "_grid"},
        "_compare.findings": {
            *("_compare.exact", "_compare.measure", "_compare.rounds", "_compare.state"),
            *("_judge", "_verdict", "_grid"),
        },
        "_compare.session": {
            *("_compare.findings", "_compare.compiled"),
            *("_compare.arms", "_compare.exact", "_compare.measure", "_compare.rounds"),
            *("_compare.state", "_compare.store", "_compare.watch"),
            *("_suite", "_verdict", "_standin", "_workers", "_grid"),
        },
        "_compare.rounds": {
            *("_compare.arms", "_compare.measure", "_compare.state", "_compare.watch", "_verdict"),
        },
        "_compare.measure": {"_workload", "_clock", "_host", "_process", "_grid"},
        "_compare.exact": {"codegen", "_fingerprint", "_workers", "_verdict", "_grid"},
        "_compare.compiled": {
            *("_compare.rounds", "_compare.state", "_fingerprint", "_workers", "_suite"),
        },
        "_compare.planted": {"_compare.arms", "_compare.mutants", "_verdict"},
        "_compare.mutants": {"_sources", "_verdict"},
        "_compare.arms": {"_sources"},
        "_compare.store": {"_compare.state", "_verdict"},
        "_compare.watch": {"_compare.state"},
        "_compare.state": set(),
    },
}
PUBLIC = {
    *("apply_rotary_pos_emb", "apply_fused_qkv_rotary_pos_emb", "apply_qk_rotary_pos_emb"),
    *("apply_rotary_emb", "rotary_embedding"),
    "RotaryPositionEmbedding",
}
# Seconds to import, and discovery imports every file of the benchmarks in every process.
HEAVY = {
    *("torch", "triton", "rope_triton", "transformer_engine", "flash_attn", "liger_kernel", "fla"),
    *("transformers", "vllm", "xformers", "unsloth", "matplotlib"),
}


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


def parent(module: str, top: str) -> str:
    """The dotted package that a module below ``top`` lies in."""
    return ".".join([top, *module.split(".")[:-1]])


def modules(names: Iterable[str], top: str) -> set[str]:
    """Modules below ``top`` among dotted names; "__init__" is a package itself."""
    return {_module(name.split(".")[1:], top) for name in names if root(name) == top}


def _module(parts: list[str], top: str) -> str:
    leading = [".".join(parts[:length]) for length in range(len(parts), -1, -1)]
    candidates = [name for part in leading for name in (part, f"{part}.__init__".lstrip("."))]
    return next(name for name in candidates if name in ARROWS[top])


def arrow_violations(module: str, source: str, top: str) -> set[str]:
    if module not in ARROWS[top]:
        return {f"{module} has no arrows yet: draw them in ARROWS"}
    names = imports(ast.walk(ast.parse(source)), parent(module, top))
    return modules(names, top) - ARROWS[top][module]


def package_violations(module: str, source: str) -> set[str]:
    names = imports(ast.walk(ast.parse(source)), "rope_triton")
    outside = {name for name in names if root(name) in {"benchmarks", "tests"}}
    return outside | arrow_violations(module, source, "rope_triton")


def benchmark_violations(source: str, module: str) -> set[str]:
    tree, package = ast.parse(source), parent(module, "benchmarks")
    everywhere = imports(ast.walk(tree), package)
    at_import = imports(run_on_import(tree), package)
    public = {"rope_triton"} | {f"rope_triton.{name}" for name in PUBLIC}
    private = {name for name in everywhere if root(name) == "rope_triton"} - public
    heavy = {f"{name} at module level" for name in at_import if root(name) in HEAVY}
    tests = {name for name in everywhere if root(name) == "tests"}
    used = private | heavy | tests | private_attributes(tree, PUBLIC)
    return used | arrow_violations(module, source, "benchmarks")


def private_attributes(tree: ast.AST, public: Iterable[str]) -> set[str]:
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
        and node.attr not in {*public, "__version__", "__file__"}
    }


def files(top: str) -> dict[str, Path]:
    """Module -> its file."""
    paths = sorted((ROOT / top).rglob("*.py"))
    return {".".join(path.relative_to(ROOT / top).with_suffix("").parts): path for path in paths}


PACKAGE, BENCHMARKS = files("rope_triton"), files("benchmarks")


@pytest.mark.parametrize(("module", "path"), PACKAGE.items(), ids=PACKAGE)
def test_package(module, path):
    assert not package_violations(module, path.read_text())


@pytest.mark.parametrize("top", ARROWS)
def test_arrows_are_of_modules_that_exist_and_make_no_circle(top):
    assert set(ARROWS[top]) <= files(top).keys()
    assert set().union(*ARROWS[top].values()) <= files(top).keys()
    graphlib.TopologicalSorter(ARROWS[top]).prepare()


def test_oracle_and_kernel_never_meet():
    def reach(module):
        names = imports(ast.walk(ast.parse(PACKAGE[module].read_text())), "rope_triton")
        return {module}.union(*map(reach, modules(names, "rope_triton")))

    device = {"kernels", "rotation", "positions", "trigonometry"}
    assert reach("ops") == {"ops", "checks", "launch", "plans", "tiles", *device}
    assert reach("reference") == {"reference"}


@pytest.mark.parametrize(("module", "path"), BENCHMARKS.items(), ids=BENCHMARKS)
def test_benchmarks(module, path):
    assert not benchmark_violations(path.read_text(), module)


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
def test_forbidden_import_in_the_benchmarks_is_seen(source, violation):
    assert benchmark_violations(source, "host") == {violation}


@pytest.mark.parametrize(
    ("module", "source", "violation"),
    [
        ("rope", "from . import _fingerprint", "_fingerprint"),
        ("rope", "from ._compare.state import State", "_compare.state"),
        ("_verdict", "from ._report import terminal", "_report"),
        ("_report", "from . import _compare", "_compare.__init__"),
        ("_grid", "from benchmarks import rope", "rope"),
        ("_grid", "import benchmarks", "__init__"),
        ("_compare.state", "def f():\n    from .. import _verdict", "_verdict"),
        ("_compare.state", "from . import watch", "_compare.watch"),
        ("_compare.rounds", "from .session import Wishes", "_compare.session"),
        ("_compare.exact", "from .. import rope", "rope"),
        ("_extra", "", "_extra has no arrows yet: draw them in ARROWS"),
    ],
)
def test_forbidden_arrow_in_the_benchmarks_is_seen(module, source, violation):
    assert benchmark_violations(source, module) == {violation}


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
    assert not benchmark_violations(ALLOWED, "rope")
    assert not package_violations("api", "import torch\nfrom rope_triton import ops, reference")
