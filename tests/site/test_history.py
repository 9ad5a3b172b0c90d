"""The history: the commands of its jobs, run in scratch clones, and what guards it.

The GPU and asv's measuring are played by a small script; git and all of ``benchmarks/_site`` are
real. tests/workflows/test_history.py runs the jobs themselves.
"""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from benchmarks._engine.system.arguments import COULD_NOT_RUN
from benchmarks._site import __main__ as entry
from benchmarks._site import branch, measure
from tests import publishing
from tests.git import git
from tests.publishing import ROOT

RESULTS = Path("benchmarks") / "results"
MEASURED = "8f5b046751e08282473c367e6c1aed145f5e93be"  # has results of every machine
GPU = "nvidia-h200"

# asv, played: it stores a record as a result of the commit that it is to measure.
ASV = """
import json, os, sys
from pathlib import Path
from benchmarks._engine.system.repository import git_text
words = dict(zip(sys.argv[2::2], sys.argv[3::2]))
commit, machine = words["--set-commit-hash"], words["--machine"]
directory = Path(".asv", "results", machine)
directory.mkdir(parents=True, exist_ok=True)
(directory / "machine.json").write_text(json.dumps({"machine": machine, "version": 1}))
record = json.loads(Path(os.environ["PLAYED_RECORD"]).read_text())
params = record["params"] | {"machine": machine} | json.loads(os.environ["PLAYED_TOOLCHAIN"])
name = f"existing-py-torch{params['torch']}"
date = int(git_text(Path.cwd(), "log", "-1", "--format=%at", commit)) * 1000
result = record | {"commit_hash": commit, "params": params, "date": date, "env_name": name}
(directory / f"{commit[:8]}-{name}.json").write_text(json.dumps(result))
"""

# The real measure(), with asv played, and no GPU to hold.
MEASURE = f"""
import contextlib, json, os, sys
from pathlib import Path
from benchmarks._site import measure, run
run.ASV = [sys.executable, "-c", {ASV!r}]
record = json.loads(Path(os.environ["PLAYED_RECORD"]).read_text())
toolchain = {{name: record["params"][name] for name in measure.TOOLCHAIN}}
toolchain |= json.loads(os.environ["PLAYED_TOOLCHAIN"])
measure.installed = lambda machine: toolchain
measure.gpu_of = lambda machine: contextlib.nullcontext()
measure.NEWEST_COMMITS = 2
sys.exit(measure.measure(Path.cwd(), sys.argv[1]))
"""


