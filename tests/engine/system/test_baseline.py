"""Which commit main is compared with every night, and which changed the package since."""

import json
import shutil
import subprocess
import sys

import pytest

from benchmarks._engine.system import baseline
from benchmarks._engine.system.repository import GitError, git_text
from tests.lab import COULD_NOT_RUN, ROOT


def name(lab, commit, **more):
    (lab.root / "benchmarks").mkdir(exist_ok=True)
    text = json.dumps({"commit": commit, "reason": "accepted"} | more)
    (lab.root / baseline.FILE).write_text(text)
    lab.git("add", "benchmarks")
    lab.git("commit", "-q", "-m", "a baseline")


def of_head(lab):
    return baseline.baseline(lab.root, "HEAD")


def test_the_last_release_is_of_the_highest_version(lab):
    first, second, third = (lab.commit(tag, of=tag) for tag in ("v1.9.0", "v1.10.0", "v1.2.3"))
    lab.commit("v2.0.0-rc1", of="no release")
    lab.git("tag", "v2.0")
    assert of_head(lab) == (second, "v1.10.0")
    assert baseline.baseline(lab.root, first) == (first, "v1.9.0")
    lab.git("tag", "-d", "v1.10.0")
    lab.git("tag", "-a", "-m", "annotated", "v1.10.0", third)
    assert of_head(lab) == (third, "v1.10.0")


def test_a_release_of_another_branch_is_none_of_main(lab):
    first = lab.commit("v1.0.0", number=1)
    lab.git("checkout", "-q", "-b", "other")
    lab.commit("v1.1.0", number=2)
    lab.git("checkout", "-q", "main")
    assert of_head(lab) == (first, "v1.0.0")


def test_the_file_counts_until_there_is_a_release_and_after_it(lab):
    first, second = lab.commit("c1", number=1), lab.commit("c2", number=2)
    name(lab, first)
    assert of_head(lab) == (first, "accepted")
    lab.git("tag", "v1.0.0", second)
    assert of_head(lab) == (second, "v1.0.0")
    third = lab.commit("c3", number=3)
    name(lab, third)
    assert of_head(lab) == (third, "accepted")


@pytest.mark.parametrize(
    ("commit", "more", "message"),
    [
        ("main", {}, "commit must be a text that matches"),
        ("f" * 40, {}, "'f+' is no commit"),
        ("orphan", {}, "is no ancestor"),
        (None, {"reason": ""}, "reason must be a text that matches"),
        (None, {"more": 1}, "has unknown"),
    ],
)
def test_a_file_that_names_no_commit_of_main_is_refused(lab, commit, more, message):
    orphan = lab.git("commit-tree", "HEAD^{tree}", "-m", "of no branch")
    name(lab, {None: lab.commit("c1"), "orphan": orphan}.get(commit, commit), **more)
    with pytest.raises((baseline.BaselineError, GitError), match=message):
        of_head(lab)


def test_neither_release_nor_file(lab):
    with pytest.raises(baseline.BaselineError, match="neither a release"):
        of_head(lab)


def test_commits_since_are_those_of_the_main_line_that_changed_the_package(lab):
    first = lab.commit("c1", number=1)
    second = lab.commit("c2", number=2)
    name(lab, first)  # not of the package
    (lab.root / "rope_triton" / "README.md").write_text("words")
    lab.git("add", "rope_triton")
    lab.git("commit", "-q", "-m", "words")
    lab.git("checkout", "-q", "-b", "side")
    lab.commit("c3", number=3)
    lab.commit("c4", number=4)
    lab.git("checkout", "-q", "main")
    lab.git("merge", "-q", "--no-ff", "-m", "merged", "side")
    merged = lab.git("rev-parse", "HEAD")
    assert baseline.commits_since(lab.root, first, "HEAD") == [second, merged]
    assert baseline.commits_since(lab.root, "HEAD", "HEAD") == []
    with pytest.raises(GitError):
        baseline.commits_since(lab.root, "f" * 40, "HEAD")


def test_the_shipped_file_names_a_commit_of_this_branch():
    if git_text(ROOT, "rev-parse", "--is-shallow-repository") == "true":
        pytest.skip("a shallow clone lacks the commit")
    head = git_text(ROOT, "rev-parse", "HEAD")
    commit, reason = baseline.baseline(ROOT, head)
    assert baseline.is_ancestor(ROOT, commit, head) and reason
    words = [sys.executable, "-S", "-m", "benchmarks._engine.system.baseline"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == f"{commit} {head} {baseline.measured_content(ROOT)}\n"


@pytest.mark.parametrize(
    ("path", "measured"),
    [
        *[("rope_triton/new.py", True), ("benchmarks/_subjects/new.txt", True)],
        *[("pyproject.toml", True), ("constraints.txt", True)],
        *[("README.md", False), ("rope_triton/README.md", False), ("tests/test_new.py", False)],
        *[("benchmarks/results/machine/a.json", False), ("benchmarks/evidence/a.json", False)],
    ],
)
def test_the_content_is_what_is_measured(lab, path, measured):
    lab.commit("c1", number=1)
    before = baseline.measured_content(lab.root)
    (lab.root / path).parent.mkdir(parents=True, exist_ok=True)
    (lab.root / path).write_text("a change\n")
    lab.git("add", path)
    assert (baseline.measured_content(lab.root) != before) == measured


def test_without_a_baseline_it_could_not_run(tmp_path):
    suite = tmp_path / "benchmarks"
    shutil.copytree(ROOT / "benchmarks" / "_engine", suite / "_engine")
    shutil.copy(ROOT / "benchmarks" / "__init__.py", suite)
    words = [sys.executable, "-S", "-m", "benchmarks._engine.system.baseline"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (COULD_NOT_RUN, "")
    assert done.stderr.startswith("could not run: ") and "Traceback" not in done.stderr
