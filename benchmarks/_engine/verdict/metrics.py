"""How each metric is read: measured or exact, and whether a change for the worse fails."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class Unit:
    """How a metric is read.

    ``exact``: any difference is real; otherwise it is measured and needs statistics. ``gates``: a
    change for the worse fails, as it does of all that is measured; otherwise it is only shown.
    ``tolerance``: of an exact metric, the relative change for the worse that is only shown.
    """

    name: str
    better: Literal["smaller", "larger"]
    exact: bool
    gates: bool
    tolerance: float = 0.0

    def gives(self, value: float) -> bool:
        """Whether a measurement can give this value: a share, a count, or any number from 0."""
        is_count = self.name not in ("share", "seconds", "x rounding")
        most = 1 if self.name == "share" else 2**53
        return 0 <= value <= most and not (is_count and value % 1)


SECONDS = Unit("seconds", "smaller", exact=False, gates=True)
BYTES = Unit("bytes", "smaller", exact=True, gates=True)
LAUNCHES = Unit("launches", "smaller", exact=True, gates=True)
VARIANTS = Unit("variants", "smaller", exact=True, gates=True)
ERROR = Unit("x rounding", "smaller", exact=True, gates=True)
# Which of a sum's two products stays unrounded, as part of one fma, is the compiler's choice, by
# tile and architecture. It moved this by up to 12 %, and is no loss of precision: both products
# rounded add 16 % or more, a polynomial with a term less adds 35 %. In half precision none of that
# reaches the digits that are shown.
FLOAT32_ERROR = replace(ERROR, tolerance=0.15)
CODE = {
    "registers": Unit("registers/thread", "smaller", exact=True, gates=False),
    "spilled_bytes": Unit("bytes/thread", "smaller", exact=True, gates=True),
    "stack_bytes": Unit("bytes/thread", "smaller", exact=True, gates=False),
    "shared_bytes": Unit("bytes/program", "smaller", exact=True, gates=False),
    "instructions": Unit("instructions", "smaller", exact=True, gates=False),
    "narrow_share": Unit("share", "smaller", exact=True, gates=True),
}
"""Facts of machine code, by name."""

COUNTED = "host_cost.Call"
"""asv's class of calls that are only counted on the host."""
_COUNTS = {
    # A sum with fixed weights: less may be what the weights are off. See ``rules.MOST_NS``.
    "nominal_ns": Unit("ns", "smaller", exact=True, gates=True, tolerance=0.1),
    "operators": Unit("operators", "smaller", exact=True, gates=True),
    "launches": LAUNCHES,
}
HOST_COST = {
    **{f"{COUNTED}.track_{name}": unit for name, unit in _COUNTS.items()},
    "host_cost.Import.track_bytecodes": Unit("bytecodes", "smaller", True, True, tolerance=0.1),
}
"""By metric: what a call and the import do on the host, see ``host_cost.HostCost``."""

IMPORT, COMPILE, WARM_START, OWN_START = (
    f"host.FirstCall.track_{name}" for name in ("import", "compile", "warm_start", "own_start")
)
STARTS = IMPORT, COMPILE, WARM_START, OWN_START
HOST_CALL = f"{COUNTED}.track_seconds"
"""A call that is only counted, unless it executes something else in two versions."""
UNITS: dict[str, Unit] = dict.fromkeys((*STARTS, HOST_CALL), SECONDS)
"""By metric: how a process starts, calls on the host, and what :func:`register` adds."""
FAMILIES: dict[str, tuple[str, ...]] = {
    "gpu": (),
    "host": (HOST_CALL,),
    "start": ("host.FirstCall.",),
}
"""Timings that are tested together: the beginnings of their metrics' names."""

Label = Callable[[str, tuple[str, ...]], tuple[str, str]]
LABELS: dict[str, Label] = {}
"""By metric: a function from it and its parameters to words for each."""


def register(
    units: Mapping[str, Unit], families: Mapping[str, tuple[str, ...]], label: Label
) -> None:
    """Make the metrics of a subject known to the rules and to reports."""
    UNITS.update(units)
    LABELS.update(dict.fromkeys(units, label))
    for name, prefixes in families.items():
        FAMILIES[name] = tuple(dict.fromkeys((*FAMILIES[name], *prefixes)))
