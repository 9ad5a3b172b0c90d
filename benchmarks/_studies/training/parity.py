"""The study ``parity``: whether each provider trains a small model as float32 eager PyTorch does.

Weights and AdamW are in float32. Each step rounds the weights to the provider's dtype; float16 has
``torch.amp.GradScaler``. Initial weights and batches are the same for all providers of a seed.
"""

import argparse
import functools
import hashlib
import importlib.resources
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import pages, runner
from ..runner import Keep, Notes, Part, Place, StudyError, Task
from .functions import PROVIDERS
from .network import Network, random_weights
from .sizes import PARITY, Point
from .training_study import DISTRIBUTIONS, EVIDENCE, NETWORK

if TYPE_CHECKING:
    import numpy as np

NAME, FORMAT = "parity", "rope-triton training parity"
# A change of these is another experiment.
_TRAINING = (*NETWORK, "_studies/training/parity.py")

SEEDS = (0, 1, 2)
STEPS, COMPARED = 200, 100  # of a curve, and how many of the last ones are compared
BACK = 17  # positions that the copied token lies back
TEXT, COPY = "text", "copy"
TASKS = {
    TEXT: "the next byte of Python's pydoc_data/topics.py",
    COPY: f"of random tokens the one {BACK} positions back, which shows wrong positions",
}

# So slow that copying is learned within the steps that are compared: around step 140 in float32 on
# a CPU. Before and after that the curves of a wrong rotation are near to the right ones, too.
RATE, BETAS, DECAY, WARM_STEPS = 5e-4, (0.9, 0.95), 0.1, 20

# Of float16's loss at first. The scaler skips a step that overflows, as an early one would at its
# default of 2^16, and the curve would then lag behind the others.
SCALE = 2.0**10

EXACT, HALVES = "float32", ("bfloat16", "float16")
BASELINE = "eager"
IN_FLOAT16 = (BASELINE, "ours", "triton", "triton-fused")

# Estimates of a process to start, a function to compile, a step. On an H200 six curves of eager
# PyTorch took 18 to 20 s.
_START, _COMPILE, _STEP_SECONDS = 8.0, 12.0, 0.009

FACTOR, FLOOR = 1.25, 0.02
"""A provider's distance from float32's curve is at most ``FACTOR`` times that of eager PyTorch in
bfloat16, or ``FLOOR`` where that is more; in nats."""
PASS, FAIL, ERROR, UNAVAILABLE, NOT_RUN = "pass", "fail", "error", "n/a", "not run"
LAST = SMOOTHED = 10  # steps

# Okabe and Ito's colours, told apart with any colour vision.
_COLOURS = {
    **{"transformers": "#882255", "megatron": "#44AA99", "flash-attention": "#999933"},
    **{"eager": "#5A5A5A", "ours-eager": "#E69F00", "liger": "#000000", "compiled": "#56B4E9"},
    **{"ours": "#D55E00", "hybrid": "#CC79A7", "triton": "#009E73", "triton-fused": "#0072B2"},
}
_LINES = {EXACT: ":", "bfloat16": "-", "float16": "--"}
_SIZE, _DPI = (11.0, 7.5), 120  # inches; 1320 pixels


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
_BASELINE = Run(BASELINE, HALVES[0])


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
    needed = [reference(BASELINE), _BASELINE]
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
    """The curves of a run; plain JSON.

    Of each job ``task``, ``seed``, ``provider`` and ``dtype``, and ``losses``, of each step before
    its update; or ``unavailable`` or ``error``, why there are none.
    """
    from ..._engine.measure import cell_outcomes

    network, curves = None, []
    for job in jobs:
        try:
            network = network or _network(run, point, device)
            result: dict[str, Any] = {"losses": _curve(network, job, point)}
        except Exception as error:
            if cell_outcomes.gpu_is_lost():
                raise
            result = cell_outcomes.no_figures(error)
        curves.append({**job._asdict(), **run._asdict(), **result})
    return curves


def _network(run: Run, point: Point, device: str) -> Network:
    import torch

    provider = PROVIDERS[run.provider]
    weights = random_weights(point.shape, getattr(torch, run.dtype), device)
    if run.dtype == EXACT:
        return Network(provider.reference(), point, weights)
    return Network(provider.functions(), point, weights, provider.backend)


def _curve(network: Network, job: Job, point: Point) -> list[float]:
    """Train from the job's initial weights; the loss of each step, before its update."""
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
    """Seconds that so many curves of a run may take: a layer and the head are compiled."""
    compiled = run.dtype != EXACT and PROVIDERS[run.provider].backend is not None
    return _START + 2 * _COMPILE * compiled + jobs * STEPS * _STEP_SECONDS


