"""What the suite relies on in asv without asv documenting it, and this repository's settings."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.git import git

ROOT = Path(__file__).resolve().parent.parent

SUITE = """
class Track:
    params = [["good", "absent", "broken"]]
    param_names = ["kind"]
    version = "1"

    def setup(self, kind):
        if kind == "absent":
            raise NotImplementedError("not on this machine")
        if kind == "broken" and BROKEN:
            raise RuntimeError("wrong output")

    def track_latency(self, kind):
        import package
        return {"samples": [package.VALUE, 3.0, 2.0, 9.0, 5.0], "number": 1}

    def track_gbps(self, kind):
        import package
        return package.VALUE
"""


def asv(*arguments, cwd, **variables):
    """Run asv as a user does, its machine file in the scratch directory."""
    environment = os.environ | {"HOME": str(cwd)} | variables
    return subprocess.run(
        [sys.executable, "-m", "asv", *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
    )


class Scratch:
    """A repository with a toy suite and a package, whose commits asv measures."""

    def __init__(self, root: Path):
        self.root = root
        (root / "benchmarks").mkdir()
        (root / "benchmarks" / "__init__.py").touch()
        (root / "package.py").write_text("VALUE = 1e9  # of the repository: not to be measured\n")
        settings = {
            "version": 1,
            "project": "toy",
            "repo": ".",
            "branches": ["main"],
            "benchmark_dir": "benchmarks",
            "results_dir": "results",
            "html_dir": "html",
            "environment_type": "virtualenv",
            "launch_method": "forkserver",
            "regressions_first_commits": {".*gbps.*": None},
        }
        (root / "asv.conf.json").write_text(json.dumps(settings))
        record = {"machine": "toy", "os": "o", "arch": "a", "cpu": "c", "num_cpu": "1", "ram": "r"}
        machines = {"toy": record | {"gpu": "NVIDIA H200"}, "version": 1}
        (root / ".asv-machine.json").write_text(json.dumps(machines))
        self.git("init", "-q", "-b", "main")
        self.suite(broken=False)

    def git(self, *arguments):
        return git(self.root, *arguments)

    def suite(self, broken):
        (self.root / "benchmarks" / "toy.py").write_text(f"BROKEN = {broken}\n{SUITE}")

    def measure(self, value):
        """Commit, and measure a package of this value from a directory of its own."""
        installed = self.root / f"installed-{value}"
        installed.mkdir(exist_ok=True)
        (installed / "package.py").write_text(f"VALUE = {value}\n")
        self.git("add", "benchmarks")
        commit = self.commit()
        options = ("-E", f"existing:{sys.executable}", "--machine", "toy")
        done = asv(
            *("run", "-e", *options, "--set-commit-hash", commit),
            cwd=self.root,
            ASV_PYTHONPATH=str(installed),
        )
        return done, json.loads(self.file_of(commit).read_text())

    def commit(self):
        self.git("commit", "-q", "--allow-empty", "-m", "a version")
        return self.git("rev-parse", "HEAD")

    def file_of(self, commit):
        (path,) = (self.root / "results" / "toy").glob(f"{commit[:8]}-*.json")
        return path

    def store(self, result, times):
        """Commit, with the result of an earlier commit."""
        path, old = self.file_of(result["commit_hash"]), result["commit_hash"]
        for _ in range(times):
            commit = self.commit()
            text = json.dumps(result | {"commit_hash": commit})
            path.with_name(path.name.replace(old[:8], commit[:8])).write_text(text)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A repository in which two values were measured, the second where a cell fails; the runs."""
    scratch = Scratch(tmp_path_factory.mktemp("measured"))
    first = scratch.measure(4.0)
    scratch.store(first[1], times=5)
    scratch.suite(broken=True)
    return scratch, first, scratch.measure(400.0)


def entry(result, name):
    return dict(zip(result["result_columns"], result["results"][name], strict=False))


def test_tracks_may_return_samples_and_get_statistics(measured):
    _, (_, result), _ = measured
    latency = entry(result, "toy.Track.track_latency")
    assert latency["result"][0] == 4.0  # the median; and the package is the one on the path
    assert latency["stats_q_25"][0] == 3.0 and latency["stats_q_75"][0] == 5.0
    assert latency["stats_repeat"][0] == 5


def test_not_implemented_in_setup_is_not_a_failure(measured):
    _, (done, result), _ = measured
    assert done.returncode == 0
    absent = entry(result, "toy.Track.track_latency")["result"][1]
    assert absent != absent  # NaN: n/a
    assert "not on this machine" in done.stdout  # shown by asv run -e


def test_an_error_in_setup_is_a_failure_of_its_cell_alone(measured):
    _, _, (done, result) = measured
    assert done.returncode == 2
    values = entry(result, "toy.Track.track_gbps")["result"]
    assert values[0] == 400.0 and values[2] is None
    assert "wrong output" in done.stdout


def test_unknown_fields_of_the_machine_reach_the_results(measured):
    _, (_, result), _ = measured
    assert result["params"]["gpu"] == "NVIDIA H200"


def test_a_gain_in_bandwidth_is_never_published_as_a_regression(measured):
    scratch, _, (_, many) = measured
    scratch.store(many, times=5)
    assert asv("publish", cwd=scratch.root).returncode == 0
    regressions = json.loads((scratch.root / "html" / "regressions.json").read_text())
    names = {row[0] for row in regressions["regressions"]}
    assert any("track_latency" in name for name in names)
    assert not any("track_gbps" in name for name in names)


def test_the_settings_of_this_repository_load_and_agree_with_the_pins():
    from asv.config import Config

    conf = Config.load(str(ROOT / "asv.conf.json"))
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split()[0].split("==") for line in lines if "==" in line)
    assert conf.matrix["req"]["torch"] == [pins["torch"]]
    assert conf.matrix["req"]["triton"] == [pins["triton"]]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bench = project["optional-dependencies"]["bench"]
    assert f"asv=={pins['asv']}" in bench and f"asv_runner=={pins['asv_runner']}" in bench


def test_asv_check_accepts_the_suite(tmp_path):
    done = asv(
        *("check", "-E", f"existing:{sys.executable}", "--config", str(ROOT / "asv.conf.json")),
        cwd=ROOT,
        HOME=str(tmp_path),
        ASV_PYTHONPATH=str(ROOT),
    )
    assert done.returncode == 0, done.stdout + done.stderr
