"""Models of the noise of processes, to simulate comparisons with. Pure numpy, no GPU.

A model draws what processes take in the order in which they run, A B | B A | A B ...: natural
logarithms of time over usual time, an array of [2 * rounds, timings]. The sizes are those of an
H200 whose other GPUs rest, unless a model says otherwise: a process's median varies by 0.3 % where
a call takes 2.4 us and by 0.1 % where it takes 250 us.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Pair = tuple[np.ndarray, np.ndarray]
"""Base and head, [rounds, timings] of logarithms each."""

_Draw = Callable[[np.random.Generator, int, np.ndarray], np.ndarray]

SHORT_SECONDS = 11e-6
"""Calls that are shorter show the bursts of another GPU of the host that works."""


class Model(NamedTuple):
    """A kind of noise.

    draw: from a generator, the number of rounds, and the usual seconds of each GPU timing. alike:
    whether it draws the same of both versions. If not, the head is slower in some processes, and
    only a pass is wrong.
    """

    what: str
    draw: _Draw
    alike: bool = True


def in_turns(processes: np.ndarray) -> Pair:
    """Processes in the order in which they run, by version."""
    first, second = processes[::2], processes[1::2]
    swapped = (np.arange(len(first)) % 2 == 1)[:, None]
    return np.where(swapped, second, first), np.where(swapped, first, second)


def host_calls(generator: np.random.Generator, rounds: int, seconds: np.ndarray) -> np.ndarray:
    """Calls clocked beside reference calls: 2.2 % common to a process, 2.2 % of each call's own.

    So it is in ``aa.json``.
    """
    shared = generator.standard_normal((2 * rounds, 1))
    own = generator.standard_normal((2 * rounds, len(seconds)))
    return 0.022 * (shared + own)


def first_calls(generator: np.random.Generator, rounds: int, seconds: np.ndarray) -> np.ndarray:
    """First calls of a process: 7 % in the core, with tails that reach a factor of two.

    So is the warm start in ``aa.json``. Compilation has 10 % in the core, the import 20 to 30 %.
    """
    return 0.07 * generator.standard_t(2, (2 * rounds, len(seconds))).clip(-10, 10)


def _spread(seconds: np.ndarray) -> np.ndarray:
    """The usual standard deviation of a process's median, by the usual seconds of a call."""
    decades = np.log(seconds / 2.4e-6) / np.log(250e-6 / 2.4e-6)
    return 0.003 * (1 / 3) ** decades.clip(0, 1)


def _quiet(generator: np.random.Generator, rounds: int, seconds: np.ndarray) -> np.ndarray:
    return _spread(seconds) * generator.standard_normal((2 * rounds, len(seconds)))


def _heavy_tails(generator, rounds, seconds):
    return _spread(seconds) * generator.standard_t(3, (2 * rounds, len(seconds)))


def _autoregressive(generator, rounds, seconds):
    steps = _quiet(generator, rounds, seconds)
    for row in range(1, len(steps)):
        steps[row] = 0.8 * steps[row - 1] + 0.6 * steps[row]
    return steps


def _shifted(by: Callable[[np.ndarray], np.ndarray]) -> _Draw:
    """Every process is slower by what follows from its place in the order, ``[2 * rounds, 1]``."""

    def draw(generator, rounds, seconds):
        return _quiet(generator, rounds, seconds) + by(np.arange(2 * rounds)[:, None])

    return draw


def _shared_shift(generator, rounds, seconds):
    shift = 0.005 * generator.standard_normal((2 * rounds, 1))
    return _quiet(generator, rounds, seconds) + shift


def _bursts(generator, rounds, seconds):
    """In two of five processes some calls below 11 us, 4.5 in the mean, take 0.34 us less."""
    logs, short = _quiet(generator, rounds, seconds), np.flatnonzero(seconds < SHORT_SECONDS)
    for row in np.flatnonzero(generator.random(2 * rounds) < 0.4):
        count = min(int(generator.geometric(1 / 4.5)), len(short))
        hit = generator.choice(short, count, replace=False)
        logs[row, hit] += np.log1p(-generator.normal(0.34e-6, 0.015e-6, count) / seconds[hit])
    return logs


def _two_states(generator, rounds, seconds):
    states = generator.integers(2, size=(2 * rounds, len(seconds)))
    return _quiet(generator, rounds, seconds) + 0.03 * states


def _two_states_of_a_process(generator, rounds, seconds):
    states = generator.integers(2, size=(2 * rounds, 1))
    amounts = np.random.default_rng(0).uniform(0, 0.03, len(seconds))  # the same in every look
    return _quiet(generator, rounds, seconds) + states * amounts


def _head_alone(share: float, size: float, whole_processes: bool = False) -> _Draw:
    def draw(generator, rounds, seconds):
        logs = _quiet(generator, rounds, seconds)
        drawn = generator.random((rounds, 1 if whole_processes else len(seconds)))
        _, of_head = in_turns(np.arange(2 * rounds)[:, None])
        logs[of_head[:, 0]] += size * (drawn < share)
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
    "states": Model("two states 3 % apart, of each timing", _two_states),
    "process states": Model("two states of a process, 0 to 3 % apart", _two_states_of_a_process),
    "head 30": Model("the head alone: 30 % of times +1.5 %", _head_alone(0.3, 0.015), False),
    "head 10": Model("the head alone: 10 % of times +3 %", _head_alone(0.1, 0.03), False),
    "head process": Model(
        "the head alone: 30 % of processes +1.5 %", _head_alone(0.3, 0.015, True), False
    ),
}
"""By name. The rounds of ``aa.json`` are another, see ``simulation``."""
