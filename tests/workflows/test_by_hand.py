"""newest.yml, bisect.yml, and every workflow in a fork, where it does nothing."""

import pytest

from tests.workflows.rig import MAIN, git

TITLE = "The newest torch, Triton and asv break something"
VERSIONS = {f"m.version.* {name}$": (0, "1.2.3") for name in ("torch", "triton", "asv")}


def test_newest_versions_that_break_something_have_one_issue(rig):
    mark = {"login": "someone"}
    rig.github.issue(TITLE, "of somebody else", user=mark)
    rig.played = VERSIONS | {"pytest": (1, None)}
    assert rig.run("newest", "schedule") == {"Test": "failure", "Report": "success"}
    _, issue = rig.github.issues
    assert issue["title"] == TITLE and "actions/runs/1" in issue["body"]
    assert "Tests fail with the newest" in issue["body"] and "triton 1.2.3" in issue["body"]
    rig.played = {"pip install": (1, None)}
    found = rig.run("newest", "workflow_dispatch", run=2)
    assert found == {"Test": "failure", "Report": "success"}
    (comment,) = rig.github.comments
    assert comment["issue"] == issue["number"] and "cannot be installed together" in comment["body"]
    assert "torch not installed" in comment["body"] and "actions/runs/2" in comment["body"]


@pytest.mark.parametrize("version", ["2.14.0 @everybody", "2" * 99])
def test_what_is_no_version_of_a_release_is_refused(rig, version):
    rig.played = {r"m.version.* triton$": (0, version), "pytest": (1, None)}
    assert rig.run("newest", "schedule") == {"Test": "failure", "Report": "failure"}
    # What a step printed last may be missing in act's log; how it ended is act's own word.
    assert "Failure - Main Write it" in rig.log and not rig.github.issues


def test_newest_versions_that_work_have_no_issue(rig):
    assert rig.run("newest", "schedule") == {"Test": "success"} and not rig.github.issues
    install, upgrade = (call for call in rig.calls if call.startswith("pip install"))
    assert "-c " not in install and upgrade.endswith(" --upgrade torch triton asv asv_runner")


CELL = "$(touch pwned) `touch pwned`; touch pwned #"
RANGE = {"good": "main~1", "bad": "main", "benchmark": CELL}
RANGE |= {"machine": "nvidia-h200", "grid": "small"}


@pytest.mark.parametrize(("status", "result"), [(0, "success"), (1, "failure")])
def test_a_bisection_says_what_it_found_and_takes_any_expression_as_text(rig, status, result):
    rig.played = {"^python -m asv find": (status, "the commit is this")}
    found = rig.run("bisect", "workflow_dispatch", {"inputs": RANGE})
    assert found == {"Find the commit": result}
    good, bad = git(rig.repository, "rev-parse", "main~1", "main").split()
    assert any(call.endswith(f" -- {good}..{bad} {CELL}") for call in rig.calls)
    summary = rig.read("summary.md")
    assert f"    main~1..main\n    {CELL}" in summary and "    the commit is this" in summary
    assert not list(rig.root.rglob("pwned"))


@pytest.mark.parametrize("bad", ["$(touch pwned)", "--output=pwned", "origin/other"])
def test_a_bisection_takes_commits_of_main_only(rig, bad):
    rig.commit("refs/heads/other", {"NOTES.md": ""})
    found = rig.run("bisect", "workflow_dispatch", {"inputs": RANGE | {"bad": bad}})
    assert found == {"Find the commit": "failure"} and not rig.calls
    assert not list(rig.root.rglob("pwned"))


EVENTS = {
    "bisect": ("workflow_dispatch", {"inputs": RANGE}),
    "history": ("push", {}),
    "nightly": ("schedule", {}),
    "newest": ("schedule", {}),
    "machine-code": (
        "workflow_run",
        {"workflow_run": {"event": "pull_request", "conclusion": "success"}},
    ),
    "release": ("push", {"ref": "refs/tags/v1.0.0"}),
}


@pytest.mark.parametrize("name", EVENTS)
def test_a_fork_does_nothing(rig, name):
    event, given = EVENTS[name]
    git(rig.repository, "tag", "v1.0.0", MAIN)
    assert rig.run(name, event, given, owner="someone", ref=given.get("ref", MAIN)) == {}


def test_a_pull_request_within_a_fork_asks_for_no_gpu(rig):
    _, _, event = rig.pull_request({"rope_triton/new.py": ""})
    assert rig.run("gpu", "pull_request_target", event, owner="someone") == {}
    assert not rig.github.requests
