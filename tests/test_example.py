"""CONTRIBUTING, "Your own kernel", done as it says in a repository of its own; needs no GPU."""

import json
import os
import shutil
import subprocess
import sys

from tests.git import git
from tests.lab import ROOT

LEFT_OUT = shutil.ignore_patterns("__pycache__", "results", "evidence", "vendor")


def test_another_kernel_is_compared(tmp_path):
    shutil.copytree(ROOT / "benchmarks", tmp_path / "benchmarks", ignore=LEFT_OUT)
    shutil.copytree(ROOT / "tests" / "examples", tmp_path, ignore=LEFT_OUT, dirs_exist_ok=True)
    (tmp_path / ".gitignore").write_text(".asv\n__pycache__\n")
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "four warps")
    kernel = tmp_path / "norms" / "__init__.py"
    kernel.write_text(kernel.read_text().replace("num_warps=4", "num_warps=8"))
    command = [sys.executable, "-m", "benchmarks", "compare", "main", "--exact-only"]
    command += ["--subject", "norms_subject", "--json", "report.json"]
    compiling = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    status = subprocess.run(command, cwd=tmp_path, env=compiling).returncode
    report = json.loads((tmp_path / "report.json").read_text())
    assert status == {"pass": 0, "fail": 1}[report["answer"]]
    counts = {
        tuple(value["key"]["params"][1:]): value["base"] - value["head"]
        for value in report["exact"]
        if value["key"]["metric"] == "norms.Code.track_instructions"
    }
    assert len(counts) == 8 and all(counts.values())  # more warps: fewer instructions in each
