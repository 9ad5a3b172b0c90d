"""asv: a training step of a transformer, and its attention sublayer; needs an NVIDIA GPU.

Eager and compiled, with this package's RoPE and without RoPE, in turns: see ``_training``. Other
providers, sizes and contexts are measured by ``python -m benchmarks study training``.
"""

from ._studies.training import tracking
from ._studies.training.functions import OURS
from ._studies.training.sizes import ATTENTION, STEP

SETUP_SECONDS = 1800
STEPS = ("410M-2048",)
SUBLAYERS = ("410M-2048", "1.4B-2048")  # heads of 64 and of 128 channels


def _if_counted(answers, model, provider):
    if answers[model, provider].launches is None:
        raise NotImplementedError("PyTorch's profiler sees no kernel here")


def _if_rotated(answers, model, provider):
    if not answers[model, provider].rope_shares:
        raise NotImplementedError("there is no RoPE in it, or nothing to compare it with")


class _Part:
    param_names = ["model", "provider"]
    # The way of measuring: raise it when ``_training`` measures or builds its network otherwise.
    version = "1"
    timeout = 60

    def setup(self, answers, model, provider):
        answer = answers[model, provider]
        if isinstance(answer, Exception):
            raise answer

    def track_seconds(self, answers, model, provider):
        """Forward and backward."""
        return _samples(answers[model, provider].seconds)

    track_seconds.unit = "seconds"

    def track_peak_bytes(self, answers, model, provider):
        """The most GPU memory that tensors take, weights included."""
        return answers[model, provider].peak_bytes

    track_peak_bytes.unit = "bytes"

    def track_launches(self, answers, model, provider):
        """Kernels, copies and fills."""
        return answers[model, provider].launches

    track_launches.unit, track_launches.setup = "launches", _if_counted

    def track_rope_share(self, answers, model, provider):
        """What RoPE adds to the time without it: 0.01 is 1 %."""
        return _samples(answers[model, provider].rope_shares)

    track_rope_share.unit, track_rope_share.setup = "share", _if_rotated


class Step(_Part):
    """The network, its loss and the gradients of all weights."""

    params = [list(STEPS), list(OURS)]

    def setup_cache(self):
        return tracking.answers(STEP, STEPS)

    setup_cache.timeout = SETUP_SECONDS


class Attention(_Part):
    """The projections, RoPE and attention of a layer."""

    params = [list(SUBLAYERS), list(OURS)]

    # In every class: asv tells caches apart by the line of their setup_cache.
    def setup_cache(self):
        return tracking.answers(ATTENTION, SUBLAYERS)

    setup_cache.timeout = SETUP_SECONDS


def _samples(values) -> dict:
    return {"samples": list(values), "number": 1}
