"""The steps of gpu.yml, before GitHub runs them: every one that is a script is run."""

import json
from pathlib import Path

import pytest

from benchmarks._report import artifact, pull_request
from tests import conftest
from tests.comparisons import job_blind, job_failing, job_passing
from tests.git import git
from tests.report.artifacts import BASE, HEAD, OTHER, archive, document
from tests.workflows.common import (
    GPU,
    REPO,
    comment,
    commits,
    compared,
    needs_jq,
    require_every_script_was_run,
    steps,
)

NUMBER = "7"


@pytest.fixture
def github(runner):
    """Sets what gh answers, by a part of the path; a list has one call's after another's."""
    needs_jq()
    event = "github.event.pull_request"
    runner.values |= {"github.token": "t", f"{event}.number": NUMBER, f"{event}.head.sha": HEAD}
    runner.values |= {f"{event}.base.sha": BASE, "github.event.before": OTHER}

    def answer(**answers):
        (runner.scratch / "github.json").write_text(json.dumps(answers))

    return answer


def statuses(runner):
    """The statuses that were set: the commit, the state, the description."""
    calls = [json.loads(line)[1] for line in runner.read("calls").splitlines()]
    found = []
    for path, *rest in (each[1:] for each in calls if "/statuses/" in " ".join(each[:2])):
        given = dict(text.split("=", 1) for text in rest if "=" in text)
        assert given["context"] == "gpu" and given["target_url"].endswith("/actions/runs/1")
        found.append((path.rpartition("/")[2], given["state"], given["description"]))
    return found


def own_comment(body, number=3):
    made = comment(number, "github-actions[bot]", body)
    return {
        f"issues/comments/{number}": {"json": made},
        f"issues/{NUMBER}/comments": {"json": [made]},
    }


def report_of(sha, marker=pull_request.MARKER):
    return f"{marker}\n## PASS\n\n> text\n\nCommit {sha} on a GPU: [log](x)\n"


def test_a_push_marks_what_is_of_the_former_head(runner, github):
    first = report_of("5" * 40)
    github(**own_comment(first))
    assert runner.run(GPU, GPU["jobs"]["outdate"]) == 0
    assert statuses(runner) == [
        (HEAD, "pending", "waiting for approval"),
        (OTHER, "error", f"out of date: the pull request is at {HEAD[:10]} now"),
    ]
    notice = f"> **Out of date:** of {'5' * 40}; the pull request is at {HEAD} now.\n\n"
    marked = first.replace("\n", f"\n{notice}", 1)
    assert runner.read("posted.md").rstrip("\n") == marked.rstrip("\n")
    assert sum("--method PATCH" in call for call in runner.calls) == 1
    # Another push: one line, of the same commit.
    runner.values["github.event.pull_request.head.sha"] = BASE
    github(**own_comment(marked))
    assert runner.run(GPU, GPU["jobs"]["outdate"]) == 0
    assert runner.read("posted.md").rstrip("\n") == marked.replace(HEAD, BASE).rstrip("\n")


def test_a_push_marks_the_comment_on_machine_code_too(runner, github):
    former = report_of("5" * 40, pull_request.CODE_MARKER)
    github(**own_comment(former, number=4))
    assert runner.run(GPU, GPU["jobs"]["outdate"]) == 0
    notice = f"> **Out of date:** of {'5' * 40}; the pull request is at {HEAD} now.\n\n"
    marked = former.replace("\n", f"\n{notice}", 1)
    assert runner.read("posted.md").rstrip("\n") == marked.rstrip("\n")
    patched = [call for call in runner.calls if "--method PATCH" in call]
    assert len(patched) == 1 and "/issues/comments/4 " in patched[0]
    (env,) = (step["env"] for step in steps(GPU["jobs"]["outdate"]))
    assert env["CODE_MARKER"] == pull_request.CODE_MARKER


@pytest.mark.parametrize(
    "comments", [{f"issues/{NUMBER}/comments": {"json": []}}, own_comment(report_of(HEAD))]
)
def test_a_push_marks_no_comment_that_is_of_the_head_or_not_there(runner, github, comments):
    github(**comments)
    assert runner.run(GPU, GPU["jobs"]["outdate"]) == 0
    assert len(statuses(runner)) == 2 and not runner.read("posted.md")


