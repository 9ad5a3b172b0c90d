"""Write numbers and names as a reader sees them. Pure."""

from collections.abc import Iterable

from ..verdict.metrics import COMPILE, FAMILIES, IMPORT, LABELS, OWN_START, WARM_START
from ..verdict.rules import Key
from ..verdict.schema import Side

_STARTS = {
    IMPORT: "Import",
    COMPILE: "Compilation",
    WARM_START: "First call, cache filled",
    OWN_START: "First call, Triton started",
}
_UNITS = {
    "bytes/thread": " B/thread",
    "bytes/program": " B/program",
    "x rounding": " × rounding",
    "share": " %",
}
"""How a unit is written behind a number; the others are in the name of the metric."""


def name_of(metric: str) -> str:
    """What a metric measures, in words."""
    return _words(metric, ())[0]


def label(key: Key) -> str:
    """The metric and the parameters of a timing or an exact value, in words."""
    between = " " if key.metric.startswith(FAMILIES["gpu"]) else ", "
    return between.join(filter(None, _words(*key)))


def where(key: Key) -> str:
    """The parameters in words."""
    return _words(*key)[1]


def _words(metric: str, params: tuple[str, ...]) -> tuple[str, str]:
    if metric in _STARTS:
        return _STARTS[metric], ""
    texts = tuple(clip(value, 60) for value in params)
    return LABELS[metric](metric, texts) if metric in LABELS else (metric, ", ".join(texts))


def side(version: Side) -> str:
    """A version's name and commit, once if the name is the commit."""
    name, sha = clip(clean(version.name), 80), version.sha[:10]
    if sha and len(name) >= 7 and version.sha.startswith(name):
        return sha
    return f"{name} {sha or '(not committed)'}"


def seconds(value: float, digits: int = 4) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= scale:
            return f"{value / scale:.{digits}g} {unit}"
    return f"{value / 1e-9:.{digits}g} ns"


def percent(share: float, sign: str = "+") -> str:
    digits = "3g" if abs(share) >= 1 else "1f" if abs(share) >= 0.1 else "2f"
    return f"{100 * share:{sign}.{digits}} %"


def span(shares: Iterable[float], sign: str = "+") -> str:
    """The least and the largest share, or one if they read the same."""
    ends = sorted(shares)
    low, high = percent(ends[0], sign), percent(ends[-1], sign)
    return low if low == high else f"{low[:-2]} to {high}"


def change_of(base: float | None, head: float | None, unit: str) -> str:
    """ "16 → 20 MiB", with as many digits as it takes to tell the two apart."""
    if unit == "seconds":
        return " → ".join("none" if v is None else seconds(v) for v in (base, head))
    scale, behind = (0.01 if unit == "share" else 1.0), _UNITS.get(unit, "")
    if unit == "bytes":
        sizes = [(2.0**30, " GiB"), (2.0**20, " MiB"), (2.0**10, " KiB"), (1.0, " B")]
        largest = max(abs(value or 0.0) for value in (base, head))
        scale, behind = next((size for size in sizes if largest >= size[0]), sizes[-1])
    for digits in range(3, 18):
        texts = ["none" if v is None else _number(v / scale, digits) for v in (base, head)]
        if base == head or texts[0] != texts[1]:
            break
    return f"{' → '.join(texts)}{behind}"


def _number(value: float, digits: int) -> str:
    is_whole = abs(value) < 1e15 and value == round(value)
    return f"{value:.0f}" if is_whole else f"{value:.{digits}g}"


def count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def clip(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def clean(text: str) -> str:
    """On one line, without what a terminal or a browser acts upon."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
