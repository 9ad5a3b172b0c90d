"""What adds up to more than a margin since a baseline, and which commits it is made of. Pure."""

import dataclasses
import functools
import json

import numpy as np
import pytest

from benchmarks._verdict import creep
from benchmarks._verdict.creep import Creep, Search, Step
from benchmarks._verdict.judge import judge
from benchmarks._verdict.rules import Answer
from tests.comparisons import (
    comparison,
    failing,
    gpu_facts,
    gpu_family,
    host_family,
    job_failing,
    job_passing,
    passing,
    subjects,
)

COMMITS = [f"{number:040x}" for number in range(1, 9)]
SLOW = subjects("small")[-1]  # of the largest tensors, whose noise is least


def compared(*families, exact=(), **changes):
    return comparison({name: family for name, family in families}, exact, **changes)


@functools.cache
def slower(share, noise=0.001):
    family = gpu_family(slowdown=lambda key: share * (key == SLOW), noise=noise)
    return compared(("gpu", family))


def unsteady(made):
    family = made.families["gpu"]
    control = dataclasses.replace(family.control, failed=1)
    return dataclasses.replace(made, families={"gpu": dataclasses.replace(family, control=control)})


@pytest.mark.parametrize(
    ("made", "answer"),
    [
        (slower(0.0), Answer.PASS),
        (slower(0.007), Answer.PASS),  # which fails a pull request
        (slower(0.02), Answer.FAIL),
        (slower(0.0, noise=0.01), Answer.CANNOT_TELL),
        (slower(0.02, noise=0.01), Answer.CANNOT_TELL),
        (compared(("gpu", gpu_family()), ("host", host_family(0.04, 0.002))), Answer.PASS),
        (compared(("gpu", gpu_family()), ("host", host_family(0.15, 0.002))), Answer.FAIL),
        (compared(("gpu", gpu_family()), exact=gpu_facts(error=1.9)), Answer.FAIL),
        (dataclasses.replace(slower(0.0), wrong=("it is",)), Answer.FAIL),
        (dataclasses.replace(slower(0.0), unmeasured=("torch",)), Answer.CANNOT_TELL),
        (dataclasses.replace(slower(0.02), identical=frozenset({SLOW})), Answer.CANNOT_TELL),
    ],
)
def test_answer_by_the_margins(made, answer):
    assert creep.cumulative(made).answer is answer
    assert bool(creep.targets(made)) == (answer is Answer.FAIL and not made.wrong)


def test_a_bound_beyond_the_margin_is_inconclusive_and_not_slower():
    made = slower(0.008, noise=0.003)
    (timing,) = (each for each in creep.cumulative(made).timings if each.key == SLOW)
    assert (timing.answer, timing.change) == (Answer.CANNOT_TELL, "none")
    assert timing.upper > creep.MARGINS["gpu"] == timing.floor > timing.effect
    assert timing.mde > timing.floor


def test_the_worst_of_each_metric_comes_first():
    only = [each for each in subjects("small") if each.params[0] == "2048"][:12]
    made = compared(
        ("gpu", gpu_family(slowdown=lambda s: 0.05 if s in only else 0.02)),
        ("host", host_family(0.2, 0.002)),
    )
    found = creep.targets(made)
    assert len(found) == creep.MOST_TARGETS
    assert {each.metric for each in found[:4]} == {
        *(f"rope.{name}.track_latency" for name in ("Forward", "Backward")),
        *(f"host.Call.track_{name}" for name in ("forward", "forward_backward")),
    }
    assert found[0].metric.startswith("host.")  # 20 %


def search(*shares, main=0.04, **steps):
    """A search where the commit of a number is slower by a share; None could not be compared."""
    made = [
        Step(COMMITS[int(name[1:]) - 1], None if share is None else slower(share))
        for name, share in steps.items()
    ]
    return Search(Creep(slower(main), tuple(made)), COMMITS)


def test_the_range_that_rises_most_is_halved_next():
    assert search().next_commit() == COMMITS[3]
    assert search(c4=0.04).next_commit() == COMMITS[1]
    assert search(c4=0.01).next_commit() == COMMITS[5]
    assert search(c4=0.0, c6=0.04).next_commit() == COMMITS[4]
    assert search(c4=0.0, c6=0.04, c5=0.04).next_commit() is None
    assert search(main=0.0).next_commit() is None


def test_a_skipped_commit_divides_nothing():
    found = search(c4=None)
    assert found.skipped(Step(COMMITS[3], None))
    assert found.next_commit() == COMMITS[2]
    assert [(r.first, r.last) for r in search(c3=0.0, c4=None, c5=0.04).rises()] == [(3, 4)]


