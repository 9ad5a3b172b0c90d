"""A comparison that goes on after a kill, invalid rounds, too little time or no conclusion."""

import os

import pytest

from benchmarks._engine.compare import command, rounds, session
from benchmarks._engine.system import journal
from benchmarks._engine.verdict.rules import MIN_ROUNDS, Answer
from tests.lab import (
    ALL,
    CANNOT_TELL,
    CHECKS,
    COULD_NOT_RUN,
    FAIL,
    HOST,
    LARGE,
    PASS,
    ROUNDS,
    SMALL,
    Killed,
    Lab,
    behaviour_of,
    both,
    noisy,
)

# --- killed, and started again --------------------------------------------------------------------


def kill_at(number: int):
    def before(begun):
        if begun == number:
            raise Killed

    return before


@pytest.fixture
def clean(lab) -> Lab:
    """A lab whose head is slower in one cell; nothing has been measured yet."""
    lab.versions({}, {"slower": {SMALL: 1.05}})
    return lab


def finish(lab: Lab) -> None:
    """Start a killed run again: it is complete, and right."""
    lab.gpu.before = lambda number: None
    assert lab.compare("base", "head") == FAIL
    result = lab.found
    assert result.rounds == ROUNDS and not result.extension and not result.wrong
    assert {timing.rounds for timing in result.timings} == {ROUNDS}
    slower = {timing.key for timing in result.timings if timing.answer is Answer.FAIL}
    assert slower == set(both(SMALL))
    stored = [entry["round"] for entry in journal.read(lab.states()[0]) if "round" in entry]
    assert [one["number"] for one in stored] == list(range(ROUNDS))
    assert {path.suffix for path in (lab.scratch / "states").iterdir()} == {".jsonl", ".lock"}


@pytest.mark.parametrize("number", range(1, ALL + 1))
def test_killed_in_a_process(clean, number):
    clean.gpu.before = kill_at(number)
    with pytest.raises(Killed):
        clean.compare("base", "head")
    beside = clean.gpu.answered - (number - 1)  # the other check may be answered meanwhile
    assert beside == 0 or (number, beside) == (1, 1)
    finish(clean)
    # Of what was answered before, only the first half of a round is measured again.
    lost = max(number - 1 - CHECKS, 0) % 2
    # The other check's answer is stored if it was there when one was killed.
    assert clean.gpu.answered - ALL - lost in {0, beside, int(number == CHECKS)}


@pytest.mark.parametrize(("option", "rounds"), [([], 12), (["--all"], ROUNDS)])
def test_what_measures_other_rounds_is_another_state(lab, option, rounds):
    """More rounds are what a "cannot tell" asks for: the first ones do not stand in their way."""
    lab.versions({}, {})
    assert lab.compare() == PASS
    (first,) = lab.states()
    content = first.read_bytes()
    assert lab.compare("base", "head", *option, rounds=rounds) == PASS
    assert lab.found.rounds == rounds and len(lab.states()) == 2
    assert lab.gpu.answered == ALL + CHECKS + 2 * rounds
    assert first.read_bytes() == content


def test_changed_working_tree_is_another_state(lab):
    lab.versions({}, {})
    for slow in (SMALL, LARGE):
        lab.write(slower={slow: 1.05})
        assert lab.compare("base") == FAIL
        slower = {timing.key for timing in lab.found.timings if timing.answer is Answer.FAIL}
        assert slower == set(both(slow))
    assert len(lab.states()) == 2 and lab.gpu.answered == 2 * ALL


def test_another_machine_is_no_resumption(lab, capsys):
    lab.versions({}, {})
    assert lab.compare() == PASS
    lab.machine["driver"] = "590.0"
    assert lab.compare() == COULD_NOT_RUN
    assert "machine.driver: stored '580.1', present '590.0'" in capsys.readouterr().err


def test_journals_that_were_not_used_for_long_are_deleted(lab, monkeypatch):
    monkeypatch.setattr(session, "_MOST_JOURNALS", 2)
    lab.versions({}, {})
    assert lab.compare() == PASS
    states = lab.scratch / "states"
    (own,) = states.glob("*.jsonl")
    for age, path in enumerate((states / "new.jsonl", states / "old.jsonl", own)):
        for file in (path, path.with_name(f"{path.name}.lock")):
            file.touch()
            os.utime(file, (1000 - age, 1000 - age))
    assert lab.compare() == PASS
    assert {path.name for path in states.iterdir()} == {
        *("new.jsonl", "new.jsonl.lock", own.name, f"{own.name}.lock")
    }
    assert lab.gpu.answered == ALL, "what goes on counts as used"


# --- the time is up -------------------------------------------------------------------------------


