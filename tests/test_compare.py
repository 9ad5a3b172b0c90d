"""``python -m benchmarks compare`` from its arguments to its exit status, see ``lab``."""

import json
import os
import shutil
import statistics
import subprocess
import sys

import pytest

from benchmarks import _report
from benchmarks._compare import exact, measure, session, store, watch
from benchmarks._compare.measure import as_params
from benchmarks._verdict import Answer, Subject
from tests.lab import (
    ALL,
    BACKWARD,
    CALL,
    CANNOT_TELL,
    CELLS,
    CHECKS,
    COULD_NOT_RUN,
    FAIL,
    FORWARD,
    GRID,
    HOST,
    IN_PLACE,
    LARGE,
    LAUNCHES,
    MACHINE,
    PASS,
    PATHS,
    QKV,
    REGISTERS,
    ROOT,
    ROUNDS,
    SMALL,
    SPILLS,
    UUID,
    VARIANTS,
    WARM_START,
    Lab,
    behaviour_of,
    both,
    fake_code,
    noisy,
    status_of,
)

# --- the three answers ----------------------------------------------------------------------------


def test_no_slower_passes(lab, capsys):
    lab.versions({}, {})
    assert lab.compare() == PASS
    found = lab.found
    assert found.answer is Answer.PASS
    assert {name: len(f.timings) for name, f in found.families.items()} == {"gpu": 8, "host": 4}
    assert (found.rounds, found.extension) == (ROUNDS, 0)
    assert not found.wrong and not found.notes and not found.disturbed and not found.identical
    assert lab.gpu.answered == ALL
    assert "PASS: none of 12 timings is slower by more than" in capsys.readouterr().out


def test_slower_cells_fail(lab):
    lab.versions({}, {"slower": {SMALL: 1.05}})
    assert lab.compare() == FAIL
    slower = [each for each in lab.found.timings if each.answer is Answer.FAIL]
    assert {each.subject for each in slower} == set(both(SMALL))
    assert all(0.045 < each.effect < 0.055 and each.change == "slower" for each in slower)


def test_the_versions_are_not_mixed_up(lab):
    lab.versions({"slower": {SMALL: 1.05}}, {})
    assert lab.compare() == PASS
    faster = {each.subject for each in lab.found.timings if each.change == "faster"}
    assert faster == set(both(SMALL))
    assert lab.found.base.name == "base"


def test_slower_on_the_host_fails(lab):
    lab.versions({}, {"slower": {HOST[0]: 1.3}})
    assert lab.compare() == FAIL
    slower = {each.subject for each in lab.found.timings if each.answer is Answer.FAIL}
    assert slower == {Subject(HOST[0], (fmt,)) for fmt in GRID["format"]}


def test_first_calls_are_shown_and_fail_nothing(lab, capsys):
    lab.gpu.starts = True
    lab.versions({}, {"start": 0.2, "launches": 1})
    assert lab.compare() == PASS
    (start,) = lab.found.families["start"].timings
    assert (start.subject, start.change) == (Subject(WARM_START, ()), "slower")
    (note,) = (note for note in lab.found.notes if "first call" in note)
    assert "base 1.00 s, head 2.00 s" in note
    assert "first call with an empty cache" in capsys.readouterr().out


def test_the_first_check_finds_an_empty_cache_and_the_rounds_what_it_compiled(lab):
    seen = []

    class Process(measure.Process):
        def __init__(self, root, cache):
            super().__init__(root, cache)
            seen.append(list(cache.iterdir()))
            (cache / "kernel").touch()

    lab.patch.setattr(measure, "Process", Process)
    lab.versions({}, {"slower": {SMALL: 1.2}})
    assert lab.compare() == FAIL
    assert [bool(files) for files in seen] == [False] * CHECKS + [True] * 2 * ROUNDS
    assert lab.compare() == FAIL
    seen.clear()
    assert lab.compare("base", "head", "--afresh") == FAIL
    assert [bool(files) for files in seen[:CHECKS]] == [False] * CHECKS


def test_wrong_output_fails_and_has_no_speed(lab):
    lab.versions({}, {"wrong": [SMALL], "slower": {SMALL: 0.5}})
    assert lab.compare() == FAIL
    assert lab.found.wrong == tuple(
        f"{metric} {SMALL}: it is wrong" for metric in (FORWARD, BACKWARD)
    )
    timed = {each.subject for each in lab.found.timings}
    assert set(both(LARGE)) <= timed and not timed & set(both(SMALL))


