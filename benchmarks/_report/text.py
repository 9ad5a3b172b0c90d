"""Write numbers and names as a reader sees them. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from .._verdict.rules import FAMILIES, Key
from .._verdict.schema import Side

_ROPE_PARAMS = ("seq_len", "hidden", "batch", "dtype", "format")

_NAMES = {
    "host.Call.forward": "Host call forward",
    "host.Call.forward_backward": "Host call forward + backward",
    "host.FirstCall.import": "Import",
    "host.FirstCall.compile": "Compilation",
    "host.FirstCall.warm_start": "First call, cache filled",
    "host.FirstCall.own_start": "First call, Triton started",
    "host.Memory.peak_bytes": "peak memory",
    "codegen.Codegen.spilled_bytes": "spills",
    "codegen.Codegen.stack_bytes": "stack",
    "codegen.Codegen.shared_bytes": "shared memory",
    "codegen.Codegen.narrow_share": "narrow accesses",
}
# Values of parameters that say nothing without the parameter's name.
_WORDS = {
    **{"True": "interleaved", "False": "", "long": "long context", "short": "short context"},
    **{"small": "small tensor", "large": "large tensor"},
}
_UNITS = {
    "bytes/thread": " B/thread",
    "bytes/program": " B/program",
    "x rounding": " × rounding",
    "share": " %",
}
"""How a unit is written behind a number; the others are in the name of the metric."""


def name_of(metric: str) -> str:
    """ "host.Call.track_forward" as "Host call forward", "rope.Forward.track_latency" as
    "Forward"."""
    room, suite, name = metric.replace("track_", "").split(".")
    if metric.startswith(FAMILIES["gpu"]):
        return suite
    alike = "Codegen" if suite == "Surface" else suite.removeprefix("Path")
    known = _NAMES.get(f"{room}.{alike}.{name}", name.replace("_", " "))
    return f"{known} of other paths" if suite[4:] in ("Memory", "Launches", "Error") else known


def axes_of(subject: Key) -> tuple[tuple[str, ...], ...]:
    return tuple((value,) for value in (subject.metric, *subject.params))


def all_values(subjects: Iterable[Key]) -> dict[int, frozenset[str]]:
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
    metrics = axes[0]
    name = " + ".join(sorted(map(name_of, metrics), reverse=True))
    between = " " if metrics[0].startswith(FAMILIES["gpu"]) else ", "
    return between.join(filter(None, [name, where(axes, known)]))


def where(
    axes: Sequence[tuple[str, ...]], known: Mapping[int, frozenset[str]] | None = None
) -> str:
    """The parameters of ``axes`` in words; see :func:`label`."""
    metrics, *given = axes
    room, known = metrics[0].partition(".")[0], known or {}
    params = [_listed(values) for values in given]
    if room == "paths" and len(params) == 3:
        path, mib, dtype = params
        return f"{path}, {mib} MiB, {dtype}"
    if room == "surface" and len(params) == 2:
        form, mib = params
        return f"{form}, {mib} MiB"
    if room == "model_calls" and len(params) == 3:
        model, step, takes = params
        return f"{model}, {step}, by {takes}"
    if room != "rope" or len(params) != 5:
        words = [_WORDS.get(value, value) for value in params]
        channels = [f"{each} channels" if each.isdecimal() else each for each in words]
        return ", ".join(filter(None, channels))
    whole = [len(each) > 1 and frozenset(each) == known.get(i) for i, each in enumerate(given, 1)]
    seq_len, hidden, batch, dtype, fmt = (
        f"any {what}" if every else values
        for values, every, what in zip(params, whole, _ROPE_PARAMS, strict=True)
    )
    size = "any size" if whole[0] and whole[1] else f"{seq_len} × {hidden}"
    return f"{size}, {batch if whole[2] else f'batch {batch}'}, {dtype}, {fmt}"


def _listed(values: Sequence[str]) -> str:
    joined = "/".join(values)
    if len(joined) <= 60 or len(values) == 1:
        return clip(joined, 60)
    return f"{clip(values[0], 60)} and {len(values) - 1} more"


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


def change_of(base: float | None, head: float | None, unit: str) -> str:
    """ "16 → 20 MiB", with as many digits as it takes to tell the two apart."""
    given = [value for value in (base, head) if value is not None]
    if unit == "seconds":
        return " → ".join("none" if each is None else seconds(each) for each in (base, head))
    scale, behind = (0.01 if unit == "share" else 1.0), _UNITS.get(unit, "")
    if unit == "bytes":
        sizes = [(2.0**30, " GiB"), (2.0**20, " MiB"), (2.0**10, " KiB"), (1.0, " B")]
        largest = max(map(abs, given), default=0.0)
        scale, behind = next((size for size in sizes if largest >= size[0]), sizes[-1])
    for digits in range(3, 18):
        texts = ["none" if v is None else _number(v / scale, digits) for v in (base, head)]
        if base == head or texts[0] != texts[1]:
            break
    return f"{' → '.join(texts)}{behind}"


def _number(value: float, digits: int) -> str:
    whole = abs(value) < 1e15 and value == round(value)
    return f"{value:.0f}" if whole else f"{value:.{digits}g}"


def count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def clip(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def clean(text: str) -> str:
    """On one line, without what a terminal or a browser acts upon."""
    return "".join(each if each.isprintable() else " " for each in text)
