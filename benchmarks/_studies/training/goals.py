"""What a training step and its kernels are to reach, beside what is stored. Imports no torch."""

from collections.abc import Mapping
from typing import NamedTuple

from .results import Stored, interval, ratios, written
from .sizes import CAUSAL, CAUSAL_FORWARD, POINTS, PRODUCTS, STEP

SPEED, PEAK, MFU = "speed", "peak memory", "MFU"


class Goal(NamedTuple):
    """What ``provider`` is to reach beside ``reference`` in a part of some points.

    ``quantity``: ``SPEED``, the time of ``reference`` over that of ``provider``; ``PEAK``, the
    memory of ``provider`` over that of ``reference``; or ``MFU``, which has no reference.
    ``bound``: the least that holds the goal, of ``PEAK`` the most. ``aim``: where it should be.
    """

    what: str
    bound: float
    aim: float | None
    provider: str
    reference: str = ""
    part: str = STEP
    quantity: str = SPEED
    points: tuple[str, ...] = tuple(POINTS)

    @property
    def title(self) -> str:
        beside = f" over `{self.reference}`" if self.reference else ""
        return f"`{self.provider}`{beside}, {self.what}"

    @property
    def form(self) -> str:
        """The format of its values."""
        return ".1%" if self.quantity == MFU else ".3f"


def _of(*sizes: str) -> tuple[str, ...]:
    return tuple(name for name, point in POINTS.items() if point.size in sizes)


_HEADS_OF_64, _HEADS_OF_128 = _of("410M"), _of("840M", "1.4B")
_ALONE = "triton-none", "none"
_FORWARD = "causal attention (cuDNN), forward"
_BOTH = f"{_FORWARD} and backward"

GOALS = (
    Goal("a step", 1.00, 1.03, "hybrid", "compiled"),
    Goal("a step: peak memory", 0.90, None, "hybrid", "compiled", quantity=PEAK),
    Goal("a step of 410M", 0.90, 0.98, "triton", "compiled", points=_of("410M")),
    Goal("a step of 1.4B", 0.85, 0.95, "triton", "compiled", points=_of("1.4B")),
    Goal("products of a layer (cuBLAS)", 0.92, 0.98, *_ALONE, PRODUCTS),
    Goal(f"{_FORWARD}, heads of 64", 0.95, 1.00, *_ALONE, CAUSAL_FORWARD, points=_HEADS_OF_64),
    Goal(f"{_FORWARD}, heads of 128", 0.68, 0.95, *_ALONE, CAUSAL_FORWARD, points=_HEADS_OF_128),
    Goal(f"{_BOTH}, heads of 64", 0.75, 0.95, *_ALONE, CAUSAL, points=_HEADS_OF_64),
    Goal(f"{_BOTH}, heads of 128", 0.60, 0.90, *_ALONE, CAUSAL, points=_HEADS_OF_128),
    Goal("a step of 410M-2048", 1.005, 1.012, "triton-fused", "triton", points=("410M-2048",)),
    Goal("a step of 1.4B: MFU", 0.55, 0.60, "hybrid", quantity=MFU, points=_of("1.4B")),
)


def rows(measured: Mapping[str, Stored]) -> list[list[str]]:
    """Of each goal that is for any of these points: its title, bound and aim, and a cell a point.

    A cell is Markdown, and empty where the goal is not for that point.
    """
    return [
        [
            goal.title,
            f"{'at most ' if goal.quantity == PEAK else ''}{goal.bound:{goal.form}}",
            "" if goal.aim is None else f"{goal.aim:{goal.form}}",
            *(_cell(goal, point, stored) for point, stored in measured.items()),
        ]
        for goal in GOALS
        if not measured.keys().isdisjoint(goal.points)
    ]


def _cell(goal: Goal, point: str, stored: Stored) -> str:
    if point not in goal.points:
        return ""
    figures = stored.timed(goal.part)
    provider, reference = figures.get(goal.provider), figures.get(goal.reference)
    value, text = None, ""
    if goal.quantity == SPEED:
        names = goal.reference, goal.provider
        result = interval([ratios(*names, goal.part, rows) for rows in stored.rounds])
        value, text = result and result.estimate, written(result, goal.form)
    elif provider and goal.quantity == MFU:
        value = provider.mfu
    elif provider and reference:
        value = provider.peak_bytes / reference.peak_bytes
    if value is None:
        return "n/a"
    text = text or f"{value:{goal.form}}"
    held = value <= goal.bound if goal.quantity == PEAK else value >= goal.bound
    return text if held else f"**{text}** missed"
