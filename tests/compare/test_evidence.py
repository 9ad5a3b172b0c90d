"""What shows that the comparison can be trusted still follows from the data that ships with it."""

import json
import time
import types

import numpy as np
import pytest

from benchmarks import __main__ as entry
from benchmarks._compare import bench, caught, evidence, findings, measure, mutants, rounds
from benchmarks._compare.findings import subjects_of
from benchmarks._subjects.rope.grid import all_cells
from benchmarks._system.errors import CouldNotRunError
from benchmarks._verdict import rules
from benchmarks._verdict.rules import Key
from tests.lab import CELLS, HOST, LAUNCHES

DOCUMENTS = {
    what: json.loads((evidence.DIRECTORY / f"{what}.json").read_text())
    for what in ("aa", "mutants")
}


@pytest.mark.parametrize("what", DOCUMENTS)
def test_document_says_how_it_was_made_and_by_which_rules_it_was_judged(what):
    document = DOCUMENTS[what]
    assert document["command"].startswith(f"python -m benchmarks evidence {what} --commit ")
    assert document["machine"]["gpu"].startswith("NVIDIA")
    current = {name: vars(each) for name, each in rules.RULES.items()}
    assert document["rules"].keys() >= {"gpu", "host"}
    if what != "mutants":  # 7 of the 19 ship no rounds to judge again
        assert document["rules"].items() <= current.items()
    assert document["rounds"] == {"aa": evidence.AA_ROUNDS}.get(what, evidence.ROUNDS)
    said = {"aa": "independent comparisons of a version", "mutants": "caught: spill"}
    assert said[what] in evidence.summary(what, document)


def test_runs_of_a_version_against_itself_are_what_the_pool_says_and_none_failed():
    document = DOCUMENTS["aa"]
    pool = evidence.Pool.from_json(document["pool"])
    again = evidence.aa_document(pool)
    assert {key: again[key] for key in ("how", "pool")} == {
        key: document[key] for key in ("how", "pool")
    }
    for one, stored in zip(again["comparisons"], document["comparisons"], strict=True):
        # The last bits of numpy's logarithm differ between processors.
        assert one == stored | {"floor": pytest.approx(stored["floor"], rel=1e-9)}
    rounds = {len(rows) for rows in document["pool"]["seconds"].values()}
    assert rounds == {len(document["comparisons"]) * evidence.AA_ROUNDS}, "no round counts twice"
    assert not any(one["failed"] for one in document["comparisons"])


def test_the_pool_is_of_all_that_a_comparison_times():
    pool = evidence.Pool.from_json(DOCUMENTS["aa"]["pool"])
    assert pool.as_json() == DOCUMENTS["aa"]["pool"]
    subjects = pool.subjects
    assert set().union(*map(subjects_of, all_cells("small"))) <= set(subjects)
    calls = [each for each in subjects if each.metric.startswith(rules.FAMILIES["host"])]
    assert len(calls) == 17


def test_every_mutant_was_caught_by_what_must_catch_it():
    known, found = mutants.load(), {one["name"]: one for one in DOCUMENTS["mutants"]["mutants"]}
    shown_by_form = {name for name in known if name.startswith("tile-")}
    assert known.keys() - found.keys() <= shown_by_form
    assert len(shown_by_form & found.keys()) * 3 >= len(shown_by_form), "a third was timed"
    assert list(found) == [name for name in known if name in found]
    for name in found:
        mutant = known[name]
        assert found[name]["caught"], name
        failed = {one["metric"] for one in found[name]["failed"]}
        assert set(mutant.caught_by) <= failed
        for one in found[name]["failed"]:
            assert mutant.concerns(Key(one["metric"], tuple(one["params"])))
            assert one["head"] > one["base"]
        if "pool" in found[name]:  # of those that were made before pools were kept there is none
            again = caught.slower(name, evidence.Pool.from_json(found[name]["pool"]))
            assert all(one in again for one in found[name]["failed"])


def test_outcome_of_a_mutant_that_nothing_catches():
    mutant = mutants.load()["python-20us"]
    elsewhere = [{"metric": "rope.Forward.track_latency", "params": [], "change": 1.0}]
    outcome = caught.outcome(mutant, "0" * 40, elsewhere)
    assert not outcome["caught"] and not outcome["failed"]
    assert "SURVIVED: python-20us" in evidence.summary("mutants", {"mutants": [outcome]})


def test_what_the_gpu_answered_is_kept(lab, monkeypatch):
    monkeypatch.setattr(bench, "ROOT", lab.root)
    compiled = []

    def compiled_surface(root, target, cells, ledger, enumerations):
        compiled.append((root, target, cells, ledger.cache.parent, lab.gpu.begun))

    monkeypatch.setattr(bench.exact, "compiled_surface", compiled_surface)
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
    cache = lab.scratch / "cache"
    assert compiled == [(gpu.base.root, "sm_90", CELLS, cache, 0)], "once, before the first round"


