"""Summarize exact values: what changed among them, and the worst of them. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from ..verdict.rules import Answer, Exact
from .text import change_of, count, name_of, where

_CHANGES = ("missing", "worse", "new", "better", "none")  # from the worst


@dataclass(frozen=True)
class Summary:
    """Some exact values. ``changes``: "2 worse", "" if none changed. The rest: the worst one, of
    which ``values`` is "" if it is new: it is no change.
    """

    size: int
    changes: str
    fails: bool
    name: str
    values: str
    where: str

    def __str__(self) -> str:
        total = count(self.size, "value")
        if not self.changes:
            return f"{total}, none changed"
        worst = f", {self.values} ({self.where})" if self.values else ""
        return f"{self.changes} of {total}{worst}"


def summary(exact: Iterable[Exact]) -> Summary:
    ordered = sorted(exact, key=_badness)
    worst, kinds = ordered[0], [value.change for value in ordered if value.change != "none"]
    return Summary(
        len(ordered),
        ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)),
        worst.answer is Answer.FAIL,
        name_of(worst.key.metric),
        change_of(worst.base, worst.head, worst.unit.name) if worst.change != "new" else "",
        where(worst.key),
    )


def _badness(value: Exact) -> tuple:
    """Sorts the worst first: what fails, then by the relative loss."""
    loss = 0.0
    if value.base is not None and value.head is not None:
        loss = abs(value.head - value.base) / (abs(value.base) or 1e-9)
    return value.answer is not Answer.FAIL, _CHANGES.index(value.change), -loss


def by_metric(exact: Iterable[Exact]) -> dict[str, list[Exact]]:
    """The values of each metric, the worst of both first."""
    metrics: dict[str, list[Exact]] = {}
    for value in sorted(exact, key=_badness):
        metrics.setdefault(value.key.metric, []).append(value)
    return metrics
