"""What is timed: all that differs, as far as there is time, and a sample of what does not."""

import pytest

from benchmarks._engine.compare import exact, findings, selection
from benchmarks._engine.report.markdown import markdown
from benchmarks._engine.report.notes import texts
from benchmarks._engine.subject import keys_of, timings
from benchmarks._engine.verdict.metrics import HOST_COST
from benchmarks._engine.verdict.rules import Key
from tests import toy
from tests.lab import CANNOT_TELL, FAIL, LARGE, PASS, SMALL, both, facts_of
from tests.toy import Cell

CELLS = [Cell(elements, "float32") for elements in range(1, 41)]


def compiled(head: dict, base: str = "a") -> dict:
    """Both versions' facts: machine code ``base``, but in the head that of ``head`` by cell."""
    subjects = {subject: cell for cell in CELLS for subject in keys_of(cell)}
    return {
        "base": {s: facts_of(base) for s in subjects},
        "head": {s: head.get(c, facts_of(base)) for s, c in subjects.items()},
    }


def chosen(facts, at_most=100, **options) -> list[Cell]:
    return selection.choose(CELLS, facts, at_most, "seed", **options)


def test_all_that_differs_is_timed_and_a_sample_of_the_rest():
    differ = CELLS[5:8]
    timed = chosen(compiled(dict.fromkeys(differ, facts_of("b"))))
    assert set(differ) < set(timed)
    assert len(timed) == len(differ) + selection.SAME_CODE_CELLS
    assert timed == [cell for cell in CELLS if cell in timed]


def test_sample_is_another_one_for_each_pair_of_versions():
    samples = [selection.choose(CELLS, compiled({}), 100, seed) for seed in ("one", "one", "other")]
    assert samples[0] == samples[1] != samples[2]
    assert all(len(sample) == selection.SAME_CODE_CELLS for sample in samples)
    assert chosen(compiled({}), everything=True) == CELLS


@pytest.mark.parametrize(("few", "count"), [(0, 3), (5, 5), (100, len(CELLS))])
def test_every_variant_comes_before_a_second_size_of_any(few, count, monkeypatch):
    monkeypatch.setattr(selection, "FEW_CELLS", few)
    head = {cell: facts_of("bcd"[index % 3]) for index, cell in enumerate(CELLS)}
    assert chosen(compiled(head)) == CELLS[:count]
    assert chosen(compiled(head), at_most=2) == CELLS[:2]
    assert chosen(compiled(head), everything=True) == CELLS


def test_each_variant_is_timed_at_its_smallest_and_largest_size_if_there_is_time(monkeypatch):
    monkeypatch.setattr(selection, "FEW_CELLS", 0)
    head = {cell: facts_of("bc"[index % 2]) for index, cell in enumerate(CELLS)}
    by_preference = [*CELLS[10:], *CELLS[:10]]

    def timed(at_most, ends):
        return selection.choose(by_preference, compiled(head), at_most, "seed", ends)

    assert timed(100, 100) == [*CELLS[10:12], *CELLS[-2:], *CELLS[:2]]
    assert timed(3, 100) == timed(100, 3) == [*CELLS[10:12], CELLS[-2]]
    assert timed(2, 100) == timed(100, 0) == CELLS[10:12]


def test_what_there_is_no_time_for_is_told_from_what_another_size_stands_for():
    head = {cell: facts_of("bc"[index % 2]) for index, cell in enumerate(CELLS[:6])}
    facts = compiled(head)
    left = selection.left(CELLS, facts, CELLS[:1])
    assert left.represented == {s for cell in (CELLS[2], CELLS[4]) for s in keys_of(cell)}
    assert left.untimed == {s for cell in CELLS[1:6:2] for s in keys_of(cell)}
    assert selection.left(CELLS, facts, CELLS) == (frozenset(), frozenset())


def test_another_grid_or_stride_differs_though_the_code_does_not():
    facts = compiled({})
    moved = CELLS[3]
    for subject in keys_of(moved):
        same = facts["head"][subject]
        facts["head"][subject] = type(same)(**vars(same) | {"digest": "another grid"})
    assert moved in chosen(facts)
    assert selection.identical(facts) == {
        s for cell in CELLS if cell != moved for s in keys_of(cell)
    }


def test_what_cannot_be_compiled_differs_and_what_does_not_exist_is_left_out():
    broken, lacking = CELLS[1], CELLS[2]
    facts = compiled({broken: RuntimeError("ptxas"), lacking: NotImplementedError("no such call")})
    assert chosen(facts, at_most=1) == [broken]
    assert broken in chosen(facts) and lacking not in chosen(facts, everything=True)
    assert not selection.left(CELLS, facts, [broken]).untimed


