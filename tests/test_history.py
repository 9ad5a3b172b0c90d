"""The history: its two workflows' commands, run in scratch clones, and what bounds and guards it.

GitHub, the GPU and asv's measuring are played by small scripts; git, the shell and all of
``benchmarks/_site`` are real.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from benchmarks._site import accept, branch, measure, thin

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = ROOT / ".github" / "workflows"
RESULTS = Path("benchmarks") / "results"
MEASURED = "8f5b046751e08282473c367e6c1aed145f5e93be"  # has results of every machine
GPU = "nvidia-h200"

# Plays python3, and .venv/bin/python: makes no environment, describes the GPU that is asked for,
# and hands out a recorded result where asv would measure. Everything else is real.
PYTHON = """#!/bin/bash
echo "$(basename "$0") $*" >> "$PLAYED"
case "$*" in
    "-m venv .venv")
        mkdir -p .venv/bin && cp "$0" .venv/bin/python && cp "$(dirname "$0")/pip" .venv/bin/pip ;;
    "-m benchmarks machine") printf 'gpu      x\\nmachine  %s\\n' "$PLAYED_MACHINE" ;;
    "-m benchmarks._site hold"*) shift 4; exec "$@" ;;
    "-m benchmarks._site measure"*) exec "$REAL" "$PLAYED_MEASURE" "${@:4}" ;;
    "-m asv find"*) printf '%s\\n' "$@"; exit "${PLAYED_STATUS:-0}" ;;
    *) exec "$REAL" "$@" ;;
esac
"""
PIP = '#!/bin/bash\necho "pip $*" >> "$PLAYED"\ntest -f constraints.txt\n'
GH = '#!/bin/bash\necho "gh $* $GH_TOKEN" >> "$PLAYED"\n'
# The real measure(), with a record instead of asv run, and no GPU to hold.
MEASURE = """
import contextlib, json, os, sys
from pathlib import Path
sys.path.insert(0, os.getcwd())
from benchmarks._site import measure
record = json.loads(Path(os.environ["PLAYED_RECORD"]).read_text())
def run(root, machine, commit, scratch):
    directory = root / "benchmarks" / "results" / machine
    directory.mkdir(exist_ok=True)
    fields = {"machine": machine, "version": 1}
    (directory / "machine.json").write_text(json.dumps(fields))
    params = record["params"] | {"machine": machine}
    content = record | {"commit_hash": commit, "params": params}
    (directory / f"{commit[:8]}-existing-py.json").write_text(json.dumps(content))
    return 0
measure._run, measure.gpu_of = run, lambda machine: contextlib.nullcontext()
sys.exit(measure.measure(Path.cwd(), sys.argv[1], limit=2))
"""


def git(root, *arguments):
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    command = ["git", *identity, "-C", str(root), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A repository like this one, its main with two more commits to the package."""
    tmp_path = tmp_path_factory.mktemp("origin")
    work = tmp_path / "work"
    git(tmp_path, "clone", "-q", "-s", str(ROOT), str(work))
    git(work, "checkout", "-q", "-B", "main")
    for name in ("benchmarks", ".github", "asv.conf.json"):  # as they are in the working tree
        target = work / name
        shutil.rmtree(target) if target.is_dir() else target.unlink()
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, target)
    _measure_the_rest(work)
    for number in range(2):
        with (work / "rope_triton" / "api.py").open("a") as file:
            file.write(f"# change {number}\n")
        git(work, "add", "-A")
        git(work, "commit", "-q", "-m", f"change {number}")
    return work


def _measure_the_rest(work):
    """Results of the commits that wait for a machine: those that this repository lacks today."""
    for record in records(work / RESULTS):
        for commit in measure.missing(work, record.parent.name, 1000):
            text = record.read_text().replace(MEASURED, commit)
            record.with_name(record.name.replace(MEASURED[:8], commit[:8])).write_text(text)


