"""Models of the noise of processes, to simulate comparisons with. Pure numpy, no GPU.

A model draws what processes take in the order in which they run: natural logarithms of time over
usual time, an array of [2 * rounds, timings]. The sizes are those of an H200 whose other GPUs rest,
unless a model says otherwise: a process's median varies by 0.3 % where a call takes 2.4 us and by
0.1 % where it takes 250 us.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Pair = tuple[np.ndarray, np.ndarray]
"""Base and head, [rounds, timings] of logarithms each."""

_Draw = Callable[[np.random.Generator, np.ndarray, np.ndarray], np.ndarray]

SHORT_SECONDS = 11e-6
"""Calls that are shorter show the bursts of another GPU of the host that works."""


class Model(NamedTuple):
    """A kind of noise.

    draw: from a generator, which processes are the head's, and the usual seconds of each GPU
    timing. alike: whether it draws the same of both versions. If not, the head is slower in some
    processes, and only a pass is wrong. host: the noise of a round of host calls, the median over
    these; on an H200's host it was 0.8 %.
    """

    what: str
    draw: _Draw
    alike: bool = True
    host: float = 0.01


def drawn_order(generator: np.random.Generator, rounds: int) -> np.ndarray:
    """Which of ``2 * rounds`` processes are the head's: each two rounds A B | B A or B A | A B."""
    first = generator.integers(2, size=-(-rounds // 2)) == 1
    blocks = np.stack([first, ~first, ~first, first], axis=1)
    return blocks.ravel()[: 2 * rounds]


def by_version(processes: np.ndarray, of_head: np.ndarray) -> Pair:
    """Processes in the order in which they run, by version."""
    return processes[~of_head], processes[of_head]


def host_calls(
    generator: np.random.Generator, of_head: np.ndarray, seconds: np.ndarray, noise: float
) -> np.ndarray:
    """Calls clocked in one process, where only a call's own noise is left, with heavy tails.

    noise: the median over the calls of the standard deviation of a round. That of a call is within
    a factor of 1.4 for two thirds of them, as on an H200.
    """
    of_call = noise * np.exp(0.35 * np.random.default_rng(0).standard_normal(len(seconds)))
    own = generator.standard_t(5, (len(of_head), len(seconds))) / np.sqrt(5 / 3)
    return of_call * own / np.sqrt(2)  # a round has two versions


def first_calls(
    generator: np.random.Generator, of_head: np.ndarray, seconds: np.ndarray
) -> np.ndarray:
    """First calls of a process: 7 % in the core, with tails that reach a factor of two.

    So is the warm start in ``aa.json``. Compilation has 10 % in the core, the import 20 to 30 %.
    """
    return 0.07 * generator.standard_t(2, (len(of_head), len(seconds))).clip(-10, 10)


def _spread(seconds: np.ndarray) -> np.ndarray:
    """The usual standard deviation of a process's median, by the usual seconds of a call."""
    decades = np.log(seconds / 2.4e-6) / np.log(250e-6 / 2.4e-6)
    return 0.003 * (1 / 3) ** decades.clip(0, 1)


def _quiet(generator: np.random.Generator, of_head: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    return _spread(seconds) * generator.standard_normal((len(of_head), len(seconds)))


def _heavy_tails(generator, of_head, seconds):
    return _spread(seconds) * generator.standard_t(3, (len(of_head), len(seconds)))


def _autoregressive(generator, of_head, seconds):
    steps = _quiet(generator, of_head, seconds)
    for row in range(1, len(steps)):
        steps[row] = 0.8 * steps[row - 1] + 0.6 * steps[row]
    return steps


def _shifted(by: Callable[[np.ndarray], np.ndarray]) -> _Draw:
    """Every process is slower by what follows from its place in the order, ``[processes, 1]``."""

    def draw(generator, of_head, seconds):
        return _quiet(generator, of_head, seconds) + by(np.arange(len(of_head))[:, None])

    return draw


def _shared_shift(generator, of_head, seconds):
    shift = 0.005 * generator.standard_normal((len(of_head), 1))
    return _quiet(generator, of_head, seconds) + shift


def _bursts(generator, of_head, seconds):
    """In two of five processes some calls below 11 us, 4.5 in the mean, take 0.34 us less."""
    logs, short = _quiet(generator, of_head, seconds), np.flatnonzero(seconds < SHORT_SECONDS)
    for row in np.flatnonzero(generator.random(len(of_head)) < 0.4):
        count = min(int(generator.geometric(1 / 4.5)), len(short))
        hit = generator.choice(short, count, replace=False)
        logs[row, hit] += np.log1p(-generator.normal(0.34e-6, 0.015e-6, count) / seconds[hit])
    return logs


def _states(apart: float, *shares: float) -> _Draw:
    """Each timing is in one of several states, equally far apart, in these shares of processes."""

    def draw(generator, of_head, seconds):
        states = generator.choice(len(shares), (len(of_head), len(seconds)), p=shares)
        return _quiet(generator, of_head, seconds) + apart * states

    return draw


def _states_of_a_process(generator, of_head, seconds):
    states = generator.integers(2, size=(len(of_head), 1))
    amounts = np.random.default_rng(0).uniform(0, 0.03, len(seconds))  # the same in every look
    return _quiet(generator, of_head, seconds) + states * amounts


def _every_fourth(generator, of_head, seconds):
    amounts = np.random.default_rng(0).uniform(0.002, 0.01, len(seconds))
    fourth = (np.arange(len(of_head)) % 4 == 1)[:, None]
    return _quiet(generator, of_head, seconds) + fourth * amounts


def _head_alone(share: float, size: float, whole_processes: bool = False) -> _Draw:
    def draw(generator, of_head, seconds):
        logs = _quiet(generator, of_head, seconds)
        width = 1 if whole_processes else len(seconds)
        logs[of_head] += size * (generator.random((int(of_head.sum()), width)) < share)
        return logs

    return draw


MODELS = {
    "normal": Model("normal, 0.1 to 0.3 % by size", _quiet),
    "t3": Model("Student's t, 3 degrees of freedom", _heavy_tails),
    "ar": Model("autoregressive, 0.8 from process to process", _autoregressive),
    "drift": Model("drift of 0.02 % a process", _shifted(lambda process: 2e-4 * process)),
    # By 0.7 times as much in each later process.
    "warm-up": Model("warm-up from +1 %", _shifted(lambda process: 0.01 * 0.7**process)),
    "second": Model(
        "the second process of a round +0.2 %", _shifted(lambda process: 0.002 * (process % 2))
    ),
    "shared": Model("a shift of 0.5 % common to a process", _shared_shift),
    "bursts": Model("bursts while another GPU works", _bursts),
    "fourth": Model("every fourth process +0.2 to +1 %", _every_fourth),
    "states": Model("two states 3 % apart, of each timing", _states(0.03, 0.5, 0.5)),
    "rare": Model("a state of each timing, +3 % in 12 % of processes", _states(0.03, 0.88, 0.12)),
    "three": Model("three states 1.2 % apart, of each timing", _states(0.012, *[1 / 3] * 3)),
    "process states": Model("two states of a process, 0 to 3 % apart", _states_of_a_process),
    **{
        f"host {percent:g}": Model(
            f"normal; a round of host calls {percent:g} %", _quiet, host=percent / 100
        )
        for percent in (2, 4.4, 6, 9)
    },
    "head 30": Model("the head alone: 30 % of times +1.5 %", _head_alone(0.3, 0.015), False),
    "head 10": Model("the head alone: 10 % of times +3 %", _head_alone(0.1, 0.03), False),
    "head process": Model(
        "the head alone: 30 % of processes +1.5 %", _head_alone(0.3, 0.015, True), False
    ),
}
"""By name. The rounds of ``aa.json`` are another, see ``simulation``."""