# --- a version against itself, in parts -----------------------------------------------------------


class _SameVersions:
    """Stands for the GPU; there is time for ``runs`` more runs."""

    machine = {"gpu": "NVIDIA Toy"}
    base = types.SimpleNamespace(sha="1" * 40)

    def __init__(self):
        self.runs, self.asked, self.random = 0, [], np.random.default_rng(0)

    def rounds(self, name, versions, count, job):
        assert list(versions) == ["one", "other"] and job["host"]
        if self.runs == 0:
            raise rounds.BudgetError("the time is up before round 1")
        self.runs -= 1
        self.asked.append(name)
        return [
            rounds.Round(name, number, {arm: self.answer() for arm in versions}, {}, count)
            for number in range(count)
        ]

    def answer(self):
        subjects = [*map(subjects_of, CELLS), {Key(metric, ("sbhd",)) for metric in HOST}]
        return {
            "timings": [
                [*subject, [float(1e-5 * np.exp(0.001 * self.random.normal()))]]
                for subject in sorted(set().union(*subjects))
            ]
        }


@pytest.fixture
def same(monkeypatch, tmp_path):
    gpu = _SameVersions()
    monkeypatch.setattr(evidence, "Bench", lambda commit, deadline: gpu)
    monkeypatch.setattr(evidence, "DIRECTORY", tmp_path)
    return gpu


def made(directory, what="aa") -> dict:
    return json.loads((directory / f"{what}.json").read_text())


def test_runs_are_made_in_parts_and_no_round_counts_twice(same, tmp_path, capsys):
    same.runs = 3
    assert evidence.run("aa", "HEAD", 1.0) == 0
    assert "of 3 independent comparisons" in (said := capsys.readouterr().out)
    assert "the same command makes the other 7" in said
    first = made(tmp_path)
    same.runs = 20
    assert evidence.run("aa", "HEAD", 1.0) == 0
    assert "the same command" not in capsys.readouterr().out
    assert same.asked == [f"aa-{number}" for number in range(1, 11)]
    whole = made(tmp_path)
    assert len(whole["comparisons"]) == 10 and whole["comparisons"][:3] == first["comparisons"]
    for arm, rows in whole["pool"]["seconds"].items():
        assert len(rows) == 10 * evidence.AA_ROUNDS
        assert rows[:30] == first["pool"]["seconds"][arm]
        assert len({tuple(row) for row in rows}) == len(rows)
    assert evidence.run("aa", "HEAD", 1.0) == 0
    assert len(same.asked) == 10 and made(tmp_path) == whole


def test_runs_are_kept_if_a_later_one_ends_in_an_error(same, tmp_path, monkeypatch):
    same.runs = 3
    rounds = same.rounds

    def failing(name, *given):
        if name == "aa-3":
            raise KeyboardInterrupt
        return rounds(name, *given)

    monkeypatch.setattr(same, "rounds", failing)
    with pytest.raises(KeyboardInterrupt):
        evidence.run("aa", "HEAD", 1.0)
    assert len(made(tmp_path)["comparisons"]) == 2


def test_runs_of_another_commit_are_not_mixed_in(same, tmp_path, capsys):
    same.runs = 2
    assert evidence.run("aa", "HEAD", 1.0) == 0
    same.runs, same.base = 1, types.SimpleNamespace(sha="2" * 40)
    assert evidence.run("aa", "HEAD", 1.0) == 0
    assert "aa.json is of another command: all is made anew" in capsys.readouterr().err
    assert same.asked == ["aa-1", "aa-2", "aa-1"]
    assert len(made(tmp_path)["comparisons"]) == 1


def test_no_time_for_a_run_changes_nothing(same, tmp_path):
    with pytest.raises(CouldNotRunError, match="the time is up"):
        evidence.run("aa", "HEAD", 1.0)
    assert not (tmp_path / "aa.json").exists()


# --- mutants --------------------------------------------------------------------------------------

CAUGHT = {"caught": True, "by": "1 failed"}


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
        subject = Key("paths.Forward.track_latency", ("then-read", "4", "bfloat16"))
        noise = np.linspace(0.999, 1.001, len(measured))[:, None]
        return evidence.Pool(
            [subject], {name: noise * (1e-6 if name == "base" else 1.1e-6) for name in names}
        )


