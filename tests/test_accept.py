"""What a runner may send: what is taken of it, and what is refused."""

import json
import shutil
from pathlib import Path

import pytest

from benchmarks._site import accept

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path("benchmarks") / "results"
GPU = "nvidia-h200"


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


def test_less_than_is_stored_is_refused(incoming, tmp_path):
    taken(incoming, tmp_path)
    path = incoming / "aaaaaaaa-e.json"
    path.write_text(json.dumps(result(results=row([1.0, None], [["1", "'a'"]], "1"))))
    with pytest.raises(accept.RefusedError, match=r"fewer values .* rope\.Forward\.track_latency"):
        taken(incoming, tmp_path)
    path.write_text(json.dumps(result(date=2)))
    assert taken(incoming, tmp_path) == ["aaaaaaaa-e.json"]
