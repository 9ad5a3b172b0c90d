"""ci.yml, and machine-code.yml, which comments on what it compared."""

import io
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

from benchmarks._engine.report.pull_request import CODE_MARKER
from tests.comparisons import job_of_worse_code
from tests.workflows.documents import compared
from tests.workflows.rig import ROOT, git

NEW = {"rope_triton/new.py": ""}
CODEGEN, REQUIRED = "Machine code, base and head", "All"
ALWAYS = dict.fromkeys(
    ("Python 3.11", "Python 3.13", "Oldest Python, torch and triton", "Build and install", "All"),
    "success",
)


def ended(rig, head, **changes):
    """The event of ci.yml's end."""
    run = {"id": 1, "event": "pull_request", "conclusion": "success", "head_sha": head}
    run |= {"head_branch": "a&b=c", "head_repository": {"owner": {"login": "someone"}}}
    return {"action": "completed", "workflow_run": run | changes}


def test_a_pull_request_with_worse_machine_code(rig):
    base, head, event = rig.pull_request(NEW, fork=True)
    rig.played = {"--exact-only": (1, compared(job_of_worse_code, base, head))}
    assert rig.run("ci", "pull_request", event) == ALWAYS | {CODEGEN: "failure"}
    assert any(f" compare {base} {head} --exact-only" in call for call in rig.calls)
    for line in (
        "actionlint",
        "zizmor --quiet --offline --persona auditor .github",
        "ruff check .",
        "mypy",
    ):
        assert any(call.startswith(line) for call in rig.calls)
    assert "all files are there, and the kernel is right" in rig.log
    # Its end: main's file makes a comment of the artifact.
    results = rig.run("machine-code", "workflow_run", ended(rig, head, conclusion="failure"), run=2)
    assert results == {"Find the pull request": "success", "Report": "success"}
    (comment,) = rig.github.comments
    assert comment["issue"] == 7 and comment["body"].startswith(f"{CODE_MARKER}\n## ")
    assert "FAIL" in comment["body"] and head in comment["body"]
    assert "The base is 1 commit behind main." in comment["body"]
    assert "https://github.com/rope-triton/rope-triton/actions/runs/1" in comment["body"]


def test_what_fails_is_red_in_a_merge_queue_and_in_the_check_that_is_required(rig):
    rig.played = {r"^python -m (pytest|build)": (1, None)}
    head = git(rig.repository, "rev-parse", "main")
    group = {"head_sha": head, "head_ref": "refs/heads/main", "base_ref": "refs/heads/main"}
    assert rig.run("ci", "merge_group", {"merge_group": group}) == dict.fromkeys(ALWAYS, "failure")


def test_a_comment_is_renewed_and_one_of_a_former_head_is_not_written(rig):
    _, head, _ = rig.pull_request({"NOTES.md": "another change\n"})
    run = ("machine-code", "workflow_run", ended(rig, head, conclusion="timed_out"))
    reported = {"Find the pull request": "success", "Report": "success"}
    # Nothing of the package changed, and nothing was compared: no comment but a renewed one.
    assert rig.run(*run) == reported and not rig.github.comments
    forged = rig.github.comment(7, f"{CODE_MARKER}\nforged", user={"login": "someone"})
    own = rig.github.comment(7, f"{CODE_MARKER}\nof an earlier head")
    assert rig.run(*run) == reported and "The artifact was refused: there is none" in own["body"]
    assert len(rig.github.comments) == 2 and "forged" in forged["body"]
    rig.github.pulls[7]["head"]["sha"] = "3" * 40
    written = own["body"]
    assert rig.run(*run) == {"Find the pull request": "success"} and own["body"] == written


@pytest.mark.parametrize("changes", [{"conclusion": "action_required"}, {"event": "push"}])
def test_what_compared_nothing_is_not_reported(rig, changes):
    assert rig.run("machine-code", "workflow_run", ended(rig, "1" * 40, **changes)) == {}


# --- .ci/package ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dist(repository, tmp_path_factory):
    to = tmp_path_factory.mktemp("built") / "dist"
    source = shutil.copytree(repository, to.parent / "source")
    line = [sys.executable, "-m", "build", "--no-isolation", "--outdir", to, source]
    subprocess.run(line, check=True, capture_output=True)
    return to


KERNEL = "rope_triton/kernel/trigonometry.py"


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("rope_triton/py.typed", None, None, "the installed package lacks rope_triton/py.typed"),
        ("benchmarks/__init__.py", b"", b"", "should not have benchmarks/__init__.py"),
        (KERNEL, b"= 1.5707963705062866", b"= 1.57", "off the formula"),
        ("tests/test_x.py", None, None, "the sdist has more than the package"),
    ],
)
def test_what_a_release_must_not_publish_is_refused(rig, dist, name, old, new, message):
    changed = shutil.copytree(dist, rig.root / "dist")
    ((wheel,), (sdist,)) = changed.glob("*.whl"), changed.glob("*.tar.gz")
    if name.startswith("tests/"):
        with tarfile.open(sdist, "w:gz") as archive:
            archive.addfile(tarfile.TarInfo(f"rope_triton-0.1.0/{name}"), io.BytesIO())
    with zipfile.ZipFile(wheel) as opened:
        members = {member: opened.read(member) for member in opened.namelist()}
    content = members.pop(name, b"")
    if old is not None:
        members[name] = content.replace(old, new)
    (record,) = (member for member in members if member.endswith("RECORD"))
    members[record] = "".join(f"{member},,\n" for member in members).encode()
    with zipfile.ZipFile(wheel, "w") as opened:
        for member, data in members.items():
            opened.writestr(member, data)
    rig.play()
    line = [ROOT / ".ci" / "package", changed]
    done = subprocess.run(line, env=rig.env, capture_output=True, text=True)
    assert done.returncode != 0 and message in done.stdout + done.stderr