def test_wrong_everywhere_is_not_timed_at_all(lab):
    names = [" ".join(measure.as_params(cell)) for cell in CELLS]
    lab.versions({}, {"wrong": names})
    assert lab.compare() == FAIL
    assert lab.gpu.answered == CHECKS
    assert len(lab.found.wrong) == 8


def test_wrong_everywhere_in_both_versions_is_no_verdict(lab, capsys):
    names = [" ".join(measure.as_params(cell)) for cell in CELLS]
    lab.versions({"wrong": names}, {"wrong": names, "launches": 1})
    assert lab.compare() == COULD_NOT_RUN
    assert "no cell is right in both versions" in capsys.readouterr().err


def test_afresh_measures_again(lab):
    lab.versions({}, {"slower": {SMALL: 1.2}})
    assert lab.compare() == FAIL
    before = lab.gpu.answered
    assert lab.compare() == FAIL
    assert lab.gpu.answered == before
    assert lab.compare("base", "head", "--afresh") == FAIL
    assert lab.gpu.answered > before


@pytest.mark.parametrize("worse", [{"launches": 2}, {"variants": 7}])
def test_exact_metric_that_got_worse_fails(lab, worse):
    lab.versions({}, worse)
    assert lab.compare() == FAIL
    failed = [each for each in lab.found.exact if each.answer is Answer.FAIL]
    assert [each.change for each in failed] == ["worse"]
    assert all(each.answer is Answer.PASS for each in lab.found.timings)


@pytest.mark.parametrize(("worse", "metric"), [("registers", REGISTERS), ("spills", SPILLS)])
def test_machine_code_that_the_clock_judges_is_only_shown(lab, worse, metric):
    lab.versions({}, {worse: 48})
    assert lab.compare() == PASS
    assert [e.subject.metric for e in lab.found.exact if e.change == "worse"] == [metric]


def test_noise_cannot_be_told(lab):
    lab.versions({}, {})
    lab.gpu.noise = lambda subject, number: 1.0
    assert lab.compare() == CANNOT_TELL
    assert lab.found.extension == session.EXTENSION_ROUNDS
    assert not any(each.answer is Answer.FAIL for each in lab.found.timings)


def test_control_that_sees_a_change_cannot_tell(lab):
    """Rounds 1, 2, 5, 6, ... are slow on both sides: a version differs from itself."""
    lab.versions({}, {})
    lab.gpu.pace = lambda subject, number: 1.1 if (number - CHECKS - 1) // 2 % 4 in (1, 2) else 1.0
    assert lab.compare(rounds=12) == CANNOT_TELL
    assert lab.found.families["gpu"].control.failed


def test_same_machine_code_is_found_and_overrules_noise(lab):
    lab.versions({"code": "ret"}, {"code": "ret"})
    lab.gpu.noise = lambda subject, number: 0.01 if subject.metric in HOST else 0.2
    assert lab.compare() == PASS
    assert len(lab.found.identical) == 8
    assert lab.gpu.answered == ALL  # the machine code tells: no second look


@pytest.mark.parametrize("every", [False, True])
def test_of_the_same_machine_code_a_sample_is_timed(lab, monkeypatch, every):
    monkeypatch.setattr(session, "SAME_CODE_CELLS", 1)
    lab.versions({"code": "ret"}, {"code": "ret"})
    assert lab.compare("base", "head", *["--every-cell"] * every) == PASS
    found = lab.found
    timed = {t.subject for t in found.timings if t.subject in found.identical}
    cells = {subject.params for subject in found.identical}
    assert len(found.identical) == 8 and len({s.params for s in timed}) == (4 if every else 1)
    noted = f"{len(cells) - 1} of {len(cells)} cells of the same machine code were not timed"
    assert any(note.startswith(noted) for note in found.notes) == (not every)
    assert ("--every-cell" in found.reproduce) == every


def test_what_differs_is_timed_whatever_else_does_not(lab, monkeypatch):
    monkeypatch.setattr(session, "SAME_CODE_CELLS", 1)
    lab.versions({"code": "ret"}, {"code": "ret"})
    alike, large = exact.cell_digests, tuple(LARGE.split())

    def one_differs(root, arch, cells):
        found = alike(root, arch, cells).items()
        return {s: f"{code} {root}" if s.params == large else code for s, code in found}

    monkeypatch.setattr(exact, "cell_digests", one_differs)
    assert lab.compare() == PASS
    found = lab.found
    differing = [t.subject for t in found.timings if t.subject not in found.identical]
    assert {s.params for s in differing if s.metric not in HOST} == {large}
    assert len({t.subject.params for t in found.timings if t.subject in found.identical}) == 1


