"""What two versions compile to, compared exactly."""

import shutil
from pathlib import Path

import pytest

from benchmarks import codegen
from benchmarks._cells.forms import PATHS
from benchmarks._cells.grid import Cell, ModelCell, PathCell, SurfaceCell
from benchmarks._compare import exact
from benchmarks._machine_code import fingerprint
from benchmarks._verdict.notes import Note
from benchmarks._verdict.rules import UNITS, Answer, Key

ROOT = Path(exact.__file__).resolve().parents[2]
SMALL = ("sm_90", "float16", "sbhd", "forward", 64, "small")
LARGE = (*SMALL[:-1], "large")
SUBSET = {
    "target": ("sm_90",),
    "dtype": ("float16",),
    "format": ("sbhd",),
    "direction": ("forward",),
    "hidden_size": (64,),
}


# --- names and missing values, from made-up facts -------------------------------------------------


def facts(**changes):
    plain = dict.fromkeys(
        ("registers", "spilled_bytes", "stack_bytes", "shared_bytes", "instructions"), 8
    )
    return fingerprint.Facts(
        **plain
        | {"global_accesses": 4, "narrow_accesses": 1, "digest": "d", "code": "c"}
        | {"saved_bytes": 0}
        | changes
    )


@pytest.fixture
def compiler_gives(monkeypatch):
    """Let the compiler give these answers next, and note what it was asked."""

    def answer(large, variants):
        asked = []

        def compile_sizes(calls, sweeps, root, ledger):
            asked.extend(calls)
            answers = {call: large if call[-1] == "large" else facts() for call in calls}
            return fingerprint.Answers(answers, dict.fromkeys(sweeps, variants), {})

        monkeypatch.setattr(exact.fingerprint, "compile_sizes", compile_sizes)
        return asked

    return answer


def texts(call):
    return tuple(map(str, call))


def test_names_are_those_of_asv(compiler_gives):
    asked = compiler_gives(facts(registers=9, digest="e"), 3)
    values = exact.codegen_facts(ROOT, **SUBSET)
    assert asked == [SMALL, LARGE]
    tracks = {name for name in dir(codegen.Codegen) if name.startswith("track_")}
    metrics = {f"codegen.Codegen.{name}" for name in tracks} | {"codegen.Variants.track_variants"}
    assert {subject.metric for subject in values} == metrics
    registers = "codegen.Codegen.track_registers"
    assert values[registers, texts(SMALL)] == 8
    assert values[registers, texts(LARGE)] == 9
    assert values["codegen.Codegen.track_narrow_share", texts(LARGE)] == 0.25
    assert values["codegen.Variants.track_variants", SMALL[:4]] == 3


def test_everything_is_asked_by_default(compiler_gives):
    asked = compiler_gives(facts(), 2)
    values = exact.codegen_facts(ROOT)
    assert len(asked) == len(set(asked)) == 8 * 3 * 2 * 2 * 3 * 2
    assert sum(s.metric == "codegen.Variants.track_variants" for s in values) == 8 * 3 * 2 * 2


@pytest.mark.parametrize(
    ("subset", "message"),
    [
        ({"archs": ("sm_90",)}, "got archs="),
        ({"target": ("sm_1",)}, r"got target=\('sm_1',\)"),
        ({"target": ()}, r"got target=\(\)"),
    ],
)
def test_subset_that_is_none(subset, message):
    with pytest.raises(ValueError, match=message):
        exact.codegen_facts(ROOT, **subset)


def test_compare_says_worse_better_and_none(compiler_gives):
    compiler_gives(facts(), 2)
    base = exact.codegen_facts(ROOT, **SUBSET)
    assert {verdict.change for verdict in exact.compare(base, dict(base))} == {"none"}
    compiler_gives(facts(spilled_bytes=16, narrow_accesses=0, registers=10), 1)
    verdicts = exact.compare(base, exact.codegen_facts(ROOT, **SUBSET))
    changed = {
        (v.key.metric.rpartition("_")[2], v.key.params[-1], v.change): v.answer
        for v in verdicts
        if v.change != "none"
    }
    assert changed == {
        ("bytes", "large", "worse"): Answer.FAIL,
        ("share", "large", "better"): Answer.PASS,
        ("registers", "large", "worse"): Answer.PASS,  # shown only
        ("variants", "forward", "better"): Answer.PASS,
    }


