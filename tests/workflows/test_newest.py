"""The steps of newest.yml: a break opens one issue, whose text no package can write."""

import json

import pytest

from tests.workflows.common import (
    NEWEST,
    REPO,
    ROOT,
    needs_jq,
    require_every_script_was_run,
    steps,
)

JOBS = NEWEST["jobs"]
MARKER = NEWEST["env"]["MARKER"]
BOT = {"login": "github-actions[bot]"}


def test_the_tests_run_with_what_is_newest(runner):
    assert runner.run(NEWEST, JOBS["test"]) == 0
    install, upgrade = (call for call in runner.calls if call.startswith("pip install"))
    assert "-c " not in install and "--pre" not in install + upgrade
    assert install.endswith(" -e .[bench,test]")
    assert upgrade.endswith(" --upgrade torch triton asv asv_runner")
    command, _, left_out = runner.calls[-1].partition(" --deselect ")
    assert command == "python -m pytest -n auto --dist loadfile"
    file, _, test = left_out.partition("::")
    assert f"\ndef {test}():\n" in (ROOT / file).read_text()
    named = dict(line.split("=") for line in runner.read("output").splitlines())
    assert named.keys() == {"torch", "triton", "asv"} and all(named.values())


def reported(runner, issues=(), torch="2.14.0+cpu", triton="3.8.0", asv="0.6.6", install="success"):
    """The status of the job, where these issues are open."""
    needs_jq()
    outputs = {"torch": torch, "triton": triton, "asv": asv, "install": install}
    runner.values |= {f"needs.test.outputs.{name}": outputs[name] for name in outputs}
    runner.values["github.token"] = "t"
    answers = {r"issues\?state=open": {"json": list(issues)}}
    (runner.scratch / "github.json").write_text(json.dumps(answers))
    return runner.run(NEWEST, JOBS["report"])


def test_a_break_opens_one_issue(runner):
    assert reported(runner) == 0
    _, asked = (call for call in runner.calls if call.startswith("gh "))
    assert asked.startswith(
        f"gh api --method POST repos/{REPO}/issues --silent -f title=The newest"
    )
    posted = runner.read("posted.md")
    assert posted == runner.read("summary") and posted.startswith(f"{MARKER}\n\n")
    assert (
        "Tests fail with the newest torch, Triton and asv: torch 2.14.0+cpu, triton 3.8.0, asv "
        in posted
    )
    assert f"[Log of the run](https://github.com/{REPO}/actions/runs/1)" in posted


def test_an_installation_that_fails_has_no_versions(runner):
    assert reported(runner, torch="", triton="", asv="", install="failure") == 0
    posted = runner.read("posted.md")
    assert "cannot be installed together: torch not installed, triton not installed" in posted


def test_an_open_issue_gets_a_comment(runner):
    own = {"user": BOT, "body": f"{MARKER}\n\nText"}
    issues = [
        {"number": 3, "user": {"login": "someone"}, "body": MARKER},
        {"number": 4, "user": BOT, "body": None},
        {"number": 5, "pull_request": {}} | own,
        {"number": 6} | own,
        {"number": 7} | own,
    ]
    assert reported(runner, issues) == 0
    assert (
        f"gh api --method POST repos/{REPO}/issues/6/comments --silent -F body=@"
        in runner.calls[-1]
    )
    assert not any(word in call for call in runner.calls for word in ("PATCH", "state=closed"))


@pytest.mark.parametrize(
    "version",
    ["2.14.0 @everybody", "[x](https://evil.example)", "$(id)", "2.14\n", "dev", "2" * 99],
)
@pytest.mark.parametrize("name", ["torch", "triton", "asv"])
def test_what_is_no_version_is_refused(runner, name, version):
    assert reported(runner, **{name: version}) != 0
    assert f"{name.upper()} is no version of a release" in runner.log
    assert not any(call.startswith("gh ") for call in runner.calls)


@pytest.mark.parametrize(
    ("install", "tests", "reports"),
    [
        ("success", "success", False),
        ("success", "failure", True),
        ("failure", "skipped", True),
        ("skipped", "skipped", False),
        ("", "", False),
    ],
)
def test_a_break_is_of_the_installation_or_the_tests(install, tests, reports):
    condition = JOBS["report"]["if"].replace("!cancelled()", "True").replace("&&", "and")
    for name, value in (("install", install), ("tests", tests)):
        assert JOBS["test"]["outputs"][name] == f"${{{{ steps.{name}.outcome }}}}"
        condition = condition.replace(f"needs.test.outputs.{name}", repr(value))
    assert eval(condition.replace("||", "or")) == reports


def test_the_job_that_writes_runs_nothing_that_was_installed():
    assert NEWEST["permissions"] == {} and NEWEST[True].keys() == {"schedule", "workflow_dispatch"}
    assert JOBS["test"]["permissions"] == {"contents": "read"}
    assert JOBS["test"]["if"] == "github.ref == 'refs/heads/main'"
    report = JOBS["report"]
    assert report["permissions"] == {"issues": "write"}
    assert report["steps"] == steps(report), "it checks nothing out"
    for step in report["steps"]:
        given = "needs.test" in str(step.get("env"))
        assert given != ("GH_TOKEN" in step["env"]), "who reads what was given has no token"


def test_every_script_was_run():
    """Comes last."""
    require_every_script_was_run(NEWEST)