# --- judge ----------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A provider in a dtype on a task, judged.

    ``why`` says more of what neither passes nor fails. ``distance``: the mean absolute difference,
    in nats, from float32's curve over the last ``COMPARED`` steps and all seeds. ``loss``: the mean
    over the last ``LAST`` steps.
    """

    provider: str
    dtype: str
    task: str
    status: str
    why: str = ""
    distance: float | None = None
    bound: float | None = None
    loss: float | None = None


class Curves:
    """What ``trained`` returned, of what is trained so that providers can be judged."""

    def __init__(self, names: Sequence[str], entries: Sequence[dict]):
        self.runs = runs(names)
        self._entries = {
            (Run(entry["provider"], entry["dtype"]), Job(entry["task"], entry["seed"])): entry
            for entry in entries
        }

    def missing(self, run: Run) -> list[Job]:
        return [job for job in JOBS if (run, job) not in self._entries]

    def losses(self, run: Run, task: str) -> "np.ndarray | None":
        """``[seeds, steps]``; None if a curve is missing."""
        import numpy as np

        curves = [entry.get("losses") for entry in self._of_seeds(run, task)]
        return np.array(curves) if all(curves) else None

    def differences(self, run: Run, task: str) -> "np.ndarray | None":
        """From float32's curves, ``[seeds, steps]``; None if a curve is missing."""
        losses, exact = self.losses(run, task), self.losses(reference(run.provider), task)
        return None if losses is None or exact is None else abs(losses - exact)

    def rows(self) -> list[Row]:
        judged = [run for run in self.runs if run.dtype != EXACT]
        return [self._row(run, task) for task in TASKS for run in judged]

    def _of_seeds(self, run: Run, task: str) -> list[dict]:
        return [self._entries.get((run, Job(task, seed)), {}) for seed in SEEDS]

    def _row(self, run: Run, task: str) -> Row:
        entries = self._of_seeds(run, task)
        for key, status in (("error", ERROR), ("unavailable", UNAVAILABLE)):
            for entry in entries:
                if key in entry:
                    return Row(*run, task, status, pages.last_line(entry[key]))
        losses = self.losses(run, task)
        if losses is None:
            return Row(*run, task, NOT_RUN, f"{sum(map(bool, entries))} of {len(entries)} seeds")
        loss = float(losses[:, -LAST:].mean())
        distance, baseline = self._distance(run, task), self._distance(_BASELINE, task)
        if distance is None or baseline is None:
            exact = reference(run.provider)
            lacks = exact if distance is None else f"{_BASELINE} or {EXACT}"
            return Row(*run, task, ERROR, f"no curves of {lacks}", distance, None, loss)
        bound = max(FLOOR, FACTOR * baseline)
        return Row(*run, task, PASS if distance <= bound else FAIL, "", distance, bound, loss)

    def _distance(self, run: Run, task: str) -> float | None:
        differences = self.differences(run, task)
        return None if differences is None else float(differences[:, -COMPARED:].mean())


# --- the study ------------------------------------------------------------------------------------


def _parts(options: argparse.Namespace, place: Place) -> list[Part]:
    names = with_rope(options.only or PROVIDERS)
    if not names:
        raise StudyError(f"loss curves are of providers with RoPE, got {options.only}")
    words = [NAME, *(f"--only {name}" for name in options.only)]
    header = runner.header_of(FORMAT, words, place, _TRAINING, DISTRIBUTIONS)
    header |= {"point": str(PARITY), "batch": PARITY.batch, "steps": STEPS}
    return [_Parity(names, header | {"text": text_digest()}, place)]


