"""asv: a training step of a transformer, and its attention sublayer; needs an NVIDIA GPU.

Eager and compiled, with this package's RoPE and without RoPE, in turns: see ``_studies.training``.
Other providers, sizes and contexts are measured by ``python -m benchmarks study training``.
"""

from typing import NamedTuple

from ._engine.measure import cell_outcomes
from ._engine.system import progress
from ._studies.training import measuring, results
from ._studies.training.functions import OURS
from ._studies.training.sizes import ATTENTION, POINTS, STEP

SETUP_SECONDS, TURNS = 1800, 7
STEPS = ("410M-2048",)
SUBLAYERS = ("410M-2048", "1.4B-2048")  # heads of 64 and of 128 channels


class Answer(NamedTuple):
    """Of a part by a provider: seconds of each turn, and RoPE's share in each, where it has RoPE.

    ``launches``: None where the profiler has no rights.
    """

    seconds: tuple[float, ...]
    peak_bytes: int
    launches: int | None
    rope_shares: tuple[float, ...] = ()


def answers_of(part, points) -> dict[tuple[str, str], Answer | Exception]:
    """By point and provider, all in this process, or why there is none.

    ``NotImplementedError`` for what cannot be had here or at this commit, ``RuntimeError`` with the
    traceback for what went wrong.
    """
    if reason := cell_outcomes.why_no_gpu():
        progress.report(f"training_step, {part}: n/a, {reason}")
    answers: dict[tuple[str, str], Answer | Exception] = {}
    for point in points:
        rows = (
            NotImplementedError(reason)
            if reason
            else cell_outcomes.attempt(measuring.measured, POINTS[point], OURS, (part,), TURNS)
        )
        answers |= {(point, name): _answer(name, part, rows) for name in OURS}
    return answers


def _answer(name, part, rows) -> Answer | Exception:
    if isinstance(rows, Exception):
        return rows
    if "parts" not in rows[name]:
        kind = NotImplementedError if "unavailable" in rows[name] else RuntimeError
        return kind(*rows[name].values())
    row = rows[name]["parts"][part]
    shares = tuple(results.shares(name, part, rows))
    return Answer(tuple(row["seconds"]), row["peak_bytes"], row.get("launches"), shares)


def _if_counted(answers, model, provider):
    if answers[model, provider].launches is None:
        raise NotImplementedError("PyTorch's profiler sees no kernel here")


def _if_rotated(answers, model, provider):
    if not answers[model, provider].rope_shares:
        raise NotImplementedError("there is no RoPE in it, or nothing to compare it with")


class _Part:
    param_names = ["model", "provider"]
    # The way of measuring: raise it when ``_studies.training`` measures otherwise.
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
        return answers_of(STEP, STEPS)

    setup_cache.timeout = SETUP_SECONDS


class Attention(_Part):
    """The projections, RoPE and attention of a layer."""

    params = [list(SUBLAYERS), list(OURS)]

    # In every class: asv tells caches apart by the line of their setup_cache.
    def setup_cache(self):
        return answers_of(ATTENTION, SUBLAYERS)

    setup_cache.timeout = SETUP_SECONDS


def _samples(values) -> dict:
    return {"samples": list(values), "number": 1}
