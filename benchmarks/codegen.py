"""asv: what the kernels compile to on GPUs old and new. Exact, and needs no GPU.

The small grid has one architecture.

``setup_cache`` computes everything once. Nothing here imports torch, because asv starts a process
for each value.
"""

import itertools
from collections.abc import Callable

from . import _subjects
from ._engine.machine_code import fingerprint
from ._engine.machine_code.fingerprint import Compiled
from ._subjects import metric_list
from ._subjects.rope.grid import active

_CODE_PARAMS, _VARIANT_PARAMS = (
    active({"full": every, "small": every | {"target": ("sm_90",)}})
    for every in (metric_list.CODE_PARAMS, metric_list.VARIANT_PARAMS)
)


def _asked(listed: Callable, suite: str, targets) -> dict:
    """What the subject lists for these targets, by parameters."""
    return {one.params: one for target in targets for one in listed(target) if one.suite == suite}


def _facts_of(suite: str, *params) -> dict:
    """Facts by parameters, n/a where a call has no backward of its own."""
    asked = _asked(_subjects.compilations, suite, params[0])
    calls = {key: Compiled(one.target, one.cells[0], one.direction) for key, one in asked.items()}
    facts = fingerprint.compile_all(_subjects, calls.values()).facts
    missing = NotImplementedError("its backward launches nothing of its own")
    everything = dict.fromkeys(itertools.product(*params), missing)
    return everything | {key: facts[call] for key, call in calls.items()}


class _Code:
    timeout = 60

    def setup(self, answers, *call):
        """Raise the exception that a failed call left; asv shows NotImplementedError as n/a."""
        if isinstance(answers[call], Exception):
            raise answers[call]


class _Facts(_Code):
    """Facts of the machine code of one call, as defined in ``fingerprint.Facts``."""


class Codegen(_Facts):
    """Calls of the grid; ``size`` is one of ``metric_list.SIZES``."""

    version = "2"  # 1: small calls only
    param_names = list(_CODE_PARAMS)
    params = list(_CODE_PARAMS.values())

    def setup_cache(self):
        return _facts_of("codegen.Codegen", *self.params)

    setup_cache.timeout = 900


class Surface(_Facts):
    """Every call of the lists, at the largest of its sizes."""

    version = "1"
    param_names = list(metric_list.SURFACE_PARAMS)
    params = list(metric_list.SURFACE_PARAMS.values())

    def setup_cache(self):
        return _facts_of("codegen.Surface", *self.params)

    setup_cache.timeout = 900


def _track(name: str, unit: str) -> Callable:
    def track(self, facts, *call):
        return getattr(facts[call], name)

    track.unit = unit
    return track


for _metric, _unit in _subjects.UNITS.items():
    _suite, _, _name = _metric.rpartition(".track_")
    if _suite == "codegen.Codegen":
        setattr(_Facts, f"track_{_name}", _track(_name, _unit.name))


Surface.track_saved_bytes = _track("saved_bytes", "bytes")


class Variants(_Code):
    """Kernels compiled while sequence and batch change: ``fingerprint.compile_all``."""

    version = "1"
    param_names = list(_VARIANT_PARAMS)
    params = list(_VARIANT_PARAMS.values())

    def setup_cache(self):
        asked = _asked(_subjects.variants, "codegen.Variants", self.params[0])
        counts = fingerprint.compile_all(_subjects, variants=asked.values()).variants
        return {params: counts[one] for params, one in asked.items()}

    setup_cache.timeout = 900

    def track_variants(self, variants, *call):
        return variants[call]

    track_variants.unit = "variants"