def test_slower_with_the_same_machine_code_cannot_tell(lab):
    lab.versions({"code": "ret"}, {"code": "ret", "slower": {SMALL: 1.05}})
    assert lab.compare() == CANNOT_TELL


def test_unknown_architecture_is_noted(lab):
    lab.versions({}, {})
    lab.arch = "sm_999"
    assert lab.compare() == PASS
    assert any("sm_999" in note for note in lab.found.notes)
    assert {each.subject.metric for each in lab.found.exact} == {LAUNCHES.metric}


# --- could not run: never an answer ---------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["compare"],
        ["compare", "base", "head", "other"],
        ["compare", "base", "head", "--nonsense"],
        ["compare", "base", "--grid", "huge"],
        *(
            ["compare", "base", "--rounds", text]
            for text in ("7", "8", "11", "64", "-12", "ten", "12.0", "")
        ),
        *(["compare", "base", "--budget", text] for text in ("0", "-1", "nan", "soon")),
        *(["compare", "base", "--wait", text] for text in ("-1", "nan", "long")),
        *(["compare", "base", option, "missing/x"] for option in ("--json", "--markdown")),
    ],
    ids=" ".join,
)
def test_bad_arguments(lab, capsys, words):
    lab.versions({}, {})
    assert status_of(words) == COULD_NOT_RUN
    error = capsys.readouterr().err
    assert "error: " in error and "Traceback" not in error
    assert lab.gpu.begun == 0


@pytest.mark.parametrize("words", [["no-such-branch"], ["HEAD", "--nonsense"]], ids=" ".join)
def test_status_of_a_real_process(words):
    line = [sys.executable, "-m", "benchmarks", "compare", *words]
    assert subprocess.run(line, cwd=ROOT, capture_output=True).returncode == COULD_NOT_RUN


@pytest.mark.parametrize(
    "name", ["nowhere", "--help", "-x", "", "main^{tree}", "a b", "--output=x"]
)
def test_unknown_version(lab, capsys, name):
    lab.versions({}, {})
    before = sorted(lab.root.rglob("*"))
    words = ["compare", "--no-store", "--", "base", name]
    assert status_of(words) == COULD_NOT_RUN
    assert f"{name!r} is no commit or branch" in capsys.readouterr().err
    new = {p.relative_to(lab.root).parts[:3] for p in set(lab.root.rglob("*")) - set(before)}
    assert new <= {(".asv",), (".asv", "compare"), (".asv", "compare", "sources")}


def test_commit_without_the_package(lab, capsys):
    lab.versions({}, {})
    assert lab.compare("empty", "head") == COULD_NOT_RUN
    assert "could not run: commit 'empty' has no rope_triton/" in capsys.readouterr().err


def test_gpu_that_another_measures(lab, capsys):
    lab.versions({}, {})
    with watch.gpu_lock(UUID, 0):
        assert lab.compare() == COULD_NOT_RUN
    assert f"is being measured by pid {os.getpid()}" in capsys.readouterr().err
    assert lab.compare() == PASS


def test_gpu_that_another_uses(lab, capsys):
    lab.versions({}, {})
    lab.gpu.busy = "GPU is in use by pid 12 (trainer)"
    assert lab.compare() == COULD_NOT_RUN
    assert "could not run: GPU is in use by pid 12 (trainer)" in capsys.readouterr().err
    assert lab.gpu.begun == 0


def test_damaged_state_is_left_alone(lab, capsys):
    lab.versions({}, {})
    assert lab.compare() == PASS
    path = sorted(lab.states()[0].glob("look1.*"))[3]
    path.write_text(path.read_text().replace("timings", "tidings"))
    content = {each: each.read_bytes() for each in lab.states()[0].iterdir() if each.name != "lock"}
    assert lab.compare() == COULD_NOT_RUN
    assert f"{path} is damaged" in capsys.readouterr().err
    now = {each: each.read_bytes() for each in lab.states()[0].iterdir() if each.name != "lock"}
    assert now == content


