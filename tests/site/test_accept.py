"""Which results of a runner are accepted, and which are refused."""

import json
import shutil
from pathlib import Path

import pytest

from benchmarks._site import accept

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
GPU, METRIC, NAN = "nvidia-h200", "rope.Forward.track_latency", float("nan")
STORED = [[1.0, NAN, 3.0], [["1", "2", "3"]], "1"]


def result(row=STORED, **changes):
    return {
        **dict(commit_hash="a" * 40, env_name="e", date=1, params={"machine": GPU}),
        **dict(result_columns=["result", "params", "version"], results={METRIC: row}),
    } | changes


@pytest.fixture
def incoming(tmp_path):
    directory = tmp_path / "incoming"
    directory.mkdir()
    (directory / "machine.json").write_text(json.dumps({"machine": GPU, "version": 1}))
    (directory / "aaaaaaaa-e.json").write_text(json.dumps(result()))
    return directory


def accepted(incoming):
    return accept.accept(incoming, GPU, incoming.parent / "results", {"a" * 40})


def test_a_good_result_is_stored_as_it_came(incoming, tmp_path):
    assert accepted(incoming) == ["aaaaaaaa-e.json"]
    stored = (tmp_path / "results" / GPU / "aaaaaaaa-e.json").read_text()
    assert repr(json.loads(stored)) == repr(result())


@pytest.mark.parametrize("machine", [GPU, "no-gpu-x86_64"])
def test_what_the_machines_have_measured_so_far_is_accepted(tmp_path, machine):
    shutil.copytree(RESULTS / machine, tmp_path / machine)
    names = accept.accept(
        tmp_path / machine, machine, tmp_path / "results", accept.commits_of(ROOT)
    )
    assert len(names) >= 5


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("aaaaaaaa-e.json", text) for text in ("", "[]", "{}")),
        ("aaaaaaaa-e.json", result(commit_hash="b" * 40)),
        ("aaaaaaaa-e.json", result(env_name="f")),
        ("aaaaaaaa-e.json", result(params={"machine": "nvidia-b200"})),
        ("aaaaaaaa-e.json", result(results=[])),
        ("aaaaaaaa-e.json", result(row=[["text"], [["1"]], "1"])),
        ("bbbbbbbb-e.json", result()),
        *((name, result()) for name in ("benchmarks.json", "aaaaaaaa-e.json.sh", ".git")),
        ("machine.json", {"machine": "no-gpu-x86_64"}),
    ],
)
def test_a_bad_file_is_refused_and_nothing_written(incoming, tmp_path, name, content):
    (incoming / name).write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(accept.RefusedError):
        accepted(incoming)
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("row", "is_lost"),
    [
        (STORED, False),
        ([[1.0, 2.0, 3.0], *STORED[1:]], False),
        ([[3.0, 9.0, 1.0], [["3", "4", "1"]], "1"], False),
        ([[NAN, NAN, 3.0], *STORED[1:]], True),
        ([[1.5, NAN, 3.0], *STORED[1:]], True),
        ([[1.0, NAN, 3.0], [["1", "2", "9"]], "1"], True),
        ([*STORED[:2], "2"], True),
    ],
    ids=["same", "more", "reordered", "n/a", "changed", "other parameters", "other version"],
)
def test_no_stored_value_is_lost(incoming, row, is_lost):
    accepted(incoming)
    (incoming / "aaaaaaaa-e.json").write_text(json.dumps(result(row=row)))
    if not is_lost:
        assert accepted(incoming) == ["aaaaaaaa-e.json"]
        return
    with pytest.raises(accept.RefusedError, match=f"stored are others or gone: {METRIC}"):
        accepted(incoming)
