"""The import contracts of pyproject.toml hold, and what import-linter cannot say."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from importlinter import cli

from benchmarks import _subjects
from benchmarks._engine.subject import Subject
from tests import norms, toy
from tests.examples import norms_subject

ROOT = Path(__file__).resolve().parents[1]
SUBJECTS = (_subjects, norms, norms_subject, toy)
# asv's discovery imports every module of the benchmarks in each of its processes: these take
# seconds to import, or are not installed.
HEAVY = (
    *("torch", "triton", "rope_triton", "transformer_engine", "flash_attn", "liger_kernel", "fla"),
    *("quack", "transformers", "vllm", "flashinfer", "xformers", "unsloth", "matplotlib"),
)
IMPORT_ALL = f"""
import importlib, pkgutil, sys

class Heavy:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {HEAVY}:
            raise AssertionError(f"{{name}} is imported at module level")

sys.meta_path.insert(0, Heavy())
import benchmarks
for module in pkgutil.walk_packages(benchmarks.__path__, "benchmarks."):
    importlib.import_module(module.name)
"""


def test_import_contracts(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    assert cli.lint_imports(no_cache=True) == 0, capsys.readouterr().out


@pytest.mark.parametrize(("last", "status"), [("", 0), ("import torch", 1)])
def test_no_module_of_the_benchmarks_imports_what_takes_seconds(last, status):
    code = IMPORT_ALL + last
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stderr=-1, encoding="utf-8")
    assert done.returncode == status, done.stderr
    assert ("torch is imported at module level" in done.stderr) == bool(status)


def test_every_folder_of_the_package_is_installed():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    files = (ROOT / "rope_triton").rglob("*.py")
    folders = {".".join(file.parent.relative_to(ROOT).parts) for file in files}
    assert sorted(settings["packages"]) == sorted(folders)


@pytest.mark.parametrize(
    "subject", [_subjects, norms, norms_subject, toy], ids=lambda s: s.__name__
)
def test_a_subject_has_all_that_the_engine_asks(subject):
    asked = {name for name in vars(Subject) if not name.startswith("_")}
    assert "host_calls" in asked and not asked - vars(subject).keys()
