"""Which results of a runner are accepted, and which are refused."""

import copy
import json
import shutil
from pathlib import Path

import pytest

from benchmarks._site import accept, branch
from benchmarks._system import machine
from tests import publishing

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path("benchmarks") / "results"
GPU = "nvidia-h200"
COLUMNS = [
    *("result", "params", "version", "started_at", "duration", "stats_ci_99_a", "stats_ci_99_b"),
    *("stats_q_25", "stats_q_75", "stats_number", "stats_repeat", "samples", "profile"),
]
NONE = [None] * len(COLUMNS)


def result(**changes):
    return {
        **dict(commit_hash="a" * 40, env_name="e", date=1, params={"machine": GPU}, python="3.11"),
        **dict(requirements={}, env_vars={}, result_columns=COLUMNS),
        "results": {"rope.Forward.track_latency": [[1.0, float("nan")], [["1", "'a'"]], "1"]},
        **dict(durations={}, version=2),
    } | changes


def row(values, params, *rest):
    return {"rope.Forward.track_latency": [values, params, "1", *rest]}


@pytest.fixture
def incoming(tmp_path):
    directory = tmp_path / "incoming"
    directory.mkdir()
    (directory / "machine.json").write_text(json.dumps({"machine": GPU, "version": 1}))
    (directory / "aaaaaaaa-e.json").write_text(json.dumps(result()))
    return directory


def taken(incoming, tmp_path):
    return accept.accept(incoming, GPU, tmp_path / "results", {"a" * 40: 1})


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
        json.dumps(result(date=2)),
        json.dumps(result(env_name=1)),
        json.dumps(result(env_name="f")),
        json.dumps(result(python="/opt/venv/bin/python3")),
        json.dumps(result(python="３.１１")),
        json.dumps(result(params={"machine": GPU, "python": "/opt/venv/bin/python3"})),
        json.dumps(result(env_vars={"a": "b"})),
        json.dumps(result(params={"machine": GPU, "other": "x"})),
        json.dumps(result(result_columns=[*COLUMNS[:-1], {}])),
        json.dumps(result(result_columns=[*COLUMNS, "more"])),
        json.dumps(result(results={"../x": [[1.0], [["1"]]]})),
        json.dumps(result(results=row([1.0], [["1", "2"]]))),
        json.dumps(result(results=row(["1"], [["1"]]))),
        json.dumps(result(results=row([True], [["1"]]))),
        json.dumps(result(results=row([-1.0], [["1"]]))),
        json.dumps(result(results=row([float("inf")], [["1"]]))),
        json.dumps(result(results=row([1.0], [[1]]))),
        json.dumps(result(results=row([1.0], [[]]))),
        json.dumps(result(results={"rope.Forward.track_latency": [[1.0], [["1"]]]})),
        json.dumps(result(results=row([1.0], [["1"]], *NONE[:8], ["text"]))),
        json.dumps(result(results=row([1.0], [["1"]], *NONE[:8], [["text"]]))),
        json.dumps(result(results=row([1.0], [["1"]], None, None, [1.0], [2.0, 3.0]))),
        json.dumps(result(results=row([1.0], [["1"]], None, None, [0.0], [5e-324]))),
        json.dumps(result(results=row([1.0], [["1"]], None, None, [10**400], [1.0]))),
        json.dumps(result(results=row([1.0], [["1"]], 10**17))),
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


METRIC, NAN = "host.Call.track_forward", float("nan")
STORED = ([1.0, NAN, 3.0], [["1", "2", "3"]])
AGAIN = {
    "the same": (STORED, "1", None),
    "a value more": (([1.0, 2.0, 3.0], STORED[1]), "1", None),
    "cells more, in another order": (([3.0, 9.0, 1.0], [["3", "4", "1"]]), "1", None),
    "n/a instead": (([NAN, NAN, 3.0], STORED[1]), "1", "values that are stored are others"),
    "another number": (([1.5, NAN, 3.0], STORED[1]), "1", "values that are stored are others"),
    "other parameters": (([1.0, NAN, 3.0], [["1", "2", "9"]]), "1", "are others or gone: rope"),
    "another version": (STORED, "2", "values that are stored are others or gone"),
}


@pytest.mark.parametrize(("row", "version", "message"), AGAIN.values(), ids=AGAIN)
def test_what_is_stored_stays(incoming, tmp_path, row, version, message):
    path = incoming / "aaaaaaaa-e.json"
    rows = {"rope.Forward.track_latency": [*STORED, "1"]}
    path.write_text(json.dumps(result(results=rows)))
    taken(incoming, tmp_path)
    path.write_text(json.dumps(result(results={"rope.Forward.track_latency": [*row, version]})))
    if message is None:
        assert taken(incoming, tmp_path) == ["aaaaaaaa-e.json"]
        return
    with pytest.raises(accept.RefusedError, match=message):
        taken(incoming, tmp_path)