def test_cost_is_told_before():
    assert selection.affordable(60.0, 10, 0) == 0 < selection.affordable(600.0, 10, 0)
    for calls in (0, 1, 40):
        cells = selection.affordable(900.0, 10, calls)
        assert selection.minutes(cells, 10, calls) <= 15 < selection.minutes(cells + 1, 10, calls)
    assert selection.affordable(900.0, 10, 40) < selection.affordable(900.0, 10, 0)
    few = selection.FEW_CELLS + selection.SAME_CODE_CELLS
    assert selection.minutes(few, 12, 0) < 5


def reach(dense=(), listed=(), failures=()):
    return exact.Code(
        *({}, {}),
        {
            "dense": {"features": set(dense), "failures": dict.fromkeys(failures, "it broke")},
            "listed": {"features": set(listed), "failures": {}},
        },
    )


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (reach(["old"]), []),
        (reach(["old", "new"], ["new"]), []),
        (
            reach(["old", "new"]),
            ["in 1 way that no listed call covers: add calls to the list"],
        ),
        (
            reach(["old"], failures=["a forward"]),
            ["1 call failed on the head alone; the first: a forward"],
        ),
    ],
)
def test_what_the_head_alone_reaches_is_said(head, expected):
    sentences = texts(selection.unreached({"base": reach(["old", "gone"]), "head": head}))
    assert len(sentences) == len(expected)
    assert all(part in text for part, text in zip(expected, sentences, strict=True))


ROPE, COSINE = "0a1b: 1 x Triton kernel", "2c3d: 1 x Triton kernel; 1 x kernel cos"
FIRST, SECOND = both(SMALL)


def answer(**texts) -> dict:
    names = {"first": FIRST, "second": SECOND}
    return {"nodes": [[names[n].metric, list(names[n].params), text] for n, text in texts.items()]}


@pytest.mark.parametrize(
    ("base", "head", "changed"),
    [
        ({"first": ROPE, "second": ROPE}, {"second": ROPE, "first": ROPE}, {}),
        ({}, {}, {}),
        (
            {"first": ROPE, "second": ROPE},
            {"first": COSINE, "second": ROPE},
            {FIRST: f"base {ROPE}; head {COSINE}"},
        ),
        ({"first": ROPE}, {}, {FIRST: f"base {ROPE}; head not recorded"}),
        ({}, {"second": ROPE}, {SECOND: f"base not recorded; head {ROPE}"}),
    ],
)
def test_calls_that_put_other_nodes_on_the_stream(base, head, changed):
    assert findings.changed_nodes({"base": answer(**base), "head": answer(**head)}) == changed


# --- in a comparison ------------------------------------------------------------------------------


def test_changed_code_that_there_is_no_time_for_is_no_pass(lab, monkeypatch):
    monkeypatch.setattr(selection, "affordable", lambda *_: 1)
    lab.versions({"code": "a"}, {"codes": {SMALL: "b", LARGE: "c"}, "code": "a"})
    assert lab.compare() == CANNOT_TELL
    (text,) = lab.unmeasured
    assert text.startswith("no time for 2 timings with changed machine code") and LARGE in text
    monkeypatch.setattr(selection, "affordable", lambda *_: 100)
    assert lab.compare() == CANNOT_TELL  # more time is not enough: it keeps to its cells
    assert "a larger --budget with --afresh" in text
    assert lab.compare("base", "head", "--afresh") == PASS


def test_another_size_of_the_same_change_stands_for_what_is_not_timed(lab, monkeypatch):
    monkeypatch.setattr(selection, "affordable", lambda *_: 1)
    lab.versions({"code": "a"}, {"code": "b"})
    assert lab.compare() == PASS
    timed = {timing.key for timing in lab.found.families["gpu"].timings}
    assert lab.found.represented and not lab.found.represented & timed
    assert lab.found.represented | timed >= {*both(SMALL), *both(LARGE)}


def test_what_the_head_alone_launches_is_no_pass(lab):
    lab.versions({"features": ["old"]}, {"features": ["old", "kernel: BLOCK=7"]})
    assert lab.compare() == CANNOT_TELL
    assert "kernel: BLOCK=7" in lab.unmeasured[0]
    lab.machine["gpu"] = "none"
    assert lab.compare() == CANNOT_TELL
    assert "kernel: BLOCK=7" in lab.unmeasured[0]