def test_time_that_is_up(lab, capsys, monkeypatch):
    """A minute a process, and five minutes: the rest is for the next run."""
    lab.versions({}, {})
    fake_clock(lab, monkeypatch)
    assert lab.compare("base", "head", "--budget", "5") == COULD_NOT_RUN
    shown = capsys.readouterr().err
    assert "3.0 minutes are left, and 10 rounds take 4.3 at least" in shown
    assert lab.gpu.answered == CHECKS
    assert lab.compare("base", "head", "--budget", "5") == COULD_NOT_RUN
    shown = capsys.readouterr().err
    assert "the time is up before round 3 of 10 of look1" in shown
    assert "there already" not in shown
    answered = lab.gpu.answered
    assert lab.compare("base", "head", "--budget", "60") == PASS
    assert "look1: 2 rounds were there already" in capsys.readouterr().err
    assert (answered, lab.gpu.answered) == (CHECKS + 4, ALL)
    assert lab.found.minutes == ALL  # those of the first run too


@pytest.mark.parametrize(("fitting", "made"), [(9, None), (10, 10), (13, 12), (15, 14), (16, 16)])
def test_first_look_of_the_rounds_that_there_is_time_for(lab, monkeypatch, capsys, fitting, made):
    lab.versions({}, {})
    fake_clock(lab, monkeypatch)
    budget = str(CHECKS + 2 * fitting)
    status = lab.compare("base", "head", "--budget", budget, rounds=16)
    if made is None:  # the next run makes all
        assert status == COULD_NOT_RUN
        shown = capsys.readouterr().err
        assert "there is time for 8 of the 10 rounds that a verdict needs" in shown
        assert shown.index("there is time for 8") < shown.index("look1: round 3 of 16")
        assert "the time is up before round 10 of 16 of look1" in shown
        assert lab.compare("base", "head", "--budget", "600", rounds=16) == PASS
        assert lab.found.rounds == 16
        return
    assert status == PASS
    assert lab.found.rounds == made and lab.gpu.answered == CHECKS + 2 * made
    sentence = f"{made} rounds: there was no time for 16"
    assert (sentence in lab.notes) == (made < 16)


def fake_clock(lab: Lab, monkeypatch):
    """Let every process take a minute; the seconds that have gone by."""

    def seconds():
        return 60.0 * lab.gpu.answered

    monkeypatch.setattr(command.time, "monotonic", seconds)
    return seconds


# --- invalid rounds -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("during", "reason"),
    [
        (
            {"events": {"hardware thermal slowdown": 3}},
            "hardware thermal slowdown in 3 of 9 samples",
        ),
        (
            {"sm_mhz": [1500, 1500, 1500]},
            "SM clock at 1500 MHz under load, 1980 in earlier rounds",
        ),
        (
            {},
            "launches did not take the same time in all processes: "
            "2.31 us in SLOW, 2.00 us in FAST",
        ),
    ],
    ids=["heat", "clock", "launches"],
)
def test_invalid_round_is_repeated_and_reported(lab, during, reason):
    def launch(begun):
        return 2.0e-6 if begun == CHECKS + 4 and not during else 2.3e-6 + 1e-8 * (begun % 2)

    lab.versions({}, {})
    lab.gpu.events = lambda answered: during if answered == CHECKS + 4 else {}
    lab.gpu.launch = launch
    assert lab.compare() == PASS
    assert lab.gpu.answered == ALL + 2
    slow, fast = (behaviour_of(root)["is"] for root, _ in lab.gpu.jobs[CHECKS + 2 : CHECKS + 4])
    reason = reason.replace("SLOW", slow).replace("FAST", fast)
    assert lab.found.discarded == (f"look1, round 2: {reason}",)
    assert lab.found.rounds == ROUNDS


def test_a_machine_whose_launches_are_alike_in_a_round_may_change_between_rounds(lab):
    lab.versions({}, {})
    lab.gpu.launch = lambda begun: 2.0e-6 if (begun - CHECKS - 1) // 2 % 2 else 2.3e-6
    assert lab.compare() == PASS and not lab.found.discarded


def test_invalid_again_and_again(lab, capsys):
    lab.versions({}, {})
    lab.gpu.events = lambda answered: {"processes": 2}
    assert lab.compare() == COULD_NOT_RUN
    assert f"round 1 of look1 was invalid {rounds.ATTEMPTS} times" in capsys.readouterr().err
    assert lab.gpu.answered == CHECKS + 2 * rounds.ATTEMPTS
    lab.gpu.events = lambda answered: {}
    assert lab.compare() == PASS
    assert len(lab.found.discarded) == rounds.ATTEMPTS


# --- the second look ------------------------------------------------------------------------------