def records(directory):
    """The full results of ``MEASURED`` below a directory: others may lie beside those shipped."""
    found = directory.rglob(f"{MEASURED[:8]}-*.json")
    return sorted(path for path in found if "-compare-" not in path.name)


@pytest.fixture
def origin(tmp_path, template):
    """What the jobs clone and push to."""
    git(tmp_path, "clone", "-q", "-s", "--bare", str(template), "origin.git")
    return tmp_path / "origin.git"


class Job:
    """Runs a job's steps one by one, as a runner does, in a clone and with its variables."""

    def __init__(self, workflow, name, origin, tmp_path, **context):
        self.workflow = yaml.safe_load((WORKFLOWS / workflow).read_text())
        self.job = self.workflow["jobs"][name]
        self.temp, self.tools = tmp_path / f"temp-{name}", tmp_path / "tools"
        self.clone = tmp_path / f"clone-{name}-{context.get('matrix.machine', '')}"
        self.context = {"github.token": "TOKEN", "runner.temp": str(self.temp)} | context
        shutil.rmtree(self.temp, ignore_errors=True)
        self.temp.mkdir()
        git(tmp_path, "clone", "-q", "-s", str(origin), str(self.clone))
        self._make_tools()
        self.environment = os.environ | {
            "PATH": f"{self.tools}{os.pathsep}{os.environ['PATH']}",
            "PLAYED": str(tmp_path / "played"),
            "PLAYED_MACHINE": context.get("matrix.machine", GPU),
            "PLAYED_MEASURE": str(self.tools / "measure.py"),
            "PLAYED_RECORD": str(records(ROOT / RESULTS / GPU)[0]),
            "REAL": sys.executable,
            "RUNNER_TEMP": str(self.temp),
            "GITHUB_STEP_SUMMARY": str(self.temp / "summary.md"),
            "HOME": str(self.temp),
        }

    def _make_tools(self):
        self.tools.mkdir(exist_ok=True)
        for name, text in (("python3", PYTHON), ("pip", PIP), ("gh", GH), ("measure.py", MEASURE)):
            (self.tools / name).write_text(text)
            (self.tools / name).chmod(0o755)

    def _fill(self, text):
        for name, value in self.context.items():
            text = text.replace(f"${{{{ {name} }}}}", value)
        assert "${{" not in text, f"the test gives no value for {text}"
        return text

    def run(self):
        """Status of each ``run:`` step by its name, until one fails, as on GitHub."""
        outer = {**self.workflow.get("env", {}), **self.job.get("env", {})}
        statuses, failed = {}, False
        for step in self.job["steps"]:
            if "run" not in step or (failed and "cancelled()" not in str(step.get("if"))):
                continue
            assert "${{" not in step["run"], "an expression in a script is part of its text"
            variables = {k: self._fill(str(v)) for k, v in {**outer, **step.get("env", {})}.items()}
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
                cwd=self.clone,
                env=self.environment | variables,
                capture_output=True,
                text=True,
            )
            statuses[step["name"]] = done.returncode
            failed = failed or bool(done.returncode)
            self.said = getattr(self, "said", "") + done.stdout + done.stderr
        return statuses


def measured(origin, tmp_path, machine):
    """The measure job for one machine, its artifact put where the store job finds it."""
    values = {"matrix.machine": machine, "matrix.wheels": ""}
    job = Job("history.yml", "measure", origin, tmp_path, **values)
    statuses = job.run()
    assert not any(statuses.values()), job.said
    return job, job.temp / "results"


def stored_job(origin, tmp_path, artifacts):
    job = Job("history.yml", "store", origin, tmp_path)
    for machine, directory in artifacts.items():
        shutil.copytree(directory, job.temp / "incoming" / f"results-{machine}")
    return job, job.run()


def stored_names(origin):
    names = git(origin, "ls-tree", "-r", "--name-only", branch.BRANCH).splitlines()
    return {name for name in names if f"/{GPU}/" in name}