@pytest.mark.parametrize(
    "step",
    [
        slower(0.02, noise=0.1),
        compared(("host", host_family())),
        unsteady(slower(0.04)),
    ],
    ids=["noisy", "without the timing", "an unsteady machine"],
)
def test_a_step_that_says_too_little_is_skipped(step):
    found = Search(Creep(slower(0.04)), COMMITS)
    assert found.skipped(Step(COMMITS[3], step))
    assert not found.skipped(Step(COMMITS[3], slower(0.04)))


def test_the_same_machine_code_is_not_slower_however_noisy():
    same = dataclasses.replace(slower(0.0, noise=0.1), identical=frozenset(subjects("small")))
    assert not Search(Creep(slower(0.04)), COMMITS).skipped(Step(COMMITS[3], same))


def test_shares_add_up_and_come_in_order():
    found = search(c2=0.0, c3=0.01, c5=0.01, c6=0.04).rises()
    assert [(rise.first, rise.last) for rise in found] == [(5, 5), (2, 2)]
    assert found[0].effect == pytest.approx(0.03, abs=0.002)
    assert sum(rise.share for rise in found) == pytest.approx(1, abs=0.05)
    assert {rise.target for rise in found} == {SLOW}


def test_what_was_faster_in_between_is_not_hidden_by_it():
    """Faster by 4 %, then slower by 8 %: more than the whole."""
    (worst, *_) = search(c4=-0.04, c5=0.04).rises()
    assert (worst.first, worst.last) == (4, 4) and worst.share > 1.5


CELLS = subjects("small")[:24]


def noisy(generator, shares, slow):
    """What is found in a history whose commits are slower by these shares in some cells.

    A round has 0.4 % of noise. The culprits are commits by number, 0 for a range of several.
    """
    commits = [f"{number:040x}" for number in range(1, len(shares) + 1)]

    def compared_with(index, wanted=CELLS):
        base, head = np.exp(0.003 * generator.normal(size=(2, 12, len(wanted)))) * 1e-5
        family = judge(wanted, base, head * [1 + shares[index] * (s in slow) for s in wanted])
        return compared(("gpu", family))

    found = Creep(compared_with(-1))
    while (commit := Search(found, commits).next_commit()) is not None:
        step = Step(commit, compared_with(commits.index(commit), creep.targets(found.comparison)))
        found = Creep(found.comparison, (*found.steps, step))
    rises = Search(found, commits).rises()
    return found, [rise.last + 1 if rise.first == rise.last else 0 for rise in rises]


@pytest.mark.parametrize("seed", range(5))
def test_commits_are_found_in_noise(seed):
    generator = np.random.default_rng(seed)
    slow = set(CELLS[seed : seed + 6])
    where = 1 + 3 * seed
    found, culprits = noisy(generator, [0.02 * (i >= where) for i in range(1, 17)], slow)
    assert culprits[0] == where and len(found.steps) <= 6
    found, culprits = noisy(
        generator, [1.004 ** min(max(i - 3, 0), 10) - 1 for i in range(16)], slow
    )
    assert len({*culprits} & {*range(5, 15)}) >= 5 and not {*culprits} - {0, *range(5, 15)}
    found, culprits = noisy(generator, [0.0] * 16, slow)
    assert not culprits and not found.steps


@pytest.mark.parametrize("make", [passing, failing, job_passing, job_failing])
def test_json_round_trip(make):
    made = make()
    step = creep.trimmed(made, creep.targets(made))
    found = Creep(made, (Step(COMMITS[0], step), Step(COMMITS[1], None)))
    assert creep.from_json(json.loads(json.dumps(creep.to_json(found)))) == found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": None}, "steps must be a list"),
        ({"steps": [{"commit": COMMITS[0], "comparison": None}] * 65}, "steps must be a list"),
        ({"steps": [{"commit": "main", "comparison": None}]}, "commit must be a text that"),
        ({"steps": [{"commit": COMMITS[0]}]}, "a step must be an object"),
        ({"steps": [{"commit": COMMITS[0], "comparison": 1}]}, "a comparison is an object"),
        ({"steps": [[]]}, "a step must be an object"),
        ({"comparison": None}, "a comparison is an object"),
        ({"more": 1}, "creep must be an object of"),
    ],
)
def test_anything_else_is_refused(change, message):
    document = creep.to_json(Creep(passing()))
    with pytest.raises(ValueError, match=message):
        creep.from_json(document | change)
    with pytest.raises(ValueError, match="creep must be an object of"):
        creep.from_json([])
