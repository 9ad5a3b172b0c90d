"""nightly.yml and release.yml: what a night finds is an issue, and a pass lets a release out."""

import json
import shutil
import time

import pytest

import rope_triton
from benchmarks._engine.report.release_issue import MARKER
from benchmarks._engine.system import baseline
from benchmarks._site import nightly
from tests.comparisons import job_blind, job_failing, job_passing
from tests.workflows.documents import since_release
from tests.workflows.rig import MAIN, ROOT, git

PLAN, MEASURE, REPORT = "Find the baseline", "Compare with the baseline", "Report"
SILENT = "Say that nothing was measured"
GREEN = dict.fromkeys((PLAN, MEASURE, REPORT), "success")
ANSWERED = {
    **{"path": ".github/workflows/nightly.yml@main", "head_branch": "main"},
    **{"event": "schedule", "conclusion": "success"},
}
VERSION = rope_triton.__version__
TAG = f"refs/tags/v{VERSION}"


@pytest.fixture
def main(rig):
    """A rig whose main has a baseline, with the SHAs of both: the package changed between."""
    rig.base = git(rig.repository, "rev-parse", MAIN)
    text = (ROOT / "CHANGELOG.md").read_text()
    heading = f"## [{VERSION}] - 2026-12-24\n\nWhat is new."
    files = {
        baseline.FILE: json.dumps({"commit": rig.base, "reason": "a test"}),
        **{"rope_triton/new.py": "", "CHANGELOG.md": text.replace("## [Unreleased]", heading, 1)},
    }
    rig.head = rig.commit(MAIN, files)
    rig.github.runs[9] = {"path": ".github/workflows/ci.yml", "event": "push"}
    rig.github.runs[9] |= {"head_sha": rig.head, "conclusion": "success", "html_url": "the page"}
    return rig


def night(rig, make, status, event="schedule", run=1, job=None):
    """The results of a night in which ``release`` finds this."""
    head = git(rig.repository, "rev-parse", MAIN)
    rig.played = {"benchmarks release": (status, since_release(make, rig.base, head))}
    results = rig.run("nightly", event, run=run, job=job)
    rig.github.runs[run] = ANSWERED | {"head_sha": head, "event": event}
    return results


def test_a_slowdown_opens_an_issue_that_a_pass_closes_and_nothing_is_measured_twice(main):
    main.github.issue("a forged one", MARKER.format(main.base), user={"login": "someone"})
    assert night(main, job_failing, 1) == GREEN
    _, issue = main.github.issues
    assert issue["body"].startswith(MARKER.format(main.base)) and main.base[:10] in issue["title"]
    assert main.head in issue["body"] and "actions/runs/1" in issue["body"]
    ((answer,),) = (path.glob("*") for path in main.root.glob("artifacts/1/*-nightly-answer"))
    shown = main.root / nightly.FILE
    shown.parent.mkdir()
    shutil.copy(answer, shown)
    answer = nightly.last(main.root, MAIN)
    assert answer["answer"] == "fail" and answer["base"] == main.base
    assert (
        answer["report"].endswith("actions/runs/1") and time.time() - answer["measured"] / 1e3 < 600
    )
    results = release(main, job="verdict")
    assert results == {"Require a pass": "failure"}
    assert "the comparison with the last release is no pass, but: fail" in main.log
    git(main.repository, "update-ref", "-d", TAG)
    # The next night: a commit of documentation changes nothing that is measured.
    main.commit(MAIN, {"NOTES.md": "documentation\n"})
    assert night(main, job_failing, 1, run=2) == {PLAN: "success"}
    assert "actions/runs/1: not measured again" in main.read("summary.md")
    # By hand it is.
    assert night(main, job_passing, 0, "workflow_dispatch", run=3) == GREEN
    assert issue["state"] == "closed" and [
        comment["issue"] for comment in main.github.comments
    ] == [51]
    assert main.github.issues[0]["state"] == "open"


