"""Evidence that the comparison can be trusted follows from the data that ships with it."""

import json

import numpy as np
import pytest

from benchmarks._engine.compare import session
from benchmarks._engine.compare.pool import Pool
from benchmarks._engine.compare.rounds import BudgetError
from benchmarks._engine.subject import keys_of
from benchmarks._engine.system import checkout
from benchmarks._engine.verdict import rules
from benchmarks._engine.verdict.rules import Key
from benchmarks._studies.reliability import bench, caught, mutants, reliability_studies, repeats
from benchmarks._studies.reliability.bench import AA_ROUNDS, ROUNDS
from benchmarks._subjects.rope.grid import all_cells
from tests.lab import SHA
from tests.studies import common
from tests.studies.common import answered_by, study

processes = common.processes  # a fixture

SHIPPED = reliability_studies.EVIDENCE
DOCUMENTS = {
    name: json.loads((SHIPPED / f"{name}.json").read_text()) for name in ("aa", "mutants", "power")
}
RUNS, RUN = repeats.RUNS, 4 * AA_ROUNDS  # answers: alone, and of both in one process


@pytest.mark.parametrize("name", DOCUMENTS)
def test_document_says_how_it_was_made_and_by_which_rules_it_was_judged(name):
    document = DOCUMENTS[name]
    assert document["command"].startswith(f"python -m benchmarks study {name} --commit ")
    assert document["machine"]["gpu"].startswith("NVIDIA")
    current = {key: vars(each) for key, each in rules.RULES.items()}
    assert document["rules"].keys() >= {"gpu", "host"}
    if name == "aa":  # some mutants ship no rounds to judge again
        assert document["rules"].items() <= current.items()
    assert document["rounds"] == (AA_ROUNDS if name == "aa" else ROUNDS)


def test_runs_of_a_version_against_itself_are_what_the_pool_says_and_none_failed():
    document = DOCUMENTS["aa"]
    again = repeats.document(Pool.from_json(document["pool"]), document["again"])
    assert {key: again[key] for key in ("how", "pool")} == {
        key: document[key] for key in ("how", "pool")
    }
    for one, stored in zip(again["comparisons"], document["comparisons"], strict=True):
        # The last bits of numpy's logarithm differ between processors.
        assert one == stored | {"floor": pytest.approx(stored["floor"], rel=1e-9)}
    rounds = {len(rows) for rows in document["pool"]["seconds"].values()}
    assert rounds == {len(document["comparisons"]) * AA_ROUNDS}, "no round counts twice"
    assert not any(one["failed"] for one in document["comparisons"])


def test_the_pool_is_of_all_that_a_comparison_times():
    keys = Pool.from_json(DOCUMENTS["aa"]["pool"]).subjects
    assert set().union(*map(keys_of, all_cells("small"))) <= set(keys)
    assert any(key.metric.startswith(bench.SUBJECT.FAMILIES["host"]) for key in keys)


def test_every_mutant_was_caught_by_what_must_catch_it():
    index, found = mutants.load(), {one["name"]: one for one in DOCUMENTS["mutants"]["mutants"]}
    tiles = {name for name in index if name.startswith("tile-")}
    # Another test catches the mutants that need no GPU, each time.
    assert {name for name in index if index[name].needs_gpu} - found.keys() <= tiles
    assert len(tiles & found.keys()) * 3 >= len(tiles), "a third was timed"
    assert list(found) == [name for name in index if name in found]
    for name, outcome in found.items():
        mutant = index[name]
        assert outcome["caught"], name
        assert set(mutant.caught_by) <= {one["metric"] for one in outcome["failed"]}
        for one in outcome["failed"]:
            assert mutant.concerns(Key(one["metric"], tuple(one["params"])))
            assert one["head"] > one["base"]
        if "pool" in outcome:
            again = caught.slower(name, Pool.from_json(outcome["pool"]))
            assert all(one in again for one in outcome["failed"])


def test_outcome_of_a_mutant_that_nothing_catches():
    mutant = mutants.load()["python-20us"]
    elsewhere = [{"metric": "rope.Forward.track_latency", "params": [], "change": 1.0}]
    outcome = caught.outcome(mutant, "0" * 40, elsewhere)
    assert not outcome["caught"] and not outcome["failed"]


