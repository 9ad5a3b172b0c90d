"""The history: what its jobs restore, measure, accept and store, in a small repository.

asv's measuring is played by a script; git and all of ``benchmarks/_site`` are real.
tests/workflows/test_history.py runs the jobs themselves.
"""

import itertools
import json
import os
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from benchmarks._engine.system.arguments import COULD_NOT_RUN
from benchmarks._site import __main__ as entry
from benchmarks._site import branch, to_measure
from tests import git as repositories
from tests.git import git
from tests.publishing import ROOT

RESULTS = Path("benchmarks") / "results"
GPU, NO_GPU = "nvidia-h200", "no-gpu-x86_64"
METRIC = "rope.Forward.track_latency"
TOOLCHAIN = {"torch": "2.13.0", "triton": "3.7.1", "gpu_id": "0123abcd"}


def write_result(results, machine, commit, **toolchain):
    """A result as asv writes it, and the machine's record."""
    (results / machine).mkdir(parents=True, exist_ok=True)
    (results / machine / "machine.json").write_text(json.dumps({"machine": machine}))
    params = {"machine": machine} | TOOLCHAIN | toolchain
    name = f"existing-py-torch{params['torch']}"
    content = {"commit_hash": commit, "env_name": name, "date": 1, "params": params}
    content |= {"results": {METRIC: [[1.0, 2.0], [["128", "256"]], "1"]}}
    path = results / machine / f"{commit[:8]}-{name}.json"
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
def origin(tmp_path):
    """What the jobs clone and push to: four commits, of which the second has results."""
    work = tmp_path / "origin"
    (work / "rope_triton").mkdir(parents=True)
    git(work, "init", "--quiet", "--initial-branch", "main")
    for name in ("api.py", "kernel.py", "README.md", "tiles.py"):
        (work / "rope_triton" / name).write_text(name)
        repositories.commit(work, name)
        if name == "kernel.py":
            write_result(work / RESULTS, GPU, git(work, "rev-parse", "HEAD"))
            (work / RESULTS / "benchmarks.json").write_text("{}")
    return work


@pytest.fixture
def clone(origin, tmp_path):
    git(tmp_path, "clone", "-q", str(origin), "clone")
    return tmp_path / "clone"


def stored_names(origin):
    return git(origin, "ls-tree", "-r", "--name-only", branch.BRANCH).splitlines()


# --- restore and store ----------------------------------------------------------------------------


def test_what_is_stored_is_restored_in_place_of_the_checkouts(origin, clone, tmp_path):
    assert not branch.restore(clone, "origin")
    write_result(clone / RESULTS, NO_GPU, "a" * 40)
    branch.store(clone, "origin")
    assert git(origin, "rev-list", "--count", branch.BRANCH) == "1"
    git(tmp_path, "clone", "-q", str(origin), "other")
    described = tmp_path / "other" / RESULTS / "benchmarks.json"
    described.write_text('{"of": "the checkout"}')
    assert branch.restore(tmp_path / "other", "origin")
    paths = (tmp_path / "other" / RESULTS).rglob("*.json")
    names = {str(path.relative_to(tmp_path / "other")) for path in paths}
    assert names == set(stored_names(origin)) and any(NO_GPU in name for name in names)
    # It and the benchmarks are one version.
    assert described.read_text() == '{"of": "the checkout"}'


def test_what_another_job_stored_is_never_lost(origin, tmp_path):
    clones = [tmp_path / "one", tmp_path / "two"]
    for clone in clones:
        git(tmp_path, "clone", "-q", str(origin), str(clone))
        assert not branch.restore(clone, "origin")
        (clone / RESULTS / GPU / "machine.json").write_text(json.dumps({"in": clone.name}))
    branch.store(clones[0], "origin")
    with pytest.raises(RuntimeError, match="stale info|rejected"):
        branch.store(clones[1], "origin")
    assert branch.restore(clones[1], "origin")
    assert json.loads((clones[1] / RESULTS / GPU / "machine.json").read_text()) == {"in": "one"}


