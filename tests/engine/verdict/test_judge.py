"""The judge against known distributions and brute force."""

import itertools

import numpy as np
import pytest

from benchmarks._engine.verdict import permutation_test
from benchmarks._engine.verdict.judge import judge
from benchmarks._engine.verdict.rules import Answer, Key, Rules, varies_more

ROUNDS = 12
CELL_NOISE = 0.002
FORWARD = "rope.Forward.track_latency"


def keys(count, metric=FORWARD):
    return [Key(metric, (str(i), "64", "1", "float16", "sbhd")) for i in range(count)]


def processes(generator, rounds, cells, *, modes=0.0, tails=False, drift=0.0, noise=CELL_NOISE):
    """Seconds of (base, head) without any difference: [rounds, cells], in the order A B | B A.

    modes: each process is in one of two states, which move each cell by up to so much, many
    together. drift: log change of the whole machine from a process to the next.
    """
    shape = (2 * rounds, cells)
    logs = noise * (generator.standard_t(2, shape) if tails else generator.standard_normal(shape))
    logs += generator.integers(2, size=(2 * rounds, 1)) * modes * generator.random(cells)
    logs += drift * np.arange(2 * rounds)[:, None]
    first, second = 1e-5 * np.exp(logs.reshape(rounds, 2, cells)).transpose(1, 0, 2)
    swapped = np.arange(rounds)[:, None] % 2 == 1
    return np.where(swapped, second, first), np.where(swapped, first, second)


def judged(base, head, **rules):
    return judge(keys(base.shape[1]), base, head, Rules(**rules))


NOISES = {
    "quiet": {},
    "bimodal": {"modes": 0.05},
    "heavy tails": {"tails": True},
    "both": {"modes": 0.05, "tails": True},
}


@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)
@pytest.mark.parametrize("cells", [1, 10])
def test_family_wise_false_alarm_rate_is_the_nominal_one(noise, cells):
    generator, alpha, repetitions = np.random.default_rng(0), 0.1, 1000
    flips = permutation_test.patterns(8)
    slower = faster = 0
    for _ in range(repetitions):
        base, head = processes(generator, 8, cells, **noise)
        ratios = np.log(head / base)
        slower += min(permutation_test.adjusted_p(ratios, flips)) <= alpha
        faster += min(permutation_test.adjusted_p(-ratios, flips)) <= alpha
    exact_rate = int(alpha * 2**8) / 2**8
    bound = 4 * (exact_rate * (1 - exact_rate) / repetitions) ** 0.5
    assert slower / repetitions == pytest.approx(exact_rate, abs=bound)
    assert faster / repetitions == pytest.approx(exact_rate, abs=bound)


def test_drift_cancels_in_the_effect_and_in_the_control():
    base, head = processes(np.random.default_rng(0), ROUNDS, 3, drift=0.01, noise=0)
    family = judged(base, head)
    assert head[0, 0] / base[0, 0] == pytest.approx(np.exp(0.01))
    assert [timing.effect for timing in family.timings] == pytest.approx([0] * 3)
    assert family.control.floor == pytest.approx(0)
    assert family.control.failed == 0
    noisy = judged(*processes(np.random.default_rng(0), ROUNDS, 400))
    assert noisy.control.noise == pytest.approx(2**0.5 * CELL_NOISE, rel=0.05)  # of a paired round


def test_power_grows_with_the_effect_and_is_90_percent_at_the_mde():
    generator, cells = np.random.default_rng(3), 48
    sizes = CELL_NOISE * np.exp(generator.uniform(-1, 1, cells))
    family = judged(*processes(generator, ROUNDS, cells, noise=sizes))
    mde = np.array([timing.mde for timing in family.timings])
    assert (mde > 0.005).all() and (mde < 0.05).all()
    shares = []
    for effect in (np.zeros(cells), mde / 2, mde, 3 * mde):
        failures = []
        for _ in range(12):
            # Visible is what one slow cell needs: a few at a time.
            slow = generator.random(cells) < 0.1
            base, head = processes(generator, ROUNDS, cells, noise=sizes)
            family = judged(base, head * (1 + effect * slow))
            answers = np.array([timing.answer is Answer.FAIL for timing in family.timings])
            failures.extend(answers[slow])
        shares.append(np.mean(failures))
    assert shares[0] == 0
    assert shares[0] < shares[1] < 0.6 < 0.85 < shares[2] <= shares[3] == 1


