"""What shows that the comparison can be trusted still follows from the data that ships with it."""

import json
import time

import numpy as np
import pytest

from benchmarks import __main__ as entry
from benchmarks._cells.grid import all_cells
from benchmarks._compare import bench, caught, evidence, findings, measure, mutants, planted
from benchmarks._compare.findings import subjects_of
from benchmarks._system import checkout
from benchmarks._verdict import rules
from benchmarks._verdict.rules import Subject
from tests.lab import CELLS, LAUNCHES

DOCUMENTS = {
    what: json.loads((evidence.DIRECTORY / f"{what}.json").read_text())
    for what in ("aa", "power", "mutants")
}


@pytest.mark.parametrize("what", DOCUMENTS)
def test_document_says_how_it_was_made_and_by_which_rules_it_was_judged(what):
    document = DOCUMENTS[what]
    assert document["command"].startswith(f"python -m benchmarks evidence {what} --commit ")
    assert document["machine"]["gpu"].startswith("NVIDIA")
    current = {name: vars(each) for name, each in rules.RULES.items()}
    assert document["rules"].keys() >= {"gpu", "host"}
    if what != "mutants":  # which ship no rounds to judge again
        assert document["rules"].items() <= current.items()
    assert document["rounds"] == evidence.ROUNDS
    said = {"aa": "of 20 comparisons of", "power": "2%: detected in", "mutants": "caught: spill"}
    assert said[what] in evidence.summary(what, document)


