"""Timings that moved alike, put together for a reader. Pure; no verdict depends on it."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .._verdict.rules import Timing

# Effects may differ by this share of the larger, or by the noise floor, and still be alike.
_SPREAD = 0.25


class Group(NamedTuple):
    """Timings of every combination of ``axes``: the values of the metric and of each parameter."""

    axes: tuple[tuple[str, ...], ...]
    timings: tuple[Timing, ...]

    @property
    def worst(self) -> Timing:
        return max(self.timings, key=lambda timing: timing.effect)


def grouped(timings: Iterable[Timing]) -> list[Group]:
    """The timings in few groups, each a product of values of the metric and of the parameters.

    The effects within a group differ by their noise floor or by a quarter of the largest, whichever
    is more. Greedy: values of one axis after the other are joined where all else agrees.
    """
    groups = [
        Group(
            tuple((value,) for value in (timing.subject.metric, *timing.subject.params)), (timing,)
        )
        for timing in timings
    ]
    most = max((len(group.axes) for group in groups), default=0)
    for axis in [*range(most - 1, 0, -1), 0] * 2:
        groups = _joined(groups, axis)
    return groups


def _joined(groups: Sequence[Group], axis: int) -> list[Group]:
    joined = [group for group in groups if len(group.axes) <= axis]
    alike: dict[tuple, list[Group]] = {}
    for group in groups:
        axes = group.axes
        if len(axes) > axis:
            # A pass and a call of the host, say, are never one; the directions of a pass may be.
            suite = axes[0][0].partition(".")[0]
            metric = suite if suite in ("rope", "paths") else axes[0][0]
            alike.setdefault((metric, axes[:axis], axes[axis + 1 :]), []).append(group)
    for together in alike.values():
        joined += _joined_alike(together, axis)
    return joined


def _joined_alike(groups: Sequence[Group], axis: int) -> list[Group]:
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
    return [_union(each, axis) for each in together]


def _union(groups: Sequence[Group], axis: int) -> Group:
    axes = list(groups[0].axes)
    axes[axis] = tuple(
        sorted({value for each in groups for value in each.axes[axis]}, key=in_order)
    )
    return Group(tuple(axes), tuple(timing for each in groups for timing in each.timings))


def in_order(value: str) -> tuple[int, str]:
    """Sorts numbers by size and before words."""
    return (int(value), "") if value.isdecimal() else (2**63, value)
