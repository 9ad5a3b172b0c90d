"""Sign-flip permutation tests. Pure; arrays are [rounds, timings].

If the sign of a round's values is as likely to be one as the other, jointly for all timings, then
of all 2^n patterns of flipped rounds the one that was observed is not special. Nothing is assumed
about the shape of the noise or about how timings move together, and it need not be the same in
every round.

Sources:
P. H. Westfall, S. S. Young, Resampling-Based Multiple Testing, 1993 (step-down max-T);
V. G. Tusher, R. Tibshirani, G. Chu, Significance analysis of microarrays, 2001 (a statistic whose
scale never gets close to zero);
B. Phipson, G. K. Smyth, Permutation p-values should never be zero, 2010 (count the identity).
"""

from collections.abc import Iterator

import numpy as np

# All patterns of up to this many rounds; of more rounds, as many random ones.
EXHAUSTIVE_ROUNDS = 14
_CHUNK = 1 << 20
# Statistics are at most 1 in size; equal ones may differ in their last bits.
_TIE = 1e-12


def patterns(rounds: int) -> np.ndarray:
    """Which rounds are flipped, [patterns, rounds] of 0 and 1; the identity is left out.

    All 2^n - 1 of them for n <= 14, else 2^14 - 1 different ones drawn at random: with the identity
    the draw is as exchangeable as the whole. Of more than ``rules.MAX_ROUNDS`` it would overflow.
    """
    drawn = 2 ** min(rounds, EXHAUSTIVE_ROUNDS) - 1
    if rounds <= EXHAUSTIVE_ROUNDS:
        codes = np.arange(1, drawn + 1)
    else:
        generator = np.random.default_rng(0)
        codes = 1 + generator.choice(2**rounds - 1, drawn, replace=False, shuffle=False)
    return (codes[:, None] >> np.arange(rounds) & 1).astype(float)


def winsorized(values: np.ndarray) -> np.ndarray:
    """The values, the largest quarter of each timing's sizes cut to the size below them.

    One disturbed process then counts no more than any other round. The cut depends on sizes alone,
    so a flip of a round's signs flips the result: the test stays exact.
    """
    sizes = np.sort(np.abs(values), axis=0)
    most = sizes[len(values) - 1 - len(values) // 4]
    return values.clip(-most, most)


def scale(values: np.ndarray) -> np.ndarray:
    """The divisor of each timing's mean; no flip of rounds changes it.

    It is the root of a sum of two squares. The first is the timing's mean square: it makes
    the statistic equivalent to Student's t. The second is the family's median variance of |values|,
    which is noise however many timings have changed. With a dozen rounds some timing's spread
    comes out small by chance; without the second it would set the bar for all the others.
    """
    total = np.sqrt(np.mean(values**2, axis=0) + common_square(values))
    return np.where(total > 0, total, 1.0)


def common_square(values: np.ndarray) -> float:
    """The family's part of the scale, squared."""
    return float(np.median(np.abs(values).var(axis=0)))


def adjusted_p(values: np.ndarray, flips: np.ndarray) -> np.ndarray:
    """One-sided p of "the mean is not above zero" for each timing, adjusted for the family.

    Step-down max-T of Westfall and Young: the chance of one false alarm among all timings is at
    most the level, however they depend on each other and whichever of them have truly changed. The
    dependence counts, for a process moves many cells together: Bonferroni would ignore it and see
    less, Benjamini-Hochberg bounds the share of false alarms and not the chance of one. In steps,
    because the plain maximum would be set by the clearest changes and hide the others.
    """
    observed = values.mean(axis=0) / scale(values)
    order = np.argsort(observed)  # ascending, so that the maximum over "this and weaker" runs on
    threshold = observed[order] - _TIE
    reached = np.ones(len(order))  # the identity is one of the patterns
    for statistics in _flipped(values[:, order], flips):
        reached += (np.maximum.accumulate(statistics, axis=1) >= threshold).sum(axis=0)
    stepped = np.maximum.accumulate((reached / (len(flips) + 1))[::-1])[::-1]
    p = np.empty_like(stepped)
    p[order] = stepped
    return p


def critical(values: np.ndarray, flips: np.ndarray, alpha: float) -> float:
    """The statistic that a single change must exceed: the maximum's (1 - alpha) quantile."""
    identity = np.max(values.mean(axis=0) / scale(values), keepdims=True)
    flipped = [statistics.max(axis=1) for statistics in _flipped(values, flips)]
    maxima = np.sort(np.concatenate([identity, *flipped]))
    allowed = int(alpha * len(maxima))  # so many patterns may reach it, the observed one among them
    return float(maxima[len(maxima) - max(allowed, 1)])


def _flipped(values: np.ndarray, flips: np.ndarray) -> Iterator[np.ndarray]:
    """The statistics under each flip, a chunk of flips at a time: [flips, timings]."""
    scaled = values / (scale(values) * len(values))
    height = max(1, _CHUNK // scaled.shape[1])
    for start in range(0, len(flips), height):
        yield (1 - 2 * flips[start : start + height]) @ scaled
