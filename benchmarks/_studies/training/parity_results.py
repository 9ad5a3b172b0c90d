"""Loss curves to distances, and distances to Markdown and a plot. Imports no torch."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .. import pages
from .parity import (
    BASELINE,
    COMPARED,
    EXACT,
    HALVES,
    SEEDS,
    STEPS,
    TASKS,
    Job,
    Run,
    reference,
    runs,
)

FORMAT = "rope-triton training parity"
FACTOR, FLOOR = 1.25, 0.02
"""A provider's distance from float32's curve is at most ``FACTOR`` times that of eager PyTorch in
bfloat16, or ``FLOOR`` where that is more; in nats."""
PASS, FAIL, ERROR, UNAVAILABLE, NOT_RUN = "pass", "fail", "error", "n/a", "not run"
LAST = SMOOTHED = 10  # steps

Found = Mapping[tuple[Run, Job], dict]
"""What ``parity.trained`` returned, by what it is of."""

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


def by_key(entries: Iterable[dict]) -> Found:
    return {
        (Run(entry["provider"], entry["dtype"]), Job(entry["task"], entry["seed"])): entry
        for entry in entries
    }


def rows(names: Sequence[str], entries: Iterable[dict]) -> list[Row]:
    """A row of each task for each provider in each dtype that it is trained in.

    Parameters
    ----------
    names : sequence of str
        The providers.
    entries : iterable of dict
        What ``parity.trained`` returned, of any runs.
    """
    curves = by_key(entries)
    asked = [run for run in runs(names) if run.dtype != EXACT]
    return [_row(run, task, curves) for task in TASKS for run in asked]


def _row(run: Run, task: str, curves: Found) -> Row:
    of_run = [curves.get((run, Job(task, seed)), {}) for seed in SEEDS]
    for key, status in (("error", ERROR), ("unavailable", UNAVAILABLE)):
        for curve in of_run:
            if key in curve:
                return Row(*run, task, status, pages.last_line(curve[key]))
    if not all(of_run):
        return Row(*run, task, NOT_RUN, f"{sum(map(bool, of_run))} of {len(SEEDS)} seeds")
    loss = statistics.fmean(value for curve in of_run for value in curve["losses"][-LAST:])
    found_distance = distance(run, task, curves)
    baseline = distance(Run(BASELINE, HALVES[0]), task, curves)
    if found_distance is None or baseline is None:
        exact = reference(run.provider)
        lacks = f"{exact}" if found_distance is None else f"{BASELINE} in {HALVES[0]} or {EXACT}"
        return Row(*run, task, ERROR, f"no curves of {lacks}", found_distance, None, loss)
    bound = max(FLOOR, FACTOR * baseline)
    status = PASS if found_distance <= bound else FAIL
    return Row(*run, task, status, "", found_distance, bound, loss)


def distance(run: Run, task: str, curves: Found) -> float | None:
    """The mean of the seeds' distances from float32's curves; None if a curve is missing."""
    if not (pairs := _pairs(run, task, curves)):
        return None
    return statistics.fmean(
        abs(one - other)
        for losses, exact in pairs
        for one, other in zip(losses[-COMPARED:], exact[-COMPARED:], strict=True)
    )


def _pairs(run: Run, task: str, curves: Found) -> list[tuple[list[float], list[float]]]:
    """Of each seed the losses of a run and of its float32 reference; empty if any are missing."""
    exact, pairs = reference(run.provider), []
    for seed in SEEDS:
        job = Job(task, seed)
        losses, others = (curves.get((one, job), {}).get("losses") for one in (run, exact))
        if not losses or not others:
            return []
        pairs.append((losses, others))
    return pairs


# --- shown ----------------------------------------------------------------------------------------


def table(judged: Iterable[Row]) -> Iterator[str]:
    """Markdown: a row for each provider, dtype and task."""
    columns = ("provider", "dtype", "task", "distance", "bound", "loss at the end", "result")

    def written(number: float | None) -> str:
        return "" if number is None else f"{number:.4f}"

    rows = (
        (
            *(f"`{row.provider}`", row.dtype, row.task),
            *(*map(written, (row.distance, row.bound, row.loss)), row.status),
        )
        for row in judged
    )
    return pages.table(columns, rows)


def as_markdown(header: dict[str, Any], judged: Sequence[Row], drawn: bool) -> str:
    """A page: where the curves come from, the table, what has no distance."""
    lines = [
        *pages.head(f"Loss curves: {header['point']}", header, f"{header['batch']} sequences"),
        "",
        f"Each provider trains the same model in {STEPS} steps of AdamW from each of {len(SEEDS)} "
        "seeds. Distance: the mean absolute difference, in nats, from the curve of float32 eager "
        f"PyTorch over the last {COMPARED} steps and the seeds. Bound: "
        f"{FACTOR:g} times the distance of `{BASELINE}` in {HALVES[0]}, or {FLOOR:g} where that "
        "is more. The projection of `hybrid` and `triton` has groups of queries, keys and values, "
        "and `triton-fused` rotates neighbouring channels: with the same weights these are other "
        "models, each with a float32 curve of its own.",
        "",
        *(f"- {task}: {about}." for task, about in TASKS.items()),
        f"- SHA-256 of the text: {header['text']}.",
        "",
        *(["![Loss curves](parity.png)", ""] if drawn else []),
        *table(judged),
    ]
    if without := [row for row in judged if row.why]:
        lines += ["", "## No result", ""]
    for row in without:
        what = f"`{row.provider}` in {row.dtype}, {row.task}, {row.status}"
        lines.append(f"- {what}: {pages.quoted(row.why)}")
    return "\n".join(lines) + "\n"


def draw(names: Sequence[str], entries: Iterable[dict], about: str, path: Path) -> None:
    """Write a PNG: for each task the curves, and below them their distances from float32's.

    Raises
    ------
    ModuleNotFoundError
        If matplotlib is not installed.
    """
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    curves = by_key(entries)
    with matplotlib.rc_context(pages.PLOT_SETTINGS):
        canvas = Canvas(figsize=_SIZE, layout="constrained")
        axes = canvas.subplots(2, len(TASKS), sharex=True)
        for task, above, below in zip(TASKS, *axes, strict=True):
            for run in runs(names):
                _plot(above, below, run, _pairs(run, task, curves))
            above.set_title(f"{task}\n", loc="left", fontweight="bold")
            above.text(0, 1.02, TASKS[task], transform=above.transAxes, fontsize=8, color="#555555")
            above.set_ylabel("loss")
            below.set_ylabel(f"distance from float32, mean of {SMOOTHED} steps")
            below.set_yscale("log")
            below.axvline(STEPS - COMPARED, color="#888888", linewidth=0.8)
            below.set_xlabel("step; from the line on it counts")
        lines = {line.get_label(): line for axis in axes.flat for line in axis.get_lines()[::-1]}
        shown = [str(run) for run in runs(names) if str(run) in lines]
        handles = [lines[label] for label in shown]
        canvas.legend(handles, shown, loc="outside lower center", ncols=4, fontsize=9)
        path.parent.mkdir(parents=True, exist_ok=True)
        canvas.savefig(path, dpi=_DPI, metadata={"Software": None, "Description": about})


def _plot(above, below, run: Run, pairs: Sequence[tuple[list[float], list[float]]]) -> None:
    """The means over the seeds; nothing of a run without curves."""
    if not pairs:
        return
    style = {
        "color": _COLOURS[run.provider],
        "linestyle": _LINES[run.dtype],
        "linewidth": 1.2,
        "label": str(run),
    }
    by_step = list(zip(*(zip(*pair, strict=True) for pair in pairs), strict=True))
    above.plot([statistics.fmean(one for one, _ in step) for step in by_step], **style)
    if run.dtype != EXACT:
        far = [statistics.fmean(abs(a - b) for a, b in step) for step in by_step]
        ends = range(SMOOTHED, len(far) + 1)
        below.plot(ends, [statistics.fmean(far[end - SMOOTHED : end]) for end in ends], **style)
