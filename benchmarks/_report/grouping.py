"""Group timings that moved alike, for a reader. Pure; no verdict depends on it."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .._verdict.rules import FAMILIES, Timing
from .text import axes_of

# Effects may differ by this share of the larger, or by the noise floor, and still be alike.
_SPREAD = 0.25


class Group(NamedTuple):
    """Timings of every combination of ``axes``: the values of the metric and of each parameter."""

    axes: tuple[tuple[str, ...], ...]
    timings: tuple[Timing, ...]

    @property
    def worst(self) -> Timing:
        return max(self.timings, key=lambda timing: timing.effect)


def single(timing: Timing) -> Group:
    return Group(axes_of(timing.key), (timing,))


def grouped(timings: Iterable[Timing]) -> list[Group]:
    """The timings in few groups, each a product of values of the metric and of the parameters.

    The effects within a group differ by their noise floor or by a quarter of the largest, whichever
    is more. Greedy: values of one axis after the other are joined where all else agrees.
    """
    groups = list(map(single, timings))
    most = max((len(group.axes) for group in groups), default=0)
    for axis in [*range(most - 1, 0, -1), 0] * 2:
        groups = _joined(groups, axis)
    return groups


def _joined(groups: Sequence[Group], axis: int) -> list[Group]:
    alike: dict[tuple, list[Group]] = {}
    for group in groups:
        axes = group.axes
        # A GPU time and a call of the host, say, are never one; the directions of a pass may be.
        metric = axes[0][0]
        room = metric.partition(".")[0] if metric.startswith(FAMILIES["gpu"]) else metric
        key = (room, len(axes), axes[:axis], axes[axis + 1 :])
        alike.setdefault(key, []).append(group)
    return [
        _union(each, axis) for together in alike.values() for each in _of_alike_effects(together)
    ]


def _of_alike_effects(groups: Sequence[Group]) -> list[list[Group]]:
    together: list[list[Group]] = []
    high = low = floor = 0.0
    for group in sorted(groups, key=lambda each: -each.worst.effect):
        least = min(timing.effect for timing in group.timings)
        noise = max(timing.floor for timing in group.timings)
        low, floor = min(low, least), max(floor, noise)
        if together and high - low <= max(floor, _SPREAD * max(abs(high), abs(low))):
            together[-1].append(group)
        else:
            together.append([group])
            high, low, floor = group.worst.effect, least, noise
    return together


def _union(groups: Sequence[Group], axis: int) -> Group:
    axes = list(groups[0].axes)
    if axis < len(axes):
        values = {value for each in groups for value in each.axes[axis]}
        axes[axis] = tuple(sorted(values, key=in_order))
    return Group(tuple(axes), tuple(timing for each in groups for timing in each.timings))


def in_order(value: str) -> list[tuple[int, str]]:
    """Sorts numbers by size and before words, in "128 × 64" too."""
    words = value.split(" × ")
    return [(int(word), "") if word.isdecimal() else (2**63, word) for word in words]
