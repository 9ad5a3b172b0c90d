"""The steps of release.yml, and who may publish: nothing without a pass of the very commit."""

import dataclasses
import json
import shutil

import pytest

import rope_triton
from benchmarks._report import artifact
from benchmarks._system import baseline
from benchmarks._verdict import creep
from benchmarks._verdict.schema import Side
from tests.comparisons import job_blind, job_failing, job_passing
from tests.git import git
from tests.report.artifacts import archive
from tests.workflows.common import (
    CI,
    NIGHTLY,
    RELEASE,
    REPO,
    Runner,
    commit,
    needs_jq,
    require_every_script_was_run,
    steps,
)

JOBS = RELEASE["jobs"]
VERSION = rope_triton.__version__
TAG = f"v{VERSION}"
PAGE = f"https://github.com/{REPO}/actions/runs/3"
RUN = {
    **{"path": ".github/workflows/nightly.yml@main", "head_branch": "main", "event": "schedule"},
    **{"conclusion": "success", "html_url": PAGE},
}


@pytest.fixture
def releasing(repository, tmp_path):
    """A repository whose main is tagged, after a baseline with another package; and a runner."""
    path = tmp_path / "repository"
    git(tmp_path, "clone", "--quiet", str(repository), str(path))
    base = git(path, "rev-parse", "HEAD")
    (path / baseline.FILE).write_text(json.dumps({"commit": base, "reason": "a test"}))
    changelog = (path / "CHANGELOG.md").read_text()
    heading = f"## [{VERSION}] - 2026-12-24"
    (path / "CHANGELOG.md").write_text(changelog.replace("## [Unreleased]", heading))
    (path / "rope_triton" / "new.py").write_text("")
    commit(path, "a release")
    git(path, "tag", TAG)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    runner = Runner(path, scratch, ref=TAG, variables={"GITHUB_REF_NAME": TAG})
    return path, base, runner


def compared(make, base, head):
    """The artifact of the nightly comparison."""
    command = f"python -m benchmarks compare {base} {head}"
    made = dataclasses.replace(
        make(), base=Side(base, base), head=Side(head, head), reproduce=command
    )
    return archive(json.dumps(creep.to_json(creep.Creep(made))))


def judged(releasing, content=None, run=RUN, **listed):
    """The status of the first job, where one artifact of another commit is newer than the right."""
    needs_jq()
    path, base, runner = releasing
    head = git(path, "rev-parse", TAG)
    runner.values |= {
        "github.token": "t",
        "steps.baseline.outputs.base": base,
        "steps.baseline.outputs.head": head,
        "steps.comparison.outputs.page": PAGE,
    }
    right = {"id": 9, "expired": False, "created_at": "2026-12-01"}
    right |= {"workflow_run": {"id": 3, "head_sha": head}} | listed
    other = {"id": 8, "expired": False, "created_at": "2026-12-02"}
    other |= {"workflow_run": {"id": 2, "head_sha": base}}
    answers = {
        rf"artifacts\?name=creep-{base}-{head}$": {"json": {"artifacts": [right, other]}},
        r"runs/3$": {"json": run},
        r"artifacts/9/zip$": {"file": "artifact"},
    }
    (runner.scratch / "github.json").write_text(json.dumps(answers))
    (runner.scratch / "artifact").write_bytes(content or compared(job_passing, base, head))
    return runner.run(RELEASE, JOBS["verdict"])


def test_a_pass_of_this_commit_is_enough(releasing):
    path, base, runner = releasing
    assert judged(releasing) == 0, runner.log
    head = git(path, "rev-parse", TAG)
    assert runner.read("output").splitlines() == [f"base={base}", f"head={head}", f"page={PAGE}"]
    assert "pass" in runner.read("summary").lower()
    # What the report would ask of GitHub stays on the disk.
    assert not any("--method" in call for call in runner.calls)


@pytest.mark.parametrize("make", [job_failing, job_blind])
def test_any_other_answer_is_refused(releasing, make):
    path, base, runner = releasing
    assert judged(releasing, compared(make, base, git(path, "rev-parse", TAG))) != 0
    answer = creep.cumulative(make()).answer.value
    assert f"the comparison with the last release is no pass, but: {answer}" in runner.log


def test_a_comparison_of_other_commits_is_refused(releasing):
    _, base, runner = releasing
    assert judged(releasing, compared(job_passing, base, "5" * 40)) != 0
    assert "the artifact was refused" in runner.log


