"""The study ``parity``: loss curves of the providers beside those of float32 eager PyTorch."""

import argparse
import functools
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .. import pages, runner
from ..runner import Keep, Notes, Part, Place, StudyError, Task
from . import parity
from .functions import PROVIDERS
from .parity import BASELINE, COMPARED, EXACT, HALVES, STEPS, TASKS, Job, Run
from .sizes import PARITY
from .training_study import DISTRIBUTIONS, EVIDENCE

if TYPE_CHECKING:
    import numpy as np

NAME, FORMAT = "parity", "rope-triton training parity"
FACTOR, FLOOR = 1.25, 0.02
"""A provider's distance from float32's curve is at most ``FACTOR`` times that of eager PyTorch in
bfloat16, or ``FLOOR`` where that is more; in nats."""
PASS, FAIL, ERROR, UNAVAILABLE, NOT_RUN = "pass", "fail", "error", "n/a", "not run"
LAST = SMOOTHED = 10  # steps

# A change of these is another experiment.
_TRAINING = tuple(
    f"_studies/training/{name}.py" for name in ("network", "parity", "functions", "sizes")
)

# Okabe and Ito's colours, told apart with any colour vision.
_COLOURS = {
    **{"transformers": "#882255", "megatron": "#44AA99", "flash-attention": "#999933"},
    **{"eager": "#5A5A5A", "ours-eager": "#E69F00", "liger": "#000000", "compiled": "#56B4E9"},
    **{"ours": "#D55E00", "hybrid": "#CC79A7", "triton": "#009E73", "triton-fused": "#0072B2"},
}
_LINES = {EXACT: ":", "bfloat16": "-", "float16": "--"}
_SIZE, _DPI = (11.0, 7.5), 120  # inches; 1320 pixels


class Row(NamedTuple):
    """A provider in a dtype on a task, judged.

    ``status``: ``PASS``, or ``FAIL`` where ``distance`` is more than ``bound``; ``why`` says more
    of the others. ``distance``: the mean absolute difference, in nats, from float32's curve over
    the last ``COMPARED`` steps and all seeds. ``loss``: the mean over the last ``LAST`` steps. What
    has no curves is None.
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
    """What ``parity.trained`` returned, of what is trained so that providers can be judged."""

    def __init__(self, names: Sequence[str], entries: Sequence[dict]):
        self.runs = parity.runs(names)
        self._entries = {
            (Run(entry["provider"], entry["dtype"]), Job(entry["task"], entry["seed"])): entry
            for entry in entries
        }

    def missing(self, run: Run) -> list[Job]:
        return [job for job in parity.JOBS if (run, job) not in self._entries]

    def losses(self, run: Run, task: str) -> "np.ndarray | None":
        """``[seeds, steps]``; None if a curve is missing."""
        import numpy as np

        curves = [entry.get("losses") for entry in self._of_seeds(run, task)]
        return np.array(curves) if all(curves) else None

    def differences(self, run: Run, task: str) -> "np.ndarray | None":
        """From float32's curves, ``[seeds, steps]``; None if a curve is missing."""
        losses, exact = self.losses(run, task), self.losses(parity.reference(run.provider), task)
        return None if losses is None or exact is None else abs(losses - exact)

    def rows(self) -> list[Row]:
        """A row of each task for each provider in each dtype that it is trained in."""
        judged = [run for run in self.runs if run.dtype != EXACT]
        return [self._row(run, task) for task in TASKS for run in judged]

    def _of_seeds(self, run: Run, task: str) -> list[dict]:
        return [self._entries.get((run, Job(task, seed)), {}) for seed in parity.SEEDS]

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
            exact = parity.reference(run.provider)
            lacks = exact if distance is None else f"{_BASELINE} or {EXACT}"
            return Row(*run, task, ERROR, f"no curves of {lacks}", distance, None, loss)
        bound = max(FLOOR, FACTOR * baseline)
        return Row(*run, task, PASS if distance <= bound else FAIL, "", distance, bound, loss)

    def _distance(self, run: Run, task: str) -> float | None:
        differences = self.differences(run, task)
        return None if differences is None else float(differences[:, -COMPARED:].mean())


_BASELINE = Run(BASELINE, HALVES[0])


def _parts(options: argparse.Namespace, place: Place) -> list[Part]:
    """The curves of the providers that were asked for, which all go into one journal.

    Raises
    ------
    StudyError
        If none of them has RoPE.
    """
    names = parity.with_rope(options.only or PROVIDERS)
    if not names:
        raise StudyError(f"loss curves are of providers with RoPE, got {options.only}")
    words = [NAME, *(f"--only {name}" for name in options.only)]
    header = runner.header_of(FORMAT, words, place, _TRAINING, DISTRIBUTIONS)
    header |= {"point": str(PARITY), "batch": PARITY.batch, "steps": STEPS}
    return [_Parity(names, header | {"text": parity.text_digest()}, place)]


class _Parity(Part):
    name = NAME

    def __init__(self, names: Sequence[str], header: dict, place: Place | None = None):
        self._names, self.header, self._place = names, header, place
        complete = set(names) == set(parity.with_rope(PROVIDERS))
        self.why_not_shipped = "" if complete else "it has not every provider with RoPE"

    def tasks(self, entries: list[dict]) -> list[Task]:
        curves = Curves(self._names, entries)
        tasks = []
        for run in curves.runs:
            if jobs := curves.missing(run):
                train = functools.partial(self._train, run, jobs)
                tasks.append(
                    Task(f"{len(jobs)} curves of {run}", parity.cost(run, len(jobs)), train)
                )
        return tasks

    def _train(self, run: Run, jobs: Sequence[Job], keep: Keep) -> None:
        """The curves, in a process of their own; if it ends early, that is the result of each."""
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

    def page(self, header: dict, entries: list[dict], drawn: bool) -> str:
        lines = [
            *pages.head(f"Loss curves: {header['point']}", header, f"{header['batch']} sequences"),
            "",
            f"Each provider trains the same model in {STEPS} steps of AdamW from each of "
            f"{len(parity.SEEDS)} seeds. Distance: the mean absolute difference, in nats, from the "
            f"curve of float32 eager PyTorch over the last {COMPARED} steps and the seeds. Bound: "
            f"{FACTOR:g} times the distance of `{BASELINE}` in {HALVES[0]}, or {FLOOR:g} where "
            "that is more. The projection of `hybrid` and `triton` has groups of queries, keys and "
            "values, and `triton-fused` rotates neighbouring channels: with the same weights these "
            "are other models, each with a float32 curve of its own.",
            "",
            *(f"- {task}: {about}." for task, about in TASKS.items()),
            f"- SHA-256 of the text: {header['text']}.",
            "",
            *(["![Loss curves](parity.png)", ""] if drawn else []),
            *self.lines(header, entries),
        ]
        if without := [row for row in self._rows(entries) if row.why]:
            lines += ["", "## No result", ""]
        for row in without:
            what = f"`{row.provider}` in {row.dtype}, {row.task}, {row.status}"
            lines.append(f"- {what}: {pages.quoted(row.why)}")
        return "\n".join(lines) + "\n"

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
        notes.row(parity.trained(run, PARITY, jobs, "cuda"))


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
