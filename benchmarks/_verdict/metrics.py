"""How each metric is read: measured or exact, and whether a change for the worse fails."""

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


_SECONDS = Unit("seconds", "smaller", exact=False, gates=True)
_BYTES = Unit("bytes", "smaller", exact=True, gates=True)
_LAUNCHES = Unit("launches", "smaller", exact=True, gates=True)
# Which of a sum's two products stays unrounded, as part of one fma, is the compiler's choice, by
# tile and architecture. It moved this by up to 12 %, and is no loss of precision: both products
# rounded add 16 % or more, a polynomial with a term less adds 35 %.
_FLOAT32_ERROR = Unit("x rounding", "smaller", exact=True, gates=True, tolerance=0.15)
# In half precision none of that reaches the digits that are shown.
_ERROR = replace(_FLOAT32_ERROR, tolerance=0.0)

_CALLS = ("Codegen", "Surface")
_CODE = {
    "registers": Unit("registers/thread", "smaller", exact=True, gates=False),
    "spilled_bytes": Unit("bytes/thread", "smaller", exact=True, gates=True),
    "stack_bytes": Unit("bytes/thread", "smaller", exact=True, gates=False),
    "shared_bytes": Unit("bytes/program", "smaller", exact=True, gates=False),
    "instructions": Unit("instructions", "smaller", exact=True, gates=False),
    "narrow_share": Unit("share", "smaller", exact=True, gates=True),
}
UNITS = {
    "rope.Forward.track_latency": _SECONDS,
    "rope.Backward.track_latency": _SECONDS,
    "paths.Forward.track_latency": _SECONDS,
    "paths.Backward.track_latency": _SECONDS,
    "surface.Forward.track_latency": _SECONDS,
    "surface.Backward.track_latency": _SECONDS,
    "model_calls.Forward.track_latency": _SECONDS,
    "model_calls.Backward.track_latency": _SECONDS,
    "modules.Forward.track_latency": _SECONDS,
    "modules.Backward.track_latency": _SECONDS,
    "host.Call.track_forward": _SECONDS,
    "host.Call.track_forward_backward": _SECONDS,
    "host.PathCall.track_forward": _SECONDS,
    "host.PathCall.track_forward_backward": _SECONDS,
    "host.FirstCall.track_import": _SECONDS,
    "host.FirstCall.track_compile": _SECONDS,
    "host.FirstCall.track_warm_start": _SECONDS,
    "host.FirstCall.track_own_start": _SECONDS,
    **{f"codegen.{suite}.track_{name}": unit for suite in _CALLS for name, unit in _CODE.items()},
    # Rows may be padded: that is no tensor more.
    "codegen.Surface.track_saved_bytes": replace(_BYTES, tolerance=0.01),
    "codegen.Variants.track_variants": Unit("variants", "smaller", True, gates=True),
    "host.Memory.track_peak_bytes": _BYTES,
    "host.PathMemory.track_peak_bytes": _BYTES,
    "host.Launches.track_launches": _LAUNCHES,
    "host.PathLaunches.track_launches": _LAUNCHES,
    "host.Error.track_error": _ERROR,
    "host.PathError.track_error": _ERROR,
}
FLOAT32_UNITS = dict.fromkeys(
    ("host.Error.track_error", "host.PathError.track_error"), _FLOAT32_ERROR
)
"""Of timings whose dtype is float32, instead of those above."""
