"""Figures of stored asv results, and ``python -m benchmarks run``, with asv played by a script."""

import json
import platform
import sys

import pytest

from benchmarks import __main__ as entry
from benchmarks._engine.system import gpu_monitor
from benchmarks._site import figures, run
from tests.git import git

NUMBERS = ("registers", "instructions", "spilled_bytes")
CELLS = [["128", "8192"], ["256"], ["8"], ["'float32'"], ["'sbhd'"]]  # 67 MB and 4.3 GB a tensor
CALLS = [["'thd'", "'qkv'"], ["4", "32"], ["'bfloat16'"]]
MODELS = [["'llama-3-8b'"], ["'training'", "'decode'"], ["'angles'", "'tables'"]]
NAN = float("nan")


def stored(path, date=1, **tables):
    columns = ["result", "params", "version"]
    results = {name: [values, params, "1"] for name, (values, params) in tables.items()}
    path.write_text(json.dumps({"date": date, "result_columns": columns, "results": results}))
    return path


@pytest.mark.parametrize(
    ("suite", "ratios", "params", "expected"),
    [
        (
            *("rope.Forward", [1.25, 0.5], CELLS),
            [("16 to 256 MB", 1, 0.8, 0.8, 1000), ("above", 1, 2, 2, 2000)],
        ),
        ("rope.Forward", [None, 0.5], CELLS, [("above", 1, 2, 2, 2000)]),
        ("rope.Forward", None, CELLS, []),
        (
            *("paths.Backward", [1.25, 1, NAN, 2], CALLS),
            [("thd", 2, 0.8, 0.9, 1500), ("qkv", 1, 0.5, 0.5, 4000)],
        ),
        (
            *("model_calls.Forward", [1.25, 1, 2, NAN], MODELS),
            [("models, training", 2, 0.8, 0.9, 1500), ("models, decode", 1, 0.5, 0.5, 3000)],
        ),
    ],
)
def test_speeds_are_shares_of_a_copy_by_group(tmp_path, suite, ratios, params, expected):
    gbps = None if ratios is None else [1000.0 * (i + 1) for i in range(len(ratios))]
    tables = {f"{suite}.track_copy_ratio": (ratios, params), f"{suite}.track_gbps": (gbps, params)}
    lines = figures.speed_table(figures.Result(stored(tmp_path / "r.json", **tables)).values)
    assert len(lines) == len(expected)
    for line, (label, cells, least, median, rate) in zip(lines, expected, strict=True):
        assert line.startswith(suite.partition(".")[2]) and f" {label} " in line
        assert f"{cells:4} cells" in line and f"median {rate:5} GB/s" in line
        assert f"min {least:.3f}, median {median:.3f}" in line


@pytest.mark.parametrize(
    ("sizes", "numbers"),
    [([], [1, 48, 3, 35]), ([["'small'", "'large'"]], [1, 2, 40, 48, 3, 4, 30, 35])],
    ids=["version 1", "version 2"],
)
def test_codegen_has_a_line_an_architecture(tmp_path, sizes, numbers):
    call = [["'float16'"], ["'sbhd'"], ["'forward'"], ["64", "128"]]
    params = [["'sm_90'", "'gfx942'"], *call, *sizes]
    tables = {f"codegen.Codegen.track_{n}": (numbers, params) for n in NUMBERS}
    lines = figures.codegen_table(figures.Result(stored(tmp_path / "r.json", **tables)).values)
    assert [line.split()[0] for line in lines] == ["sm_90", "gfx942"]
    assert "48 registers" in lines[0] and "35 registers" in lines[1]


# --- run ------------------------------------------------------------------------------------------


@pytest.fixture
def clone(monkeypatch, tmp_path):
    """A repository with a committed package, in which ``run`` measures."""
    package = tmp_path / "clone" / "rope_triton" / "kernel.py"
    package.parent.mkdir(parents=True)
    package.touch()
    clone = tmp_path / "clone"
    git(clone, "init", "-q", "-b", "main")
    git(clone, "add", "-A")
    git(clone, "commit", "-q", "-m", "one")
    for module in (run, figures):
        monkeypatch.setattr(module, "ROOT", clone)
    monkeypatch.setattr(run, "LOG", tmp_path / "log" / "run.log")
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return clone


