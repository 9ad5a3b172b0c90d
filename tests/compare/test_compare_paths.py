"""``python -m benchmarks compare`` of the other paths and of forms, beside the grid."""

import ast

import pytest

from benchmarks._compare import session
from benchmarks._compare.findings import subjects_of
from benchmarks._verdict.rules import Answer, Key
from tests.lab import CELLS, FAIL, FORMS, IN_PLACE, PASS, PATHS, QKV, ROUNDS, TRANSFORMER, noisy
from tests.publishing import ROOT


@pytest.fixture
def pathed(lab):
    """Compares other paths, too: fused QKV, and rotation in place, which is timed forward only."""
    lab.with_paths()
    return lab


PATH_SUBJECTS = [
    *(Key(metric, tuple(QKV.split())) for metric in PATHS),
    Key(PATHS[0], tuple(IN_PLACE.split())),
]


def test_paths_are_timed_with_the_grid(pathed):
    pathed.versions({}, {})
    assert pathed.compare() == PASS
    timed = {each.key for each in pathed.found.families["gpu"].timings}
    assert timed == set().union(PATH_SUBJECTS, *map(subjects_of, CELLS))


def test_slower_path_fails(pathed, capsys):
    pathed.versions({}, {"slower": {IN_PLACE: 1.05}})
    assert pathed.compare() == FAIL
    assert [t.key for t in pathed.found.timings if t.answer is Answer.FAIL] == PATH_SUBJECTS[2:]
    assert "Forward tables-inplace, 4 MiB, bfloat16" in capsys.readouterr().out


def test_path_that_cannot_be_told_is_looked_at_again(pathed):
    pathed.versions({}, {})
    noisy(pathed, QKV, 0.001)
    assert pathed.compare() == PASS
    assert pathed.gpu.jobs[-1][1]["cells"] == [["paths", ["qkv", "4", "bfloat16"]]]
    assert pathed.timing(PATH_SUBJECTS[0]).rounds > ROUNDS


# --- forms of the surface -------------------------------------------------------------------------

FORM_METRICS = ["surface.Forward.track_latency", "surface.Backward.track_latency"]
DECODE, SLOW = f"{FORMS[0]} 4", f"{FORMS[1]} 32"


@pytest.fixture
def formed(lab):
    """Compares forms, too."""
    lab.with_forms()
    return lab


def test_forms_are_compiled_checked_and_timed(formed):
    formed.versions({}, {})
    assert formed.compare() == PASS
    timed = {each.key for each in formed.found.families["gpu"].timings}
    forms = timed - set().union(*map(subjects_of, CELLS))
    sizes = [*(f"{FORMS[1]} {mib}" for mib in (4, 32)), DECODE]
    assert forms == {Key(metric, tuple(each.split())) for each in sizes for metric in FORM_METRICS}
    exact = {each.key for each in formed.found.exact}
    registers = "codegen.Surface.track_registers"
    assert {s.params for s in exact if s.metric == registers} == {
        ("sm_90", form, direction) for form in FORMS for direction in ("forward", "backward")
    }
    # Each form is checked at one size.
    assert [each for each in formed.gpu.jobs[0][1]["cells"] if each[0] == "surface"] == [
        ["surface", [FORMS[1], "4"]],
        ["surface", [FORMS[0], "4"]],
    ]


def test_slower_form_fails(formed):
    formed.versions({}, {"slower": {SLOW: 1.05}})
    assert formed.compare() == FAIL
    slow = {each.key for each in formed.found.timings if each.answer is Answer.FAIL}
    assert slow == {Key(metric, tuple(SLOW.split())) for metric in FORM_METRICS}


def test_one_form_alone_is_compared(formed):
    formed.versions({}, {"slower": {DECODE: 1.05}})
    assert formed.compare("base", "head", "--only", f"{FORM_METRICS[0]} {SLOW}") == PASS
    timed = {each.key for each in formed.found.timings}
    assert timed == {Key(metric, tuple(SLOW.split())) for metric in FORM_METRICS}


# --- calls of the transformer ---------------------------------------------------------------------

TRANSFORMER_METRICS = [f"modules.{each}.track_latency" for each in ("Forward", "Backward")]


@pytest.fixture
def transforming(lab):
    """Compares a call of the transformer, too."""
    lab.with_modules()
    return lab


def is_checked(lab) -> bool:
    return ["modules", [TRANSFORMER]] in lab.gpu.jobs[0][1]["cells"]


def test_calls_of_the_transformer_are_compiled_and_timed(transforming):
    transforming.versions({}, {"slower": {TRANSFORMER: 1.05}})
    assert transforming.compare() == FAIL
    slow = {each.key for each in transforming.found.timings if each.answer is Answer.FAIL}
    assert slow == {Key(metric, (TRANSFORMER,)) for metric in TRANSFORMER_METRICS}
    exact = {each.key for each in transforming.found.exact}
    registers = Key("codegen.Surface.track_registers", ("sm_90", TRANSFORMER, "backward"))
    assert registers in exact


@pytest.mark.parametrize(
    ("file", "checked"),
    [
        *(("transformer/softmax.py", True), ("kernel/launch.py", True)),
        *(("kernel/rotation.py", True), ("kernel/tiles.py", False), ("api/calls.py", False)),
    ],
)
def test_calls_of_the_transformer_are_checked_where_they_may_have_changed(
    transforming, file, checked
):
    path = transforming.root / "rope_triton" / file
    path.parent.mkdir(parents=True)
    for content in ("base", "head"):
        path.write_text(content)
        transforming.commit(content)
    assert transforming.compare() == PASS
    assert is_checked(transforming) == checked
    assert not transforming.unmeasured


def test_all_that_the_transformer_runs_of_the_package_is_known():
    imported = set()
    package = ROOT / "rope_triton"
    for path in (*package.glob("transformer/*.py"), package / "ops" / "operators.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module)
    own = {name for name in imported if name.startswith("rope_triton.")}
    files = {name.removeprefix("rope_triton.").replace(".", "/") + ".py" for name in own}
    others = {file for file in files if not file.startswith(("transformer/", "transformer.py"))}
    assert {*session._OF_TRANSFORMER} == {"transformer", *others}
