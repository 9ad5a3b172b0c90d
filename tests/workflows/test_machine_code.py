"""The steps of machine-code.yml, before GitHub runs them: every one that is a script is run."""

import json

import pytest

from benchmarks._report import artifact, pull_request
from tests.comparisons import job_of_code, job_of_worse_code, job_passing
from tests.git import git
from tests.report.artifacts import BASE, HEAD, OTHER, archive, document
from tests.workflows.common import (
    CI,
    MACHINE_CODE,
    REPO,
    comment,
    commits,
    compared,
    needs_jq,
    require_every_script_was_run,
    steps,
)

FIND, REPORT = MACHINE_CODE["jobs"]["find"], MACHINE_CODE["jobs"]["report"]
NUMBER, RUN = "7", "12"
MINE = f"{pull_request.CODE_MARKER}\nan earlier one"


def answers(runner, **given):
    needs_jq()
    (runner.scratch / "github.json").write_text(json.dumps(given))


# --- which pull request ---------------------------------------------------------------------------


def found(runner, pulls, compared=None):
    """The outputs of the job, and its status."""
    run = "github.event.workflow_run"
    runner.values |= {"github.token": "t", f"{run}.head_sha": HEAD, f"{run}.head_branch": "a&b=c"}
    runner.values[f"{run}.head_repository.owner.login"] = "someone"
    compared = compared or {"merge_base_commit": {"sha": BASE}, "behind_by": 17, "ahead_by": 1}
    answers(
        runner,
        **{f"compare/main...{HEAD}": {"json": compared}, f"{REPO}/pulls": {"json": pulls}},
    )
    status = runner.run(MACHINE_CODE, FIND)
    return runner.read("output"), status


def test_the_open_pull_request_with_this_head_is_found(runner):
    pulls = [{"number": 6, "head": {"sha": OTHER}}, {"number": 7, "head": {"sha": HEAD}}]
    assert found(runner, pulls) == (f"number=7\nbase={BASE}\nbehind=17\n", 0)
    (asked,) = (call for call in runner.calls if call.split()[4].endswith("/pulls"))
    assert asked.startswith(f"gh api --method GET repos/{REPO}/pulls ")
    # A parameter that gh encodes, not a part of the address.
    assert " -f state=open -f base=main -f head=someone:a&b=c " in asked


@pytest.mark.parametrize("pulls", [[], [{"number": 7, "head": {"sha": OTHER}}]])
def test_a_head_that_is_no_pull_requests_any_more_is_not_reported(runner, pulls):
    assert found(runner, pulls) == ("", 0)
    assert REPORT["if"] == "needs.find.outputs.number != ''"


@pytest.mark.parametrize("compared", [{"merge_base_commit": {}}, {"behind_by": 1}])
def test_it_fails_if_github_names_no_merge_base(runner, compared):
    outputs, status = found(runner, [{"number": 7, "head": {"sha": HEAD}}], compared)
    assert outputs == "" and status != 0


def test_only_what_compared_something_for_a_pull_request_is_reported():
    asked = "github.event.workflow_run"
    assert f"{asked}.event == 'pull_request' && contains(" in FIND["if"]
    assert f'\'["success", "failure"]\'), {asked}.conclusion)' in FIND["if"]
    assert REPORT["needs"] == "find"


# --- the report -----------------------------------------------------------------------------------


def reported(runner, content=None, comments=(), current=None, shas=None):
    base, head = shas or commits(runner)
    runner.values |= {
        "github.token": "t",
        "github.event.workflow_run.head_sha": head,
        "github.event.workflow_run.id": RUN,
        "needs.find.outputs.number": NUMBER,
        "needs.find.outputs.base": base,
        "needs.find.outputs.behind": "3",
    }
    listed = [{"id": 8, "created_at": "2026-01-01"}, {"id": 9, "created_at": "2026-01-02"}]
    if content:
        (runner.scratch / "artifact").write_bytes(content)
    answers(
        runner,
        **{
            "artifacts/9/zip": {"file": "artifact"},
            f"runs/{RUN}/artifacts.name=machine-code": {
                "json": {"artifacts": listed if content else []}
            },
            f"pulls/{NUMBER}": {"json": {"head": {"sha": current or head}}},
            f"issues/{NUMBER}/comments": {"json": list(comments)},
        },
    )
    assert runner.run(MACHINE_CODE, REPORT) == 0
    return runner.read("posted.md")