class _Parity(Part):
    name = NAME

    def __init__(self, names: Sequence[str], header: dict, place: Place | None = None):
        self._names, self.header, self._place = names, header, place
        complete = set(names) == set(with_rope(PROVIDERS))
        self.why_not_shipped = "" if complete else "it has not every provider with RoPE"

    def tasks(self, entries: list[dict]) -> list[Task]:
        curves = Curves(self._names, entries)
        missing = {run: curves.missing(run) for run in curves.runs}
        return [
            Task(
                f"{len(jobs)} curves of {run}",
                cost(run, len(jobs)),
                functools.partial(self._train, run, jobs),
            )
            for run, jobs in missing.items()
            if jobs
        ]

    def _train(self, run: Run, jobs: Sequence[Job], keep: Keep) -> None:
        assert self._place
        runner.in_processes(
            *(train, [(run, jobs)]),
            place=self._place,
            keep=lambda rows: keep(*itertools.chain(*rows)),
            failed=lambda _, why: [
                {**job._asdict(), **run._asdict(), "error": why} for job in jobs
            ],
        )

    def lines(self, header: dict, entries: list[dict]) -> Iterator[str]:
        columns = ("provider", "dtype", "task", "distance", "bound", "loss at the end", "result")

        def cells(row: Row) -> Iterator[str]:
            yield from (f"`{row.provider}`", row.dtype, row.task)
            for number in (row.distance, row.bound, row.loss):
                yield "" if number is None else f"{number:.4f}"
            yield row.status

        return pages.table(columns, map(cells, self._rows(entries)))

    def failures(self, header: dict, entries: list[dict]) -> list[str]:
        return [
            f"{row.status.upper()}: {row.provider} in {row.dtype}, {row.task}: {row.why}"
            for row in self._rows(entries)
            if row.status not in (PASS, UNAVAILABLE)
        ]

    def page(self, header: dict, entries: list[dict], drawn: bool) -> Iterator[str]:
        about = f"{header['batch']} sequences"
        yield from pages.head(f"Loss curves: {header['point']}", header, about)
        yield ""
        yield (
            f"Each provider trains the same model in {STEPS} steps of AdamW from each of "
            f"{len(SEEDS)} seeds. Distance: the mean absolute difference, in nats, from the "
            f"curve of float32 eager PyTorch over the last {COMPARED} steps and the seeds. Bound: "
            f"{FACTOR:g} times the distance of `{BASELINE}` in {HALVES[0]}, or {FLOOR:g} where "
            "that is more. The projection of `hybrid` and `triton` has groups of queries, keys and "
            "values, and `triton-fused` rotates neighbouring channels: with the same weights these "
            "are other models, each with a float32 curve of its own."
        )
        yield ""
        yield from (f"- {task}: {about}." for task, about in TASKS.items())
        yield from (f"- SHA-256 of the text: {header['text']}.", "")
        yield from ["![Loss curves](parity.png)", ""] if drawn else []
        yield from self.lines(header, entries)
        if without := [row for row in self._rows(entries) if row.why]:
            yield from ("", "## No result", "")
        for row in without:
            what = f"`{row.provider}` in {row.dtype}, {row.task}, {row.status}"
            yield f"- {what}: {pages.quoted(row.why)}"

    def draw(self, header: dict, entries: list[dict], directory: Path) -> None:
        """For each task the curves, and below them their distances from float32's."""
        import matplotlib
        import numpy as np
        from matplotlib.figure import Figure as Canvas

        about = f"{PARITY} on {header['machine']['gpu']}, {pages.package(header)}"
        curves, handles = Curves(self._names, entries), {}
        window = np.full(SMOOTHED, 1 / SMOOTHED)
        with matplotlib.rc_context(pages.PLOT_SETTINGS | {"lines.linewidth": 1.2}):
            canvas = Canvas(figsize=_SIZE, layout="constrained")
            axes = canvas.subplots(2, len(TASKS), sharex=True)
            for (task, title), above, below in zip(TASKS.items(), *axes, strict=True):
                for run in curves.runs:
                    losses, differences = curves.losses(run, task), curves.differences(run, task)
                    if losses is None or differences is None:
                        continue
                    style = {"color": _COLOURS[run.provider], "linestyle": _LINES[run.dtype]}
                    (handles[str(run)],) = above.plot(losses.mean(axis=0), **style)
                    if run.dtype != EXACT:
                        means = np.convolve(differences.mean(axis=0), window, "valid")
                        below.plot(np.arange(len(means)) + SMOOTHED, means, **style)
                above.set_title(f"{task}\n", loc="left", fontweight="bold")
                above.text(0, 1.02, title, transform=above.transAxes, fontsize=8, color="#555555")
                above.set_ylabel("loss")
                below.set_ylabel(f"distance from float32, mean of {SMOOTHED} steps")
                below.set_yscale("log")
                below.axvline(STEPS - COMPARED, color="#888888", linewidth=0.8)
                below.set_xlabel("step; from the line on it counts")
            canvas.legend(
                handles.values(), handles, loc="outside lower center", ncols=4, fontsize=9
            )
            metadata = {"Software": None, "Description": about}
            canvas.savefig(directory / f"{NAME}.png", dpi=_DPI, metadata=metadata)

    def _rows(self, entries: list[dict]) -> list[Row]:
        return Curves(self._names, entries).rows()


def train(items: Sequence[tuple[Run, Sequence[Job]]], alone: bool, notes: Notes) -> None:
    """In a fresh process: note the curves of each run."""
    for index, (run, jobs) in enumerate(items):
        notes.begin(index)
        notes.row(trained(run, PARITY, jobs, "cuda"))


def _stored(header: dict, entries: list[dict]) -> Part:
    providers = {entry["provider"] for entry in entries if entry["dtype"] != EXACT}
    return _Parity([name for name in PROVIDERS if name in providers], header)


STUDY = runner.Study(
    about="loss curves of the training providers beside float32's",
    description="""\
Train a small model by each provider with RoPE, and compare the loss curves with those of float32
eager PyTorch; nothing is timed. A library that is not installed is n/a.""",
    names=lambda: PROVIDERS,
    parts=_parts,
    evidence=lambda machine: EVIDENCE,
    format=FORMAT,
    stored=_stored,
)
