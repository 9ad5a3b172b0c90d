"""asv: what the kernels compile to on GPUs old and new. Exact, and needs none of them.

Everything is computed once, by ``setup_cache``; no module here imports torch, because asv starts
a process for each of some four thousand values.
"""

import itertools

from ._cells import subjects
from ._machine_code import fingerprint


def _raise_if_missing(answer):
    """Of what ``fingerprint`` gives for a failure, asv shows NotImplementedError as n/a."""
    if isinstance(answer, Exception):
        raise answer


class Codegen:
    """Facts of the machine code of one call, as defined in ``fingerprint.Facts``.

    ``size`` is one of ``subjects.SIZES``.
    """

    version = "2"  # 1: small calls only
    timeout = 60
    param_names = list(subjects.CODE_PARAMS)
    params = list(subjects.CODE_PARAMS.values())

    def setup_cache(self):
        return fingerprint.compile_sizes(itertools.product(*self.params), ())[0]

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
    """Kernels compiled while sequence and batch change: ``fingerprint.count_variants``."""

    version = "1"
    timeout = 60
    param_names = list(subjects.VARIANT_PARAMS)
    params = list(subjects.VARIANT_PARAMS.values())

    def setup_cache(self):
        return fingerprint.count_variants(itertools.product(*self.params))

    setup_cache.timeout = 900

    def setup(self, variants, *call):
        _raise_if_missing(variants[call])

    def track_variants(self, variants, *call):
        return variants[call]

    track_variants.unit = "variants"
