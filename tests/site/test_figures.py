"""Figures from stored asv results, and ``python -m benchmarks``, with asv replaced by a script."""

import json
import platform
import sys

import pytest

from benchmarks import __main__ as entry
from benchmarks._site import figures, run
from benchmarks._system import gpu_monitor
from benchmarks._system.errors import CouldNotRunError
from tests.git import git

NUMBERS = ("registers", "instructions", "spilled_bytes")
CELLS = [["128", "8192"], ["256"], ["8"], ["'float32'"], ["'sbhd'"]]  # 67 MB and 4.3 GB a tensor


def stored(path, date=1, **tables):
    columns = ["result", "params", "version"]
    results = {name: [values, params, "1"] for name, (values, params) in tables.items()}
    path.write_text(json.dumps({"date": date, "result_columns": columns, "results": results}))
    return path


def speeds(tmp_path, ratios):
    return stored(
        tmp_path / "r.json",
        **{
            "rope.Forward.track_copy_ratio": (ratios, CELLS),
            "rope.Forward.track_gbps": ([4000.0, 3000.0], CELLS),
        },
    )


def test_speeds_are_shares_of_a_copy_by_size(tmp_path):
    first, second = figures.speed_table(figures.load_values(speeds(tmp_path, [1.25, 0.5])))
    assert "16 to 256 MB" in first and "min 0.800" in first and "4000 GB/s" in first
    assert "above" in second and "min 2.000" in second and "3000 GB/s" in second


@pytest.mark.parametrize("missing", [None, float("nan")], ids=["failed", "n/a"])
def test_what_has_no_value_has_no_line(tmp_path, missing):
    lines = figures.speed_table(figures.load_values(speeds(tmp_path, [missing, 0.5])))
    assert len(lines) == 1 and "above" in lines[0]


def test_other_paths_have_a_line_each(tmp_path):
    params = [["'thd'", "'qkv'"], ["4", "32"], ["'bfloat16'"]]
    tables = {
        "paths.Backward.track_copy_ratio": ([1.25, 1.0, float("nan"), 2.0], params),
        "paths.Backward.track_gbps": ([2000.0, 4000.0, 1.0, 1500.0], params),
    }
    lines = figures.speed_table(figures.load_values(stored(tmp_path / "r.json", **tables)))
    assert [line.split()[:3] for line in lines] == [
        ["Backward", "thd", "2"],
        ["Backward", "qkv", "1"],
    ]
    assert "min 0.800, median 0.900" in lines[0] and "3000 GB/s" in lines[0]
    assert "min 0.500" in lines[1] and "1500 GB/s" in lines[1]


def test_calls_of_models_have_a_line_for_each_kind_of_step(tmp_path):
    params = [["'llama-3-8b'"], ["'training'", "'decode'"], ["'angles'", "'tables'"]]
    tables = {
        "model_calls.Forward.track_copy_ratio": ([1.25, 1.0, 2.0, float("nan")], params),
        "model_calls.Forward.track_gbps": ([2000.0, 4000.0, 1500.0, 1.0], params),
    }
    first, second = figures.speed_table(figures.load_values(stored(tmp_path / "r.json", **tables)))
    assert first.split()[:4] == ["Forward", "models,", "training", "2"]
    assert "min 0.800, median 0.900" in first and "3000 GB/s" in first
    assert second.split()[:4] == ["Forward", "models,", "decode", "1"] and "min 0.500" in second


def test_a_benchmark_without_any_value(tmp_path):
    path = stored(tmp_path / "r.json", **{"rope.Forward.track_copy_ratio": (None, CELLS)})
    assert figures.speed_table(figures.load_values(path)) == []


@pytest.mark.parametrize(
    ("sizes", "numbers"),
    [([], [1, 48, 3, 35]), ([["'small'", "'large'"]], [1, 2, 40, 48, 3, 4, 30, 35])],
    ids=["version 1", "version 2"],
)
def test_codegen_has_a_line_an_architecture(tmp_path, sizes, numbers):
    call = [["'float16'"], ["'sbhd'"], ["'forward'"], ["64", "128"]]
    params = [["'sm_90'", "'gfx942'"], *call, *sizes]
    tables = {f"codegen.Codegen.track_{n}": (numbers, params) for n in NUMBERS}
    values = figures.load_values(stored(tmp_path / "r.json", **tables))
    lines = figures.codegen_table(values)
    assert [line.split()[0] for line in lines] == ["sm_90", "gfx942"]
    assert "48 registers" in lines[0] and "35 registers" in lines[1]