def test_plan_asks_for_the_merge_base_and_how_old_it_is(runner, github):
    sha = "4" * 40
    github(
        **{
            f"compare/{BASE}...{HEAD}": {"json": {"merge_base_commit": {"sha": sha}}},
            f"compare/{sha}...main": {"json": {"ahead_by": 17, "behind_by": 0}},
        }
    )
    assert runner.run(GPU, GPU["jobs"]["plan"]) == 0
    assert runner.read("output") == f"sha={sha}\nbehind=17\n"


@pytest.mark.parametrize("commit", [{}, {"merge_base_commit": {"sha": "4" * 40}}])
def test_plan_fails_if_github_names_no_commit_or_number(runner, github, commit):
    github(compare={"json": commit})
    assert runner.run(GPU, GPU["jobs"]["plan"]) != 0
    assert runner.read("output") == ""


def job(status):
    """What GitHub says of the jobs of a run; None is an answer that failed."""
    other = {"name": "Wait for a runner", "status": "in_progress"}
    return {"json": {"jobs": [other, {"name": "Test and compare", "status": status}]}}


@pytest.mark.parametrize(
    ("status", "said"),
    [("in_progress", [(HEAD, "pending", "testing and measuring")]), ("completed", [])],
)
def test_a_job_that_begins_needs_no_word(runner, github, status, said):
    github(**{"runs/1/jobs": [None, job("queued"), job(status)]})
    assert runner.run(GPU, GPU["jobs"]["wait"]) == 0
    assert statuses(runner) == said and not runner.read("posted.md")


WAITING = f"> **Waiting for a runner:** none took the job for {HEAD} in 5 minutes."


@pytest.mark.parametrize("earlier", [None, report_of(OTHER)])
def test_a_job_that_waits_for_a_runner_says_so(runner, github, earlier):
    runner.variables["PATIENCE"] = "1"
    comments = own_comment(earlier) if earlier else {f"issues/{NUMBER}/comments": {"json": []}}
    github(**{"runs/1/jobs": [job("queued"), job("pending"), job("in_progress")]}, **comments)
    assert runner.run(GPU, GPU["jobs"]["wait"]) == 0
    assert statuses(runner) == [
        (HEAD, "pending", "waiting for a runner (RUNNER.md)"),
        (HEAD, "pending", "testing and measuring"),
    ]
    posted = runner.read("posted.md")
    assert posted.startswith(f"{pull_request.MARKER}\n{WAITING}")
    methods = [call.split()[3] for call in runner.calls if "--method" in call]
    assert methods == (["PATCH"] if earlier else ["POST"])
    assert (earlier or "").removeprefix(pull_request.MARKER + "\n") in posted
    assert runner.calls.count("sleep 15") == 2


def test_waiting_ends():
    (step,) = steps(GPU["jobs"]["wait"])
    assert "poll < 240" in step["run"] and GPU["jobs"]["wait"]["timeout-minutes"] > 240 * 15 / 60
    assert step["env"]["JOB"] == GPU["jobs"]["measure"]["name"]


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
    assert compare.startswith(f"python -m benchmarks compare {BASE} {head} --wait 600")
    directories = [Path(json.loads(line)[2]).name for line in runner.read("calls").splitlines()]
    assert directories[-4:] == ["suite", "head", "head", "suite"]
    upload = GPU["jobs"]["measure"]["steps"][-1]["with"]["path"]
    assert upload.replace("${{ runner.temp }}", "temp") == "temp/comparison.json"
    assert json.loads(runner.read("temp/comparison.json")) == document()


@pytest.mark.parametrize("left", ["suite", "head", "venv", ".hidden"])
def test_measure_refuses_a_machine_that_is_not_fresh(runner, left):
    (runner.scratch / "workspace" / left).mkdir()
    assert measured(runner) != 0
    assert "the workspace is not empty" in runner.log and runner.calls == []


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