def test_process_that_dies(lab, capsys):
    lab.versions({}, {})

    def die(number):
        if number == 5:
            raise measure.ProcessError("a process ended with -11:\nlast words")

    lab.gpu.before = die
    assert lab.compare() == COULD_NOT_RUN
    assert "could not run: a process ended with -11:\nlast words" in capsys.readouterr().err
    assert not lab.report.exists()


def test_answer_of_another_gpu(lab, capsys):
    lab.versions({}, {})
    lab.gpu.answer = lambda root, job: {"gpu": "GPU-bbbbbbbb-0000-0000-0000-000000000000"}
    assert lab.compare() == COULD_NOT_RUN
    assert "measured was GPU GPU-bbbbbbbb" in capsys.readouterr().err


@pytest.mark.parametrize("error", [ZeroDivisionError("x"), MemoryError(), KeyError("y")])
def test_unexpected_exception(lab, capsys, error, monkeypatch):
    def fail(*_):
        raise error

    lab.versions({}, {})
    monkeypatch.setattr(session, "compare", fail)
    assert lab.compare() == COULD_NOT_RUN
    assert "could not run: this is a fault of the suite" in capsys.readouterr().err


def test_results_of_asv_that_are_damaged(lab, capsys):
    lab.versions({}, {})
    assert lab.compare() == PASS
    path = lab.stored()[0]
    path.write_text("{")
    assert lab.compare() == COULD_NOT_RUN
    assert str(path) in capsys.readouterr().err
    assert path.read_text() == "{"


def test_timings_that_are_no_seconds(lab, capsys):
    lab.versions({}, {})
    lab.gpu.pace = lambda subject, number: 0.0
    assert lab.compare() == COULD_NOT_RUN
    assert "seconds must be finite and positive" in capsys.readouterr().err


# --- missing on one side --------------------------------------------------------------------------


def test_cell_that_only_the_head_lacks_fails(lab):
    lab.versions({}, {"cannot": [SMALL]})
    assert lab.compare() == FAIL
    assert [text for text in lab.found.wrong if SMALL in text and "it is cannot" in text]
    assert not {each.subject for each in lab.found.timings} & set(both(SMALL))


def test_cell_that_only_the_base_lacks_is_noted(lab):
    lab.versions({"cannot": [SMALL]}, {})
    assert lab.compare() == PASS
    assert f"{FORWARD} {SMALL} and 1 more: not in the base: it is cannot" in lab.found.notes
    assert not lab.found.wrong
    assert not {each.subject for each in lab.found.timings} & set(both(SMALL))


def test_cell_that_both_lack_is_noted(lab):
    lab.versions({"cannot": [SMALL]}, {"cannot": [SMALL]})
    assert lab.compare() == PASS
    assert f"{FORWARD} {SMALL} and 1 more: in neither version: it is cannot" in lab.found.notes
    assert not lab.found.wrong


def test_head_that_fails_in_one_process_of_many(lab):
    lab.versions({}, {"fails": {SMALL: [7]}})
    assert lab.compare() == FAIL
    text = f"{FORWARD} {SMALL}: failed in 1 of {ROUNDS} processes of the head: lost in the round"
    assert text in lab.found.wrong
    assert {each.rounds for each in lab.found.timings} == {ROUNDS}
    assert len(lab.found.timings) == 10


def test_base_that_fails_in_one_process_of_many(lab):
    lab.versions({"fails": {SMALL: [7]}}, {})
    assert lab.compare() == PASS
    assert any(f"failed in 1 of {ROUNDS} processes of the base" in n for n in lab.found.notes)
    assert not lab.found.wrong


def test_cell_that_neither_can_time_is_noted(lab):
    """Right in both, but the buffers of a timing do not fit."""
    full = {"full": {SMALL: list(range(1, 99))}}
    lab.versions(full, full)
    assert lab.compare() == PASS
    assert len([text for text in lab.found.notes if SMALL in text]) >= 2
    assert not lab.found.wrong


def test_head_that_fails_in_the_second_look(lab):
    lab.versions({}, {"fails": {SMALL: [ROUNDS + 3]}})
    noisy(lab, SMALL, 0.001)
    assert lab.compare() == FAIL
    assert any(SMALL in text and "of the head" in text for text in lab.found.wrong)


# --- the other paths ------------------------------------------------------------------------------


@pytest.fixture
def pathed(lab):
    """Compares other paths, too: fused QKV, and rotation in place, which is timed forward only."""
    lab.with_paths()
    return lab