@pytest.fixture
def run_with(monkeypatch, clone):
    """``python -m benchmarks run``, with a script as asv; the exit status."""

    def run_script(script="print('· measured')"):
        monkeypatch.setattr(run, "ASV", [sys.executable, "-c", script])
        return entry.main(["run"])

    return run_script


def test_run_shows_headlines_and_logs_everything(run_with, tmp_path, capfd):
    """Tracebacks too, which asv writes only where it is asked to."""
    table = "[ 1.00%] ··· ===== ====\\n              128   n/a"
    why = "[ 1.00%] ···· For parameters: 128\\n              Traceback"
    script = f"import sys; print('· Discovering benchmarks\\n{table}')\n"
    script += f"print('··· failed'); '--show-stderr' in sys.argv and print('{why}')"
    assert run_with(script) == 0
    shown = capfd.readouterr()
    assert "Discovering benchmarks" in shown.out and "failed" in shown.out
    log = (tmp_path / "log" / "run.log").read_text()
    for text in ("====", "n/a", "For parameters", "Traceback"):
        assert text in log and text not in shown.out
    assert "site:" in shown.err


def test_run_fails_as_asv_does_and_still_publishes(run_with, capfd):
    assert (
        run_with("import sys; print('·', sys.argv[1]); sys.exit(2 * (sys.argv[1] == 'run'))") == 2
    )
    shown = capfd.readouterr()
    assert "· publish" in shown.out and "site:" in shown.err


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda clone: (clone / "rope_triton/kernel.py").write_text("#"), "rope_triton/kernel.py"),
        (lambda clone: git(clone, "branch", "-m", "feature"), "git branch main origin/main"),
        (lambda clone: (clone / ".git").rename(clone.parent / "moved"), "measure in a clone"),
    ],
    ids=["not committed", "without main", "no repository"],
)
def test_run_refuses_what_it_could_not_file(run_with, clone, damage, message, capfd):
    damage(clone)
    assert run_with() == 3
    shown = capfd.readouterr()
    assert message in shown.err and "measured" not in shown.out


def test_run_prints_what_it_wrote_whatever_the_clock(run_with, clone, tmp_path, capfd):
    head = git(clone, "rev-parse", "HEAD")
    results = tmp_path / f"no-gpu-{platform.machine()}"
    results.mkdir()
    call = [["'sm_90'"], ["'float16'"], ["'sbhd'"], ["'forward'"], ["128"]]
    for commit, number in ((head, 4), ("b" * 40, 2)):
        tables = {f"codegen.Codegen.track_{n}": ([number], call) for n in NUMBERS}
        stored(results / f"{commit[:8]}-new.json", date=number, **tables)
    (results / f"{head[:8]}-new.json").rename(tmp_path / "written")
    stored(results / f"{head[:8]}-other.json")
    script = f"""
import os, sys
if sys.argv[1] == "run":
    os.replace({str(tmp_path / "written")!r}, {str(results / f"{head[:8]}-new.json")!r})
    os.utime({str(results / f"{head[:8]}-new.json")!r}, (1, 1))
    assert "codegen" in sys.argv[4]
"""
    assert run_with(script) == 0
    shown = capfd.readouterr()
    assert "sm_90    float16 sbhd forward, hidden 128:   4 registers" in shown.out
    beside = "beside commit bbbbbbbb, stored before: instructions +100.0 % in 1 cells"
    assert beside in shown.out and "no figures" not in shown.out
    assert "only exact values are measured" in shown.err and "asv preview --browser" in shown.err


def test_run_waits_for_no_gpu_that_another_measures(run_with, tmp_path, capfd, monkeypatch):
    record = {"machine": "toy", "torch": "2", "triton": "3", "gpu": "Toy"}
    monkeypatch.setattr(run.machine, "machine_record", lambda: record)
    monkeypatch.setattr(gpu_monitor, "gpu_uuid", lambda: "GPU-1")
    monkeypatch.setattr(gpu_monitor, "LOCK_DIRECTORY", tmp_path)
    with gpu_monitor.gpu_lock("GPU-1", 0.0):
        assert run_with() == 3
    shown = capfd.readouterr()
    assert "GPU-1 is being measured by pid" in shown.err and "measured" not in shown.out
    assert run_with() == 0
