"""``python -m benchmarks compare`` of versions of which one lacks what the other has."""

from tests.lab import FAIL, FORWARD, PASS, ROUNDS, SMALL, both, noisy


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
