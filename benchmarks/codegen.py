"""asv: what the kernels compile to on GPUs old and new. Exact, and needs none of them.

Everything is computed once, by ``setup_cache``; no module here imports torch, because asv starts
a process for each of some four thousand values.
"""

import itertools

from . import _fingerprint, _grid

_FULL = _grid.GRIDS["full"]
_CALL = {
    "arch": _fingerprint.ARCHITECTURES,
    "dtype": _FULL["dtype"],
    "format": _FULL["format"],
    "direction": _fingerprint.DIRECTIONS,
}


def _raise_if_missing(answer):
    """Of what ``_fingerprint`` gives for a failure, asv shows NotImplementedError as n/a."""
    if isinstance(answer, Exception):
        raise answer


def survey(calls, sweeps, root=None, ledger=None):
    """``_fingerprint.survey`` of calls that end with the name of a size, by those calls."""
    sized = {call: (*call[:-1], *_fingerprint.SIZES[call[-1]]) for call in calls}
    facts, variants = _fingerprint.survey(sized.values(), sweeps, root, ledger)
    return {call: facts[job] for call, job in sized.items()}, variants


class Codegen:
    """Facts of the machine code of one call, as defined in ``_fingerprint.Facts``.

    ``size`` is one of ``_fingerprint.SIZES``.
    """

    version = "2"  # 1: small calls only
    timeout = 60
    param_names = [*_CALL, "hidden_size", "size"]
    params = [*_CALL.values(), _FULL["hidden_size"], tuple(_fingerprint.SIZES)]

    def setup_cache(self):
        return survey(itertools.product(*self.params), ())[0]

    setup_cache.timeout = 900

    def setup(self, facts, *call):
        _raise_if_missing(facts[call])

    def track_registers(self, facts, *call):
        return facts[call].registers

    def track_spilled_bytes(self, facts, *call):
        return facts[call].spilled_bytes

    def track_stack_bytes(self, facts, *call):
        return facts[call].stack_bytes

    def track_shared_bytes(self, facts, *call):
        return facts[call].shared_bytes

    def track_instructions(self, facts, *call):
        return facts[call].instructions

    def track_narrow_share(self, facts, *call):
        return facts[call].narrow_share

    track_registers.unit = "registers/thread"
    track_spilled_bytes.unit = "bytes/thread"
    track_stack_bytes.unit = "bytes/thread"
    track_shared_bytes.unit = "bytes/program"
    track_instructions.unit = "instructions"
    track_narrow_share.unit = "share"


class Variants:
    """Kernels compiled while sequence and batch change: ``_fingerprint.count_variants``."""

    version = "1"
    timeout = 60
    param_names = [*_CALL]
    params = [*_CALL.values()]

    def setup_cache(self):
        return _fingerprint.count_variants(itertools.product(*self.params))

    setup_cache.timeout = 900

    def setup(self, variants, *call):
        _raise_if_missing(variants[call])

    def track_variants(self, variants, *call):
        return variants[call]

    track_variants.unit = "variants"
