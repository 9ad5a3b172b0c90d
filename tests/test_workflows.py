"""The workflows, before GitHub runs them: every step that is a script is run, in a scratch clone.

What a step would fetch or measure is stood in for by small programs that come first on the PATH and
record how they were called: pip, ruff and the linters, pytest (which would run this file again),
`compare` with a GPU (a recorded answer) and gh (GitHub's answers). Everything else is real.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from benchmarks import _pull_request
from tests.test_pull_request import SIDES, document
from tests.test_report import blind, failing, passing

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = ROOT / ".github" / "workflows"
FILES = sorted(WORKFLOWS.glob("*.yml"))
# Run here; what measures what is already on main has tests of its own.
PULL_REQUESTS = {
    name: yaml.safe_load((WORKFLOWS / name).read_text()) for name in ("ci.yml", "gpu.yml")
}
BASE, HEAD = SIDES["base"].sha, SIDES["head"].sha
NUMBER, REPO = "7", "rope-triton/rope-triton"

# Stands for every program: notes its name, arguments and directory, then acts its part.
STAND_IN = """\
import json, os, pathlib, re, shutil, subprocess, sys
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
    if name not in ("python", "python3"):
        return 0
    if arguments[:2] == ["-m", "pytest"]:
        return int(os.environ.get("PYTEST_STATUS", 0))
    if arguments[:3] == ["-m", "benchmarks", "compare"] and "--json" in arguments:
        answer = scratch / "recorded.json"
        if answer.exists():
            shutil.copy(answer, arguments[arguments.index("--json") + 1])
        return int(os.environ["COMPARE_STATUS"])
    return subprocess.run([python, *arguments]).returncode

def gh(arguments):
    options = [arguments[i + 1] for i, each in enumerate(arguments) if each == "--jq"]
    path = next(each for each in arguments[1:] if "/" in each)
    answers = json.loads((scratch / "github.json").read_text())
    answer = next((answers[key] for key in answers if re.search(key, path)), None)
    for given in arguments:
        if given.startswith("body=@"):
            shutil.copy(given.removeprefix("body=@"), scratch / "posted.md")
    if "--input" in arguments:
        shutil.copy(arguments[arguments.index("--input") + 1], scratch / "status.json")
    if answer is None:
        return 0 if "body=@" in str(arguments) or "--input" in arguments else 1
    if "file" in answer:
        sys.stdout.buffer.write((scratch / answer["file"]).read_bytes())
        return 0
    text = json.dumps(answer["json"])
    return subprocess.run(["jq", "-r", *options], input=text, text=True).returncode

note()
sys.exit(act(sys.executable))
"""


def steps(job):
    return [step for step in job["steps"] if "run" in step]


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A repository of this working tree's files, and a commit on it that changes no code."""
    path = tmp_path_factory.mktemp("repository")
    listed = ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, capture_output=True, check=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, path / name)
    _git(path, "init", "--quiet", "--initial-branch", "main")
    _commit(path, "everything")
    (path / "NOTES.md").write_text("a change\n")
    _commit(path, "a change")
    return path


def _git(path, *arguments):
    given = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *given, *arguments], cwd=path, capture_output=True, check=True)
    return done.stdout.decode().strip()


def _commit(path, message):
    _git(path, "add", "--all", "--force")
    _git(path, "commit", "--quiet", "--message", message)


