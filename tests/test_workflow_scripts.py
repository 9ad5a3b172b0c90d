"""The workflows' steps, before GitHub runs them: every one that is a script is run."""

import json
import shutil
import zipfile
from pathlib import Path

import pytest

from benchmarks import _pull_request
from tests import conftest, workflows
from tests.comparisons import blind, failing, passing
from tests.test_pull_request import SIDES, document
from tests.workflows import CI, GPU, PULL_REQUESTS, RAN, REPO, ROOT, git, steps

repository, runner = workflows.repository, workflows.runner  # fixtures

BASE, HEAD = SIDES["base"].sha, SIDES["head"].sha
NUMBER = "7"


# --- ci.yml ---------------------------------------------------------------------------------------


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


# --- gpu.yml --------------------------------------------------------------------------------------


def needs_jq():
    if not shutil.which("jq"):
        pytest.skip("gh has jq within, its stand-in needs the program")


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


def measured(runner, compare_status=0, pytest_fails=""):
    head = git(runner.repository, "rev-parse", "main")
    runner.values |= {
        "github.event.pull_request.head.repo.full_name": "someone/rope-triton",
        "github.event.pull_request.head.sha": head,
        "needs.plan.outputs.base": BASE,
    }
    runner.variables |= {"COMPARE_STATUS": str(compare_status), "PYTEST_FAILS": pytest_fails}
    return runner.run(GPU, GPU["jobs"]["measure"])


@pytest.mark.parametrize("status", [0, 1, 2])
def test_measure(runner, status):
    (runner.scratch / "recorded.json").write_text(json.dumps(document()))
    assert measured(runner, status) == 0
    public, own, alone, compare = runner.calls[-4:]
    head = git(runner.repository, "rev-parse", "main")
    assert public == "python -m pytest -m gpu and public -n 8 --dist worksteal"
    assert own == "python -m pytest -m gpu and not alone -n 8 --dist worksteal"
    assert alone == "python -m pytest -m gpu and alone"
    assert compare.startswith(f"python -m benchmarks compare {BASE} {head} --no-store --wait 600")
    directories = [Path(json.loads(line)[2]).name for line in runner.read("calls").splitlines()]
    assert directories[-4:] == ["suite", "head", "head", "suite"]
    upload = GPU["jobs"]["measure"]["steps"][-1]["with"]["path"]
    assert upload.replace("${{ runner.temp }}", "temp") == "temp/comparison.json"
    assert json.loads(runner.read("temp/comparison.json")) == document()


def test_measure_fails_if_it_could_not_run(runner):
    assert measured(runner, compare_status=3) != 0


@pytest.mark.parametrize("fails", ["and public", "and not alone", "and alone"])
def test_tests_come_before_the_comparison(runner, fails):
    assert measured(runner, pytest_fails=fails) != 0
    assert fails in runner.calls[-1]


def test_this_branchs_tests_are_put_to_the_heads_package():
    (step,) = (step for step in steps(GPU["jobs"]["measure"]) if step.get("id") == "public")
    assert step["env"] == {conftest.PACKAGE: "../head"}
    assert step["working-directory"] == "suite"


@pytest.mark.parametrize(
    ("public", "own", "answer"),
    [
        ("success", "success", "success"),
        ("success", "failure", "failure"),
        ("failure", "skipped", "failure"),
        ("success", "cancelled", "cancelled"),
        ("", "", ""),
    ],
)
def test_report_is_told_of_a_failure_in_either_tests(public, own, answer):
    text = GPU["jobs"]["measure"]["outputs"]["tests"]
    names = {"steps.public.outcome": repr(public), "steps.tests.outcome": repr(own)}
    for name, value in names.items():
        assert name in text
        text = text.replace(name, value)
    # Both operators return an operand, as Python's do.
    expression = text.removeprefix("${{ ").removesuffix(" }}")
    assert eval(expression.replace("&&", "and").replace("||", "or")) == answer


def test_steps_of_the_job_on_the_gpu_fit_its_time():
    job = GPU["jobs"]["measure"]
    limits = [step["timeout-minutes"] for step in job["steps"] if "timeout-minutes" in step]
    assert len(limits) == 3 and job["timeout-minutes"] - sum(limits) >= 15


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


# --- every script ---------------------------------------------------------------------------------


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
