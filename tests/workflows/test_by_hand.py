"""newest.yml, bisect.yml, and workflows in a fork, where they do nothing."""

import pytest

from tests.workflows.rig import git

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
    results = rig.run("newest", "workflow_dispatch", run=2)
    assert results == {"Test": "failure", "Report": "success"}
    (comment,) = rig.github.comments
    assert comment["issue"] == issue["number"] and "cannot be installed together" in comment["body"]
    assert "torch not installed" in comment["body"] and "actions/runs/2" in comment["body"]


def test_what_is_no_version_of_a_release_is_refused(rig):
    rig.played = {r"m.version.* triton$": (0, "2.14.0 @everybody"), "pytest": (1, None)}
    assert rig.run("newest", "schedule") == {"Test": "failure", "Report": "failure"}
    assert "TRITON is no version of a release" in rig.log and not rig.github.issues


def test_newest_versions_that_work_have_no_issue(rig):
    assert rig.run("newest", "schedule") == {"Test": "success"} and not rig.github.issues
    install, upgrade = (call for call in rig.calls if call.startswith("pip install"))
    assert "-c " not in install and upgrade.endswith(" --upgrade torch triton asv asv_runner")


CELL = "$(touch pwned) `touch pwned`; touch pwned #"
RANGE = {"good": "main~1", "bad": "main", "benchmark": CELL}
RANGE |= {"machine": "nvidia-h200", "grid": "small"}


def test_a_bisection_says_what_it_found_and_takes_any_expression_as_text(rig):
    rig.played = {"^python -m asv find": (1, "the commit is this")}
    results = rig.run("bisect", "workflow_dispatch", {"inputs": RANGE})
    assert results == {"Find the commit": "failure"}  # as asv ended
    good, bad = git(rig.repository, "rev-parse", "main~1", "main").split()
    assert any(call.endswith(f" -- {good}..{bad} {CELL}") for call in rig.calls)
    summary = rig.read("summary.md")
    assert f"    main~1..main\n    {CELL}" in summary and "    the commit is this" in summary
    assert not list(rig.root.rglob("pwned"))


@pytest.mark.parametrize("bad", ["--output=$(touch pwned)", "origin/other"])
def test_a_bisection_takes_commits_of_main_only(rig, bad):
    rig.commit("refs/heads/other", {"NOTES.md": ""})
    results = rig.run("bisect", "workflow_dispatch", {"inputs": RANGE | {"bad": bad}})
    assert results == {"Find the commit": "failure"} and not rig.calls
    assert not list(rig.root.rglob("pwned"))


@pytest.mark.parametrize("name", ["history", "nightly"])  # whose last jobs run after failures too
def test_a_fork_does_nothing(rig, name):
    assert rig.run(name, "schedule", owner="someone") == {}


def test_a_pull_request_within_a_fork_asks_for_no_gpu(rig):
    _, _, event = rig.pull_request({"rope_triton/new.py": ""})
    assert rig.run("gpu", "pull_request_target", event, owner="someone") == {}
    assert not rig.github.requests