@dataclass
class Runner:
    """A machine of GitHub's, as far as the steps can see."""

    repository: Path
    scratch: Path
    values: dict = field(default_factory=dict)  # of expressions
    variables: dict = field(default_factory=dict)
    log: str = ""  # of the last step

    def __post_init__(self):
        programs = self.scratch / "bin"
        programs.mkdir()
        (self.scratch / "stand_in.py").write_text(STAND_IN)
        for name in ("python3", "gh"):
            program = programs / name
            script = f'#!/bin/sh\nexec {sys.executable} {self.scratch}/stand_in.py "$0" "$@"\n'
            program.write_text(script)
            program.chmod(0o755)
        for name in ("workspace", "temp"):
            (self.scratch / name).mkdir()

    def run(self, workflow, job) -> int:
        """Run the steps of a job; the status of the first one that fails, and 0 if none does."""
        for step in job["steps"]:
            if "if" in step and not self.expression(step["if"]):
                continue
            if step.get("uses", "").startswith("actions/checkout@"):
                self._check_out(step["with"])
            status = self._script(workflow, job, step) if "run" in step else 0
            if status:
                return status
        return 0

    def expression(self, text):
        """The value of the text with its expressions replaced; an unknown one is a KeyError."""
        if not isinstance(text, str):
            return text
        if text in self.values:
            return self.values[text]
        return re.sub(r"\$\{\{ (.*?) \}\}", lambda match: str(self.values[match[1]]), text)

    def _check_out(self, options):
        assert options["persist-credentials"] is False
        ref = self.expression(options.get("ref", "main"))
        path = self.scratch / "workspace" / options.get("path", ".")
        _git(self.scratch, "clone", "--quiet", str(self.repository), str(path))
        _git(path, "checkout", "--quiet", "--detach", ref)

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
        self.log = done.stdout + done.stderr
        print(f"{step.get('name')}: {done.returncode}\n{self.log}")
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


RAN = set()


@pytest.fixture
def runner(repository, tmp_path):
    return Runner(repository, tmp_path)


# ci.yml


CI = PULL_REQUESTS["ci.yml"]
GPU = PULL_REQUESTS["gpu.yml"]


def test_ci_test(runner):
    assert runner.run(CI, CI["jobs"]["test"]) == 0
    assert "ruff check ." in runner.calls and "ruff format --check ." in runner.calls
    assert "mypy" in runner.calls
    assert "pip install -c constraints.txt -e .[bench,test]" in runner.calls
    assert "python -m pytest" in runner.calls
    assert "No problems found." in runner.log  # asv check


def test_ci_oldest(runner):
    assert runner.run(CI, CI["jobs"]["oldest"]) == 0
    constraints = runner.read("temp/oldest.txt")
    for line in ("torch==2.11.0\n", "triton==3.6.0\n", "setuptools==81.0.0\n"):
        assert constraints.count(line.partition("==")[0] + "==") == 1 and line in constraints
    project = (ROOT / "pyproject.toml").read_text()
    assert '"torch>=2.11", "triton>=3.6"' in project, "the oldest supported are other ones now"
    assert runner.calls[-1] == "python -m pytest"


def test_ci_codegen(runner):
    assert runner.run(CI, CI["jobs"]["codegen"]) == 0
    assert "both versions have the same sources" in runner.read("summary")
    assert "## ✅ PASS" in runner.read("summary")


@pytest.mark.parametrize("status", [1, 2, 3])
def test_ci_codegen_passes_on_every_status_but_0(runner, status):
    program = runner.scratch / "workspace" / ".venv" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\nexit {status}\n")
    program.chmod(0o755)
    step = steps(CI["jobs"]["codegen"])[-1]
    assert runner.run(CI, {"steps": [step]}) == status


def test_ci_workflows(runner):
    assert runner.run(CI, CI["jobs"]["workflows"]) == 0
    assert runner.calls[-2:] == ["actionlint", "zizmor --offline --persona auditor .github"]


# gpu.yml


def test_plan_asks_for_the_merge_base(runner):
    needs_jq()
    event = "github.event.pull_request"
    runner.values |= {"github.token": "t", f"{event}.base.sha": BASE, f"{event}.head.sha": HEAD}
    answers = {f"compare/{BASE}...{HEAD}": {"json": {"merge_base_commit": {"sha": "4" * 40}}}}
    (runner.scratch / "github.json").write_text(json.dumps(answers))
    assert runner.run(GPU, GPU["jobs"]["plan"]) == 0
    assert runner.read("output") == f"sha={'4' * 40}\n"


def test_plan_fails_if_github_names_no_commit(runner):
    needs_jq()
    event = "github.event.pull_request"
    runner.values |= {"github.token": "t", f"{event}.base.sha": BASE, f"{event}.head.sha": HEAD}
    (runner.scratch / "github.json").write_text(json.dumps({"compare": {"json": {}}}))
    assert runner.run(GPU, GPU["jobs"]["plan"]) != 0
    assert runner.read("output") == ""


