"""Write numbers and names as a reader sees them. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from .._verdict.rules import Subject
from .._verdict.schema import Side

GPU_ROOMS = ("rope", "paths", "surface", "model_calls")
"""Beginnings of the metrics of GPU times: the two directions of a call may be told together."""
_ROPE_PARAMS = ("seq_len", "hidden", "batch", "dtype", "format")


def name_of(metric: str) -> str:
    """ "host.Call.track_forward" as "Call forward", "rope.Forward.track_latency" as "Forward"."""
    room, suite, name = metric.replace("track_", "").split(".")
    if room in GPU_ROOMS:
        return suite
    return name if name == suite.lower() else f"{suite} {name}"


def axes_of(subject: Subject) -> tuple[tuple[str, ...], ...]:
    return tuple((value,) for value in (subject.metric, *subject.params))


def all_values(subjects: Iterable[Subject]) -> dict[int, frozenset[str]]:
    """All values on each axis of the grid of ``rope``."""
    rows = [s for s in subjects if s.metric.startswith("rope.") and len(s.params) == 5]
    columns = zip(*((subject.metric, *subject.params) for subject in rows), strict=True)
    return {axis: frozenset(column) for axis, column in enumerate(columns)}


def label(
    axes: Sequence[tuple[str, ...]], known: Mapping[int, frozenset[str]] | None = None
) -> str:
    """Timings of every combination of ``axes``: the values of the metric and of each parameter.

    Where an axis has all of several ``known`` values, "any batch" stands for them.
    """
    metrics, *given = axes
    room, known = metrics[0].partition(".")[0], known or {}
    name = " + ".join(sorted(map(name_of, metrics), reverse=True))
    params = [clip("/".join(values), 60) for values in given]
    if room == "paths" and len(params) == 3:
        path, mib, dtype = params
        return f"{name} {path}, {mib} MiB, {dtype}"
    if room == "surface" and len(params) == 2:
        form, mib = params
        return f"{name} {form}, {mib} MiB"
    if room == "model_calls" and len(params) == 3:
        model, step, takes = params
        return f"{name} {model}, {step}, by {takes}"
    if room != "rope" or len(params) != 5:
        return f"{name} ({', '.join(params)})" if params else name
    whole = [len(each) > 1 and frozenset(each) == known.get(i) for i, each in enumerate(given, 1)]
    seq_len, hidden, batch, dtype, fmt = (
        f"any {what}" if every else values
        for values, every, what in zip(params, whole, _ROPE_PARAMS, strict=True)
    )
    size = "any size" if whole[0] and whole[1] else f"{seq_len} × {hidden}"
    return f"{name} {size}, {batch if whole[2] else f'batch {batch}'}, {dtype}, {fmt}"


def side(given: Side) -> str:
    """A version's name and commit, once if the name is the commit."""
    name, sha = clip(clean(given.name), 80), given.sha[:10]
    if sha and len(name) >= 7 and given.sha.startswith(name):
        return sha
    return f"{name} {sha or '(not committed)'}"


def seconds(value: float, digits: int = 4) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= scale:
            return f"{value / scale:.{digits}g} {unit}"
    return f"{value / 1e-9:.{digits}g} ns"


def seconds_range(values: Iterable[float]) -> str:
    """One number where they hardly differ."""
    ordered = sorted(values)
    if ordered[-1] < 1.03 * ordered[0]:
        return seconds(ordered[len(ordered) // 2])
    low, high = seconds(ordered[0], 3), seconds(ordered[-1], 3)
    same_unit = low.split()[1] == high.split()[1]
    return f"{low.split()[0] if same_unit else low} to {high}"


def percent(share: float, sign: str = "+") -> str:
    digits = "3g" if abs(share) >= 100 else "1f" if abs(share) >= 0.1 else "2f"
    return f"{100 * share:{sign}.{digits}} %"


def span(shares: Iterable[float], sign: str = "+") -> str:
    """The least and the largest share, or one if they read the same."""
    shares = list(shares)
    low, high = percent(min(shares), sign), percent(max(shares), sign)
    return low if low == high else f"{low[:-2]} to {high}"


def number(value: float | None) -> str:
    if value is None:
        return "none"
    return f"{value:.0f}" if value == round(value) and abs(value) < 1e15 else f"{value:.3g}"


def count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def clip(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def clean(text: str) -> str:
    """On one line, without what a terminal or a browser acts upon."""
    return "".join(each if each.isprintable() else " " for each in text)