@pytest.fixture
def fake_asv(monkeypatch, tmp_path):
    """Run the job with a script for asv, in a checkout whose package is clean."""

    def run_script(script):
        monkeypatch.setattr(run, "ASV", [sys.executable, "-c", script])
        monkeypatch.setattr(run, "LOG", tmp_path / "log" / "run.log")
        monkeypatch.setattr(figures, "RESULTS", tmp_path)
        for check in ("_refuse_dirty_package", "_require_main"):
            monkeypatch.setattr(run, check, lambda: None)
        monkeypatch.setattr(run, "_append_only", lambda: None)
        monkeypatch.setenv("HOME", str(tmp_path))
        return entry.main(["run"])

    return run_script


def test_run_shows_headlines_and_logs_everything(fake_asv, tmp_path, capfd):
    table = "[ 1.00%] ··· ===== ====\\n              128   n/a"
    assert fake_asv(f"print('· Discovering benchmarks\\n{table}')") == 0
    shown = capfd.readouterr()
    assert "Discovering benchmarks" in shown.out
    assert "====" not in shown.out and "n/a" not in shown.out
    assert "====" in (tmp_path / "log" / "run.log").read_text()
    assert "site:" in shown.err


def test_the_log_says_why_a_benchmark_failed(fake_asv, tmp_path, capfd):
    """As asv does where it is asked to, and else says "failed" alone."""
    why = "[ 1.00%] ···· For parameters: 128\\n              Traceback"
    script = f"import sys; print('··· failed'); '--show-stderr' in sys.argv and print('{why}')"
    fake_asv(script)
    shown = capfd.readouterr().out
    assert "failed" in shown and "For parameters" not in shown and "Traceback" not in shown
    assert "Traceback" in (tmp_path / "log" / "run.log").read_text()


def test_run_fails_as_asv_does_and_still_publishes(fake_asv, capfd):
    script = "import sys; print('·', sys.argv[1]); sys.exit(2 * (sys.argv[1] == 'run'))"
    assert fake_asv(script) == 2
    shown = capfd.readouterr()
    assert "· publish" in shown.out and "site:" in shown.err


def test_run_refuses_a_package_that_is_not_committed(monkeypatch):
    monkeypatch.setattr(run, "git", lambda *arguments: " M rope_triton/ops.py")
    with pytest.raises(CouldNotRunError, match="rope_triton/ops.py"):
        run._refuse_dirty_package()


def test_run_refuses_a_clone_without_the_branch_that_is_published(monkeypatch, tmp_path):
    git(tmp_path, "init", "-q", "-b", "feature")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "one")
    monkeypatch.setattr(run, "ROOT", tmp_path)
    with pytest.raises(CouldNotRunError, match="git branch main origin/main"):
        run._require_main()
    git(tmp_path, "branch", "main")
    run._require_main()


def test_outside_a_repository(monkeypatch, tmp_path):
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    with pytest.raises(CouldNotRunError, match="measure in a clone"):
        figures.git("rev-parse", "HEAD")


def test_run_prints_what_it_wrote_whatever_the_clock(fake_asv, tmp_path, capfd):
    head = figures.git("rev-parse", "HEAD")
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
    assert sys.argv[4].startswith("^codegen")
"""
    assert fake_asv(script) == 0
    shown = capfd.readouterr()
    assert "sm_90    float16 sbhd forward, hidden 128:   4 registers" in shown.out
    beside = "beside commit bbbbbbbb, stored before: instructions +100.0 % in 1 cells"
    assert beside in shown.out and "no figures" not in shown.out
    assert "only machine code is measured" in shown.err and "asv preview --browser" in shown.err


def test_run_waits_for_no_gpu_that_another_measures(fake_asv, tmp_path, capfd, monkeypatch):
    record = {"machine": "toy", "torch": "2", "triton": "3", "gpu": "Toy"}
    monkeypatch.setattr(run.machine, "machine_record", lambda: record)
    monkeypatch.setattr(gpu_monitor, "gpu_uuid", lambda: "GPU-1")
    monkeypatch.setattr(gpu_monitor, "LOCK_DIRECTORY", tmp_path)
    with gpu_monitor.gpu_lock("GPU-1", 0.0):
        assert fake_asv("print('· measured')") == 3
    shown = capfd.readouterr()
    assert "GPU-1 is being measured by pid" in shown.err and "measured" not in shown.out
    assert fake_asv("print('· measured')") == 0