def test_history_from_a_commit_to_a_page(origin, tmp_path):
    job, artifact = measured(origin, tmp_path, GPU)
    new = git(origin, "log", "-2", "--format=%H", "main").split()
    names = {path.name[:8] for path in artifact.glob("*-*.json")}
    assert names == {commit[:8] for commit in new}
    played = (tmp_path / "played").read_text()
    assert "pip install --no-cache-dir -c constraints.txt -e .[bench]" in played

    job, statuses = stored_job(origin, tmp_path, {GPU: artifact})
    assert not any(statuses.values()) and len(statuses) == 3, job.said
    assert "no-gpu-x86_64: no results came" in job.said
    assert git(origin, "rev-list", "--count", branch.BRANCH) == "1"
    assert {f"{RESULTS / GPU}/{path.name}" for path in artifact.iterdir()} <= stored_names(origin)

    (tmp_path / "again").mkdir()
    values = {"matrix.machine": GPU, "matrix.wheels": ""}
    again = Job("history.yml", "measure", origin, tmp_path / "again", **values)
    assert not any(again.run().values()), again.said
    assert f"{GPU}: 0 commits to measure" in again.said

    build = Job("history.yml", "build", origin, tmp_path)
    assert not any(build.run().values()), build.said
    text = (build.clone / ".asv" / "html" / "overview.html").read_text()
    assert all(commit in text for commit in new)


def test_a_machine_that_sends_nonsense_costs_nobody_else(origin, tmp_path):
    _, artifact = measured(origin, tmp_path, GPU)
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "machine.json").write_text("{")
    job, statuses = stored_job(origin, tmp_path, {GPU: artifact, "no-gpu-x86_64": bad})
    assert statuses == {"Take what is stored": 0, "Check and add what came": 1, "Store": 0}
    assert {f"{RESULTS / GPU}/{path.name}" for path in artifact.iterdir()} <= stored_names(origin)


def test_another_gpu_than_the_label_says_measures_nothing(origin, tmp_path):
    values = {"matrix.machine": GPU, "matrix.wheels": ""}
    job = Job("history.yml", "measure", origin, tmp_path, **values)
    job.environment["PLAYED_MACHINE"] = "nvidia-h200-nvl"
    statuses = job.run()
    assert statuses["Check that this is the machine"] == 1 and "Measure" not in statuses


def test_what_another_job_stored_is_never_lost(origin, tmp_path):
    clones = [tmp_path / "one", tmp_path / "two"]
    for clone in clones:
        git(tmp_path, "clone", "-q", str(origin), str(clone))
        assert not branch.restore(clone, "origin")
        (clone / RESULTS / GPU / "aaaaaaaa-x.json").write_text(clone.name)
    branch.store(clones[0], "origin")
    with pytest.raises(RuntimeError, match="stale info|rejected"):
        branch.store(clones[1], "origin")
    assert branch.restore(clones[1], "origin")
    assert (clones[1] / RESULTS / GPU / "aaaaaaaa-x.json").read_text() == "one"


def test_a_remote_that_cannot_be_asked_is_not_an_empty_one(origin, tmp_path):
    git(tmp_path, "clone", "-q", str(origin), "clone")
    with pytest.raises(RuntimeError, match="ls-remote"):
        branch.restore(tmp_path / "clone", str(tmp_path / "nowhere"))
    with pytest.raises(RuntimeError, match="restore first"):
        branch.store(tmp_path / "clone", "origin")


def test_missing_are_the_newest_without_a_result(origin, tmp_path):
    git(tmp_path, "clone", "-q", str(origin), "clone")
    clone = tmp_path / "clone"
    package = git(clone, "log", "--format=%H", "--first-parent", "--", "rope_triton").split()
    (clone / RESULTS / GPU / f"{package[0][:8]}-compare-py.json").touch()  # does not count
    assert measure.missing(clone, GPU, 10) == package[:2][::-1]
    assert measure.missing(clone, GPU, 1) == package[:1]
    assert measure.missing(clone, "new", 50) == package[::-1]