def test_a_version_differs_from_itself_at_most_once_in_twenty():
    pool = evidence.Pool.from_json(DOCUMENTS["aa"]["pool"])
    again = evidence.aa_comparisons(pool)
    assert again == DOCUMENTS["aa"]["comparisons"]
    assert len(again) >= 20
    assert sum(bool(one["failed"]) for one in again) <= 1
    assert all(len(set(one["blocks"])) == evidence.ROUNDS // 2 for one in again)


def test_the_pool_is_of_all_that_a_comparison_times():
    pool = evidence.Pool.from_json(DOCUMENTS["aa"]["pool"])
    assert pool.as_json() == DOCUMENTS["aa"]["pool"]
    subjects = pool.subjects
    assert set().union(*map(subjects_of, all_cells("small"))) <= set(subjects)
    calls = [each for each in subjects if each.metric.startswith(rules.FAMILIES["host"])]
    assert len(calls) == 17


def test_planted_slowdowns_are_seen():
    pool = evidence.Pool.from_json(DOCUMENTS["power"]["pool"])
    again = [evidence.dose_seen(pool, name, dose) for name, dose in evidence.DOSES.items()]
    assert again == DOCUMENTS["power"]["doses"]
    _, two, five = again
    assert two["seen_above_4_mb"] >= 0.95 * two["timings_above_4_mb"] > 0
    assert five["seen"] >= 0.95 * five["timings"] > 0
    for dose in again:  # as large as was meant, or the power is of something else
        assert dose["planted"] * 0.7 < dose["median_effect"] < dose["planted"] * 1.5


def test_every_mutant_was_caught_by_what_must_catch_it():
    known, found = mutants.load(), {one["name"]: one for one in DOCUMENTS["mutants"]["mutants"]}
    assert list(known) == list(found)
    for name, mutant in known.items():
        assert found[name]["caught"], name
        failed = {one["metric"] for one in found[name]["failed"]}
        assert set(mutant.caught_by) <= failed
        for one in found[name]["failed"]:
            assert mutant.concerns(Subject(one["metric"], tuple(one["params"])))
            assert one["head"] > one["base"]


def test_outcome_of_a_mutant_that_nothing_catches():
    mutant = mutants.load()["python-20us"]
    elsewhere = [{"metric": "rope.Forward.track_latency", "params": [], "change": 1.0}]
    outcome = caught.outcome(mutant, "0" * 40, elsewhere)
    assert not outcome["caught"] and not outcome["failed"]
    assert "SURVIVED: python-20us" in evidence.summary("mutants", {"mutants": [outcome]})


def test_what_the_gpu_answered_is_kept(lab, monkeypatch):
    monkeypatch.setattr(bench, "ROOT", lab.root)
    lab.commit("base")
    gpu = bench.Bench("base", time.monotonic() + 60, lab.scratch)
    versions = {"one": gpu.base, "other": gpu.base}
    job, check = measure.timing_job(CELLS, host=True), measure.check_job([])
    for _ in range(2):
        measured = gpu.rounds("aa", versions, 4, job)
        assert [each.number for each in measured] == [0, 1, 2, 3]
        assert len(evidence.Pool.of(measured, versions).subjects) == 12
        facts = findings.facts_of(gpu.answers("facts", versions, check)["other"])
        assert facts == {LAUNCHES: 1}
        assert lab.gpu.answered == 2 * 4 + 2


class _Clock:
    """Stands for the GPU: every mutant takes a tenth longer wherever it must."""

    class base:
        sha = "1" * 40

    def __init__(self):
        self.asked = []

    def mutant(self, name):
        return name

    def rounds(self, name, versions, count, job):
        self.asked.append((name, list(versions), job))
        return [versions] * count

    @staticmethod
    def pool(measured, names):
        subject = Subject("paths.Forward.track_latency", ("then-read", "4", "bfloat16"))
        noise = np.linspace(0.999, 1.001, len(measured))[:, None]
        return evidence.Pool(
            [subject], {name: noise * (1e-6 if name == "base" else 1.1e-6) for name in names}
        )


def test_one_mutant_is_made_alone(monkeypatch):
    bench = _Clock()
    monkeypatch.setattr(caught.Pool, "of", bench.pool)
    (entry,) = caught.made(bench, ["written-past-l2"])
    assert entry["name"] == "written-past-l2" and entry["commit"] == "1" * 40
    assert entry["caught"] and entry["failed"][0]["change"] == pytest.approx(0.1)
    ((name, versions, job),) = bench.asked
    assert name == "speed-written-past-l2" and versions == ["base", "written-past-l2"]
    assert [cell for cell in job["cells"] if cell[1][0] == "then-read"] and not job["host"]


def test_what_is_made_anew_takes_the_place_of_what_was():
    stored = DOCUMENTS["mutants"]["mutants"]
    anew = {"name": "spill", "commit": "1" * 40}
    merged = caught.in_order([*stored, anew])
    assert [one["name"] for one in merged] == list(mutants.load())
    assert [one for one in merged if one not in stored] == [anew]


@pytest.mark.parametrize("key", ["machine", "rounds", "rules"])
def test_others_are_kept_only_beside_their_like(key, tmp_path):
    path = tmp_path / "mutants.json"
    path.write_text(json.dumps(DOCUMENTS["mutants"]))
    assert caught.kept(path, DOCUMENTS["mutants"]) == DOCUMENTS["mutants"]["mutants"]
    with pytest.raises(caught.EvidenceError, match=f"mutants.json is of another {key}: make all"):
        caught.kept(path, DOCUMENTS["mutants"] | {key: {"gpu": None}})


def test_only_mutants_are_made_one_by_one(capsys):
    assert evidence.run("aa", "HEAD", 1.0, only=["spill"]) == 3
    assert "could not run: --only is for mutants, got aa" in capsys.readouterr().err


def test_unknown_mutants_are_refused(capsys):
    parser = entry._parser()
    assert parser.parse_args(["evidence", "mutants", "--only", "spill"]).only == ["spill"]
    with pytest.raises(SystemExit):
        parser.parse_args(["evidence", "mutants", "--only", "nobody"])
    assert "mutants are lost-vector-access, spill" in capsys.readouterr().err


def test_text_is_json_with_a_line_for_each_row():
    document = {"a": 1, "rows": [{"x": 1}, {"x": 2}], "pool": {"seconds": {"one": [[1.5], [2.5]]}}}
    text = evidence._text(document)
    assert json.loads(text) == document
    assert '  {"x": 2}' in text.splitlines()
    assert "    [2.5]" in text.splitlines()


class _Bench:
    """Stands for the GPU: a call takes a microsecond, and what it waits, at 2 GHz and 0.2 us."""

    subjects = [
        Subject(f"rope.{direction}.track_latency", ("128", "64", "1", "float16", "sbhd"))
        for direction in ("Forward", "Backward")
    ]

    def __init__(self, scratch):
        self.sources, self.asked = scratch, []
        self.base = checkout.from_working_tree(bench.ROOT, scratch)

    def answers(self, name, versions, job):
        self.asked.append((name, {arm: version.digest for arm, version in versions.items()}))
        return {arm: {"timings": self.timings(version)} for arm, version in versions.items()}

    def timings(self, version):
        cycles = json.loads((version.root / "rope_triton" / "cycles.json").read_text())
        return [
            [*subject, [1.2e-6 + cycles.get(planted.key_of(subject), 0) / 2e9]]
            for subject in self.subjects
        ]


def test_the_planted_version_waits_as_told(tmp_path):
    cycles = {"64 2 128 float16 sbhd False": 7}
    package = planted.plant("slow", _Bench(tmp_path), cycles).root / "rope_triton"
    assert json.loads((package / "cycles.json").read_text()) == cycles
    assert "wait_for_cycles(wait)" in (package / "kernel" / "kernels.py").read_text()


def test_waits_are_found_from_what_a_first_version_shows(tmp_path):
    gpu, doses = _Bench(tmp_path), {"slow": 0.05, "slower": 0.1}
    found = planted.versions(gpu, doses, {})
    seconds = {name: gpu.timings(version)[0][-1][0] for name, version in found.items()}
    for name, dose in doses.items():
        assert seconds[name] / seconds["base"] - 1 == pytest.approx(dose, rel=0.02)
    # Where the answers are kept, another run finds the same versions.
    asked, gpu.asked = gpu.asked, []
    assert planted.versions(gpu, doses, {}) == found
    assert gpu.asked == asked and len({name for name, _ in asked}) == 2


def test_what_waits_differs_in_its_cycles_alone(tmp_path):
    found = planted.versions(_Bench(tmp_path), {"slow": 0.05}, {})
    files = {
        name: {path.name: path.read_bytes() for path in (arm.root / "rope_triton").glob("*.*")}
        for name, arm in found.items()
    }
    differ = [name for name in files["base"] if files["base"][name] != files["slow"][name]]
    assert differ == ["cycles.json"] and files["base"].keys() == files["slow"].keys()


def test_without_a_gpu_it_says_so(monkeypatch, tmp_path, capsys):
    def no_gpu(*_):
        raise bench.gpu_monitor.WatchError("NVML failed")

    monkeypatch.setattr(bench.gpu_monitor, "gpu_uuid", no_gpu)
    monkeypatch.setattr(bench.machine, "probe", lambda: ({"machine": "x"}, "none"))
    assert evidence.run("aa", "HEAD", budget=time.monotonic()) == 3
    assert "could not run: NVML failed" in capsys.readouterr().err
