"""Slowdowns in made-up histories, and a part of the simulation that ships."""

import json

import numpy as np
import pytest

from benchmarks._site import slowdown_simulation as simulation
from benchmarks._site import slowdowns

STEPS = np.arange(40)


def history(added, noise=0.001, seed=0):
    """A latency of 40 results, and its ratio to a copy that nothing changes."""
    own = np.random.default_rng(seed).normal(0, noise, len(added)) + added
    return own[None], own[None].copy()


def told(own, ratio, **options):
    return slowdowns.slower(own, ratio, at=range(own.shape[1]), **options)[0]


@pytest.mark.parametrize(
    ("added", "kind", "first", "last"),
    [
        (0.02 * (STEPS >= 20), "step", 20, 20),
        (0.004 * np.clip(STEPS - 19, 0, 10), "ramp", 21, 29),
    ],
)
def test_a_step_and_a_ramp_are_told_within_five_results_of_having_two_percent(
    added, kind, first, last
):
    own, ratio = history(added)
    found = np.flatnonzero(told(own, ratio))
    assert 20 <= found[0] <= 20 + 4 * (kind == "ramp") + 5 and found[-1] == 39
    rise = slowdowns.rise(own[0], ratio[0], 39)
    slack = 2 * (kind == "ramp")
    assert rise.kind == kind
    assert abs(rise.first - first) <= slack and abs(rise.last - last) <= slack
    assert rise.change == pytest.approx(np.expm1(added[-1]), rel=0.1)


@pytest.mark.parametrize(
    "added",
    [
        np.zeros(40),
        -0.05 * (STEPS >= 20),  # faster
        0.1 * (STEPS % 7 == 3),  # single disturbed results
        0.004 * (STEPS >= 20),  # within the floor
    ],
)
def test_what_is_no_slowdown_is_not_told(added):
    assert not told(*history(added)).any()


def test_what_slows_the_copies_too_is_the_machines():
    own, ratio = history(0.05 * (STEPS >= 20))
    assert told(own, ratio).any() and not told(own, ratio - ratio).any()
    assert not told(ratio - ratio, own).any()  # copies got faster: nobody waits longer


def test_a_slowdown_stands_until_it_was_taken_back():
    added = 0.02 * ((STEPS >= 15) & (STEPS < 30))
    own, ratio = history(added)
    last = int(np.flatnonzero(told(own, ratio))[-1])
    assert slowdowns.rise(own[0], ratio[0], last) is None
    machine = 0.03 * (STEPS >= 25)  # in a faster state the copies are faster as well
    own, ratio = history(0.02 * (STEPS >= 15))
    last = int(np.flatnonzero(told(own - machine, ratio))[-1])
    rise = slowdowns.rise((own - machine)[0], ratio[0], last)
    assert last < 39 and rise.first == rise.last == 15


def test_few_results_and_noisy_timings_say_nothing():
    added = 0.02 * (np.arange(slowdowns.SHORTEST - 1) >= slowdowns.BEST)
    assert not told(*history(added)).any()
    assert not told(*history(0.01 * (STEPS >= 20), noise=0.02)).any()
    assert not told(*history(0.02 * (STEPS >= 20)), floor=0.15).any()


def test_a_toolchain_costs_nothing_and_hides_no_ramp():
    numbers = [0] * 20 + [1] * 21
    commits = np.array([*range(20), 19, *range(20, 40)])
    added = 0.004 * np.clip(STEPS - 11, 0, 10)[commits] + 0.05 * np.array(numbers)
    own, ratio = history(added)
    keep = np.zeros(1, bool)
    both = [slowdowns.aligned(x, numbers, [(19, 20)], keep) for x in (own, ratio)]
    assert slowdowns.slower(*both).all()
    rise = slowdowns.rise(both[0][0], both[1][0], 40)
    assert 0.02 < rise.change < 0.04  # what the ramp rose beside the change is the toolchain's
    anew = slowdowns.aligned(own, numbers, [(19, 20)], ~keep)
    assert np.isnan(anew[0, :20]).all() and (anew[0, 20:] == own[0, 20:]).all()


def test_a_disturbed_result_of_a_pair_makes_nothing_slower():
    numbers = [0] * 20 + [1] * 20
    own, ratio = history(np.zeros(40))
    own[0, 20] -= 0.1
    both = [slowdowns.aligned(x, numbers, [(19, 20)], np.zeros(1, bool)) for x in (own, ratio)]
    assert not slowdowns.slower(*both).any()


@pytest.mark.parametrize(("twice", "found"), [(1, False), (slowdowns.PAIRS, True)])
def test_a_step_beside_a_new_toolchain_is_found_where_enough_commits_have_both(twice, found):
    commits = np.sort([*range(40), *range(20 - twice, 20)])
    again = np.flatnonzero(commits[1:] == commits[:-1]) + 1
    numbers = np.where(commits >= 20, 1, 0)
    numbers[again] = 1
    own, ratio = history(0.02 * (commits >= 20) + 0.05 * numbers)
    own[0, again[0]] -= 0.1 * (twice > 1)  # disturbed
    known = numbers.tolist(), [(at - 1, at) for at in again.tolist()], np.zeros(1, bool)
    both = [slowdowns.aligned(x, *known) for x in (own, ratio)]
    assert slowdowns.slower(*both).all() == found


# --- what ships -----------------------------------------------------------------------------------

SHIPPED = json.loads(simulation.EVIDENCE.read_text())


@pytest.mark.parametrize("name", simulation.SCENARIOS)
def test_the_simulation_gives_what_ships(name):
    """The first site of each kind, anew: most of them take seconds."""
    scenario, runs = simulation.SCENARIOS[name], SHIPPED["scenarios"][name]
    assert len(runs["alarms"]) == scenario.sites
    assert len(runs["step"]) == len(runs["ramp"]) == scenario.slower_sites
    assert SHIPPED["timings"] == len(simulation.measured().timings) > 1000
    assert simulation.alarms(0, **scenario.history) == runs["alarms"][0]
    if not scenario.history:
        assert list(simulation.told(0, "step")) == runs["step"][0]


@pytest.mark.parametrize("name", ["as measured", "three changes of toolchain"])
def test_what_ships_reaches_its_targets(name):
    runs = SHIPPED["scenarios"][name]
    assert sum(map(bool, runs["alarms"])) / len(runs["alarms"]) <= 1 / 40
    for kind in SHIPPED["kinds"]:
        timings, in_time, *_ = map(sum, zip(*runs[kind], strict=True))
        assert in_time / timings >= 0.9, kind
