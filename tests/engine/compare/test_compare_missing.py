"""``python -m benchmarks compare`` where one version lacks what the other has."""

import pytest

from tests.lab import (
    BACKWARD,
    CANNOT_TELL,
    COMPILE,
    FAIL,
    FORWARD,
    HOST,
    ONCE_KEY,
    PASS,
    ROUNDS,
    SMALL,
    noisy,
)

ALWAYS = list(range(1, 99))  # in every process that times


@pytest.mark.parametrize(
    ("base", "head", "sentence"),
    [(False, True, ""), (True, False, "not in the base"), (True, True, "in neither version")],
)
def test_cells_that_a_version_lacks_are_a_fault_of_the_head_alone(lab, base, head, sentence):
    lab.with_once()
    once = " ".join(ONCE_KEY.params)
    lacks = {"cannot": [SMALL, once]}
    lab.versions(lacks if base else {}, lacks if head else {})
    assert lab.compare() == (PASS if base else FAIL)
    if base:
        expected = f"{FORWARD} {SMALL} and 2 more: {sentence}: it is cannot"
        assert expected in lab.notes and not lab.wrong
    else:
        assert f"{FORWARD} {SMALL}: it is cannot" in lab.wrong
        assert f"{ONCE_KEY.words}: it is cannot" in lab.wrong
    timed = {" ".join(timing.key.params) for timing in lab.found.timings}
    assert timed and not timed & {SMALL, once}


def test_a_call_that_the_base_lacks_must_be_right(lab):
    lab.versions({"cannot": [SMALL]}, {"wrong": [SMALL]})
    assert lab.compare() == FAIL
    assert lab.wrong == list(f"{m} {SMALL}: it is wrong" for m in (FORWARD, BACKWARD))


@pytest.mark.parametrize("side", ["head", "base"])
def test_a_version_that_fails_in_one_process_of_many(lab, side):
    fails = {"fails": {SMALL: [7]}}
    lab.versions(*([{}, fails] if side == "head" else [fails, {}]))
    assert lab.compare() == (FAIL if side == "head" else PASS)
    sentence = f"failed in 1 of {ROUNDS} processes of the {side}: lost in the round"
    if side == "head":
        assert f"{FORWARD} {SMALL}: {sentence}" in lab.wrong
    else:
        assert f"{FORWARD} {SMALL} and 1 more: {sentence}" in lab.notes and not lab.wrong
    assert {timing.rounds for timing in lab.found.timings} == {ROUNDS}
    assert len(lab.found.timings) == 10


def test_cell_that_neither_can_time_is_noted(lab):
    """Right in both, but the buffers of a timing do not fit."""
    full = {"full": {SMALL: ALWAYS}}
    lab.versions(full, full)
    assert lab.compare() == PASS
    (sentence,) = [text for text in lab.notes if SMALL in text]
    assert ": in neither version: " in sentence and not lab.wrong


def test_a_base_that_cannot_be_timed_is_no_excuse_for_a_head_that_fails(lab):
    lab.versions({"full": {SMALL: ALWAYS}}, {"fails": {SMALL: [7]}})
    assert lab.compare() == FAIL
    assert any(SMALL in text and "of the head: lost" in text for text in lab.wrong)


def test_head_that_fails_in_the_second_look(lab):
    lab.versions({}, {"fails": {SMALL: [ROUNDS + 3]}})
    noisy(lab, SMALL, 0.001)
    assert lab.compare() == FAIL
    assert any(SMALL in text and "of the head" in text for text in lab.wrong)


@pytest.mark.parametrize(
    "lost", [{"full": {SMALL: [3]}}, {"fails": {SMALL: [3]}}, {"cannot": [SMALL]}]
)
def test_changed_code_that_neither_can_time_forbids_a_pass(lab, lost):
    """Unless another cell runs the same change, as in the test above."""
    lab.versions({**lost, "codes": {SMALL: "a"}}, {**lost, "codes": {SMALL: "b"}})
    assert lab.compare() == CANNOT_TELL
    (sentence,) = lab.unmeasured
    assert sentence.startswith("2 timings with changed machine code could not be timed (see")
    assert SMALL in sentence and not lab.wrong