@pytest.mark.parametrize("tails", [False, True])
def test_intervals_cover_the_truth_as_often_as_they_say(tails):
    base, head = processes(np.random.default_rng(4), ROUNDS, 1500, tails=tails)
    timings = judged(base, head * 1.02, alpha=0.05).timings
    covered = np.mean([timing.low <= 0.02 <= timing.high for timing in timings])
    below = np.mean([timing.upper >= 0.02 for timing in timings])
    assert covered == pytest.approx(0.95, abs=0.02)
    assert below == pytest.approx(0.95, abs=0.02)


def brute_force_p(values):
    """Step-down max-T from its definition."""
    rounds, cells = values.shape
    noise = np.median(np.abs(values).var(axis=0))
    size = np.sqrt(np.mean(values**2, axis=0) + noise)
    signs = np.array(list(itertools.product((1, -1), repeat=rounds)))
    flipped = np.array([(sign[:, None] * values).mean(axis=0) / size for sign in signs])
    p, previous = np.empty(cells), 0.0  # in steps, from the clearest change on
    for cell in np.argsort(-flipped[0]):
        rest = flipped[:, flipped[0] <= flipped[0, cell]]
        previous = max(previous, np.mean(rest.max(axis=1) >= flipped[0, cell] - 1e-12))
        p[cell] = previous
    return p


def test_adjusted_p_is_that_of_the_definition():
    generator = np.random.default_rng(5)
    for _ in range(5):
        values = generator.standard_normal((8, 6)) + [0, 0, 1, 1, 2, -1]
        p = permutation_test.adjusted_p(values, permutation_test.patterns(8))
        assert p == pytest.approx(brute_force_p(values))


def test_winsorized_cuts_the_largest_quarter_and_flips_with_the_rounds():
    values = np.array([3.0, -1, 0.5, -9, 2, 8, 0.1, -0.2])[:, None]
    cut = permutation_test.winsorized(values)
    assert cut[:, 0].tolist() == [3.0, -1, 0.5, -3, 2, 3, 0.1, -0.2]
    signs = np.array([1, -1, -1, 1, -1, 1, 1, -1])[:, None]
    assert (permutation_test.winsorized(signs * values) == signs * cut).all()


def test_one_disturbed_round_changes_little():
    base, head = processes(np.random.default_rng(13), 14, 20)
    head[3, 0] *= 0.86  # as a burst does
    head *= 1.02
    burst, *others = judged(base, head).timings
    assert burst.answer is Answer.FAIL and burst.effect == pytest.approx(0.02, abs=0.003)
    assert burst.high - burst.low < 3 * max(timing.high - timing.low for timing in others)


def test_patterns():
    every = permutation_test.patterns(10)
    assert len({tuple(row) for row in every}) == len(every) == 2**10 - 1
    drawn = permutation_test.patterns(24)
    assert len({tuple(row) for row in drawn}) == len(drawn) == 2**14 - 1
    assert drawn.any(axis=1).all() and drawn.mean() == pytest.approx(0.5, abs=0.01)
    assert (drawn == permutation_test.patterns(24)).all()


def test_each_answer_is_reached():
    base, head = processes(np.random.default_rng(9), ROUNDS, 6, noise=[0.001] * 5 + [0.03])
    head[:, 0] *= 1.03
    head[:, 1] *= 0.97
    head[:, 2] *= 1.003
    slow, fast, slight, same, _, blind = judged(base, head, min_effect=0.005).timings
    assert (slow.answer, slow.change) == (Answer.FAIL, "slower")
    assert slow.p_slower <= 0.0025 < slow.p_faster
    assert slow.low < slow.effect < slow.high and slow.effect == pytest.approx(0.03, abs=0.002)
    assert slow.head / slow.base == pytest.approx(1.03, abs=0.003)
    assert (fast.answer, fast.change) == (Answer.PASS, "faster")
    # Significant, too little to count, and surely below the margin.
    assert slight.p_slower <= 0.0025 and slight.effect < slight.floor
    assert (slight.answer, slight.change) == (Answer.PASS, "none")
    assert (same.answer, same.change) == (Answer.PASS, "none")
    assert same.upper < 0.01 and same.mde < 0.02
    assert (blind.answer, blind.change) == (Answer.CANNOT_TELL, "none")
    assert blind.upper > 0.01 and blind.mde > 0.03
    assert blind.rounds == ROUNDS


def with_steps(base, head, cells, size):
    """Move some cells, of both versions alike, from round to round: the A/A control sees it.

    Each block of two rounds has another level, so these are no two states.
    """
    levels = np.array([0, 1, 1, 0] * 3) + 3 * np.repeat(np.arange(6), 2)
    base[:, cells] *= (1 + size) ** levels[:, None]
    head[:, cells] *= (1 + size) ** levels[:, None]