@pytest.mark.parametrize(("make", "says"), [(job_of_code, "PASS"), (job_of_worse_code, "FAIL")])
def test_report(runner, make, says):
    posted = reported(runner, compared(runner, make))
    assert posted.startswith(f"{pull_request.CODE_MARKER}\n## ") and says in posted.splitlines()[1]
    assert posted == runner.read("summary")
    assert "The base is 3 commits behind main." in posted
    assert f"https://github.com/{REPO}/actions/runs/{RUN}" in posted
    wrote = [call for call in runner.calls if "--method" in call]
    assert len(wrote) == 1 and wrote[0].startswith(
        f"gh api --method POST repos/{REPO}/issues/{NUMBER}/comments -F body=@"
    )


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "The artifact was refused: there is none"),
        (b"0" * 9_000_000, "archive has more than 300000&#8203;0 bytes"),
        (archive(document(job_passing)), "it has what needs a GPU"),
    ],
    ids=["none", "huge", "of a GPU"],
)
def test_report_without_a_verdict(runner, content, says):
    posted = reported(runner, content)
    assert says in posted and "NO VERDICT" in posted
    taken = runner.scratch / "temp" / "artifact.zip"
    assert not taken.exists() or taken.stat().st_size <= 3_000_001


def test_report_updates_its_own_comment_and_no_other(runner):
    comments = [
        comment(1, "someone", MINE),
        comment(2, "github-actions[bot]", f"{pull_request.MARKER}\nof the GPU"),
        comment(3, "github-actions[bot]", MINE),
        comment(4, "github-actions[bot]", MINE),
    ]
    reported(runner, compared(runner, job_of_code), comments=comments)
    last = runner.calls[-1]
    assert last.startswith(f"gh api --method PATCH repos/{REPO}/issues/comments/3 -F body=@")


def test_a_report_of_a_former_head_is_not_posted(runner):
    own = comment(3, "github-actions[bot]", MINE)
    assert reported(runner, compared(runner, job_of_code), current=OTHER, comments=[own]) == ""
    assert f"the pull request is at {OTHER} now: nothing is reported" in runner.log


def test_a_change_that_leaves_the_package_alone_gets_no_comment_but_a_new_one(runner):
    main = git(runner.repository, "rev-parse", "main")
    before = git(runner.repository, "rev-parse", "main~1")
    assert reported(runner, shas=(before, main)) == ""


def test_a_comment_is_renewed_when_the_package_is_as_it_was(runner):
    main = git(runner.repository, "rev-parse", "main")
    before = git(runner.repository, "rev-parse", "main~1")
    own = comment(3, "github-actions[bot]", MINE)
    assert main in reported(runner, shas=(before, main), comments=[own])
    assert "--method PATCH" in runner.calls[-1]


def test_the_workflow_knows_the_marker_the_limit_and_the_artifact():
    scripts = "".join(step["run"] for step in steps(REPORT))
    assert f'startswith("{pull_request.CODE_MARKER}")' in steps(REPORT)[-1]["env"]["OWN"]
    assert f"head -c {artifact.MAX_ARCHIVE_BYTES + 1} " in scripts and "--gpu" not in scripts
    upload = CI["jobs"]["codegen"]["steps"][-1]["with"]
    assert upload["name"] == "machine-code" and upload["path"].endswith(f"/{artifact.MEMBER}")
    assert f"artifacts?name={upload['name']}" in scripts


def test_every_script_was_run():
    """Comes last."""
    require_every_script_was_run(MACHINE_CODE)