def test_inconclusive_cells_are_measured_again_and_judged_by_that_alone(lab):
    lab.versions({}, {})
    noisy(lab, SMALL, 0.001)
    lab.gpu.pace = lambda subject, number: 1.0 if number <= ALL else 2.0
    assert lab.compare() == PASS
    result, added = lab.found, session.EXTENSION_ROUNDS
    assert (result.rounds, result.extension) == (ROUNDS + added, added)
    for timing in result.timings:
        again = timing.key in both(SMALL)
        assert timing.rounds == (added if again else ROUNDS)
        assert timing.base == pytest.approx(2e-5 if again else 1e-5, rel=0.02)
    jobs = [job for _, job in lab.gpu.jobs[ALL:]]
    assert len(jobs) == 2 * added
    assert all(job["cells"] == [["toy", SMALL.split()]] for job in jobs)
    assert len(lab.gpu.clocked) == ROUNDS


def test_inconclusive_host_is_measured_again_without_the_cells(lab):
    lab.versions({}, {})
    lab.gpu.noise = lambda subject, number: (
        0.001 if subject.metric not in HOST else (0.5 if len(lab.gpu.clocked) <= ROUNDS else 0.01)
    )
    assert lab.compare() == PASS
    assert len(lab.gpu.jobs) == ALL
    assert len(lab.gpu.clocked) == ROUNDS + session.EXTENSION_ROUNDS


def test_a_fail_needs_no_second_look(lab):
    lab.versions({}, {"slower": {LARGE: 1.05}})
    noisy(lab, SMALL, 0.001)
    assert lab.compare() == FAIL
    assert lab.found.extension == 0 and lab.gpu.answered == ALL
    assert any("the comparison fails without it" in note for note in lab.notes)


@pytest.mark.parametrize(("spare", "made"), [(-1, 0), (0, 10), (4, 12), (7, 12), (8, 14)])
def test_second_look_of_the_rounds_that_there_is_time_for(lab, monkeypatch, spare, made):
    """Two minutes a round, and an even number of rounds; of what it adds none is the first's."""
    lab.versions({}, {})
    noisy(lab, SMALL, 0.001)
    fake_clock(lab, monkeypatch)
    budget = str(ALL + 2 * MIN_ROUNDS + spare)
    assert lab.compare("base", "head", "--budget", budget) == (PASS if made else CANNOT_TELL)
    assert lab.found.extension == made and lab.gpu.answered == ALL + 2 * made
    if made:
        assert all(lab.timing(key).rounds == made for key in both(SMALL))
        return
    assert any("not enough for 10 rounds" in note for note in lab.notes)
    assert lab.compare("base", "head", "--budget", "600") == PASS
    assert lab.gpu.answered == ALL + 2 * session.EXTENSION_ROUNDS


@pytest.mark.parametrize(("noise", "rounds"), [(0.1, ROUNDS), (0.0, 16)], ids=["look2", "look1"])
def test_the_same_command_never_adds_rounds_to_what_was_judged(lab, monkeypatch, noise, rounds):
    """With more time it would judge the same timings once more, until one look passes."""
    lab.versions({}, {})
    if noise:
        noisy(lab, SMALL, noise)
    fake_clock(lab, monkeypatch)
    enough = CHECKS + 2 * 12 + (2 * ROUNDS if noise else 0)
    status = lab.compare("base", "head", "--budget", str(enough), rounds=rounds)
    assert status == (CANNOT_TELL if noise else PASS)
    first = lab.found
    assert (first.rounds, first.extension) == ((ROUNDS + 12, 12) if noise else (12, 0))
    assert lab.compare("base", "head", "--budget", "6000", rounds=rounds) == status
    assert lab.gpu.answered == enough
    assert (lab.found.families, lab.found.notes) == (first.families, first.notes)


def test_second_look_that_takes_longer_than_the_first(lab, monkeypatch, capsys):
    lab.versions({}, {})
    noisy(lab, SMALL, 0.001)
    pace = [1]
    monkeypatch.setattr(command.time, "monotonic", lambda: 60.0 * lab.gpu.answered * pace[0])
    lab.gpu.before = lambda begun: pace.__setitem__(0, 1 if begun <= ALL + 1 else 3)
    budget = str(ALL + 2 * session.EXTENSION_ROUNDS)
    assert lab.compare("base", "head", "--budget", budget) == CANNOT_TELL
    assert lab.found.extension == 0
    assert any("the time is up before round" in note for note in lab.notes)
    capsys.readouterr()
    assert lab.compare("base", "head", "--budget", "6000") == PASS
    assert "look2: 1 rounds were there already" in capsys.readouterr().err
    assert lab.found.extension == session.EXTENSION_ROUNDS
    assert lab.gpu.answered == ALL + 2 * session.EXTENSION_ROUNDS