def test_what_the_head_does_not_compile_fails_and_says_why(compiler_gives):
    compiler_gives(facts(), 2)
    base = exact.codegen_facts(ROOT, **SUBSET)
    compiler_gives(RuntimeError("Traceback\n  File\nPTXASError: too narrow a world\n"), 2)
    head = exact.codegen_facts(ROOT, **SUBSET)
    lost = [v for v in exact.compare(base, head) if v.change == "missing"]
    assert {v.key.params for v in lost} == {texts(LARGE)}
    gating = {v.key.metric for v in lost if v.answer == Answer.FAIL}
    assert gating >= {name for name in exact.UNITS if "Codegen" in name and UNITS[name].gates}
    assert exact.problems(base, "base") == []
    why = "PTXASError: too narrow a world"
    assert exact.problems(head, "head") == [Note("no value", why, "head", count=6)]


def test_what_neither_side_has_is_not_compared():
    values = {Key("codegen.Variants.track_variants", SMALL[:4]): NotImplementedError("no thd")}
    assert exact.compare(values, dict(values)) == []
    assert exact.problems(values, "base") == [Note("no value", "no thd", "base", count=1)]


# --- the package itself ---------------------------------------------------------------------------


def test_change_of_the_kernel_for_some_heads_is_seen_there_alone(tmp_path, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    ignored = shutil.ignore_patterns("__pycache__")
    copy = shutil.copytree(ROOT / "rope_triton", tmp_path / "rope_triton", ignore=ignored)
    path = copy / "kernel" / "tiles.py"
    source = path.read_text()
    constant = "_WIDE_HEADS, _WIDE_CHANNELS = 8, 128"
    assert constant in source
    path.write_text(source.replace(constant, "_WIDE_HEADS, _WIDE_CHANNELS = 8, 256"))
    narrow, wide = (Cell(512, channels, 4, "float16", "sbhd") for channels in (64, 128))
    base, head = (compiled(root, [narrow, wide]) for root in (ROOT, tmp_path))
    assert {subject for subject in base if base[subject] != head[subject]} == {
        (f"rope.{direction}.track_latency", ("512", "128", "4", "float16", "sbhd"))
        for direction in ("Forward", "Backward")
    }
    assert {("rope.Forward.track_latency", ("512", "64", "4", "float16", "sbhd"))} <= base.keys()


def test_every_path_of_the_package_has_machine_code_of_its_own(tmp_path, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    cells = [PathCell(path, 4, "bfloat16") for path in PATHS if path != "thd-short"]
    model = ModelCell("deepseek-v3-k", "decode", "tables")
    found = compiled(ROOT, [*cells, model])
    assert set(found) == {
        (metric, (cell.path, "4", "bfloat16")) for cell in cells for metric in cell.metrics.values()
    } | {(model.metrics["forward"], ("deepseek-v3-k", "decode", "tables"))}
    assert len({facts.digest for facts in found.values()}) == len(found)


def test_sizes_of_a_form_have_their_code_in_common(monkeypatch):
    """Unlike the work: the grids differ. The history has the facts of the larger size."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    form = "angles-bshd-bf16-64x256-il"
    small, large = (SurfaceCell(form, mib) for mib in (4, 32))
    # The other is not compiled, as where a comparison is asked for some timings only.
    monkeypatch.setitem(exact.SURFACE_PARAMS, "form", (form, "qk-bshd-bf16-32x128"))
    surface = exact.compiled_surface(ROOT, "sm_90", [small, large], enumerations=())
    by_cell = {each: surface.facts[*key(small)[:1], params(each)] for each in (small, large)}
    assert by_cell[small].code == by_cell[large].code
    assert by_cell[small].digest != by_cell[large].digest
    values = surface.values("sm_90")
    assert {subject.params for subject in values} == {
        ("sm_90", form, direction) for direction in ("forward", "backward")
    }
    registers = values[Key("codegen.Surface.track_registers", ("sm_90", form, "forward"))]
    assert registers == by_cell[large].registers > 8


def key(cell):
    return cell.metrics["forward"], params(cell)


def params(cell):
    return tuple(map(str, (cell.form, cell.mib)))


def compiled(root, cells):
    return exact.compiled_surface(root, "sm_90", cells, enumerations=()).facts
