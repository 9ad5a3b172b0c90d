"""Signed ranks against brute force, and states of processes."""

import itertools

import numpy as np
import pytest

from benchmarks._engine.verdict import bimodal, signed_rank


def test_estimate_is_the_median_of_all_averages_of_two():
    values = np.random.default_rng(0).standard_normal((7, 3))
    pairs = itertools.combinations_with_replacement(range(7), 2)
    expected = np.median([(values[i] + values[j]) / 2 for i, j in pairs], axis=0)
    averages = signed_rank.walsh_averages(values)
    assert signed_rank.estimate(averages) == pytest.approx(expected)


@pytest.mark.parametrize(("rounds", "tail"), [(8, 0.025), (12, 0.05), (10, 0.0025)])
def test_bounds_are_those_of_the_test_by_signs_of_ranks(rounds, tail):
    ranks = np.arange(1, rounds + 1)
    signs = np.array(list(itertools.product((0, 1), repeat=rounds)))
    sums = signs @ ranks
    beyond = max(k for k in range(1, rounds * rounds) if np.mean(sums <= k - 1) <= tail)
    averages = signed_rank.walsh_averages(np.random.default_rng(1).standard_normal((rounds, 2)))
    low, high = signed_rank.bounds(averages, rounds, tail)
    assert (low == averages[beyond - 1]).all() and (high == averages[-beyond]).all()


def test_too_few_rounds_for_a_bound():
    with pytest.raises(ValueError, match="4 rounds give no bound with an error of 0.05"):
        signed_rank.bounds(signed_rank.walsh_averages(np.ones((4, 1))), 4, 0.05)


def two_states(generator, share, rounds=12, subjects=200, apart=0.03):
    noise = 0.002 * generator.standard_normal((rounds, subjects))
    return noise + apart * (generator.random((rounds, subjects)) < share)


def test_states_of_both_versions_are_removed_and_a_change_stays():
    generator = np.random.default_rng(2)
    base, head = two_states(generator, 0.5), 0.01 + two_states(generator, 0.5)
    one, other = bimodal.removed(base, head)
    assert (head - base).std() > 0.02
    clear = ((one != base).any(axis=0)) | ((other != head).any(axis=0))
    assert clear.mean() > 0.85
    assert (other - one)[:, clear].std() < 0.005
    assert np.median(other - one) == pytest.approx(0.01, abs=0.0005)


@pytest.mark.parametrize(("of_base", "of_head"), [(0.0, 0.5), (0.5, 0.0), (0.0, 0.0), (0.0, 1.0)])
def test_states_of_one_version_alone_stay(of_base, of_head):
    generator = np.random.default_rng(3)
    base, head = two_states(generator, of_base), two_states(generator, of_head)
    one, other = bimodal.removed(base, head)
    assert ((one != base) | (other != head)).any(axis=0).mean() < 0.01


def test_outliers_of_each_version_on_its_own_side_are_no_states():
    """The slower state of the base would be the faster one of the head, and a difference appear."""
    generator = np.random.default_rng(5)
    base, head = two_states(generator, 0.0), two_states(generator, 0.0)
    base[:3] -= 0.03
    head[5:8] += 0.03
    one, other = bimodal.removed(base, head)
    assert (one == base).all() and (other == head).all()


def test_exchange_of_the_versions_exchanges_the_result():
    generator = np.random.default_rng(4)
    base, head = two_states(generator, 0.5), two_states(generator, 0.5)
    one, other = bimodal.removed(base, head)
    other_again, one_again = bimodal.removed(head, base)
    assert (one == one_again).all() and (other == other_again).all()