def test_one_mutant_is_made_alone(monkeypatch):
    bench = _Clock()
    monkeypatch.setattr(evidence.Pool, "of", bench.pool)
    ((entry,),) = caught.made(bench, ["written-past-l2"])
    pool = evidence.Pool.from_json(entry["pool"])
    assert list(pool.seconds) == ["base", "written-past-l2"]
    assert caught.slower("written-past-l2", pool) == entry["failed"]
    assert entry["name"] == "written-past-l2" and entry["commit"] == "1" * 40
    assert entry["caught"] and entry["failed"][0]["change"] == pytest.approx(0.1, rel=1e-3)
    ((name, versions, job),) = bench.asked
    assert name == "speed-written-past-l2" and versions == ["base", "written-past-l2"]
    assert [cell for cell in job["cells"] if cell[1][0] == "then-read"] and not job["host"]


def test_what_is_made_anew_takes_the_place_of_what_was():
    stored = DOCUMENTS["mutants"]["mutants"]
    anew = {"name": "spill", "commit": "1" * 40}
    merged = caught.in_order([*stored, anew])
    assert [one["name"] for one in merged] == [one["name"] for one in stored]
    assert [one for one in merged if one not in stored] == [anew]


@pytest.fixture
def bad_changes(same, monkeypatch):
    """The commit of the fixture ``same``, whose mutants are all caught; there is time for some."""
    same.time_for, same.batches = 0, []

    def made(bench, names):
        for begin in range(0, len(names), 5):
            if same.time_for == 0:
                raise rounds.BudgetError("the time is up")
            same.time_for -= 1
            same.batches.append(names[begin : begin + 5])
            yield [{**CAUGHT, "name": name, "commit": bench.base.sha} for name in same.batches[-1]]

    monkeypatch.setattr(caught, "made", made)
    return same


def names(directory) -> list[str]:
    return [one["name"] for one in made(directory, "mutants")["mutants"]]


def test_mutants_are_made_in_parts(bad_changes, tmp_path, capsys):
    known = list(mutants.load())
    bad_changes.time_for = 2
    assert evidence.run("mutants", "HEAD", 1.0) == 0
    assert names(tmp_path) == known[:10]
    assert f"the same command makes the other {len(known) - 10}" in capsys.readouterr().out
    with pytest.raises(CouldNotRunError):  # no time for one more
        evidence.run("mutants", "HEAD", 1.0)
    assert names(tmp_path) == known[:10]
    bad_changes.time_for = 20
    assert evidence.run("mutants", "HEAD", 1.0) == 0
    assert names(tmp_path) == known and sum(bad_changes.batches, []) == known
    assert "the same command" not in capsys.readouterr().out


def test_mutants_of_another_commit_are_made_anew_one_after_the_other(bad_changes, tmp_path):
    known = list(mutants.load())
    bad_changes.time_for = 20
    assert evidence.run("mutants", "HEAD", 1.0) == 0
    bad_changes.base, bad_changes.time_for = types.SimpleNamespace(sha="2" * 40), 1
    assert evidence.run("mutants", "HEAD", 1.0, only=["spill"]) == 0
    bad_changes.time_for = 1
    assert evidence.run("mutants", "HEAD", 1.0) == 0
    assert bad_changes.batches[-2:] == [["spill"], [n for n in known if n != "spill"][:5]]
    assert names(tmp_path) == known
    commits = [one["commit"] for one in made(tmp_path, "mutants")["mutants"]]
    assert commits == ["2" * 40] * 6 + ["1" * 40] * (len(known) - 6)


@pytest.mark.parametrize("key", evidence.ALIKE)
def test_mutants_are_kept_only_beside_their_like(key, bad_changes, tmp_path, capsys):
    bad_changes.time_for = 20
    assert evidence.run("mutants", "HEAD", 1.0) == 0
    document = made(tmp_path, "mutants")
    (tmp_path / "mutants.json").write_text(json.dumps(document | {key: {"gpu": None}}))
    bad_changes.time_for = 1
    assert evidence.run("mutants", "HEAD", 1.0, only=["spill"]) == 0
    assert f"mutants.json is of another {key}: all is made anew" in capsys.readouterr().err
    assert names(tmp_path) == ["spill"]


def test_only_mutants_are_made_one_by_one():
    with pytest.raises(CouldNotRunError, match="--only is for mutants, got aa"):
        evidence.run("aa", "HEAD", 1.0, only=["spill"])


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


def test_without_a_gpu_it_says_so(monkeypatch):
    def no_gpu(*_):
        raise bench.gpu_monitor.WatchError("NVML failed")

    monkeypatch.setattr(bench.gpu_monitor, "gpu_uuid", no_gpu)
    monkeypatch.setattr(bench.machine, "probe", lambda: ({"machine": "x"}, "none"))
    with pytest.raises(CouldNotRunError, match="NVML failed"):
        evidence.run("aa", "HEAD", budget=time.monotonic())
