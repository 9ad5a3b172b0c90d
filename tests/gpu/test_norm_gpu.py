"""On a GPU: two versions of one kernel are compiled, checked, timed, judged and reported."""

import json
import shutil

import pytest

from benchmarks import __main__ as entry
from benchmarks._engine.compare import command
from benchmarks._engine.system import gpu_monitor
from benchmarks._engine.verdict.rules import Answer
from benchmarks._engine.verdict.schema import from_json
from tests import norms
from tests.git import git
from tests.lab import PASS, ROOT

pytestmark = [pytest.mark.gpu, pytest.mark.alone]


def test_two_versions_of_rms_norm_are_compared(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setattr(command, "SCRATCH", tmp_path / ".asv" / "compare")
    # Other processes of these tests hold memory of the GPU, though they wait.
    monkeypatch.setattr(gpu_monitor, "require_free", lambda uuid: None)
    monkeypatch.setattr(gpu_monitor, "why_invalid", lambda *_: "")
    package = tmp_path / norms.PACKAGE
    shutil.copytree(ROOT / norms.PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "add", norms.PACKAGE)
    git(tmp_path, "commit", "-q", "-m", "base")
    (package / "remark.py").write_text("# A remark changes no machine code.\n")
    words = ["compare", "main", "--subject", norms.__name__, "--rounds", "10", "--all"]
    assert entry.main([*words, "--json", str(tmp_path / "report.json")]) == PASS
    comparison = from_json(json.loads((tmp_path / "report.json").read_text()))
    (cell,) = norms.candidates()
    timed = {timing.key for timing in comparison.families["gpu"].timings}
    assert {key.params for key in timed} == {cell.params} and timed <= comparison.identical
    assert comparison.answer is Answer.PASS and not comparison.wrong
    assert comparison.reproduce.endswith("--subject tests.norms")
    assert "PASS" in capsys.readouterr().out