def records(directory):
    """The full results of ``MEASURED`` below a directory: others may lie beside those shipped."""
    paths = directory.rglob(f"{MEASURED[:8]}-*.json")
    return sorted(path for path in paths if "-compare-" not in path.name)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A repository like this one, its main with two more commits to the package."""
    work = publishing.cloned(tmp_path_factory.mktemp("origin") / "work")
    git(work, "checkout", "-q", "-B", "main")
    _measure_the_rest(work)
    for number in range(2):
        with (work / "rope_triton" / "api.py").open("a") as file:
            file.write(f"# change {number}\n")
        git(work, "add", "-A")
        git(work, "commit", "-q", "-m", f"change {number}")
    return work


def _measure_the_rest(work):
    """Results of the commits that wait for a machine: those that this repository lacks today.

    Of one metric, because publishing takes its time.
    """
    for record in records(work / RESULTS):
        content = json.loads(record.read_text())
        content["results"] = dict(list(content["results"].items())[:1])
        for commit in measure.missing(work, record.parent.name, 1000):
            text = json.dumps(content | {"commit_hash": commit})
            record.with_name(record.name.replace(MEASURED[:8], commit[:8])).write_text(text)


@pytest.fixture
def origin(tmp_path, template):
    """What the jobs clone and push to."""
    git(tmp_path, "clone", "-q", "-s", "--bare", str(template), "origin.git")
    return tmp_path / "origin.git"


class Job:
    """A clone in which commands run one after another; ``output`` has what they print."""

    def __init__(self, origin, scratch):
        self.root, self.output = scratch / "clone", ""
        scratch.mkdir()
        git(scratch, "clone", "-q", str(origin), str(self.root))
        assert self.run("-m", "benchmarks._site", "restore", "origin") == 0

    def run(self, *line, **variables):
        environment = os.environ | {"HOME": str(self.root.parent)} | variables
        done = subprocess.run(
            [sys.executable, *line],
            **{"cwd": self.root, "env": environment},
            **{"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True},
        )
        self.output += done.stdout
        return done.returncode


def measured(origin, scratch, toolchain="{}"):
    """What the job that measures on the GPU prints, and its artifact."""
    job, artifact, started = Job(origin, scratch), scratch / "artifact", scratch / "started"
    for made in (artifact, started):
        made.mkdir()
    record = str(records(ROOT / RESULTS / GPU)[0])
    played = {"PLAYED_RECORD": record, "PLAYED_TOOLCHAIN": toolchain}
    assert job.run("-c", MEASURE, GPU, **played) == 0, job.output
    for path in (job.root / ".asv" / "results" / GPU).glob("*.json"):
        if path.stat().st_mtime_ns > started.stat().st_mtime_ns or path.name == "machine.json":
            shutil.copy(path, artifact)
    return job.output, artifact


def store(origin, scratch, artifacts):
    """Status of the check and of the storing, and what both print."""
    job = Job(origin, scratch)
    for machine, directory in artifacts.items():
        shutil.copytree(directory, job.root.parent / "incoming" / f"results-{machine}")
    accept = ("accept", str(job.root.parent / "incoming"), "no-gpu-x86_64", GPU)
    lines = (accept, ("store", "origin"))
    return [job.run("-m", "benchmarks._site", *line) for line in lines], job.output


def stored_names(origin):
    names = git(origin, "ls-tree", "-r", "--name-only", branch.BRANCH).splitlines()
    return {name for name in names if f"/{GPU}/" in name}


def test_history_from_a_commit_to_a_page(origin, tmp_path):
    _, artifact = measured(origin, tmp_path / "measure")
    new = git(origin, "log", "-2", "--format=%H", "main").split()
    names = {path.name[:8] for path in artifact.glob("*-*.json")}
    assert names == {commit[:8] for commit in new}

    statuses, output = store(origin, tmp_path / "store", {GPU: artifact})
    assert statuses == [0, 0] and "no-gpu-x86_64: no results came" in output
    assert git(origin, "rev-list", "--count", branch.BRANCH) == "1"
    assert {f"{RESULTS / GPU}/{path.name}" for path in artifact.iterdir()} <= stored_names(origin)

    output, _ = measured(origin, tmp_path / "again")
    assert f"{GPU}: 0 commits to measure" in output

    site = publishing.published(Job(origin, tmp_path / "build").root)
    text = (site / "index.html").read_text()
    assert all(commit in text for commit in new)


def test_a_new_toolchain_measures_the_newest_stored_commit_again(origin, tmp_path):
    _, artifact = measured(origin, tmp_path / "first")
    store(origin, tmp_path / "store-first", {GPU: artifact})
    newest = git(origin, "rev-parse", "main")[:8]
    output, again = measured(origin, tmp_path / "second", json.dumps({"torch": "9.9"}))
    assert f"torch or triton changed, once more: {newest}" in output
    (path,) = again.glob("*-existing-py-torch9.9.json")
    assert path.name.startswith(newest)
    assert store(origin, tmp_path / "store", {GPU: again})[0] == [0, 0]
    assert sum(newest in name for name in stored_names(origin)) == 2
    output, _ = measured(origin, tmp_path / "third", json.dumps({"torch": "9.9"}))
    assert "once more" not in output


def test_a_machine_that_sends_nonsense_leaves_the_others_alone(origin, tmp_path):
    _, artifact = measured(origin, tmp_path / "measure")
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "machine.json").write_text("{")
    artifacts = {GPU: artifact, "no-gpu-x86_64": bad}
    assert store(origin, tmp_path / "store", artifacts)[0] == [1, 0]
    assert {f"{RESULTS / GPU}/{path.name}" for path in artifact.iterdir()} <= stored_names(origin)


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


def test_what_describes_the_benchmarks_stays_the_checkouts(origin, tmp_path):
    """Results hold a parameter's values; its name is in benchmarks.json alone."""
    git(tmp_path, "clone", "-q", str(origin), "clone")
    clone, described = tmp_path / "clone", tmp_path / "clone" / RESULTS / "benchmarks.json"
    ours = described.read_text()
    assert not branch.restore(clone, "origin")
    described.write_text(ours.replace('"target"', '"arch"'))
    branch.store(clone, "origin")
    described.write_text(ours)
    assert branch.restore(clone, "origin") and described.read_text() == ours