PATH_SUBJECTS = [
    *(Subject(metric, tuple(QKV.split())) for metric in PATHS),
    Subject(PATHS[0], tuple(IN_PLACE.split())),
]


def test_paths_are_timed_with_the_grid_and_stored(pathed):
    pathed.versions({}, {})
    assert pathed.compare() == PASS
    timed = {each.subject for each in pathed.found.families["gpu"].timings}
    assert timed == {
        *PATH_SUBJECTS,
        *(s for cell in CELLS for s in both(" ".join(as_params(cell)))),
    }
    (stored, _) = (json.loads(path.read_text())["results"] for path in pathed.stored())
    assert set(PATHS) <= set(stored)


def test_slower_path_fails(pathed, capsys):
    pathed.versions({}, {"slower": {IN_PLACE: 1.05}})
    assert pathed.compare() == FAIL
    assert [t.subject for t in pathed.found.timings if t.answer is Answer.FAIL] == PATH_SUBJECTS[2:]
    assert "Forward tables-inplace, 4 MiB, bfloat16" in capsys.readouterr().out


def test_path_that_cannot_be_told_is_looked_at_again(pathed):
    pathed.versions({}, {})
    noisy(pathed, QKV, 0.001)
    assert pathed.compare() == PASS
    assert pathed.gpu.jobs[-1][1]["cells"] == [["qkv", 4, "bfloat16"]]
    assert pathed.timing(PATH_SUBJECTS[0]).rounds > ROUNDS


def test_path_that_only_the_head_has_is_noted(pathed):
    pathed.versions({"cannot": [QKV, IN_PLACE]}, {})
    assert pathed.compare() == PASS
    said = "paths.Forward.track_latency qkv 4 bfloat16 and 2 more: not in the base: it is cannot"
    assert said in pathed.found.notes and not pathed.found.wrong
    assert not {each.subject for each in pathed.found.timings} & set(PATH_SUBJECTS)


def test_path_that_the_head_has_lost_fails(pathed):
    pathed.versions({}, {"cannot": [IN_PLACE]})
    assert pathed.compare() == FAIL
    assert [text for text in pathed.found.wrong if IN_PLACE in text and "it is cannot" in text]


# --- the same sources -----------------------------------------------------------------------------


def test_same_sources_are_not_measured(lab, capsys):
    lab.commit("base")
    lab.commit("head")
    assert lab.compare() == PASS
    assert lab.gpu.begun == 0
    assert lab.found.same_sources and not lab.found.timings
    assert "both versions have the same sources" in capsys.readouterr().out


def test_same_sources_are_measured_where_asked(lab):
    lab.commit("base")
    assert lab.compare("base", "base", "--even-if-same") == PASS
    assert lab.gpu.answered == ALL
    assert len(lab.found.timings) == 12 and len(lab.found.identical) == 8
    assert "--even-if-same" in lab.found.reproduce


# --- without a GPU --------------------------------------------------------------------------------


@pytest.mark.parametrize("option", [None, "--exact-only"])
def test_only_what_is_exact(lab, option):
    lab.versions({}, {"slower": {SMALL: 2.0}})
    if option is None:
        lab.machine["gpu"] = "none"
    assert lab.compare("base", "head", *filter(None, [option])) == PASS
    assert lab.gpu.begun == 0
    assert {each.subject.metric for each in lab.found.exact} == {REGISTERS, SPILLS, VARIANTS}
    assert any(
        note.startswith("GPU: ") and "latency" in note and "not measured" in note
        for note in lab.found.notes
    )
    assert not lab.stored()


@pytest.mark.parametrize("worse", [{"spills": 8}, {"variants": 7}])
def test_exact_fails_without_a_gpu(lab, worse):
    lab.versions({}, worse)
    lab.machine["gpu"] = "none"
    assert lab.compare() == FAIL


def test_package_that_does_not_compile(lab, monkeypatch):
    """An exception stands where the head has no value: it is missing, and said why."""

    def facts(root, **subset):
        found = fake_code(root)
        if behaviour_of(root).get("is") == "head":
            found.values[SPILLS, CALL] = RuntimeError("Traceback\nptxas: no such luck")
        return found

    lab.versions({}, {})
    lab.machine["gpu"] = "none"
    monkeypatch.setattr(exact, "codegen_facts", facts)
    assert lab.compare() == FAIL
    assert [e.change for e in lab.found.exact if e.answer is Answer.FAIL] == ["missing"]
    assert "head: 1 values missing: ptxas: no such luck" in lab.found.notes


