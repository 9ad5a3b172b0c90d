"""Loss curves: whether each provider trains a small model as float32 eager PyTorch does.

Weights and AdamW are in float32. Each step rounds the weights to the provider's dtype; float16 has
``torch.amp.GradScaler``. Initial weights and batches are the same for all providers of a seed.
"""

import hashlib
import importlib.resources
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from .functions import PROVIDERS
from .network import Functions, Network, random_weights
from .sizes import Point

SEEDS = (0, 1, 2)
STEPS, COMPARED = 200, 100
"""Steps of a curve, and how many of the last ones are compared."""
BACK = 17
"""How many positions the copied token lies back."""
TEXT, COPY = "text", "copy"
TASKS = {
    TEXT: "the next byte of Python's pydoc_data/topics.py",
    COPY: f"of random tokens the one {BACK} positions back, which shows wrong positions",
}

# So slow that copying is learned within the steps that are compared: around step 140 in float32 on
# a CPU. Before and after that the curves of a wrong rotation are near to the right ones, too.
RATE, BETAS, DECAY, WARM_STEPS = 5e-4, (0.9, 0.95), 0.1, 20

SCALE = 2.0**10
"""Of float16's loss at first. The scaler skips a step that overflows, as an early one would at its
default of 2^16, and the curve would then lag behind the others."""

EXACT, HALVES = "float32", ("bfloat16", "float16")
BASELINE = "eager"
IN_FLOAT16 = (BASELINE, "ours", "triton", "triton-fused")

# What ``cost`` says: a process to start, a function to compile, a step. On an H200 six curves of
# eager PyTorch took 18 to 20 s.
_START, _COMPILE, _STEP_SECONDS = 8.0, 12.0, 0.009


class Run(NamedTuple):
    """A provider in a dtype. In float32 its ``reference`` is meant, eager."""

    provider: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.provider} in {self.dtype}"


class Job(NamedTuple):
    """One curve of a run."""

    task: str
    seed: int


JOBS = tuple(Job(task, seed) for task in TASKS for seed in SEEDS)


def reference(provider: str) -> Run:
    """What a provider is compared with; those that rotate alike share it."""
    kind = PROVIDERS[provider].reference
    return Run(next(name for name in PROVIDERS if PROVIDERS[name].reference is kind), EXACT)


def with_rope(names: Iterable[str]) -> tuple[str, ...]:
    """Those of the providers that rotate."""
    without = {PROVIDERS[name].without_rope for name in PROVIDERS} - {""}
    return tuple(name for name in names if name not in without)


def runs(names: Sequence[str]) -> tuple[Run, ...]:
    """What is trained so that these providers can be judged, first what they are judged by."""
    needed = [reference(BASELINE), Run(BASELINE, HALVES[0])]
    needed += [reference(name) for name in names]
    half = [Run(name, dtype) for dtype in HALVES for name in names]
    needed += [run for run in half if run.dtype != "float16" or run.provider in IN_FLOAT16]
    return tuple(dict.fromkeys(needed))


# --- train ----------------------------------------------------------------------------------------


def text() -> bytes:
    """What the text task predicts; it differs between versions of Python."""
    return importlib.resources.files("pydoc_data").joinpath("topics.py").read_bytes()


def text_digest() -> str:
    """SHA-256 of the text, in hexadecimal."""
    return hashlib.sha256(text()).hexdigest()


def batches(job: Job, point: Point):
    """Tokens and targets of all steps, int64 ``[steps, b, s]`` each, on the CPU.

    A target of the copy task that would lie before the first token is the first token.
    """
    import torch

    generator = torch.Generator().manual_seed(job.seed)
    shape, at = (STEPS, point.batch), torch.arange(point.context + 1)
    if job.task == COPY:
        tokens = torch.randint(point.shape.vocabulary, (*shape, point.context), generator=generator)
        return tokens, tokens[..., (at[:-1] - BACK).clamp(min=0)]
    read = torch.frombuffer(bytearray(text()), dtype=torch.uint8)
    starts = torch.randint(len(read) - point.context, (*shape, 1), generator=generator)
    drawn = read[starts + at].long()
    return drawn[..., :-1].contiguous(), drawn[..., 1:].contiguous()


def trained(run: Run, point: Point, jobs: Sequence[Job], device: str) -> list[dict]:
    """The curves of a run, or why there are none; plain JSON.

    Returns
    -------
    list of dict
        Of each job ``task``, ``seed``, ``provider`` and ``dtype``, and ``losses``, of each step
        before its update; or ``unavailable`` or ``error``, why there are none.
    """
    from ..._engine.measure import cell_outcomes

    network, curves = None, []
    for job in jobs:
        try:
            network = network or _network(run, point, device)
            result: dict[str, Any] = {"losses": curve(network, job, point)}
        except Exception as error:
            if cell_outcomes.gpu_is_lost():
                raise
            result = cell_outcomes.no_figures(error)
        curves.append({**job._asdict(), **run._asdict(), **result})
    return curves


def _network(run: Run, point: Point, device: str) -> Network:
    import torch

    provider = PROVIDERS[run.provider]
    if run.dtype == EXACT:
        return network_of(provider.reference(), None, point, torch.float32, device)
    dtype = getattr(torch, run.dtype)
    return network_of(provider.functions(), provider.backend, point, dtype, device)


def network_of(functions: Functions, backend: str | None, point: Point, dtype, device: str):
    """A network with weights of its own, compiled once for all its curves."""
    return Network(functions, point, random_weights(point.shape, dtype, device), backend)


def curve(network: Network, job: Job, point: Point) -> list[float]:
    """Train from the job's initial weights; the loss of each step, before its update.

    Raises
    ------
    FloatingPointError
        If a loss is not finite.
    """
    import torch

    rounded = network.weights.leaves()
    device = rounded[0].device
    exact = random_weights(point.shape, torch.float32, device, job.seed).leaves()
    tokens, targets = (tokens_of.to(device) for tokens_of in batches(job, point))
    optimizer = torch.optim.AdamW(
        exact, lr=RATE, betas=BETAS, weight_decay=DECAY, fused=device.type == "cuda"
    )
    scaler = torch.amp.GradScaler(
        device.type, init_scale=SCALE, enabled=rounded[0].dtype == torch.float16
    )
    losses = []
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = RATE * min(1, (step + 1) / WARM_STEPS)
        with torch.no_grad():
            for low, high in zip(rounded, exact, strict=True):
                low.copy_(high)
        loss = network.loss(tokens[step], targets[step])
        losses.append(loss.detach().float())  # before backward, which may overwrite
        gradients = torch.autograd.grad(scaler.scale(loss), rounded)
        for high, gradient in zip(exact, gradients, strict=True):
            high.grad = gradient.float()
        scaler.step(optimizer)
        scaler.update()
    values = torch.stack(losses).tolist()
    for step, value in enumerate(values):
        if not math.isfinite(value):
            raise FloatingPointError(f"the loss of step {step} is {value}")
    return [round(value, 6) for value in values]


def cost(run: Run, jobs: int) -> float:
    """Seconds that so many curves of a run may take, estimated.

    A layer and the head are compiled; a step of so small a model takes what the host needs for its
    launches.
    """
    compiled = run.dtype != EXACT and PROVIDERS[run.provider].backend is not None
    return _START + 2 * _COMPILE * compiled + jobs * STEPS * _STEP_SECONDS
