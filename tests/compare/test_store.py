"""A comparison's values in asv's results: the real asv reads them, and nothing else changes."""

import itertools
import json
import os
import platform
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks._compare import store as module
from benchmarks._compare.store import StoreError, store

ROOT = Path(__file__).resolve().parents[2]
LATENCY, REGISTERS, PLAIN = "toy.Toy.track_latency", "toy.Toy.track_registers", "toy.track_plain"
MACHINE = {
    **{"machine": "toy-gpu", "os": "Linux", "arch": "x86_64", "cpu": "c", "num_cpu": "1"},
    **{"ram": "", "torch": "2.11.0+cu130", "triton": "3.6.0", "driver": "580.1", "gpu": "Toy"},
}
PYTHON = ".".join(platform.python_version_tuple()[:2])
ENVIRONMENT = f"compare-py{PYTHON}-torch2.11.0+cu130-triton3.6.0-driver580.1"
SEQ_LENS, DTYPES = ["128", "2048", "8192"], ["'float32'", "'float16'"]


def benchmark(name, unit, params=(SEQ_LENS, DTYPES), version="3"):
    return {
        **{"name": name, "unit": unit, "version": version, "type": "track", "code": "..."},
        **{"params": list(params), "param_names": ["seq_len", "dtype"][: len(params)]},
        **{"timeout": 60, "setup_cache_key": None},
    }