def test_two_versions_of_the_real_package(tmp_path, monkeypatch, capsys):
    """The compiler and the survey are the real ones, on a part of what they survey."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    survey, digests = exact.codegen_facts, exact.cell_digests
    lab = Lab(tmp_path, monkeypatch).init()
    lab.machine = MACHINE | {"gpu": "none", "machine": "no-gpu"}
    part = {"dtype": ("float16",), "format": ("sbhd",), "hidden_size": (64,)}
    part |= {"direction": ("forward",)}
    monkeypatch.setattr(session, "ARCHITECTURES", ("sm_90",))
    monkeypatch.setattr(exact, "codegen_facts", lambda root, **arch: survey(root, **part | arch))
    monkeypatch.setattr(exact, "cell_digests", digests)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "rope_triton", lab.root / "rope_triton", ignore=ignored)
    lab.git("add", "rope_triton")
    lab.git("commit", "-q", "-m", "base")
    kernels = lab.root / "rope_triton" / "kernels.py"
    kernels.write_text(kernels.read_text() + "\n# A remark changes no machine code.\n")
    assert lab.compare("main") == PASS
    assert not lab.found.same_sources and lab.found.head.sha == ""
    assert len(lab.found.exact) > 10
    assert {each.change for each in lab.found.exact} == {"none"}
    assert "exact: none of" in capsys.readouterr().out


# --- order, and what processes are given ----------------------------------------------------------


def test_processes_alternate_and_know_their_round(lab):
    lab.versions({}, {})
    assert lab.compare() == PASS
    names = [behaviour_of(root)["is"] for root, _ in lab.gpu.jobs]
    first = names[CHECKS]
    second = {"base": "head", "head": "base"}[first]
    assert names[CHECKS:] == [first, second, second, first] * (ROUNDS // 2)
    tasks = [job["task"] for _, job in lab.gpu.jobs]
    assert tasks == ["check"] * CHECKS + ["measure"] * (ALL - CHECKS)
    pairs = [lab.gpu.jobs[i : i + 2] for i in range(CHECKS, ALL, 2)]
    assert all(one[1] == other[1] for one, other in pairs)


# --- asv's results --------------------------------------------------------------------------------


def test_samples_land_in_asvs_results(lab):
    lab.versions({}, {})
    assert lab.compare() == PASS
    shas = [lab.git("rev-parse", name) for name in ("base", "head")]
    assert sorted(path.name[:8] for path in lab.stored()) == sorted(sha[:8] for sha in shas)
    calls = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "store", lambda *arguments: calls.append(arguments))
        assert lab.compare() == PASS
    for sha, (_, _, machine, commit, samples, facts) in zip(shas, calls, strict=True):
        assert (commit, machine) == (sha, MACHINE)
        assert len(samples) == 12 and {len(values) for values in samples.values()} == {ROUNDS}
        assert facts == {LAUNCHES: 1}
    timing = lab.timing(both(SMALL)[0])
    medians = [statistics.median(call[4][timing.subject]) for call in calls]
    assert medians == [timing.base, timing.head]


def test_working_tree_is_not_stored(lab, capsys):
    lab.commit("base")
    lab.write(slower={SMALL: 1.05})
    assert lab.compare("base") == FAIL
    assert [path.name[:8] for path in lab.stored()] == [lab.git("rev-parse", "base")[:8]]
    assert "the head is not in asv's results" in capsys.readouterr().err


def test_nothing_is_stored_where_asked(lab):
    lab.versions({}, {})
    assert lab.compare("base", "head", "--no-store") == PASS
    assert not lab.stored()


# --- the reports ----------------------------------------------------------------------------------


def test_reports_are_written_whole(lab, tmp_path):
    lab.versions({}, {})
    path = tmp_path / "report.md"
    assert lab.compare("base", "head", "--markdown", str(path)) == PASS
    assert path.read_text() == _report.markdown(lab.found)
    assert lab.found.reproduce == f"python -m benchmarks compare base head --rounds {ROUNDS}"


def test_progress_goes_beside_the_report(lab, capsys):
    lab.versions({}, {})
    assert lab.compare() == PASS
    output = capsys.readouterr()
    assert f"look1: round 3 of {ROUNDS}" in output.err
    assert "look1" not in output.out
