"""asv: what the kernels compile to on GPUs old and new. Exact, and needs no GPU.

``setup_cache`` computes everything once. Nothing here imports torch, because asv starts a process
for each of some four thousand values.
"""

import itertools

from ._cells import subjects
from ._machine_code import fingerprint


class _Code:
    timeout = 60

    def setup(self, answers, *call):
        """Raise what stands for a failure; asv shows NotImplementedError as n/a."""
        if isinstance(answers[call], Exception):
            raise answers[call]


class Codegen(_Code):
    """Facts of the machine code of one call, as defined in ``fingerprint.Facts``.

    ``size`` is one of ``subjects.SIZES``.
    """

    version = "2"  # 1: small calls only
    param_names = list(subjects.CODE_PARAMS)
    params = list(subjects.CODE_PARAMS.values())

    def setup_cache(self):
        return fingerprint.compile_sizes(itertools.product(*self.params), ())[0]

    setup_cache.timeout = 900

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


class Variants(_Code):
    """Kernels compiled while sequence and batch change: ``fingerprint.count_variants``."""

    version = "1"
    param_names = list(subjects.VARIANT_PARAMS)
    params = list(subjects.VARIANT_PARAMS.values())

    def setup_cache(self):
        return fingerprint.count_variants(itertools.product(*self.params))

    setup_cache.timeout = 900

    def track_variants(self, variants, *call):
        return variants[call]

    track_variants.unit = "variants"