@pytest.fixture
def more_stored(clone):
    """A clone; the branch has one result more than the clone's checkout."""
    assert not branch.restore(clone, "origin")
    extra = write_result(clone / RESULTS, GPU, "a" * 40)
    branch.store(clone, "origin")
    extra.unlink()
    return clone


def failing_git(tools, command):
    """A git on the PATH whose one command fails."""
    script = f'#!/bin/bash\n[[ $3 != {command} ]] || exit 1\nexec {shutil.which("git")} "$@"\n'
    tools.mkdir(exist_ok=True)
    (tools / "git").write_text(script)
    (tools / "git").chmod(0o755)


@pytest.mark.parametrize("command", ["ls-remote", "fetch", "ls-tree", "cat-file"])
def test_only_a_restore_that_worked_allows_to_store(more_stored, tmp_path, monkeypatch, command):
    failing_git(tmp_path / "failing", command)
    with monkeypatch.context() as patched:
        patched.setenv("PATH", f"{tmp_path / 'failing'}{os.pathsep}{os.environ['PATH']}")
        with pytest.raises(RuntimeError):
            branch.restore(more_stored, "origin")
    with pytest.raises(RuntimeError, match="restore first"):
        branch.store(more_stored, "origin")


def test_no_stored_result_is_lost(more_stored):
    assert branch.restore(more_stored, "origin")
    (extra,) = (more_stored / RESULTS / GPU).glob("aaaaaaaa-*.json")
    text = extra.read_text()
    for change, message in (
        (extra.unlink, "is stored and would be lost"),
        (lambda: extra.write_text(text.replace("1.0", "null")), f"would lose values of {METRIC}"),
    ):
        change()
        with pytest.raises(RuntimeError, match=f"json {message}.*nothing was stored"):
            branch.store(more_stored, "origin")
    extra.write_text(text)
    branch.store(more_stored, "origin")


def test_a_machine_that_sends_nonsense_leaves_the_others_alone(clone, tmp_path, monkeypatch):
    monkeypatch.setattr(entry, "ROOT", clone)
    monkeypatch.setattr(entry, "RESULTS", clone / RESULTS)
    head = git(clone, "rev-parse", "HEAD")
    good = write_result(tmp_path / "good", GPU, head)
    (tmp_path / "good" / GPU).rename(tmp_path / f"results-{GPU}")
    (tmp_path / f"results-{NO_GPU}").mkdir()
    (tmp_path / f"results-{NO_GPU}" / "machine.json").write_text("{")
    assert entry.main(["accept", str(tmp_path), NO_GPU, GPU, "no-gpu-aarch64"]) == 1
    assert (clone / RESULTS / GPU / good.name).exists()
    assert not (clone / RESULTS / NO_GPU).exists()


# --- measure --------------------------------------------------------------------------------------


def test_missing_are_the_newest_without_a_result(clone):
    newest, _, _, oldest = git(clone, "log", "--format=%H").split()
    assert to_measure.missing(clone, GPU, 10) == [oldest, newest]  # no README's
    assert to_measure.missing(clone, GPU, 1) == [newest]
    assert len(to_measure.missing(clone, "new", 10)) == 3


def test_a_new_toolchain_measures_the_newest_stored_commit_again(clone):
    measured = git(clone, "rev-parse", "HEAD~2")
    assert to_measure.remeasured(clone, GPU, TOOLCHAIN) == []
    assert to_measure.remeasured(clone, GPU, TOOLCHAIN | {"torch": "9.9"}) == [measured]
    write_result(clone / RESULTS, GPU, measured, torch="9.9")
    assert to_measure.remeasured(clone, GPU, TOOLCHAIN | {"torch": "9.9"}) == []
    assert to_measure.remeasured(clone, "new", TOOLCHAIN) == []
    assert to_measure.remeasured(clone, GPU, TOOLCHAIN | {"gpu_id": "another"}) == [measured]


