"""The import arrows, read from the sources without importing them: ROOMS.

The benchmarks use the package's public names only, because they also measure its old commits.
"""

import ast
import graphlib
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# What measures and judges: it knows no package and no subject, but by name.
ENGINE = {"_compare", "_machine_code", "_measure", "_report", "_subject", "_system", "_verdict"}
_GROUND = {"_subject", "_system"}
_ASV = {"_subject", "_subjects"}
# Room -> rooms that it may import. A room is a folder, or a module beside them.
ROOMS: dict[str, dict[str, set[str]]] = {
    "rope_triton": {
        "__init__": {"api", "frequencies", "scalings"},
        "api": {"checks", "ops", "reference"},
        "ops": {"checks", "kernel"},
        "frequencies": {"scalings"},
        "integrations": {"api", "checks", "reference"},
        "transformer": {"kernel", "ops"},
        **dict.fromkeys(("checks", "kernel", "reference", "scalings"), set()),
    },
    "benchmarks": {
        "__init__": set(),
        "__main__": {*_GROUND, "_compare", "_site", "_studies"},
        "rope": {*_ASV, "_measure"},
        "paths": {*_ASV, "_measure", "rope"},
        "model_calls": {*_ASV, "_measure", "rope"},
        "host": {*_ASV, "_measure"},
        "codegen": {*_ASV, "_machine_code"},
        "peers": {*_ASV, "_measure", "_studies", "host", "rope"},
        "training_step": {"_studies"},
        "_site": {*_GROUND, "_studies", "_subjects"},
        "_studies": {*_GROUND, "_compare", "_machine_code", "_measure", "_subjects", "_verdict"},
        "_compare": {*_GROUND, "_machine_code", "_measure", "_report", "_verdict"},
        "_report": {*_GROUND, "_verdict"},
        "_measure": {*_GROUND, "_verdict"},
        "_machine_code": _GROUND,
        "_subjects": {"_subject", "_verdict"},
        "_subject": {"_verdict"},
        "_verdict": {"_system"},
        "_system": set(),
    },
}
# Modules of rope_triton that run on the GPU.
DEVICE = (
    *("kernel.kernels", "kernel.positions", "kernel.rotation", "kernel.trigonometry"),
    *("transformer.activation_kernels", "transformer.attention_kernels"),
    *("transformer.loss_kernels", "transformer.norm_kernels", "transformer.product_kernels"),
    "transformer.rotation_kernels",
)
PUBLIC = {
    *("apply_rotary_pos_emb", "apply_fused_qkv_rotary_pos_emb", "apply_qk_rotary_pos_emb"),
    *("apply_rotary_emb", "rotary_embedding"),
    "RotaryPositionEmbedding",
}
PUBLIC_TRANSFORMER = {
    *("causal_attention", "linear", "rotary_attention"),
    *("linear_cross_entropy", "rms_norm", "swiglu"),
}
PUBLIC_INTEGRATIONS = {
    *("flash_attention.apply_rotary_emb_qkv_", "megatron.fused_apply_rotary_pos_emb"),
    "transformers.apply_rotary_pos_emb",
}
# Seconds to import, and discovery imports every file of the benchmarks in every process.
HEAVY = {
    *("torch", "triton", "rope_triton", "transformer_engine", "flash_attn", "liger_kernel", "fla"),
    *("quack", "transformers", "vllm", "flashinfer", "xformers", "unsloth", "matplotlib"),
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
    return next(name for name in candidates if name in FILES[top])


def arrow_violations(module: str, source: str, top: str) -> set[str]:
    found = modules(imports(ast.walk(ast.parse(source)), parent(module, top)), top)
    room = root(module)
    if room not in ROOMS[top]:
        return {f"{room} has no arrows yet: draw them in ROOMS"}
    return {root(name) for name in found} - {room} - ROOMS[top][room]


def package_violations(module: str, source: str) -> set[str]:
    names = imports(ast.walk(ast.parse(source)), parent(module, "rope_triton"))
    outside = {name for name in names if root(name) in {"benchmarks", "tests"}}
    return outside | arrow_violations(module, source, "rope_triton")


def benchmark_violations(source: str, module: str) -> set[str]:
    tree, package = ast.parse(source), parent(module, "benchmarks")
    everywhere = imports(ast.walk(tree), package)
    at_import = imports(run_on_import(tree), package)
    public = {"rope_triton"} | {f"rope_triton.{name}" for name in PUBLIC}
    public |= {f"rope_triton.transformer.{name}" for name in PUBLIC_TRANSFORMER}
    public |= {f"rope_triton.integrations.{name}" for name in PUBLIC_INTEGRATIONS}
    public = set() if root(module) in ENGINE else public
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
FILES = {"rope_triton": PACKAGE, "benchmarks": BENCHMARKS}


@pytest.mark.parametrize(("module", "path"), PACKAGE.items(), ids=PACKAGE)
def test_package(module, path):
    assert not package_violations(module, path.read_text())


@pytest.mark.parametrize("top", ROOMS)
def test_arrows_are_of_what_exists_and_make_no_circle(top):
    assert ROOMS[top].keys() == {root(module) for module in FILES[top]}
    graphlib.TopologicalSorter(ROOMS[top]).prepare()


@pytest.mark.parametrize("top", ROOMS)
def test_modules_of_a_room_make_no_circle(top):
    within = {
        module: {
            name
            for name in modules(imports(ast.walk(tree), parent(module, top)), top)
            if root(name) == root(module) and name != module
        }
        for module, tree in (
            (name, ast.parse(path.read_text())) for name, path in FILES[top].items()
        )
    }
    graphlib.TopologicalSorter(within).prepare()


def test_oracle_and_kernel_never_meet():
    def reach(room):
        return {room}.union(*map(reach, ROOMS["rope_triton"][room]))

    assert reach("ops") == {"ops", "checks", "kernel"}
    assert reach("reference") == {"reference"}


@pytest.mark.parametrize("name", DEVICE)
def test_code_for_the_gpu_imports_nothing_else(name):
    tree = ast.parse(PACKAGE[name].read_text())
    names = imports(ast.walk(tree), parent(name, "rope_triton"))
    allowed = {"triton", "triton.language", *(f"rope_triton.{each}" for each in DEVICE)}
    assert {each if each in allowed else each.rpartition(".")[0] for each in names} <= allowed


def test_every_folder_of_the_package_is_installed():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {path.parent for path in PACKAGE.values()}
    expected = [".".join(folder.relative_to(ROOT).parts) for folder in folders]
    assert sorted(settings["packages"]) == sorted(expected)
    assert all((folder / "__init__.py").is_file() for folder in folders)


@pytest.mark.parametrize(("module", "path"), BENCHMARKS.items(), ids=BENCHMARKS)
def test_benchmarks(module, path):
    assert not benchmark_violations(path.read_text(), module)


@pytest.mark.parametrize(
    ("module", "source", "violation"),
    [
        ("ops.qk", "from rope_triton import kernel, reference", "reference"),
        ("ops.qk", "from rope_triton.reference import rotate", "reference"),
        ("ops.qk", "def f():\n    import rope_triton.reference", "reference"),
        ("ops.qk", "from .. import reference", "reference"),
        ("ops.__init__", "from .. import reference", "reference"),
        ("ops.qk", "from ..api.by_angles import apply_rotary_pos_emb", "api"),
        ("ops", "import importlib\nimportlib.import_module('rope_triton.reference')", "reference"),
        ("reference", "from rope_triton.kernel.kernels import rope_kernel", "kernel"),
        ("reference", "from .kernel.kernels import rope_kernel", "kernel"),
        ("kernel.kernels", "import rope_triton", "__init__"),
        ("kernel.launch", "from rope_triton.ops import Options", "ops"),
        ("scalings", "from rope_triton import apply_rotary_pos_emb", "__init__"),
        ("frequencies.angles", "from .. import apply_rotary_pos_emb", "__init__"),
        (
            "api.by_angles",
            "from benchmarks._subjects.rope import grid",
            "benchmarks._subjects.rope.grid",
        ),
        ("api.by_angles", "import tests.oracle", "tests.oracle"),
        ("extra.module", "import torch", "extra has no arrows yet: draw them in ROOMS"),
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
        ("rope", "from ._machine_code import fingerprint", "_machine_code"),
        ("rope", "from ._compare.rounds import Rounds", "_compare"),
        ("_verdict.rules", "from .._report.terminal import terminal", "_report"),
        ("_report.markdown", "from .. import _compare", "_compare"),
        ("_subjects.rope.grid", "from benchmarks import rope", "rope"),
        ("_subjects.rope.grid", "import benchmarks", "__init__"),
        ("_compare.session", "def f():\n    from .. import _site", "_site"),
        ("_studies.peers.state", "from ..._site import page", "_site"),
        ("_measure.cell_outcomes", "from .._studies.peers.cells import PeerCell", "_studies"),
        ("_extra.module", "", "_extra has no arrows yet: draw them in ROOMS"),
    ],
)
def test_forbidden_arrow_in_the_benchmarks_is_seen(module, source, violation):
    assert benchmark_violations(source, module) == {violation}


ALLOWED = """
import itertools
from ._subjects.rope import grid
from benchmarks._measure.cell_outcomes import measure_cells

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


def text_of_the_locale(source: str) -> set[int]:
    """Lines that read or write text without saying in which encoding."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return {call.lineno for call in calls if _is_text(call) and not _given(call, "encoding")}


def _is_text(call: ast.Call) -> bool:
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    mode = [
        a.value for a in call.args if isinstance(a, ast.Constant) and a.value in ("r", "w", "a")
    ]
    opened = name == "open" and (bool(mode) or not call.args + call.keywords)
    return opened or name in ("read_text", "write_text") or _given(call, "text")


def _given(call: ast.Call, name: str) -> bool:
    return name in [keyword.arg for keyword in call.keywords]


@pytest.mark.parametrize(("module", "path"), BENCHMARKS.items(), ids=BENCHMARKS)
def test_no_file_is_in_the_locales_encoding(module, path):
    assert not text_of_the_locale(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "source",
    ["path.read_text()", "path.write_text(a)", "open(p, 'w')", "p.open('a')", "run(c, text=True)"],
)
def test_a_file_in_the_locales_encoding_is_seen(source):
    assert text_of_the_locale(source) == {1}