BISECT = {
    "inputs.good": "main~2",
    "inputs.bad": "main",
    "inputs.benchmark": r"rope\.Forward\.track_latency\(2048, 128, 1, 'bfloat16', 'sbhd'\)",
    "inputs.machine": GPU,
    "inputs.grid": "small",
}


def test_bisect_finds_and_says_what(origin, tmp_path):
    job = Job("bisect.yml", "bisect", origin, tmp_path, **BISECT)
    assert not any(job.run().values()), job.said
    good, bad = git(origin, "rev-parse", "main~2", "main").split()
    summary = (job.temp / "summary.md").read_text()
    assert f"    {good}..{bad}\n    {BISECT['inputs.benchmark']}" in summary


def test_a_failed_bisection_is_red_and_still_says_why(origin, tmp_path):
    job = Job("bisect.yml", "bisect", origin, tmp_path, **BISECT)
    job.environment["PLAYED_STATUS"] = "1"
    statuses = job.run()
    assert statuses["Find"] == 1 and statuses["Summary"] == 0


@pytest.mark.parametrize("field", ["good", "bad"])
@pytest.mark.parametrize(
    "value", ["$(touch pwned)", "main; touch pwned", "--output=pwned", "main..main", "", "`id`"]
)
def test_bisect_takes_commits_only(origin, tmp_path, field, value):
    job = Job("bisect.yml", "bisect", origin, tmp_path, **BISECT | {f"inputs.{field}": value})
    statuses = job.run()
    assert statuses["Check the range"] != 0 and "Find" not in statuses
    assert not list(tmp_path.rglob("pwned"))


def test_bisect_hands_any_expression_on_as_one_argument(origin, tmp_path):
    hostile = "$(touch pwned) `touch pwned`; touch pwned #"
    job = Job("bisect.yml", "bisect", origin, tmp_path, **BISECT | {"inputs.benchmark": hostile})
    assert not any(job.run().values()), job.said
    assert (job.temp / "find.txt").read_text().splitlines()[-1] == hostile
    assert not list(tmp_path.rglob("pwned"))


# What a runner may send.


def result(**changes):
    return {
        **dict(commit_hash="a" * 40, env_name="e", date=1, params={"machine": GPU}, python="3.11"),
        **dict(requirements={}, env_vars={}, result_columns=["result", "params", "version"]),
        "results": {"rope.Forward.track_latency": [[1.0, float("nan")], [["1", "'a'"]], "1"]},
        **dict(durations={}, version=2),
    } | changes


def row(*values):
    return {"rope.Forward.track_latency": list(values)}


@pytest.fixture
def incoming(tmp_path):
    directory = tmp_path / "incoming"
    directory.mkdir()
    (directory / "machine.json").write_text(json.dumps({"machine": GPU, "version": 1}))
    (directory / "aaaaaaaa-e.json").write_text(json.dumps(result()))
    return directory


def taken(incoming, tmp_path):
    return accept.accept(incoming, GPU, tmp_path / "results", {"a" * 40})