@pytest.fixture
def more_stored(origin, tmp_path):
    """A clone; the branch has one result more than the clone's checkout."""
    git(tmp_path, "clone", "-q", str(origin), "clone")
    clone = tmp_path / "clone"
    assert not branch.restore(clone, "origin")
    extra = clone / RESULTS / GPU / "aaaaaaaa-e.json"
    content = json.loads(records(clone / RESULTS / GPU)[0].read_text())
    extra.write_text(json.dumps(content | {"date": 1, "commit_hash": "a" * 40}))
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
    extra = more_stored / RESULTS / GPU / "aaaaaaaa-e.json"
    content = json.loads(extra.read_text())
    metric = next(iter(content["results"]))

    def store_fails(text):
        with pytest.raises(RuntimeError, match=f"aaaaaaaa-e.json {text}.*nothing was stored"):
            branch.store(more_stored, "origin")

    extra.unlink()
    store_fails("is stored and would be lost")
    failed = [None, *content["results"][metric][0][1:]]
    changed = content["results"] | {metric: [failed, *content["results"][metric][1:]]}
    extra.write_text(json.dumps(content | {"results": changed}))
    store_fails(f"would lose values of {metric}")
    extra.write_text(json.dumps(content))
    branch.store(more_stored, "origin")


def test_missing_are_the_newest_without_a_result(origin, tmp_path):
    git(tmp_path, "clone", "-q", str(origin), "clone")
    clone = tmp_path / "clone"
    changed = "--", "rope_triton/*.py", "rope_triton/py.typed"  # not its README
    package = git(clone, "log", "--format=%H", "--first-parent", *changed).split()
    assert measure.missing(clone, GPU, 10) == package[:2][::-1]
    assert measure.missing(clone, GPU, 1) == package[:1]
    assert measure.missing(clone, "new", len(package) + 1) == package[::-1]


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
            monkeypatch.setattr(measure, name, lambda *words, answer=stand_in: answer)
        package = SimpleNamespace(root=tmp_path)
        monkeypatch.setattr(measure.checkout, "from_commit", lambda *words: package)
        monkeypatch.setattr(measure.asv_fixes, "fill_results", lambda root: None)
        monkeypatch.setattr(measure.run, "ASV", [sys.executable, "-S", "-c", FAILING])
        (tmp_path / "statuses").write_text(json.dumps(statuses))
        status = measure.measure(tmp_path, MACHINE)
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
    monkeypatch.setattr(measure.time, "monotonic", lambda: next(clock))
    done, patterns = measured_by([f"{number:040x}" for number in range(10)], [0] * 10)
    assert done == 0 and len(patterns) == begun
    # The step ends before the job, which would store nothing.
    workflow = yaml.safe_load((ROOT / ".github/workflows/history.yml").read_text())
    job = workflow["jobs"]["measure"]
    (limit,) = (step["timeout-minutes"] for step in job["steps"] if "timeout-minutes" in step)
    assert measure.BEGIN_SECONDS / 60 + 12 <= limit < job["timeout-minutes"]


@pytest.mark.parametrize("words", [[], ["measure"], ["hold", GPU], ["store", "origin", "more"]])
def test_a_mistake_in_the_arguments_is_no_answer(words):
    with pytest.raises(SystemExit) as stop:
        entry.main(words)
    assert stop.value.code == COULD_NOT_RUN
