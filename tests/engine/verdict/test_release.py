"""What adds up to more than a margin since a release, and which commits it is made of. Pure."""

import dataclasses
import functools
import json

import numpy as np
import pytest

from benchmarks._engine.verdict import release
from benchmarks._engine.verdict.judge import judge
from benchmarks._engine.verdict.release import Search, SinceRelease, Step
from benchmarks._engine.verdict.rules import RULES, Answer
from tests.comparisons import (
    comparison,
    failing,
    gpu_facts,
    gpu_family,
    host_family,
    passing,
    subjects,
)

COMMITS = [f"{number:040x}" for number in range(1, 9)]
SLOW = subjects("small")[-1]  # of the largest tensors, whose noise is least


@functools.cache
def slower(share, noise=0.001):
    family = gpu_family(slowdown=lambda key: share * (key == SLOW), noise=noise)
    return comparison({"gpu": family}, ())


def unsteady(made):
    family = made.families["gpu"]
    control = dataclasses.replace(family.control, failed=1)
    return dataclasses.replace(made, families={"gpu": dataclasses.replace(family, control=control)})


@pytest.mark.parametrize(
    ("made", "answer"),
    [
        (slower(0.007), Answer.PASS),  # which fails a pull request
        (slower(0.02), Answer.FAIL),
        (slower(0.02, noise=0.01), Answer.CANNOT_TELL),
        (comparison({"host": host_family(0.04, 0.002)}, ()), Answer.PASS),
        (comparison({"host": host_family(0.15, 0.002)}, ()), Answer.FAIL),
        (comparison({"gpu": gpu_family()}, gpu_facts(error=1.9)), Answer.FAIL),
        (dataclasses.replace(slower(0.02), identical=frozenset({SLOW})), Answer.CANNOT_TELL),
    ],
)
def test_answer_by_the_margins(made, answer):
    assert release.cumulative(made).answer is answer
    assert bool(release.targets(made)) == (answer is Answer.FAIL)


def test_a_bound_beyond_the_margin_is_inconclusive_and_not_slower():
    made = slower(0.008, noise=0.003)
    (timing,) = (t for t in release.cumulative(made).timings if t.key == SLOW)
    assert (timing.answer, timing.change) == (Answer.CANNOT_TELL, "none")
    assert timing.upper > RULES["gpu"].margin == timing.floor > timing.effect
    assert timing.mde > timing.floor


def test_the_worst_of_each_metric_comes_first():
    worst = [key for key in subjects("small") if key.params[0] == "2048"][:12]
    gpu = gpu_family(slowdown=lambda key: 0.05 if key in worst else 0.02)
    results = release.targets(comparison({"gpu": gpu, "host": host_family(0.2, 0.002)}, ()))
    assert len(results) == release.MOST_TARGETS
    assert len({key.metric for key in results[:4]}) == 4 == len({key.metric for key in results})
    assert results[0].metric.startswith("host.")  # 20 %


def search(main=0.04, **steps):
    """A search where the commit of a number is slower by a share; None could not be compared."""
    made = [
        Step(COMMITS[int(name[1:]) - 1], None if share is None else slower(share))
        for name, share in steps.items()
    ]
    return Search(SinceRelease(slower(main), tuple(made)), COMMITS)


def test_the_range_that_rises_most_is_halved_next():
    assert search().next_commit() == COMMITS[3]
    assert search(c4=0.04).next_commit() == COMMITS[1]
    assert search(c4=0.01).next_commit() == COMMITS[5]
    assert search(c4=0.0, c6=0.04).next_commit() == COMMITS[4]
    assert search(c4=0.0, c6=0.04, c5=0.04).next_commit() is None
    assert search(main=0.0).next_commit() is None


def test_a_skipped_commit_divides_nothing():
    assert search(c4=None).next_commit() == COMMITS[2]
    assert [c[:2] for c in search(c3=0.0, c4=None, c5=0.04).culprits()] == [(3, 4)]


