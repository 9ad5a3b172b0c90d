"""What of a hostile pull request's artifact reaches the comment: nothing, or checked numbers."""

import dataclasses
import json
import subprocess
import sys

import pytest

from benchmarks._engine.report import artifact, pull_request
from benchmarks._engine.report.artifact import Commits
from tests.comparisons import (
    job_blind,
    job_failing,
    job_of_code,
    job_of_worse_code,
    job_passing,
)
from tests.engine.report.artifacts import (
    BASE,
    CODE_REQUEST,
    DIFFER,
    GPU,
    HEAD,
    REQUEST,
    RUN,
    archive,
    document,
)
from tests.engine.report.test_artifact import NOT_ASKED_FOR
from tests.git import commit, git
from tests.publishing import ROOT

commits_by_git = artifact.commits


INJECTION = (
    "<img src=x onerror=alert(1)> [a](https://evil) @owner #1 ```\n# c `x` </pre> \ud800 \u202e"
)


# From files to files, as the workflow runs it.


@pytest.fixture(autouse=True)
def commits_that_differ(monkeypatch):
    monkeypatch.setattr(artifact, "commits", lambda *_: DIFFER)


def arguments_for(tmp_path, **changes):
    """The command's arguments, without those that are None, and the files that it uses."""
    files = {name: tmp_path / name for name in ("artifact", "comment", "status")}
    options = {"base": BASE, "head": HEAD, "run-url": RUN, "gpu": GPU, "behind": 0}
    options |= {"job": "success", "tests": "success", "repository": tmp_path, **files, **changes}
    used = {name: value for name, value in options.items() if value is not None}
    return [text for name, value in used.items() for text in (f"--{name}", str(value))], files


def report(tmp_path, content=None, **changes):
    """The comment and the status."""
    arguments, files = arguments_for(tmp_path, **changes)
    if content is not None:
        files["artifact"].write_bytes(content)
    assert pull_request.main(arguments) == 0
    status = json.loads(files["status"].read_text()) if files["status"].exists() else None
    return files["comment"].read_text(), status


CODE = dict.fromkeys(("gpu", "job", "tests", "status"))


@pytest.mark.parametrize(
    ("make", "says"), [(job_of_code, "✅ PASS"), (job_of_worse_code, "❌ FAIL")]
)
def test_the_comment_of_machine_code_has_a_marker_of_its_own_and_no_status(tmp_path, make, says):
    text, status = report(tmp_path, archive(document(make)), **CODE)
    headline = f"## {says} (exact values only; nothing was timed)\n"
    assert text.startswith(f"{pull_request.CODE_MARKER}\n{headline}") and status is None
    assert CODE_REQUEST.command in text and pull_request.MARKER not in text
    assert f"Commit {HEAD} on a machine without a GPU: [log of the run]({RUN})" in text


@pytest.mark.parametrize("content", [None, b"no archive", archive(document(job_passing))])
def test_without_a_comparison_of_machine_code_there_is_no_verdict(tmp_path, content):
    text, _ = report(tmp_path, content, **CODE)
    assert text.startswith(f"{pull_request.CODE_MARKER}\n## ❔ NO VERDICT")
    assert "The artifact was refused: " in text
    assert "This says nothing about the machine code." in text and CODE_REQUEST.command in text


@pytest.mark.parametrize(
    ("make", "state"), [(job_passing, "success"), (job_failing, "failure"), (job_blind, "error")]
)
def test_comment_and_status_follow_the_answer(tmp_path, make, state):
    text, status = report(tmp_path, archive(document(make)))
    answer = make().answer
    assert text.startswith(f"{pull_request.MARKER}\n## ") and len(text) < 65_536
    assert f"]({RUN.partition('/actions/')[0]}/compare/{BASE}...{HEAD})" in text
    assert HEAD in text and RUN in text and "behind" not in text
    assert (status["state"], status["context"], status["target_url"]) == (state, "gpu", RUN)
    says = f"{answer.value}, against {BASE[:10]}; the change could alter its figures"
    assert status["description"] == says and len(says) <= 140  # what GitHub takes
    assert "a process that ran the pull request's code, which could have changed them" in text
    assert answer.value.upper() in text


@pytest.mark.parametrize(
    ("changes", "says", "state"),
    [
        ({"job": "failure", "tests": "failure"}, "The tests failed on the GPU", "failure"),
        ({"job": "failure"}, "ended without a measurement (failure)", "error"),
        ({"job": "cancelled", "tests": ""}, "ended without a measurement (cancelled)", "error"),
        ({}, "The artifact was refused: there is none", "error"),
    ],
)
def test_it_reports_when_there_is_nothing_to_report(tmp_path, changes, says, state):
    text, status = report(tmp_path, **changes)
    assert says in text and "NO VERDICT" in text and RUN in text
    assert text.startswith(pull_request.MARKER)
    assert status["state"] == state