def reported(
    runner, artifact=None, result="success", tests="success", comments=(), current=None, shas=None
):
    needs_jq()
    base, head = shas or commits(runner)
    runner.values |= {
        "github.token": "t",
        "github.event.pull_request.number": NUMBER,
        "github.event.pull_request.head.sha": head,
        "needs.plan.outputs.base": base,
        "needs.plan.outputs.behind": "3",
        "needs.measure.result": result,
        "needs.measure.outputs.tests": tests,
        "needs.measure.result == 'success'": result == "success",
    }
    listed = [{"id": 8, "created_at": "2026-01-01"}, {"id": 9, "created_at": "2026-01-02"}]
    answers = {
        "artifacts/9/zip": {"file": "artifact"},
        "artifacts.name=comparison": {"json": {"artifacts": listed if artifact else []}},
        f"pulls/{NUMBER}": {"json": {"head": {"sha": current or head}}},
    }
    if artifact:
        (runner.scratch / "artifact").write_bytes(artifact)
    answers["issues/7/comments"] = {"json": list(comments)}
    (runner.scratch / "github.json").write_text(json.dumps(answers))
    assert runner.run(GPU, GPU["jobs"]["report"]) == 0
    return runner.read("posted.md"), json.loads(runner.read("status.json"))


@pytest.mark.parametrize(
    ("make", "state"), [(job_passing, "success"), (job_failing, "failure"), (job_blind, "error")]
)
def test_report(runner, make, state):
    posted, status = reported(runner, compared(runner, make))
    assert posted.startswith(pull_request.MARKER) and make().answer.upper() in posted
    assert posted == runner.read("summary")
    assert status["state"] == state
    posted_to = f"gh api --method POST repos/{REPO}/issues/7/comments "
    assert any(call.startswith(posted_to) for call in runner.calls)
    assert "The base is 3 commits behind main." in posted
    head = commits(runner)[1]
    assert any(call.startswith(f"gh api repos/{REPO}/statuses/{head} ") for call in runner.calls)


def test_report_updates_its_own_comment_and_no_other(runner):
    comments = [
        comment(1, "someone", pull_request.MARKER),
        comment(2, "github-actions[bot]", "another"),
        comment(3, "github-actions[bot]", f"{pull_request.MARKER}\nan earlier one"),
        comment(4, "github-actions[bot]", f"{pull_request.MARKER}\na later one"),
    ]
    reported(runner, compared(runner, job_passing), comments=comments)
    last = runner.calls[-1]
    assert last.startswith(f"gh api --method PATCH repos/{REPO}/issues/comments/3 -F body=@")


@pytest.mark.parametrize(
    ("given", "state", "said"),
    [
        ({"result": "failure", "tests": "failure"}, "failure", "NO VERDICT"),
        ({"result": "failure"}, "error", "NO VERDICT"),
        ({"result": "cancelled", "tests": ""}, "error", "NO VERDICT"),
        ({}, "error", "The artifact was refused: there is none"),
        ({"artifact": b"0" * 9_000_000}, "error", "archive has more than 300000&#8203;0 bytes"),
        (
            {"artifact": archive(document(job_passing)), "shas": (BASE, HEAD)},
            *("error", "could not be read or shown: ValueError"),
        ),
    ],
    ids=["tests failed", "failed", "cancelled", "no artifact", "huge artifact", "other commits"],
)
def test_report_without_a_verdict(runner, given, state, said):
    posted, status = reported(runner, **given)
    assert said in posted and status["state"] == state
    asked = any("artifacts" in call for call in runner.calls)
    assert asked == ("result" not in given)
    artifact = runner.scratch / "temp" / "artifact.zip"
    assert not artifact.exists() or artifact.stat().st_size <= 3_000_001


def test_report_marks_a_stale_commit(runner):
    posted, status = reported(runner, compared(runner, job_passing), current=OTHER)
    assert "**Out of date:**" in posted and status["state"] == "error"


def test_the_workflow_knows_the_marker_the_limit_and_the_gpu():
    script = "".join(step["run"] for step in steps(GPU["jobs"]["report"]))
    assert GPU["env"]["MARKER"] == pull_request.MARKER
    assert " --gpu nvidia-h200 " in script and "nvidia-h200" in artifact.ARCHITECTURES
    assert "nvidia-h200" in GPU["jobs"]["measure"]["runs-on"]["labels"]
    assert f"head -c {artifact.MAX_ARCHIVE_BYTES + 1} " in script


def test_every_script_was_run():
    """Comes last."""
    require_every_script_was_run(GPU)