def measured(runner, compare_status=0, pytest_status=0):
    head = _git(runner.repository, "rev-parse", "main")
    runner.values |= {
        "github.event.pull_request.head.repo.full_name": "someone/rope-triton",
        "github.event.pull_request.head.sha": head,
        "needs.plan.outputs.base": BASE,
    }
    statuses = {"COMPARE_STATUS": compare_status, "PYTEST_STATUS": pytest_status}
    runner.variables |= {name: str(value) for name, value in statuses.items()}
    return runner.run(GPU, GPU["jobs"]["measure"])


@pytest.mark.parametrize("status", [0, 1, 2])
def test_measure(runner, status):
    (runner.scratch / "recorded.json").write_text(json.dumps(document()))
    assert measured(runner, status) == 0
    tests, compare = runner.calls[-2:]
    head = _git(runner.repository, "rev-parse", "main")
    assert tests == "python -m pytest -m gpu"
    assert compare.startswith(f"python -m benchmarks compare {BASE} {head} --no-store --wait 600")
    directories = [Path(json.loads(line)[2]).name for line in runner.read("calls").splitlines()]
    assert directories[-2:] == ["head", "suite"]
    upload = GPU["jobs"]["measure"]["steps"][-1]["with"]["path"]
    assert upload.replace("${{ runner.temp }}", "temp") == "temp/comparison.json"
    assert json.loads(runner.read("temp/comparison.json")) == document()


def test_measure_fails_if_it_could_not_run(runner):
    assert measured(runner, compare_status=3) != 0


def test_tests_come_before_the_comparison(runner):
    assert measured(runner, pytest_status=1) != 0
    assert not any("compare" in call for call in runner.calls)


def needs_jq():
    if not shutil.which("jq"):
        pytest.skip("gh has jq within, its stand-in needs the program")


def reported(runner, artifact=None, result="success", tests="success", comments=(), current=HEAD):
    needs_jq()
    runner.values |= {
        "github.token": "t",
        "github.event.pull_request.number": NUMBER,
        "github.event.pull_request.head.sha": HEAD,
        "needs.plan.outputs.base": BASE,
        "needs.measure.result": result,
        "needs.measure.outputs.tests": tests,
        "needs.measure.result == 'success'": result == "success",
    }
    listed = [{"id": 8, "created_at": "2026-01-01"}, {"id": 9, "created_at": "2026-01-02"}]
    answers = {
        "artifacts/9/zip": {"file": "artifact"},
        "artifacts.name=comparison": {"json": {"artifacts": listed if artifact else []}},
        f"pulls/{NUMBER}": {"json": {"head": {"sha": current}}},
    }
    if artifact:
        (runner.scratch / "artifact").write_bytes(artifact)
    answers["issues/7/comments"] = {"json": list(comments)}
    (runner.scratch / "github.json").write_text(json.dumps(answers))
    assert runner.run(GPU, GPU["jobs"]["report"]) == 0
    return runner.read("posted.md"), json.loads(runner.read("status.json"))


def zipped(path, content):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("comparison.json", content)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("make", "state"), [(passing, "success"), (failing, "failure"), (blind, "error")]
)
def test_report(runner, make, state):
    artifact = zipped(runner.scratch / "a.zip", json.dumps(document(make)))
    posted, status = reported(runner, artifact)
    assert posted.startswith(_pull_request.MARKER) and make().answer.upper() in posted
    assert posted == runner.read("summary")
    assert status["state"] == state
    posted_to = f"gh api --method POST repos/{REPO}/issues/7/comments "
    assert any(call.startswith(posted_to) for call in runner.calls)
    assert any(call.startswith(f"gh api repos/{REPO}/statuses/{HEAD} ") for call in runner.calls)


def test_report_updates_its_own_comment_and_nobody_elses(runner):
    def written(number, login, body):
        return {"id": number, "user": {"login": login}, "body": body}

    comments = [
        written(1, "someone", _pull_request.MARKER),
        written(2, "github-actions[bot]", "another"),
        written(3, "github-actions[bot]", f"{_pull_request.MARKER}\nan earlier one"),
        written(4, "github-actions[bot]", f"{_pull_request.MARKER}\na later one"),
    ]
    artifact = zipped(runner.scratch / "a.zip", json.dumps(document(passing)))
    reported(runner, artifact, comments=comments)
    last = runner.calls[-1]
    assert last.startswith(f"gh api --method PATCH repos/{REPO}/issues/comments/3 -F body=@")