def test_a_gpu_that_was_not_there_is_no_refusal(tmp_path):
    text, status = report(tmp_path, archive(NOT_ASKED_FOR["no GPU"][0]))
    assert "Could not run: the GPU nvidia-h200 was not there" in text
    assert status["state"] == "error" and status["description"].startswith("could not run")


@pytest.fixture
def history(tmp_path):
    """A repository of three commits: a package, another package, another Triton."""
    git(tmp_path, "init", "--quiet")
    package, project = tmp_path / "rope_triton", tmp_path / "pyproject.toml"
    package.mkdir()
    shas = []
    for source, triton in (("1", "3.6"), ("2", "3.6"), ("2", "3.7")):
        (package / "__init__.py").write_text(source)
        project.write_text(f'[project]\ndependencies = ["triton>={triton}"]\n')
        commit(tmp_path, "a change")
        shas.append(git(tmp_path, "rev-parse", "HEAD"))
    return tmp_path, shas


def test_git_says_what_the_commits_have(history):
    repository, (first, second, third) = history
    assert commits_by_git(repository, first, second) == Commits(False, ())
    assert commits_by_git(repository, second, second) == Commits(True, ())
    same, changes = commits_by_git(repository, second, third)
    assert same and len(changes) == 1 and "triton>=3.6" in changes[0]


def test_git_without_a_commit_is_no_verdict(history, tmp_path, monkeypatch):
    monkeypatch.setattr(artifact, "commits", commits_by_git)
    repository, (first, _, _) = history
    content = archive(document(job_passing))
    text, status = report(tmp_path, content, repository=repository, base=first)
    assert "The artifact was refused: the commits cannot be compared: " in text
    assert status["state"] == "error"


def test_it_needs_no_package(history, tmp_path):
    """Where it runs a token may write, so nothing is installed: this is Python without its site."""
    repository, (base, head, _) = history
    made = json.dumps(document(job_passing)).replace(BASE, base).replace(HEAD, head)
    arguments, files = arguments_for(tmp_path, base=base, head=head)
    arguments += ["--repository", str(repository)]
    files["artifact"].write_bytes(archive(made))
    bare = [sys.executable, "-S", "-m"]
    assert subprocess.run([*bare, "numpy"], cwd=ROOT, capture_output=True).returncode == 1
    command = [*bare, "benchmarks._engine.report.pull_request", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "## ✅ PASS" in files["comment"].read_text(), done.stderr


@pytest.mark.parametrize(
    ("room", "name"), [(artifact, "read_artifact"), (pull_request, "markdown")]
)
@pytest.mark.parametrize("error", [IndexError("secret"), MemoryError()])
def test_whatever_goes_wrong_there_is_a_comment_and_a_status(
    tmp_path, capsys, monkeypatch, room, name, error
):
    def fail(*_):
        raise error

    monkeypatch.setattr(room, name, fail)
    text, status = report(tmp_path, archive(document(job_passing)))
    says = f"The artifact could not be read or shown: {type(error).__name__} in fail"
    assert says in text and says in capsys.readouterr().err
    assert "NO VERDICT" in text and status["state"] == "error" and "secret" not in text


def test_what_a_refusal_quotes_is_inert(tmp_path, capsys):
    text, status = report(tmp_path, archive("{}", INJECTION.replace("\ud800", "")))
    assert status["state"] == "error" and "The artifact was refused: " in text
    for shown in (text.replace(f"]({RUN})", ""), capsys.readouterr().err):
        assert "img src x onerror alert(1)" in shown
        for bad in ("<img", "](", "@owner", "#1", "```", "://evil", "www.", "\n# c", "\n::"):
            assert bad not in shown
    # The log is read for commands by GitHub: a line that begins with two colons is one.
    text, _ = report(tmp_path, archive(document(**{"\n::error::x": 1})))
    assert "::" not in capsys.readouterr().err


@pytest.mark.parametrize("sha", [HEAD[:10], HEAD + "\n"])
def test_a_request_names_full_commits_and_a_gpu_that_is_known(sha):
    with pytest.raises(ValueError, match="head must be a full SHA"):
        dataclasses.replace(REQUEST, head=sha)
    with pytest.raises(ValueError, match="gpu must be one of"):
        dataclasses.replace(REQUEST, gpu="nvidia-h100")