def test_a_good_result_is_taken(incoming, tmp_path):
    assert taken(incoming, tmp_path) == ["aaaaaaaa-e.json"]
    stored = (tmp_path / "results" / GPU / "aaaaaaaa-e.json").read_text()
    assert repr(json.loads(stored)) == repr(result())


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "null", "[" * 100_000, "{} {}"),
        *(json.dumps(result(extra=1)), json.dumps({"version": 2})),
        json.dumps(result(commit_hash="b" * 40)),
        json.dumps(result(commit_hash=["a" * 40])),
        json.dumps(result(params={"machine": "nvidia-b200"})),
        json.dumps(result(params={"machine": GPU, "gpu": "<img src=x onerror=alert(1)>"})),
        json.dumps(result(params={"machine": GPU, "gpu": "x" * 201})),
        json.dumps(result(params={"machine": GPU, "../../x\n": "x"})),
        json.dumps(result(version=1)),
        json.dumps(result(date="now")),
        json.dumps(result(results={"../x": [[1.0], [["1"]]]})),
        json.dumps(result(results=row([1.0], [["1", "2"]]))),
        json.dumps(result(results=row(["1"], [["1"]]))),
        json.dumps(result(results=row([True], [["1"]]))),
        json.dumps(result(results=row([-1.0], [["1"]]))),
        json.dumps(result(results=row([float("inf")], [["1"]]))),
        json.dumps(result(results=row([1.0], [[1]]))),
        json.dumps(result(results=row([1.0], [[]]))),
        json.dumps(result(env_vars={"a": [[[[[[[[[1]]]]]]]]]})),
    ],
)
def test_a_bad_result_is_refused_and_nothing_written(incoming, tmp_path, content):
    (incoming / "aaaaaaaa-e.json").write_text(content)
    with pytest.raises(accept.RefusedError):
        taken(incoming, tmp_path)
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    "name", ["bbbbbbbb-e.json", "benchmarks.json", "aaaaaaaa-e.json.sh", ".git", "aaaaaaaa-\n.json"]
)
def test_a_file_of_another_name_is_refused(incoming, tmp_path, name):
    (incoming / name).write_text(json.dumps(result()))
    with pytest.raises(accept.RefusedError):
        taken(incoming, tmp_path)


def test_links_directories_huge_and_many_files_are_refused(incoming, tmp_path):
    path = incoming / "aaaaaaaa-e.json"
    for make in (
        lambda: path.symlink_to("/etc/passwd"),
        lambda: path.mkdir(),
        lambda: path.write_text(" " * (accept.MAX_BYTES + 1)),
        lambda: [(incoming / f"aaaaaaaa-{i}.json").touch() for i in range(accept.MAX_FILES)],
    ):
        path.rmdir() if path.is_dir() else path.unlink()
        make()
        with pytest.raises(accept.RefusedError):
            taken(incoming, tmp_path)


@pytest.mark.parametrize("machine", [GPU, "no-gpu-x86_64"])
def test_what_the_machines_have_measured_so_far_is_taken(tmp_path, machine):
    shipped = tmp_path / machine
    shutil.copytree(ROOT / RESULTS / machine, shipped)
    names = accept.accept(shipped, machine, tmp_path / "results", accept.commits_of(ROOT))
    assert len(names) >= 5


# What bounds the history.


@pytest.fixture
def machine(tmp_path):
    """Four commits of real results, a day apart."""
    source = ROOT / RESULTS / GPU
    directory = tmp_path / GPU
    directory.mkdir()
    shutil.copy(source / "machine.json", directory)
    text = records(source)[0].read_text()
    for day in range(4):
        content = json.loads(text) | {"commit_hash": f"{day}" * 40, "date": day}
        (directory / f"{str(day) * 8}-e.json").write_text(json.dumps(content))
    return directory


def test_old_results_keep_their_values_and_the_oldest_go(machine):
    before = {path.name: path.read_bytes() for path in machine.glob("*-*.json")}
    said = thin.thin(machine.parent, statistics=1, kept=3)
    assert len(said) == 3 and thin.thin(machine.parent, statistics=1, kept=3) == []
    after = {path.name: path.read_bytes() for path in machine.glob("*-*.json")}
    assert sorted(after) == [f"{str(day) * 8}-e.json" for day in (1, 2, 3)]
    assert after["33333333-e.json"] == before["33333333-e.json"]
    assert len(after["22222222-e.json"]) < len(before["22222222-e.json"]) / 5


def test_asv_reads_what_is_left(machine):
    from asv.results import Results

    name = "00000000-e.json"
    full = Results.load(str(machine / name), machine_name=GPU)
    thin.thin(machine.parent, statistics=0)
    left = Results.load(str(machine / name), machine_name=GPU)
    metric = "rope.Forward.track_latency"
    params = full.get_result_params(metric)
    expected = full.get_result_value(metric, params)
    assert left.get_result_value(metric, params) == pytest.approx(expected, rel=1e-5)
