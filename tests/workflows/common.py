"""The workflows whose steps tests run, and a runner of them, as GitHub has, in a scratch clone.

What a step would fetch or measure is stood in for by small programs that come first on the PATH and
record how they were called: pip (which unpacks wheels and does nothing else), ruff and the linters,
twine, pytest (which would run the tests again), `compare` with a GPU (a recorded answer), what the
history measures (the test's own measure.py) and gh (GitHub's answers). Everything else is real.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from tests.git import git
from tests.report.artifacts import BASE, HEAD, archive, document

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"
PULL_REQUESTS = {
    name: yaml.safe_load((WORKFLOWS / name).read_text())
    for name in ("ci.yml", "gpu.yml", "machine-code.yml")
}
NIGHTLY, RELEASE, NEWEST, HISTORY, BISECT = (
    yaml.safe_load((WORKFLOWS / f"{name}.yml").read_text())
    for name in ("nightly", "release", "newest", "history", "bisect")
)
CI = PULL_REQUESTS["ci.yml"]
GPU = PULL_REQUESTS["gpu.yml"]
MACHINE_CODE = PULL_REQUESTS["machine-code.yml"]
REPO = "rope-triton/rope-triton"
RAN = set()  # the scripts that were


def steps(job):
    return [step for step in job["steps"] if "run" in step]


def needs_jq():
    if not shutil.which("jq"):
        pytest.skip("gh has jq within, its stub needs the program")


def require_every_script_was_run(*workflows):
    """For the last test of a file: the tests above ran each script of the workflows."""
    if not RAN:
        pytest.skip("the tests above were not selected")
    every = {s["run"] for each in workflows for job in each["jobs"].values() for s in steps(job)}
    assert every - RAN == set()


# Stands for every program: notes its name, arguments and directory, then acts its part.
STAND_IN = """\
import json, os, pathlib, re, shutil, subprocess, sys, zipfile
name, arguments = os.path.basename(sys.argv[1]), sys.argv[2:]
scratch = pathlib.Path(os.environ["SCRATCH"])

def note():
    with open(scratch / "calls", "a") as file:
        file.write(json.dumps([name, arguments, os.getcwd()]) + "\\n")

def act(python):
    if name == "python3" and arguments[:2] == ["-m", "venv"]:
        for program in ("python", "pip", "ruff", "mypy", "actionlint", "zizmor"):
            made = pathlib.Path(arguments[2], "bin", program)
            made.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(scratch / "bin" / "python3", made)
        return 0
    if name == "gh":
        return gh(arguments)
    if name == "sleep":
        return 0
    if name == "pip":
        for wheel in (each for each in arguments if each.endswith(".whl")):
            zipfile.ZipFile(wheel).extractall(scratch / "installed")
        given = (each for word, each in zip(arguments, arguments[1:]) if word == "-c")
        return int(not all(map(os.path.exists, given)))
    if name not in ("python", "python3"):
        return 0
    if arguments[:2] == ["-m", "twine"]:
        return 0
    if arguments[:2] == ["-m", "pytest"]:
        failing = os.environ.get("PYTEST_FAILS")
        return int(bool(failing) and failing in " ".join(arguments))
    if arguments == ["-m", "benchmarks", "machine"]:
        print("machine ", os.environ["PLAYED_MACHINE"])
        return 0
    if arguments[1:3] == ["benchmarks._site", "hold"]:
        return subprocess.run(arguments[4:]).returncode
    if arguments[:3] == ["-m", "asv", "find"]:
        print(*arguments, sep="\\n")
        return int(os.environ.get("FIND_STATUS", 0))
    compares = arguments[1:3] in (["benchmarks", "compare"], ["benchmarks", "creep"])
    if compares and "COMPARE_STATUS" in os.environ:
        answer = scratch / "recorded.json"
        if answer.exists():
            shutil.copy(answer, arguments[arguments.index("--json") + 1])
        return int(os.environ["COMPARE_STATUS"])
    path = {"PYTHONPATH": str(scratch / "installed")} if (scratch / "installed").exists() else {}
    measures = arguments[1:3] == ["benchmarks._site", "measure"]
    line = [scratch / "measure.py", *arguments[3:]] if measures else arguments
    return subprocess.run([python, *line], env=os.environ | path).returncode

def gh(arguments):
    if arguments[0] == "auth":
        return 0
    options = [arguments[i + 1] for i, each in enumerate(arguments) if each == "--jq"]
    path = next(each for each in arguments[1:] if "/" in each)
    answers = json.loads((scratch / "github.json").read_text())
    answer = next((answers[key] for key in answers if re.search(key, path)), None)
    if isinstance(answer, list):  # one after the other, the last for good
        asked = scratch / "asked"
        asked.write_text((asked.read_text() if asked.exists() else "") + ".")
        answer = answer[min(len(asked.read_text()), len(answer)) - 1]
    for given in arguments:
        if given.startswith("body=@"):
            shutil.copy(given.removeprefix("body=@"), scratch / "posted.md")
    if "--input" in arguments:
        shutil.copy(arguments[arguments.index("--input") + 1], scratch / "status.json")
    if answer is None:
        writes = {"--method", "--input", "-f"}
        return 0 if writes & set(arguments) else 1
    if "file" in answer:
        sys.stdout.buffer.write((scratch / answer["file"]).read_bytes())
        return 0
    text = json.dumps(answer["json"])
    return subprocess.run(["jq", "-r", *options], input=text, text=True).returncode