class Scratch:
    """A repository of two commits, with asv's settings and an empty results directory."""

    def __init__(self, root: Path):
        self.root, self.results = root, root / "results"
        settings = {
            **{"version": 1, "project": "toy", "repo": ".", "branches": ["main"]},
            **{"benchmark_dir": "benchmarks", "results_dir": "results", "html_dir": "html"},
        }
        (root / "asv.conf.json").write_text(json.dumps(settings))
        self.results.mkdir()
        self.discovered(
            benchmark(LATENCY, "seconds"), benchmark(REGISTERS, "n"), benchmark(PLAIN, "n", ())
        )
        self.git("init", "-q", "-b", "main")
        self.commits = [self.commit(name) for name in ("base", "head")]

    def discovered(self, *entries):
        data = {entry["name"]: entry for entry in entries} | {"version": 2}
        (self.results / "benchmarks.json").write_text(json.dumps(data))

    def git(self, *arguments, **variables):
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        return subprocess.run(
            ["git", *identity, "-C", str(self.root), *arguments],
            check=True,
            capture_output=True,
            text=True,
            env=os.environ | variables,
        ).stdout.strip()

    def commit(self, message):
        date = {"GIT_AUTHOR_DATE": "1700000000 +0000", "GIT_COMMITTER_DATE": "1800000000 +0000"}
        self.git("commit", "-q", "--allow-empty", "-m", message, **date)
        return self.git("rev-parse", "HEAD")

    def store(self, samples=None, exact=None, commit=None, machine=MACHINE):
        commit = commit or self.commits[0]
        return store(self.results, self.root, machine, commit, samples or {}, exact)

    def asv(self, *arguments):
        done = subprocess.run(
            [sys.executable, "-m", "asv", *arguments],
            cwd=self.root,
            env=os.environ | {"HOME": str(self.root)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def scratch(tmp_path):
    return Scratch(tmp_path)


def row(path, name):
    """Parameters -> value and samples, and the columns, of a stored benchmark."""
    data = json.loads(path.read_text())
    columns = dict(zip(data["result_columns"], data["results"][name], strict=False))
    keys = list(itertools.product(*columns["params"]))
    samples = columns.get("samples") or [None] * len(keys)
    values = zip(columns["result"], samples, strict=True)
    return dict(zip(keys, values, strict=True)), columns


def cell(seq_len="128", dtype="float32", metric=LATENCY):
    return (metric, (seq_len, dtype))


def files(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


SLOW = [1.10e-5, 1.12e-5, 1.11e-5, 1.13e-5, 1.10e-5, 1.12e-5]
FAST = [1.00e-5, 1.02e-5, 1.01e-5, 1.03e-5, 1.00e-5, 1.02e-5]


def test_asv_compares_and_publishes_what_was_stored(scratch):
    base, head = scratch.commits
    grid = list(itertools.product(("128", "2048"), ("float32", "float16")))
    for commit, values in ((base, FAST), (head, SLOW)):
        samples = {(LATENCY, params): values for params in grid[:-1]}
        exact = {cell(metric=REGISTERS): 40 if commit == base else 48, (PLAIN, ()): 7}
        scratch.store(samples, exact, commit)

    table = scratch.asv("compare", base, head)
    (line,) = (line for line in table.splitlines() if "track_latency(128, 'float32')" in line)
    assert "10.2" in line and "11.2" in line and "1.10" in line
    (line,) = (line for line in table.splitlines() if "track_latency(2048, 'float16')" in line)
    assert "n/a" in line and "failed" not in table
    (line,) = (line for line in table.splitlines() if "track_registers(128, 'float32')" in line)
    assert "40" in line and "48" in line

    scratch.asv("publish")
    index = json.loads((scratch.root / "html" / "index.json").read_text())
    (line,) = index["graph_param_list"]
    assert line["sampling"] == "compare" and line["machine"] == "toy-gpu"
    (graph,) = (scratch.root / "html" / "graphs").rglob(f"branch-main/**/{LATENCY}.json")
    points = json.loads(graph.read_text())
    assert len(points) == 2
    position = list(itertools.product(SEQ_LENS, DTYPES)).index(("128", "'float32'"))
    assert [point[1][position] for point in points] == [
        pytest.approx(statistics.median(values)) for values in (FAST, SLOW)
    ]


def test_the_file_says_what_asv_needs_to_know(scratch):
    path = scratch.store({cell(): FAST}, {cell(metric=REGISTERS): 40})
    base = scratch.commits[0]
    assert path == scratch.results / "toy-gpu" / f"{base[:8]}-{ENVIRONMENT}.json"
    data = json.loads(path.read_text())
    assert data["commit_hash"] == base and data["env_name"] == ENVIRONMENT
    assert data["date"] == 1_700_000_000_000  # the author's, as asv run stores it
    assert data["params"] == MACHINE | {"python": PYTHON, "sampling": "compare"}
    values, columns = row(path, LATENCY)
    assert values == {("128", "'float32'"): (statistics.median(FAST), FAST)}
    assert columns["version"] == "3" and columns["stats_repeat"] == [6]
    assert columns["stats_number"] == [1] and columns["stats_ci_99_a"][0] < FAST[1]
    exact, columns = row(path, REGISTERS)
    assert exact == {("128", "'float32'"): (40, None)}
    machine = json.loads((path.parent / "machine.json").read_text())
    assert machine == MACHINE | {"version": 1}


def test_later_values_join_the_earlier_ones_and_replace_their_own(scratch):
    scratch.store({cell("2048"): FAST, cell("128"): FAST}, {cell("128", metric=REGISTERS): 40})
    path = scratch.store({cell("128", "float16"): SLOW, cell("128"): SLOW}, {(PLAIN, ()): 7})
    values, columns = row(path, LATENCY)
    assert columns["params"] == [["128", "2048"], DTYPES]  # in the order of benchmarks.json
    assert values["128", "'float32'"][1] == values["128", "'float16'"][1] == SLOW
    assert values["2048", "'float32'"] == (statistics.median(FAST), FAST)
    missing, samples = values["2048", "'float16'"]
    assert missing != missing and samples is None  # NaN, n/a: None would be a failure
    assert columns["stats_repeat"] == [6, 6, 6, None]
    assert row(path, REGISTERS)[0]["128", "'float32'"] == (40, None)
    assert row(path, PLAIN)[0] == {(): (7, None)}


def test_values_of_another_version_of_the_benchmark_go(scratch):
    scratch.store({cell("128"): FAST})
    scratch.discovered(benchmark(LATENCY, "seconds", version="4"))
    path = scratch.store({cell("2048"): SLOW})
    values, columns = row(path, LATENCY)
    assert set(values) == {("2048", "'float32'")} and columns["version"] == "4"


def test_values_that_benchmarks_json_no_longer_lists_stay(scratch):
    scratch.store({cell("8192"): FAST})
    scratch.discovered(benchmark(LATENCY, "seconds", (SEQ_LENS[:2], DTYPES)))
    values, _ = row(scratch.store({cell("128"): SLOW}), LATENCY)
    assert {key: samples for key, (_, samples) in values.items()} == {
        ("128", "'float32'"): SLOW,
        ("8192", "'float32'"): FAST,
    }


def test_the_results_of_asv_run_are_not_touched(scratch):
    own = scratch.results / "toy-gpu"
    own.mkdir()
    (own / "machine.json").write_text('{"machine": "toy-gpu", "version": 1}')
    (own / f"{scratch.commits[0][:8]}-existing-py.json").write_text("{}")
    before = files(scratch.results)
    path = scratch.store({cell(): FAST})
    assert {key: data for key, data in files(scratch.results).items() if key != path} == before


def test_another_driver_has_a_file_of_its_own(scratch):
    first = scratch.store({cell(): FAST})
    other = scratch.store({cell(): SLOW}, machine=MACHINE | {"driver": "590.0"})
    assert first != other and row(first, LATENCY)[0]["128", "'float32'"][1] == FAST


def test_the_suite_of_this_repository_is_known(scratch):
    known = (ROOT / "benchmarks" / "results" / "benchmarks.json").read_text()
    (scratch.results / "benchmarks.json").write_text(known)
    subject = ("rope.Forward.track_latency", ("128", "64", "1", "float32", "sbhd"))
    path = scratch.store({subject: FAST})
    key = ("128", "64", "1", "'float32'", "'sbhd'")
    assert row(path, subject[0])[0] == {key: (statistics.median(FAST), FAST)}


@pytest.mark.parametrize(
    ("samples", "options", "message"),
    [
        ({("toy.other", ()): FAST}, {}, "knows no toy.other.*just-discover"),
        ({cell("129"): FAST}, {}, "no seq_len '129'.*128, 2048, 8192"),
        ({(LATENCY, ("128",)): FAST}, {}, r"takes \(seq_len, dtype\)"),
        ({cell(): []}, {}, "finite numbers"),
        ({cell(): [1.0, float("nan")]}, {}, "finite numbers"),
        ({cell(): [1.0, None]}, {}, "finite numbers"),
        ({cell(): FAST}, {"exact": {cell(): 1.0}}, "samples and an exact value"),
        ({}, {"commit": "0" * 40}, "has no commit"),
        ({}, {"commit": "HEAD"}, "full hash, got 'HEAD'"),
        ({}, {"machine": {k: v for k, v in MACHINE.items() if k != "triton"}}, "lacks triton"),
        ({}, {"machine": MACHINE | {"machine": "../x"}}, "must be a directory's"),
    ],
)
def test_bad_values_are_refused_and_nothing_is_written(scratch, samples, options, message):
    scratch.store({cell("2048"): FAST})
    before = files(scratch.results)
    with pytest.raises(StoreError, match=message):
        scratch.store({cell("2048"): SLOW} | samples, **options)
    assert files(scratch.results) == before


@pytest.mark.parametrize("text", [None, "", "[]", '{"version": 1}'])
def test_without_a_list_of_benchmarks_it_says_how_to_get_one(scratch, text):
    path = scratch.results / "benchmarks.json"
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(StoreError, match="just-discover"):
        scratch.store({cell(): FAST})


def edited(**changes):
    """A change of a results file: new values of its keys, None for keys that go."""

    def edit(data: bytes) -> bytes:
        content = json.loads(data) | changes
        return json.dumps({k: v for k, v in content.items() if v is not None}).encode()

    return edit


def another_commit(data: bytes) -> bytes:
    return edited(commit_hash=json.loads(data)["commit_hash"][:8] + "0" * 32)(data)


def cut_row(data: bytes) -> bytes:
    results = json.loads(data)["results"]
    results[LATENCY][0] = [1.0, 2.0]
    return edited(results=results)(data)


DAMAGES = [another_commit, cut_row, edited(results=None), edited(results={LATENCY: 3})]
DAMAGES += [edited(params=[]), edited(version=99)]


@pytest.mark.parametrize("change", [*DAMAGES, b"", b"{", b"[]", b"null", b"{}", b"\xff"])
def test_a_damaged_or_foreign_file_is_left_alone(scratch, change):
    path = scratch.store({cell(): FAST})
    path.write_bytes(change if isinstance(change, bytes) else change(path.read_bytes()))
    before = files(scratch.results)
    with pytest.raises(StoreError, match=f"{re.escape(path.name)}.*left alone"):
        scratch.store({cell(): SLOW})
    assert files(scratch.results) == before


def test_a_kill_while_storing_leaves_the_old_file(scratch, monkeypatch):
    path = scratch.store({cell(): FAST})
    before = files(scratch.results)

    def killed(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(module.os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        scratch.store({cell(): SLOW})
    assert files(scratch.results) == before and path in before