@pytest.mark.parametrize(
    ("step", "skipped"),
    [
        (slower(0.04), False),
        (slower(0.02, noise=0.1), True),
        (comparison({"host": host_family()}, ()), True),
        (unsteady(slower(0.04)), True),
        # The same machine code is not slower, however noisy.
        (
            dataclasses.replace(slower(0.0, noise=0.1), identical=frozenset(subjects("small"))),
            False,
        ),
    ],
    ids=["clear", "noisy", "without the timing", "an unsteady machine", "the same machine code"],
)
def test_a_step_that_says_too_little_is_skipped(step, skipped):
    assert search().skipped(Step(COMMITS[3], step)) == skipped


def test_culprits_come_in_order_of_what_they_added():
    culprits = search(c2=0.0, c3=0.01, c5=0.01, c6=0.04).culprits()
    assert [culprit[:3] for culprit in culprits] == [(5, 5, SLOW), (2, 2, SLOW)]
    assert culprits[0].effect == pytest.approx(0.03, abs=0.002)


def test_what_was_faster_in_between_is_not_hidden_by_it():
    """Faster by 4 %, then slower by 8 %: more than the whole."""
    (worst,) = search(c4=-0.04, c5=0.04).culprits()
    assert (worst.first, worst.last) == (4, 4) and worst.effect > 0.06


CELLS = subjects("small")[:24]


def culprits_in_noise(generator, shares, slow):
    """Numbers of the commits that are named where a commit is slower by its share in some cells."""
    commits = [f"{number:040x}" for number in range(1, len(shares) + 1)]

    def compared_with(index, wanted=CELLS):
        base, head = np.exp(0.003 * generator.normal(size=(2, 12, len(wanted)))) * 1e-5
        family = judge(wanted, base, head * [1 + shares[index] * (s in slow) for s in wanted])
        return comparison({"gpu": family}, ())

    results = SinceRelease(compared_with(-1))
    wanted = release.targets(results.comparison)
    while (commit := Search(results, commits).next_commit()) is not None:
        step = Step(commit, compared_with(commits.index(commit), wanted))
        results = SinceRelease(results.comparison, (*results.steps, step))
    return [range(c.first + 1, c.last + 2) for c in Search(results, commits).culprits()]


@pytest.mark.parametrize("seed", range(3))
def test_commits_are_named_in_noise(seed):
    generator, slow = np.random.default_rng(seed), set(CELLS[seed : seed + 6])
    where = 1 + 3 * seed
    step = [0.02 * (i >= where) for i in range(1, 17)]
    assert culprits_in_noise(generator, step, slow) == [range(where, where + 1)]
    ramp = [1.004 ** min(max(i - 3, 0), 10) - 1 for i in range(16)]
    culprits = culprits_in_noise(generator, ramp, slow)
    assert len(culprits) >= 5 and all({*numbers} <= {*range(5, 15)} for numbers in culprits)
    assert not culprits_in_noise(generator, [0.0] * 16, slow)


@pytest.mark.parametrize("make", [passing, failing])
def test_json_round_trip(make):
    made = make()
    step = release.trimmed(made, release.targets(made))
    results = SinceRelease(made, (Step(COMMITS[0], step), Step(COMMITS[1], None)))
    assert release.from_json(json.loads(json.dumps(release.to_json(results)))) == results


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": None}, "steps must be a list"),
        ({"steps": [{"commit": COMMITS[0], "comparison": None}] * 65}, "steps must be a list"),
        ({"steps": [{"commit": "main", "comparison": None}]}, "commit must be a text that"),
        ({"steps": [[]]}, "a step must be an object"),
        ({"more": 1}, "since release must be an object of"),
    ],
)
def test_anything_else_is_refused(change, message):
    document = release.to_json(SinceRelease(passing()))
    with pytest.raises(ValueError, match=message):
        release.from_json(document | change)