def test_the_same_machine_code_with_another_copy_on_the_stream_differs(lab):
    lab.versions({"code": "a", "nodes": "rotate"}, {"code": "a", "nodes": "rotate, copy"})
    assert lab.compare() == PASS
    assert not lab.found.identical
    assert {timing.key for timing in lab.found.families["gpu"].timings} >= {*both(SMALL)}


# --- on the host ----------------------------------------------------------------------------------

CALL = "toy.Call.track_forward float32"


@pytest.fixture
def counted(lab):
    """What calls do on the host is counted."""
    lab.patch.setattr(toy, "UNITS", {**toy.UNITS, **HOST_COST})
    return lab


def test_nothing_is_timed_where_all_that_runs_is_the_same(counted):
    counted.versions({"code": "same"}, {"code": "same", "imports": 1050})
    assert counted.compare() == PASS
    comparison = counted.found
    assert not comparison.rounds and not comparison.families
    assert comparison.identical == frozenset().union(*timings(toy).values())
    assert {job["task"] for _, job in counted.gpu.jobs} == {"check"}
    assert counted.compare("base", "head", "--all") == PASS and counted.found.rounds


@pytest.mark.parametrize(
    ("head", "same"),
    [
        ({"code": "other"}, {"host"}),
        ({"code": "same", "imports": 1101}, {"gpu", "host"}),
        ({"code": "same", "executes": {CALL: "more"}}, {"gpu"}),
    ],
    ids=["machine code", "import", "a call"],
)
def test_what_is_not_the_same_is_timed(counted, head, same):
    counted.versions({"code": "same"}, head)
    counted.compare()
    comparison = counted.found
    assert {*comparison.families} == {"gpu", "host"} - same
    for name, keys in timings(toy).items():
        assert (keys <= comparison.identical) == (name in same), name
    if "executes" in head:
        (differs,) = timings(toy)["host"] - comparison.identical
        assert differs.words == CALL
        assert any("1 of 5 calls execute other" in note and CALL in note for note in counted.notes)


def test_of_calls_that_are_only_counted_one_of_each_difference_is_clocked(counted):
    calls = {
        ("host_cost.Call", (f"{kind}{n}", direction)): (CELLS[0], direction)
        for kind in ("some", "other", "same")
        for n in range(3)
        for direction in ("forward", "backward")
    }
    counted.patch.setattr(toy, "host_calls", lambda: calls)
    changed = {
        Key(*key).words: "more" if key[1][0] < "same" else "much more"
        for key in calls
        if not key[1][0].startswith("same")
    }
    counted.versions({"code": "same"}, {"code": "same", "executes": changed})
    assert counted.compare() == PASS
    clocked = {timing.key.params for timing in counted.found.families["host"].timings}
    assert clocked == {
        ("other0", "backward"),
        ("other0", "forward"),
        *(("some0", d) for d in ("backward", "forward")),
    }
    (note,) = (note for note in counted.notes if "execute other instructions" in note)
    assert "12 of 23 calls execute other instructions, 4 of them, one of each kind, were" in note
    counted.git("reset", "-q", "--hard", "base")
    slower = {"slower": {"other0 forward": 1.3}}
    counted.commit("slow", **{"is": "slow", "code": "same", "executes": changed} | slower)
    assert counted.compare("base", "slow") == FAIL


@pytest.mark.parametrize(("slower", "status"), [(1.0, PASS), (1.3, FAIL)])
def test_calls_that_execute_something_else_are_clocked_without_a_gpu(counted, slower, status):
    head = {"code": "same", "executes": {CALL: "more"}, "slower": {CALL.split()[0]: slower}}
    counted.versions({"code": "same"}, head)
    assert counted.compare("base", "head", "--exact-only") == status
    assert not counted.gpu.jobs and {job["arch"] for job in counted.gpu.clocked} == {toy.TARGET}
    comparison = counted.found
    assert {timing.key.words for timing in comparison.timings} == {CALL}
    assert comparison.rounds and not comparison.clocks and not comparison.wrong
    assert any("1 of them, one of each kind, were clocked" in note for note in counted.notes)
    headline = markdown(comparison).splitlines()[0]
    assert headline.endswith(" (exact values and host times; no GPU was used)")


def test_a_call_that_is_too_noisy_on_the_cpu_is_left_out_and_the_note_says_so(counted):
    counted.versions({"code": "same"}, {"code": "same", "executes": {CALL: "more"}})
    counted.gpu.noise = lambda key, number: 0.5
    assert counted.compare("base", "head", "--exact-only") == PASS
    assert not counted.found.timings and not counted.found.rounds
    assert any("and none of them was clocked" in note for note in counted.notes)