@pytest.mark.parametrize(
    ("run", "listed"),
    [
        (RUN | {"path": ".github/workflows/ci.yml"}, {}),
        (RUN | {"event": "pull_request"}, {}),
        (RUN | {"head_branch": "other"}, {}),
        (RUN | {"conclusion": "failure"}, {}),
        (RUN, {"expired": True}),
        (RUN, {"workflow_run": {"id": 3, "head_sha": "5" * 40}}),
    ],
)
def test_what_is_no_answer_of_the_nightly_comparison_is_refused(releasing, run, listed):
    assert judged(releasing, run=run, **listed) != 0
    assert "came to an answer: CONTRIBUTING, Releasing" in releasing[2].log


def test_a_tag_of_another_version_is_refused(releasing):
    path, _, runner = releasing
    git(path, "tag", "v9.0.0")
    runner.ref = runner.variables["GITHUB_REF_NAME"] = "v9.0.0"
    assert judged(releasing) != 0
    assert f"the tag is v9.0.0, and rope_triton.__version__ is '{VERSION}'" in runner.log


@pytest.mark.parametrize(
    "heading", ["## [Unreleased]", f"## [{VERSION}]", "## [0x1x0] - 2026-12-24"]
)
def test_a_version_without_a_dated_section_is_refused(releasing, heading):
    path, _, runner = releasing
    text = (path / "CHANGELOG.md").read_text()
    (path / "CHANGELOG.md").write_text(text.replace(f"## [{VERSION}] - 2026-12-24", heading))
    commit(path, "no section")
    git(path, "tag", "--force", TAG)
    assert judged(releasing) != 0
    assert f"CHANGELOG.md has no dated section {VERSION}" in runner.log


def test_a_tag_that_is_not_on_main_is_refused(releasing):
    path, _, runner = releasing
    git(path, "checkout", "--quiet", "-b", "other")
    (path / "rope_triton" / "more.py").write_text("")
    commit(path, "not on main")
    git(path, "tag", "--force", TAG)
    assert judged(releasing) != 0
    assert "the tag is of no commit of main" in runner.log


def test_what_is_built_is_what_is_tried(releasing):
    _, _, runner = releasing
    assert runner.run(RELEASE, JOBS["build"]) == 0
    shutil.rmtree(runner.scratch / "workspace" / ".venv")
    built = shutil.copytree(runner.scratch / "workspace" / "dist", runner.scratch / "artifact")
    assert sorted(each.suffix for each in built.iterdir()) == [".gz", ".whl"]
    shutil.rmtree(runner.scratch / "workspace")
    git(runner.scratch, "clone", "--quiet", str(runner.repository), "workspace")
    shutil.copytree(built, runner.scratch / "workspace" / "dist")
    assert runner.run(RELEASE, {"steps": steps(JOBS["try"])}) == 0
    assert "all files are there, and the kernel is right" in runner.log
    names = [
        each["with"]["name"] for job in JOBS.values() for each in job["steps"] if _is_dist(each)
    ]
    assert names == ["dist"] * 3
    assert JOBS["try"]["needs"] == "build"
    # In the pull request too.
    scripts = [step["run"] for step in steps(CI["jobs"]["package"])]
    assert scripts[-1] == steps(JOBS["try"])[-1]["run"]


def _is_dist(step):
    return "-artifact@" in step.get("uses", "")


def test_publishing_needs_all_and_a_reviewer_and_is_alone_with_its_token():
    publish = JOBS["publish"]
    assert {*publish["needs"]} == JOBS.keys() - {"publish"} and "if" not in publish
    assert publish["environment"]["name"] == "pypi"
    assert publish["permissions"] == {"id-token": "write"}
    assert [step["uses"].partition("@")[0] for step in publish["steps"]] == [
        "actions/download-artifact",
        "pypa/gh-action-pypi-publish",
    ]
    for name in JOBS.keys() - {"publish"}:
        assert {*JOBS[name]["permissions"].values()} == {"read"} and "if" not in JOBS[name]
    # `on` is a truth value to YAML 1.1.
    assert RELEASE["permissions"] == {} and RELEASE[True] == {"push": {"tags": ["v*"]}}


def test_the_workflow_knows_the_limit_the_gpu_and_the_name_of_the_artifact():
    script = "".join(step["run"] for step in steps(JOBS["verdict"]))
    assert f"head -c {artifact.MAX_ARCHIVE_BYTES + 1} " in script
    assert " --gpu nvidia-h200 " in script and "nvidia-h200" in artifact.ARCHITECTURES
    upload = NIGHTLY["jobs"]["measure"]["steps"][-1]["with"]["name"]
    assert upload.startswith("creep-$") and "name=creep-$BASE-$HEAD" in script


def test_every_script_was_run():
    """Comes last."""
    require_every_script_was_run(RELEASE)