def test_changed_code_of_a_call_that_the_base_lacks_has_nothing_to_be_compared_with(lab):
    lab.versions({"wrong": [SMALL], "codes": {SMALL: "a"}}, {"codes": {SMALL: "b"}})
    assert lab.compare() == PASS
    assert any("failed in the base: it is wrong" in text for text in lab.notes)


@pytest.mark.parametrize("why", ["full", "fails"])
def test_changed_code_that_no_process_of_the_base_can_time(lab, why):
    """A form that is not checked first, and that only the head has an argument for."""
    lab.versions({why: {SMALL: ALWAYS}, "codes": {SMALL: "a"}}, {"codes": {SMALL: "b"}})
    assert lab.compare() == PASS
    assert not lab.unmeasured
    where = "not in the base" if why == "full" else "in no process of the base"
    assert f"{FORWARD} {SMALL} and 1 more: {where}: lost" in "".join(lab.notes)


# --- calls on the host, and starts ----------------------------------------------------------------


def lost(lab, base: dict, head: dict) -> int:
    """The status where one host metric and one start are lost in these processes, by version."""
    lab.gpu.starts = True
    versions = [
        {kind: dict.fromkeys((HOST[0], COMPILE), when) for kind, when in version.items()}
        for version in (base, head)
    ]
    lab.versions(*versions)
    return lab.compare()


@pytest.mark.parametrize(
    ("base", "head"),
    [
        ({"fails": [3]}, {}),
        ({"full": [3]}, {}),
        ({"fails": [3]}, {"fails": [4]}),
        ({"fails": [3]}, {"full": ALWAYS}),
        ({"fails": ALWAYS}, {"fails": ALWAYS}),
        ({"fails": ALWAYS}, {"fails": [4]}),
        ({"fails": ALWAYS}, {"full": [4]}),
    ],
)
def test_host_times_without_a_verdict_forbid_a_pass(lab, base, head):
    assert lost(lab, base, head) == CANNOT_TELL
    (sentence,) = lab.unmeasured
    what = f"{COMPILE}, {HOST[0]} bfloat16, {HOST[0]} float32"
    assert sentence == f"3 host times could not be compared (see the notes): {what}"
    where = "in neither version" if base == head else "of the base"
    assert any(f"{where}: lost" in text for text in lab.notes)
    assert not lab.wrong


@pytest.mark.parametrize(
    ("base", "head"),
    [({"full": ALWAYS}, {}), ({"fails": ALWAYS}, {}), ({"full": ALWAYS}, {"full": ALWAYS})],
    ids=["new", "mended", "n/a"],
)
def test_host_times_that_no_process_of_the_base_has_are_not_asked_of_the_head(lab, base, head):
    assert lost(lab, base, head) == PASS
    assert not lab.unmeasured
    where = "in no process of the base" if "fails" in base else "not in the base"
    where = "in neither version" if head else where
    assert f"{COMPILE} and 2 more: {where}: lost in the round" in lab.notes


@pytest.mark.parametrize("base", [{}, {"full": ALWAYS}])
def test_host_times_that_the_head_alone_fails_are_its_fault(lab, base):
    assert lost(lab, base, {"fails": [3]}) == FAIL
    assert len([text for text in lab.wrong if "of the head: lost" in text]) == 3
    assert not lab.unmeasured


def test_without_any_host_time_a_change_does_not_pass(lab):
    fails = {"fails": dict.fromkeys(HOST, ALWAYS)}
    lab.versions({**fails, "code": "a"}, {**fails, "code": "b"})
    assert lab.compare() == CANNOT_TELL
    assert [*lab.found.families] == ["gpu"]
    (sentence,) = lab.unmeasured
    assert sentence.startswith("4 host times") and sentence.endswith(" and 1 more")


def test_host_times_of_the_same_sources_have_nothing_that_differs(lab):
    lab.commit("base", fails={HOST[0]: ALWAYS})
    assert lab.compare("base", "base", "--all") == PASS
    assert not lab.unmeasured


def test_host_times_that_are_not_asked_for_are_not_missed(lab):
    fails = {"fails": {HOST[0]: ALWAYS}}
    lab.versions(fails, fails)
    assert lab.compare("base", "head", "--only", f"{FORWARD} {SMALL}") == PASS
    assert not lab.unmeasured