@pytest.mark.parametrize("first", [True, False])
def test_a_second_result_that_is_drawn_with_the_first_is_refused(incoming, tmp_path, first):
    """Whether that is stored or comes with it: asv draws their mean."""
    if first:
        taken(incoming, tmp_path)
    (incoming / "aaaaaaaa-f.json").write_text(json.dumps(result(env_name="f")))
    with pytest.raises(accept.RefusedError, match="aaaaaaaa-.*.json has the same params"):
        taken(incoming, tmp_path)
    other = result(env_name="f", params={"machine": GPU, "torch": "2.13"})
    (incoming / "aaaaaaaa-f.json").write_text(json.dumps(other))
    assert taken(incoming, tmp_path) == ["aaaaaaaa-e.json", "aaaaaaaa-f.json"]


@pytest.mark.parametrize("record", [{"machine": GPU, "x": "y"}, {"machine": "no-gpu-x86_64"}])
def test_another_machine_is_refused(incoming, tmp_path, record):
    (incoming / "machine.json").write_text(json.dumps(record | {"version": 1}))
    with pytest.raises(accept.RefusedError):
        taken(incoming, tmp_path)


# Whatever is wrong with a result, it is refused, or asv publishes it.

WRONG = (
    *(None, True, False, 0, -1, 7, 10**400, 1.5, float("nan"), float("inf"), -float("inf")),
    *(5e-324, 1e300, "", "text", "../x", [], [None], ["x"], [[]], [1.0], {}, {"a": 1}, {"a": {}}),
)


def shipped():
    """A shipped result, of one benchmark, with samples as `asv run --record-samples` writes."""
    (path,) = (ROOT / RESULTS / GPU).glob("e19dfdbe-*.json")
    content = json.loads(path.read_text())
    values = content["results"][METRIC]
    samples = [[value, value] for value in values[0]]
    return path.name, content | {"results": {METRIC: [*values, *NONE[len(values) : -2], samples]}}


def places(value, path=()):
    """The way to everything in it, of a list to its ends."""
    yield path
    items = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        items = {i: value[i] for i in (0, len(value) - 1) if value}.items()
    for key, inner in items:
        yield from places(inner, (*path, key))


def mutants(content):
    """It with each place replaced, removed or doubled."""
    for path in places(content):
        if not path:
            yield from WRONG
            continue
        for wrong in (*WRONG, "remove", "double"):
            mutant = copy.deepcopy(content)
            inner = mutant
            for key in path[:-1]:
                inner = inner[key]
            if wrong == "remove":
                del inner[path[-1]]
            elif wrong != "double":
                inner[path[-1]] = copy.deepcopy(wrong)
            elif isinstance(inner, list):
                inner.append(inner[path[-1]])
            else:
                inner[f"{path[-1]}x"] = inner[path[-1]]
            yield mutant


@pytest.fixture(scope="module")
def accepted(tmp_path_factory):
    """Directories of a machine's results, of what was accepted of all mutants, and their number."""
    tmp_path = tmp_path_factory.mktemp("mutants")
    name, content = shipped()
    machine = json.loads((ROOT / RESULTS / GPU / "machine.json").read_text())
    commits = {content["commit_hash"]: content["date"]}
    sent = [(content, machine)]
    sent += [(mutant, machine) for mutant in mutants(content)]
    sent += [(content, mutant) for mutant in mutants(machine)]
    (tmp_path / "incoming").mkdir()
    taken = []
    for number, texts in enumerate(sent):
        for file, text in zip((name, "machine.json"), texts, strict=True):
            (tmp_path / "incoming" / file).write_text(json.dumps(text))
        try:
            accept.accept(tmp_path / "incoming", GPU, tmp_path / str(number), commits)
        except accept.RefusedError:
            continue
        taken.append(tmp_path / str(number) / GPU)
    assert taken[0] == tmp_path / "0" / GPU, "the result as it was measured"
    return taken, len(sent)


def described(results):
    """benchmarks.json with the one benchmark, as it was when the result was measured."""
    benchmarks = json.loads((results / "benchmarks.json").read_text())
    _, content = shipped()
    _, params, version = content["results"][METRIC][:3]
    return {METRIC: benchmarks[METRIC] | {"params": params, "version": version}, "version": 2}


def test_asv_publishes_all_that_was_accepted(accepted, tmp_path):
    taken, count = accepted
    assert 10 < len(taken) < count / 4
    clone = publishing.cloned(tmp_path / "clone")
    for folder in (clone / RESULTS).glob("*/"):
        shutil.rmtree(folder)
    (clone / RESULTS / "benchmarks.json").write_text(json.dumps(described(clone / RESULTS)))
    for number, directory in enumerate(taken):
        shutil.copytree(directory, clone / RESULTS / str(number) / GPU)
        (path,) = directory.glob("*-*.json")
        branch.slim(json.loads(path.read_text()))
    site = publishing.published(clone)
    index = json.loads((site / "index.json").read_text())
    assert list(index["machines"]) == [GPU] and len(index["graph_param_list"]) > 1
    assert len(list(site.rglob(f"graphs/**/{METRIC}.json"))) > 1


def test_the_names_that_are_known_are_those_of_what_measures():
    from asv.config import Config

    environment = Config.load(str(ROOT / "asv.conf.json")).matrix["req"]
    assert {*machine.machine_record(), *environment, "python"} == accept._PARAMS