def test_control_sees_what_the_pairs_cancel():
    base, head = processes(np.random.default_rng(10), ROUNDS, 40, noise=0.0005)
    assert judged(base, head).control.failed == 0
    with_steps(base, head, slice(0, 1), 0.02)
    with_steps(base, head, slice(1, 2), -0.02)
    family = judged(base, head)
    assert family.control.failed == 2
    assert family.control.floor < 0.005  # a twentieth of the keys may lie above it
    assert {timing.answer for timing in family.timings} == {Answer.PASS}
    with_steps(base, head, slice(2, 40), 0.02)
    family = judged(base, head)
    assert family.control.failed >= 1
    assert family.control.floor == pytest.approx(0.02, abs=0.001)


def test_floor_goes_by_the_duration():
    base, head = processes(np.random.default_rng(10), ROUNDS, 96, noise=0.0003)
    with_steps(base, head, slice(0, 24), 0.02)
    long = np.repeat([1.0, 50.0], 48)
    floors = np.array([timing.floor for timing in judged(base * long, head * long).timings])
    assert (floors[:24] > 0.015).all() and (floors[48:] == 0.005).all()


def test_own_control_raises_the_floor_of_a_subject():
    base, head = processes(np.random.default_rng(11), ROUNDS, 40, noise=0.0005)
    with_steps(base, head, slice(0, 1), 0.05)
    timings = judged(base, head * 1.03).timings
    assert timings[0].floor == pytest.approx(0.05, abs=0.002)
    assert (timings[0].answer, timings[0].change) == (Answer.CANNOT_TELL, "none")
    assert {timing.floor for timing in timings[1:]} == {0.005}
    assert {timing.answer for timing in timings[1:]} == {Answer.FAIL}


def test_mean_change_is_of_what_differs():
    base, head = processes(np.random.default_rng(14), ROUNDS, 40)
    head[:, :10] *= 1.02
    same = frozenset(keys(40)[10:])
    family = judge(keys(40), base, head, identical=same)
    assert family.mean.timings == 10 and family.mean.effect == pytest.approx(0.02, abs=0.001)
    assert 0.018 < family.mean.low < family.mean.effect < family.mean.high < 0.022
    assert judge(keys(40), base, head).mean.effect == pytest.approx(0.005, abs=0.001)
    family = judge(keys(40), base, head, identical=frozenset(keys(40)))
    assert (family.mean, family.spread) == (None, None)


def test_a_head_that_varies_more_is_found_and_a_base_is_not():
    generator = np.random.default_rng(15)
    base, head = processes(generator, ROUNDS, 40)
    head *= np.where(generator.random(head.shape) < 0.3, 1.02, 1)
    assert varies_more(judged(base, head).spread)
    assert not varies_more(judged(head, base).spread)
    family = judged(base, base[:, ::-1] * 1.05)  # slower, and no more varied
    assert not varies_more(family.spread)


@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)
def test_false_alarms_of_a_head_that_varies_more(noise):
    generator, alpha, repetitions = np.random.default_rng(16), 0.1, 400
    alarms = sum(
        judged(*processes(generator, 8, 5, **noise), alpha=0.1).spread.p <= alpha
        for _ in range(repetitions)
    )
    assert alarms / repetitions == pytest.approx(alpha, abs=4 * (0.09 / repetitions) ** 0.5)


def test_the_very_same_numbers_are_no_change():
    for timing in judged(GOOD, GOOD).timings:
        assert (timing.answer, timing.effect, timing.p_slower) == (Answer.PASS, 0, 1)


GOOD = np.full((ROUNDS, 2), 1e-5)


def spoilt(value):
    array = GOOD.copy()
    array[3, 1] = value
    return array


@pytest.mark.parametrize(
    ("base", "head", "message"),
    [
        (GOOD[:11], GOOD[:11], "an even number of rounds is needed, got 11"),
        (GOOD[:8], GOOD[:8], "8 rounds can never be significant at alpha 0.0025"),
        (spoilt(np.nan), GOOD, r"base of Key\(.*'1', .* is nan in round 3"),
        (GOOD, spoilt(np.inf), r"head of Key\(.* is inf in round 3"),
        (GOOD, spoilt(0), "finite and positive, .* is 0.0 in round 3"),
    ],
)
def test_bad_samples(base, head, message):
    with pytest.raises(ValueError, match=message):
        judge(keys(2), base, head)