# --- made in parts, on a GPU of the test's own ----------------------------------------------------


class Gpu:
    """There is time for ``left`` more processes. A mutant takes a tenth longer wherever it must.

    ``noisy``: of so many processes the times vary by that much again.
    ``version``: what is measured. ``jobs``: of all processes.
    """

    def __init__(self, processes, root):
        self.version = checkout.Version("HEAD", SHA, "digest", root)
        self.output, self.evidence = processes.output, processes.evidence
        self.rounds = processes.directory / "rounds"
        self.left, self.noisy, self.random = 0, 0, np.random.default_rng(0)
        self.jobs = []

    def answer(self, root, job):
        if self.left == 0:
            raise BudgetError("the time is up before round 1")
        self.left -= 1
        self.jobs.append(job)
        mutant = root.name in mutants.load()
        if job["task"] == "check":
            facts = [["host.Error.track_error", ["float32"], 1.0 + mutant]]
            return {"facts": facts, "errors": [], "unavailable": []}
        factor = 1.1 if mutant else 1
        spread = 0.1 if self.noisy > 0 else 0.002
        self.noisy -= 1
        noise = 1e-5 * np.exp(spread * self.random.normal(size=2)) * factor
        if job["task"] == "clock":
            return {"timings": [["host.Call.track_forward", ["sbhd"], [float(noise[1])]]]}
        gpu = ["paths.Forward.track_latency", ["then-read", "4", "bfloat16"], [float(noise[0])]]
        return {"timings": [gpu]}

    @property
    def measured(self) -> set[str]:
        """What there are rounds of."""
        return {path.stem for path in self.rounds.glob("*.jsonl")}


@pytest.fixture
def gpu(processes, monkeypatch, tmp_path):
    """What ``study`` measures on."""
    gpu = Gpu(processes, tmp_path)
    answered_by(monkeypatch, gpu.answer)
    monkeypatch.setattr(checkout, "from_commit", lambda *_: gpu.version)
    monkeypatch.setattr(
        checkout,
        "from_directory",
        lambda name, *_: checkout.Version(name, "", name, tmp_path / name),
    )
    return gpu


def document(gpu, name="aa", directory="output") -> dict:
    return json.loads((getattr(gpu, directory) / f"{name}.json").read_text())


def test_runs_are_made_in_parts_and_no_round_counts_twice(gpu, capsys):
    gpu.left = 3 * RUN + 1
    assert study("aa", "--ship") == 1
    printed = capsys.readouterr()
    assert "of 3 independent comparisons of a version with itself" in printed.out
    assert "no time for run 4 of 10; the same command goes on" in printed.err
    assert not gpu.evidence.exists()
    first, gpu.left = document(gpu), 7 * RUN
    assert study("aa", "--ship") == 0
    assert gpu.measured == {f"aa-{number}" for number in range(1, RUNS + 1)}
    assert {job["task"] for job in gpu.jobs} == {"measure", "clock"}
    whole = document(gpu)
    assert len(whole["comparisons"]) == RUNS and whole["comparisons"][:3] == first["comparisons"]
    for name, rows in whole["pool"]["seconds"].items():
        assert rows[: 3 * AA_ROUNDS] == first["pool"]["seconds"][name]
        assert len(rows) == RUNS * AA_ROUNDS and rows[:AA_ROUNDS] != rows[-AA_ROUNDS:]
    assert document(gpu, directory="evidence") == whole


def test_what_is_inconclusive_of_a_run_is_measured_anew(gpu):
    again = session.EXTENSION_ROUNDS
    gpu.left, gpu.noisy = RUN + 4 * again, RUN
    assert study("aa") == 1
    assert gpu.measured == {"aa-1", "look2-aa-1", "aa-2"} and gpu.left == 0
    (run,), (pool,) = (document(gpu)[key] for key in ("comparisons", "again"))
    assert run["inconclusive_first"] == 2 and not run["inconclusive"] + run["failed"]
    assert (run["first"], run["answer"]) == ("cannot tell", "pass")
    assert len(pool["subjects"]) == 2 and len(pool["seconds"]["one"]) == again