@pytest.mark.parametrize(
    ("result", "tests", "state"),
    [
        ("failure", "failure", "failure"),
        ("failure", "success", "error"),
        ("cancelled", "", "error"),
    ],
)
def test_report_of_a_job_that_failed(runner, result, tests, state):
    posted, status = reported(runner, result=result, tests=tests)
    assert "NO VERDICT" in posted and status["state"] == state
    assert not any("artifacts" in call for call in runner.calls)


def test_report_without_an_artifact(runner):
    posted, status = reported(runner)
    assert "The artifact was refused: there is none" in posted and status["state"] == "error"


def test_report_of_a_huge_artifact_takes_no_more_than_the_limit(runner):
    posted, status = reported(runner, b"0" * 9_000_000)
    assert "archive has more than 2000000 bytes" in posted and status["state"] == "error"
    assert (runner.scratch / "temp" / "artifact.zip").stat().st_size == 2_000_001


def test_report_marks_a_stale_commit(runner):
    artifact = zipped(runner.scratch / "a.zip", json.dumps(document(passing)))
    posted, _ = reported(runner, artifact, current="3" * 40)
    assert "**Stale:**" in posted


def test_report_knows_the_marker_and_the_limit():
    script = "".join(step["run"] for step in steps(GPU["jobs"]["report"]))
    assert _pull_request.MARKER in script
    assert f"head -c {_pull_request.MAX_ARCHIVE_BYTES + 1} " in script


# What holds for the text of all.


LOADED = {path.name: yaml.safe_load(path.read_text()) for path in FILES}
JOBS = {
    f"{name}-{job}": content
    for name, loaded in LOADED.items()
    for job, content in loaded["jobs"].items()
}
EVERY_JOB = pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)


def test_actions_are_pinned_each_to_one_commit():
    text = "".join(path.read_text() for path in FILES)
    uses = re.findall(r"^ *(?:- )?uses: *(.*)", text, re.MULTILINE)
    pinned = {re.fullmatch(r"(\S+)@([0-9a-f]{40}) # (v\d+\.\d+\.\d+)", use) for use in uses}
    assert uses and None not in pinned, uses
    assert len({match[0] for match in pinned}) == len({match[1] for match in pinned})


@EVERY_JOB
def test_jobs_end_and_keep_no_credentials_or_caches(job):
    assert job["timeout-minutes"] <= 360
    for step in job["steps"]:
        assert not step.get("uses", "").startswith("actions/cache")
        assert "cache" not in step.get("with", {})
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


@EVERY_JOB
def test_no_expression_is_pasted_into_a_script(job):
    assert not [step["run"] for step in steps(job) if "${{" in step["run"]]


@pytest.mark.parametrize("name", PULL_REQUESTS)
def test_pull_requests_get_no_secret_and_only_the_report_writes(name):
    workflow = PULL_REQUESTS[name]
    assert "secrets" not in (WORKFLOWS / name).read_text().replace("no secret", "")
    assert workflow["permissions"] == {}
    for key, job in workflow["jobs"].items():
        writes = {scope for scope, right in job["permissions"].items() if right != "read"}
        allowed = {"pull-requests", "statuses"} if (name, key) == ("gpu.yml", "report") else set()
        assert writes == allowed


def test_only_the_job_on_the_gpu_sees_the_head_and_only_after_an_approval():
    jobs = GPU["jobs"]
    assert jobs["plan"]["environment"] == "gpu"
    assert jobs["measure"]["needs"] == "plan" and "if" not in jobs["measure"]
    for name in ("plan", "report"):
        refs = [step["with"].get("ref") for step in jobs[name]["steps"] if "uses" in step]
        assert refs == [None] * len(refs)
    # `on` is a truth value to YAML 1.1.
    assert GPU[True].keys() == {"pull_request_target"}
    assert "pull_request_target" not in CI[True]


def test_every_script_was_run():
    """Comes last: each script of the workflows for pull requests was run by a test above."""
    every = {
        step["run"]
        for workflow in PULL_REQUESTS.values()
        for job in workflow["jobs"].values()
        for step in steps(job)
    }
    if not RAN:
        pytest.skip("the tests above were not selected")
    assert every - RAN == set()