def test_what_came_to_no_answer_is_measured_again_and_no_release(main):
    changes = [
        *({"path": ".github/workflows/ci.yml"}, {"head_branch": "another"}),
        *({"event": "pull_request"}, {"conclusion": "failure"}, {}),
    ]
    name = f"release-{main.base}-{baseline.measured_content(main.root / 'tree')}"
    for number, change in enumerate(changes, 1):
        (main.root / f"artifacts/{number}/{number}-{name}").mkdir(parents=True)
        main.github.runs[number] = ANSWERED | {"head_sha": main.head} | change
    main.github.expired = {len(changes)}
    assert main.run("nightly", "schedule", run=7, job="plan") == {PLAN: "success"}
    assert main.read("summary.md") and "not measured again" not in main.read("summary.md")
    assert release(main, job="verdict") == {"Require a pass": "failure"}
    assert "came to an answer: CONTRIBUTING, Releasing" in main.log


def test_a_night_that_cannot_tell_is_red_and_writes_nothing(main):
    assert night(main, job_blind, 2) == GREEN | {REPORT: "failure"}
    assert "the comparison cannot tell" in main.log and not main.github.texts


def test_a_gpu_that_is_away_opens_one_issue(main):
    for run, played in enumerate(
        [{"machine$": (0, "machine  nvidia-h100")}, {"benchmarks release": (3, None)}]
    ):
        main.played = played
        results = main.run("nightly", "schedule", run=run + 1)
        assert results == {PLAN: "success", MEASURE: "failure", SILENT: "success"}
    ((issue,), (comment,)) = main.github.issues, main.github.comments
    assert "nightly job fails" in issue["title"] and "actions/runs/1" in issue["body"]
    assert comment["issue"] == issue["number"] and "actions/runs/2" in comment["body"]


# --- release.yml ----------------------------------------------------------------------------------


def release(rig, tag=TAG, commit=MAIN, job=None):
    """The results of the jobs; the tag is of this commit."""
    git(rig.repository, "update-ref", tag, git(rig.repository, "rev-parse", commit))
    rig.played = {"tests.gpu.record": (0, None)} | rig.played
    return rig.run("release", "push", run=8, ref=tag, job=job)


def test_a_pass_and_a_green_ci_are_published_and_announced(main):
    night(main, job_passing, 0, "workflow_dispatch", job="measure")
    results = release(main)
    jobs = ("Require a pass", "Build", "Install and try", "Publish", "Announce")
    assert results == dict.fromkeys(jobs, "success")
    published = sorted(path.name for path in (main.root / "pypi").iterdir())
    assert [name.partition("-")[0] for name in published] == ["rope_triton"] * 2
    (made,) = main.github.releases
    assert made["tag_name"] == f"v{VERSION}" and "What is new." in made["body"]
    assert "all files are there, and the kernel is right" in main.log
    # Only this very package may.
    main.commit("refs/heads/other", {"rope_triton/more.py": ""})
    assert release(main, commit="refs/heads/other", job="verdict") == {"Require a pass": "failure"}
    assert "the tag is of no commit of main" in main.log


@pytest.mark.parametrize(
    ("tag", "files", "message"),
    [
        ("refs/tags/v9.0.0", {}, f"rope_triton.__version__ is '{VERSION}'"),
        (TAG, {"CHANGELOG.md": f"## [{VERSION}]\n"}, f"has no dated section {VERSION}"),
        (TAG, {"NOTES.md": "no CI"}, "ci.yml did not pass for this commit"),
    ],
)
def test_a_tag_is_refused(main, tag, files, message):
    main.commit(MAIN, files)
    assert (
        release(main, tag, job="verdict") == {"Require a pass": "failure"} and message in main.log
    )


def test_a_package_that_no_gpu_tested_is_refused(main):
    main.played = {"tests.gpu.record": (1, "no record")}
    assert release(main, job="verdict") == {"Require a pass": "failure"} and "no record" in main.log
