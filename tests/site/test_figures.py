"""Figures from stored asv results, and ``python -m benchmarks``, with asv replaced by a script."""

import json
import sys

import pytest

from benchmarks import __main__
from benchmarks._site import figures
from tests.git import git

CELLS = [["128", "8192"], ["256"], ["8"], ["'float32'"], ["'sbhd'"]]  # 67 MB and 4.3 GB a tensor


def stored(path, **tables):
    columns = ["result", "params", "version"]
    results = {name: [values, params, "1"] for name, (values, params) in tables.items()}
    path.write_text(json.dumps({"result_columns": columns, "results": results}))
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
    names = ("registers", "instructions", "spilled_bytes")
    tables = {f"codegen.Codegen.track_{n}": (numbers, params) for n in names}
    values = figures.load_values(stored(tmp_path / "r.json", **tables))
    lines = figures.codegen_table(values)
    assert [line.split()[0] for line in lines] == ["sm_90", "gfx942"]
    assert "48 registers" in lines[0] and "35 registers" in lines[1]


@pytest.fixture
def fake_asv(monkeypatch, tmp_path):
    """Run the job with a script for asv, in a checkout whose package is clean."""

    def run(script):
        monkeypatch.setattr(__main__, "ASV", [sys.executable, "-c", script])
        monkeypatch.setattr(__main__, "LOG", tmp_path / "log" / "run.log")
        monkeypatch.setattr(__main__, "RESULTS", tmp_path)
        for check in ("_refuse_dirty_package", "_require_main"):
            monkeypatch.setattr(__main__, check, lambda: None)
        monkeypatch.setattr(__main__, "_append_only", lambda: None)
        monkeypatch.setenv("HOME", str(tmp_path))
        return __main__.main(["run"])

    return run


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
    monkeypatch.setattr(__main__, "_git", lambda *arguments: " M rope_triton/ops.py")
    with pytest.raises(__main__.CouldNotRunError, match="rope_triton/ops.py"):
        __main__._refuse_dirty_package()


def test_run_refuses_a_clone_without_the_branch_that_is_published(monkeypatch, tmp_path):
    git(tmp_path, "init", "-q", "-b", "feature")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "one")
    monkeypatch.setattr(__main__, "ROOT", tmp_path)
    with pytest.raises(__main__.CouldNotRunError, match="git branch main origin/main"):
        __main__._require_main()
    git(tmp_path, "branch", "main")
    __main__._require_main()


def test_outside_a_repository(monkeypatch, tmp_path):
    monkeypatch.setattr(__main__, "ROOT", tmp_path)
    with pytest.raises(__main__.CouldNotRunError, match="measure in a clone"):
        __main__._git("rev-parse", "HEAD")