# asv, played: it notes the pattern, and fails as often as it is told.
FAILING = """
import json, math, sys
from pathlib import Path
words = dict(zip(sys.argv[2::2], sys.argv[3::2]))
with open("patterns", "a+") as file:
    print(words["--bench"], file=file)
    file.seek(0)
    status = json.loads(Path("statuses").read_text())[len(file.readlines()) - 1]
rows = {
    "rope.Forward.track_latency": [[1.0, math.nan]],
    "host.Call.track_forward": [[1.0, None if status else 2.0]],
    "host.Error.track_error": [None if status else [1.0]],
}
results = Path(".asv", "results", words["--machine"])
results.mkdir(parents=True, exist_ok=True)
if status != 3:
    path = results / f"{words['--set-commit-hash'][:8]}-py.json"
    path.write_text(json.dumps({"results": rows}))
sys.exit(status)
"""
MACHINE = "no-gpu-x"


@pytest.fixture
def measured_by(tmp_path, monkeypatch):
    """The status of measuring these commits with an asv of these statuses, and its patterns."""

    def measure_commits(commits, statuses):
        stand_ins = {"remeasured": [], "missing": commits, "installed": {}}
        for name, stand_in in stand_ins.items():
            monkeypatch.setattr(to_measure, name, lambda *words, answer=stand_in: answer)
        package = SimpleNamespace(root=tmp_path)
        monkeypatch.setattr(to_measure.checkout, "from_commit", lambda *words: package)
        monkeypatch.setattr(to_measure.asv_fixes, "fill_results", lambda root: None)
        monkeypatch.setattr(to_measure.run, "ASV", [sys.executable, "-S", "-c", FAILING])
        (tmp_path / "statuses").write_text(json.dumps(statuses))
        status = to_measure.measure(tmp_path, MACHINE)
        return status, (tmp_path / "patterns").read_text().splitlines()

    return measure_commits


@pytest.mark.parametrize(("statuses", "status"), [([0], 0), ([2, 0], 0), ([2, 2], 1), ([3], 1)])
def test_what_failed_of_a_commit_is_measured_once_more(measured_by, statuses, status):
    """Where asv stored nothing at all, there is nothing to repeat."""
    done, patterns = measured_by(["a" * 40], statuses)
    assert done == status and len(patterns) == len(statuses)
    names = ("rope.Forward.track_latency", "host.Call.track_forward", "host.Error.track_error")
    assert re.search(patterns[0], names[0])
    for pattern in patterns[1:]:
        assert [bool(re.search(pattern, name)) for name in names] == [False, True, True]


@pytest.mark.parametrize(("minutes", "begun"), [(8, 10), (12, 7), (80, 1)])
def test_no_commit_is_begun_when_the_time_is_over(measured_by, monkeypatch, minutes, begun):
    clock = itertools.count(0, 60 * minutes)
    monkeypatch.setattr(to_measure.time, "monotonic", lambda: next(clock))
    done, patterns = measured_by([f"{number:040x}" for number in range(10)], [0] * 10)
    assert done == 0 and len(patterns) == begun
    # The step ends before the job, which would store nothing.
    workflow = yaml.safe_load((ROOT / ".github/workflows/history.yml").read_text())
    job = workflow["jobs"]["measure"]
    (limit,) = (step["timeout-minutes"] for step in job["steps"] if "timeout-minutes" in step)
    assert to_measure.BEGIN_SECONDS / 60 + 12 <= limit < job["timeout-minutes"]


@pytest.mark.parametrize("words", [[], ["measure"], ["hold", GPU], ["store", "origin", "more"]])
def test_a_mistake_in_the_arguments_is_no_answer(words):
    with pytest.raises(SystemExit) as stop:
        entry.main(words)
    assert stop.value.code == COULD_NOT_RUN