note()
sys.exit(act(sys.executable))
"""


def commit(path, message):
    git(path, "add", "--all", "--force")
    git(path, "commit", "--quiet", "--message", message)


def commits(runner):
    """Two commits; the second changes the package."""
    return [git(runner.repository, "rev-parse", name) for name in ("main", "pull-request")]


def compared(runner, make):
    """The archive of a comparison of these."""
    base, head = commits(runner)
    return archive(json.dumps(document(make)).replace(BASE, base).replace(HEAD, head))


def comment(number, login, body):
    """A comment as GitHub has it."""
    return {"id": number, "user": {"login": login}, "body": body}


@dataclass
class Runner:
    """A machine of GitHub's, as far as the steps can see."""

    repository: Path
    scratch: Path
    ref: str = "main"  # that the run is of
    values: dict = field(default_factory=dict)  # of expressions
    variables: dict = field(default_factory=dict)
    statuses: dict = field(default_factory=dict)  # of the last job's steps, by name
    log: str = ""

    def __post_init__(self):
        programs = self.scratch / "bin"
        programs.mkdir()
        (self.scratch / "stand_in.py").write_text(STAND_IN)
        for name in ("python3", "gh", "sleep"):
            program = programs / name
            script = f'#!/bin/sh\nexec {sys.executable} {self.scratch}/stand_in.py "$0" "$@"\n'
            program.write_text(script)
            program.chmod(0o755)
        for name in ("workspace", "temp"):
            (self.scratch / name).mkdir()

    def run(self, workflow, job) -> int:
        """Run the steps of a job; the status of the first one that fails, and 0 if none does."""
        self.statuses = {}
        for step in filter(self._is_due, job["steps"]):
            if step.get("uses", "").startswith("actions/checkout@"):
                self._check_out(step["with"])
            if "run" in step:
                status = self.statuses[step["name"]] = self._script(workflow, job, step)
                self.values[f"steps.{step.get('id')}.outcome == 'success'"] = not status
        return next(filter(None, self.statuses.values()), 0)

    def _is_due(self, step):
        """What GitHub makes of a step's condition, of the few words that these workflows use."""
        condition = step.get("if", "success()").removeprefix("${{ ").removesuffix(" }}")
        words = condition.split(" && ")
        if "!cancelled()" not in words and any(self.statuses.values()):
            return False
        known = self.values | {"success()": True, "!cancelled()": True}
        return all(known[word] for word in words)

    def expression(self, text):
        """The text with its expressions replaced; an unknown one is a KeyError."""
        if not isinstance(text, str):
            return text
        return re.sub(r"\$\{\{ (.*?) \}\}", lambda match: str(self.values[match[1]]), text)

    def _check_out(self, options):
        assert options["persist-credentials"] is False
        ref = self.expression(options.get("ref", self.ref))
        path = self.scratch / "workspace" / options.get("path", ".")
        git(self.scratch, "clone", "--quiet", str(self.repository), str(path))
        git(path, "checkout", "--quiet", "--detach", ref)

    def _script(self, workflow, job, step):
        files = {"GITHUB_OUTPUT": "output", "GITHUB_STEP_SUMMARY": "summary"}
        given = {**workflow.get("env", {}), **job.get("env", {}), **step.get("env", {})}
        environment = {
            "PATH": f"{self.scratch / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self.scratch),
            "SCRATCH": str(self.scratch),
            "RUNNER_TEMP": str(self.scratch / "temp"),
            "GITHUB_REPOSITORY": REPO,
            "GITHUB_RUN_ID": "1",
            "GITHUB_SERVER_URL": "https://github.com",
            **{name: str(self.scratch / file) for name, file in files.items()},
            **{name: str(self.expression(value)) for name, value in given.items()},
            **self.variables,
        }
        # GitHub's own command line for `shell: bash`.
        assert workflow["defaults"]["run"]["shell"] == "bash"
        script = self.scratch / "step.sh"
        script.write_text(step["run"])
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", script],
            cwd=self.scratch / "workspace" / step.get("working-directory", "."),
            env=environment,
            capture_output=True,
            text=True,
        )
        said = f"{step['name']}: {done.returncode}\n{done.stdout}{done.stderr}"
        self.log += said
        print(said)
        RAN.add(step["run"])
        return done.returncode

    def read(self, name):
        path = self.scratch / name
        return path.read_text() if path.exists() else ""

    @property
    def calls(self):
        """What was called: the program and its arguments in one line each."""
        lines = [json.loads(line) for line in self.read("calls").splitlines()]
        return [" ".join([name, *arguments]) for name, arguments, _ in lines]
