"""A job of a workflow, run step by step in a scratch clone, as a runner does.

GitHub, the GPU and asv's measuring are played by small scripts; git and the shell are real.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from tests.git import git

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"
RESULTS = Path("benchmarks") / "results"
MEASURED = "8f5b046751e08282473c367e6c1aed145f5e93be"  # has results of every machine
GPU = "nvidia-h200"

# Plays python3, and .venv/bin/python: makes no environment, describes the GPU that is asked for,
# and hands out a recorded result where asv would measure. Everything else is real.
PYTHON = """#!/bin/bash
echo "$(basename "$0") $*" >> "$PLAYED"
case "$*" in
    "-m venv .venv")
        mkdir -p .venv/bin && cp "$0" .venv/bin/python && cp "$(dirname "$0")/pip" .venv/bin/pip ;;
    "-m benchmarks machine") printf 'gpu      x\\nmachine  %s\\n' "$PLAYED_MACHINE" ;;
    "-m benchmarks._site hold"*) shift 4; exec "$@" ;;
    "-m benchmarks._site measure"*) exec "$REAL" "$PLAYED_MEASURE" "${@:4}" ;;
    "-m asv find"*) printf '%s\\n' "$@"; exit "${PLAYED_STATUS:-0}" ;;
    *) exec "$REAL" "$@" ;;
esac
"""
PIP = '#!/bin/bash\necho "pip $*" >> "$PLAYED"\ntest -f constraints.txt\n'
GH = '#!/bin/bash\necho "gh $* $GH_TOKEN" >> "$PLAYED"\n'
# The real measure(), with a record instead of asv run, and no GPU to hold.
MEASURE = """
import contextlib, json, os, sys
from pathlib import Path
sys.path.insert(0, os.getcwd())
from benchmarks._site import measure
from benchmarks._system.repository import git_text
record = json.loads(Path(os.environ["PLAYED_RECORD"]).read_text())
def run(root, machine, commit, scratch):
    directory = root / ".asv" / "results" / machine
    directory.mkdir(parents=True, exist_ok=True)
    fields = {"machine": machine, "version": 1}
    (directory / "machine.json").write_text(json.dumps(fields))
    params = record["params"] | {"machine": machine} | measure.installed(machine)
    date = int(git_text(root, "log", "-1", "--format=%at", commit)) * 1000
    content = record | {"commit_hash": commit, "params": params, "date": date}
    name = f"{commit[:8]}-existing-py-torch{params['torch']}.json"
    (directory / name).write_text(json.dumps(content))
    return 0
stored = {name: record["params"][name] for name in measure.TOOLCHAIN}
toolchain = stored | json.loads(os.environ.get("PLAYED_TOOLCHAIN", "{}"))
measure.installed = lambda machine: toolchain
measure._run, measure.gpu_of = run, lambda machine: contextlib.nullcontext()
sys.exit(measure.measure(Path.cwd(), sys.argv[1], limit=2))
"""


def records(directory):
    """The full results of ``MEASURED`` below a directory: others may lie beside those shipped."""
    found = directory.rglob(f"{MEASURED[:8]}-*.json")
    return sorted(path for path in found if "-compare-" not in path.name)


class Job:
    """Runs a job's steps one by one, as a runner does, in a clone and with its variables."""

    def __init__(self, workflow, name, origin, tmp_path, **context):
        self.workflow = yaml.safe_load((WORKFLOWS / workflow).read_text())
        self.job = self.workflow["jobs"][name]
        self.temp, self.tools = tmp_path / f"temp-{name}", tmp_path / "tools"
        self.clone = tmp_path / f"clone-{name}-{context.get('matrix.machine', '')}"
        self.context = {"github.token": "TOKEN", "runner.temp": str(self.temp)} | context
        shutil.rmtree(self.temp, ignore_errors=True)
        self.temp.mkdir()
        git(tmp_path, "clone", "-q", "-s", str(origin), str(self.clone))
        self._make_tools()
        self.environment = os.environ | {
            "PATH": f"{self.tools}{os.pathsep}{os.environ['PATH']}",
            "PLAYED": str(tmp_path / "played"),
            "PLAYED_MACHINE": context.get("matrix.machine", GPU),
            "PLAYED_MEASURE": str(self.tools / "measure.py"),
            "PLAYED_RECORD": str(records(ROOT / RESULTS / GPU)[0]),
            "REAL": sys.executable,
            "RUNNER_TEMP": str(self.temp),
            "GITHUB_STEP_SUMMARY": str(self.temp / "summary.md"),
            "HOME": str(self.temp),
        }

    def _make_tools(self):
        self.tools.mkdir(exist_ok=True)
        for name, text in (("python3", PYTHON), ("pip", PIP), ("gh", GH), ("measure.py", MEASURE)):
            (self.tools / name).write_text(text)
            (self.tools / name).chmod(0o755)

    def _fill(self, text):
        for name, value in self.context.items():
            text = text.replace(f"${{{{ {name} }}}}", value)
        assert "${{" not in text, f"the test gives no value for {text}"
        return text

    def _is_due(self, step, failed, outcomes):
        """What GitHub makes of the step's condition, of the few words that these workflows use."""
        text = str(step.get("if", "success()")).removeprefix("${{").removesuffix("}}").strip()
        if "cancelled()" not in text and "success()" not in text:
            text += " && success()"
        values = {"!cancelled()": True, "success()": not failed}
        for name, outcome in outcomes.items():
            values[f"steps.{name}.outcome == 'success'"] = outcome == "success"
        return all(values[word] for word in text.split(" && "))

    def run(self):
        """Status of each ``run:`` step by its name, until one fails, as on GitHub."""
        outer = {**self.workflow.get("env", {}), **self.job.get("env", {})}
        statuses, outcomes = {}, {}
        for step in self.job["steps"]:
            if "run" not in step or not self._is_due(step, any(statuses.values()), outcomes):
                continue
            assert "${{" not in step["run"], "an expression in a script is part of its text"
            variables = {k: self._fill(str(v)) for k, v in {**outer, **step.get("env", {})}.items()}
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
                cwd=self.clone,
                env=self.environment | variables,
                capture_output=True,
                text=True,
            )
            statuses[step["name"]] = done.returncode
            outcomes[step.get("id")] = "failure" if done.returncode else "success"
            self.said = getattr(self, "said", "") + done.stdout + done.stderr
        return statuses