def test_a_run_times_calls_of_every_kind():
    suites = {cell.suite for cell in repeats.timed_cells()}
    assert suites == {"rope", "paths", "surface", "modules", "model_calls"}


def test_one_mutant_is_made_alone(gpu):
    gpu.left = 2 * ROUNDS
    assert study("mutants", "--only", "written-past-l2") == 0
    assert gpu.measured == {"speed-written-past-l2"}
    assert {job["task"] for job in gpu.jobs} == {"measure"}
    assert [cell for cell in gpu.jobs[-1]["cells"] if cell[1][0] == "then-read"]
    (entry,) = document(gpu, "mutants")["mutants"]
    pool = Pool.from_json(entry["pool"])
    assert list(pool.seconds) == ["base", "written-past-l2"]
    assert all(one in caught.slower("written-past-l2", pool) for one in entry["failed"])
    assert entry["name"] == "written-past-l2" and entry["commit"] == SHA
    assert entry["caught"] and entry["failed"][0]["change"] == pytest.approx(0.1, abs=0.01)


def test_what_is_inconclusive_of_a_mutant_is_measured_anew(gpu):
    again = session.EXTENSION_ROUNDS
    gpu.left, gpu.noisy = 2 * ROUNDS + 2 * again, 2 * ROUNDS
    assert study("mutants", "--only", "written-past-l2") == 0
    assert gpu.left == 0 and len(gpu.jobs[-1]["cells"]) == 1
    (entry,) = document(gpu, "mutants")["mutants"]
    assert entry["caught"] and len(entry["pool"]["seconds"]["base"]) == again
    assert entry["failed"] == caught.slower("written-past-l2", Pool.from_json(entry["pool"]))


@pytest.mark.parametrize("name", ["spill", "precision-loss"])
def test_exact_values_of_a_mutant_are_compared_with_those_of_the_base(gpu, monkeypatch, name):
    key = Key("codegen.Codegen.track_spilled_bytes", ("sm_90",))
    monkeypatch.setattr(caught, "exact_values", lambda root, _: {key: 1.0 + (root.name == name)})
    gpu.left = 2
    assert study("mutants", "--only", name) == 0
    (entry,) = document(gpu, "mutants")["mutants"]
    (failed,) = entry["failed"]
    assert entry["caught"] and "pool" not in entry
    assert (failed["base"], failed["head"], failed["change"]) == (1, 2, 1)


TIMED = ("half-the-heads", "written-past-l2")


def test_mutants_are_kept_beside_those_of_other_commits_and_never_of_other_rules(gpu):
    for name in TIMED:
        gpu.left = 2 * ROUNDS
        assert study("mutants", "--only", name, "--ship") == 0
    gpu.version = checkout.Version("HEAD", "2" * 40, "digest", gpu.version.root)
    gpu.left = 2 * ROUNDS
    assert study("mutants", "--only", TIMED[0], "--ship") == 0
    entries = document(gpu, "mutants", "evidence")["mutants"]
    assert [(one["name"], one["commit"]) for one in entries] == [
        (TIMED[0], "2" * 40),
        (TIMED[1], SHA),
    ]
    path = gpu.evidence / "mutants.json"
    other = {"rules": {}, "mutants": [*entries, {"name": "spill", "commit": SHA}]}
    path.write_text(json.dumps(document(gpu, "mutants", "evidence") | other))
    gpu.left = 2 * ROUNDS
    assert study("mutants", "--only", TIMED[1], "--ship") == 0
    assert [one["name"] for one in document(gpu, "mutants", "evidence")["mutants"]] == [*TIMED]


def test_text_is_json_with_a_line_for_each_row():
    value = {"a": 1, "rows": [{"x": 1}, {"x": 2}], "pool": {"seconds": {"one": [[1.5], [2.5]]}}}
    text = bench.json_lines(value)
    assert json.loads(text) == value
    assert '  {"x": 2}' in text.splitlines()
    assert "    [2.5]" in text.splitlines()
