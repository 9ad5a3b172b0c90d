"""An experiment's rows as Markdown, and the package's speedup over each provider."""

import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from ..._subjects.rope.names import ITEM_BYTES
from .. import pages
from . import targets
from .experiments import AXES, OURS, Experiment, Figure, Timing
from .state import Results, Row

PUBLISHED = Path(__file__).with_name("published.json")

# Metric -> its unit, its value of a row, how it is written.
METRICS: dict[str, tuple[str, Callable[[Row], float], str]] = {
    "gbps": ("GB/s", lambda row: row.gbps, ".0f"),
    "milliseconds": ("milliseconds a call", lambda row: row.seconds * 1e3, ".4f"),
    "share": ("share of `copy_`'s speed", lambda row: row.share, ".3f"),
}
# Where bandwidth has settled, and the seeds read theirs off.
SETTLED_SEQ_LEN = 2048
# From here on no cache helps, and launches cost nothing.
LARGE_BYTES = 16_000_000


def source(header: dict) -> list[str]:
    """Machine and software, commit, command: a line each, for every file."""
    package = f"{pages.package(header)}, grid {header['grid']}"
    return [pages.environment(header), package, header["command"]]


def page(experiment: Experiment, results: Results, drawn: bool) -> list[str]:
    header = results.header
    lines = [*pages.head(experiment.title, header, f"grid {header['grid']}"), ""]
    if experiment.name == "throughput":
        lines += [*seed_table(experiment, results), ""]
    lines += gain_table(experiment, results)
    if experiment.judged:
        lines += ["", *targets.page(experiment, results)]
    for figure in experiment.figures:
        unit = METRICS[figure.metric][0]
        lines += ["", f"## {figure.title}", ""]
        if drawn and figure.drawn:
            lines += [f"![{figure.title}]({figure.name}.png)", ""]
        lines += [f"{unit[0].upper()}{unit[1:]}:", "", *figure_table(figure, results)]
    names = dict.fromkeys(timing.cell.provider for timing in experiment.timings)
    lines += ["", "## Providers", "", *(f"- `{name}`: {experiment.about[name]}" for name in names)]
    return [*lines, *reasons(experiment, results)]


def figure_table(figure: Figure, results: Results) -> list[str]:
    """A row for each place on the axis, a column for each provider."""
    places = dict.fromkeys(map(figure.position, figure.cells))
    at = {(figure.position(cell), cell.provider): cell for cell in figure.cells}
    rows = (
        (
            f"{place:g}" if figure.drawn else str(place),
            *(
                _written(figure, results.rows.get(Timing(figure.direction, at[place, provider])))
                for provider in figure.providers
            ),
        )
        for place in places
    )
    return list(pages.table((AXES[figure.axis][0], *figure.providers), rows))


def _written(figure: Figure, row: Row | None) -> str:
    if row is None:
        return "not measured"
    if row.status == "measured":
        _, value, form = METRICS[figure.metric]
        return f"{value(row):{form}}"
    return row.status if row.status == "n/a" else f"**{row.status}**"


def seed_table(experiment: Experiment, results: Results) -> list[str]:
    """The first seed's published figures beside ours, by batch."""
    published = json.loads(PUBLISHED.read_bytes())["throughput"]
    theirs = {entry["batch"]: entry for entry in published["batches"]}
    about = (
        f"Medians from {SETTLED_SEQ_LEN} tokens on. The seed: {published['machine']}, "
        f"{published['source']}; there TransformerEngine settles at about "
        f"{published['transformer_engine_gbps']} GB/s."
    )
    columns = (
        *("batch", "seed, published", "over TransformerEngine", "here: rope-triton"),
        *("TransformerEngine", "over it", "the seed's design", "over it"),
    )
    rows = []
    for figure in experiment.figures:
        (batch,) = {len(cell.lengths) for cell in figure.cells}
        seed = theirs[batch]
        gbps = "not given" if seed["gbps"] is None else f"about {seed['gbps']} GB/s"
        ours, engine, design = (
            settled(figure, results, provider) for provider in (OURS, "transformer-engine", "seed")
        )
        row = [str(batch), gbps, f"{seed['gain']:+.0%}", _gbps(ours), _gbps(engine)]
        rows.append([*row, _gain(ours, engine), _gbps(design), _gain(ours, design)])
    return [about, "", *pages.table(columns, rows)]


def settled(figure: Figure, results: Results, provider: str) -> float | str:
    """Median GB/s of a provider where bandwidth has settled, or why there is none."""
    rows = [
        results.rows.get(Timing(figure.direction, cell))
        for cell in figure.cells
        if cell.provider == provider and cell.lengths[0] >= SETTLED_SEQ_LEN
    ]
    states = {row.status if row else "not measured" for row in rows} or {"not measured"}
    if states != {"measured"}:
        return next(s for s in ("wrong", "failed", "not measured", "n/a") if s in states)
    return statistics.median(row.gbps for row in rows if row)


def _gbps(speed: float | str) -> str:
    return speed if isinstance(speed, str) else f"{speed:.0f} GB/s"


def _gain(ours: float | str, other: float | str) -> str:
    return "" if isinstance(ours, str) or isinstance(other, str) else f"{ours / other - 1:+.0%}"


def gain_table(experiment: Experiment, results: Results) -> list[str]:
    """Speedup of the package over each other provider, over an experiment's cells."""
    columns = ("provider", "timings", "minimum", "median", "maximum", "timings it wins")
    lines = ["Speedup of the package over each provider, where both were measured:", ""]
    gains = gains_over(experiment, results)
    lines += pages.table(columns, ((name, *_gain_cells(ratios)) for name, ratios in gains.items()))
    large = gains_over(experiment, results, _is_large_half)
    for provider in ("compile", "compile-angles"):
        if ratios := large.get(provider):
            lines += [
                "",
                f"In half precision, from {LARGE_BYTES // 10**6} MB a tensor on: at least "
                f"{min(ratios):.2f} times as fast as `{provider}`, in {len(ratios)} timings.",
            ]
    return lines


def _gain_cells(gains: list[float]) -> list[str]:
    if not gains:
        return ["none", *[""] * 4]
    spread = min(gains), statistics.median(gains), max(gains)
    faster = sum(gain < 1 for gain in gains)
    return [str(len(gains)), *(f"{gain:.2f}" for gain in spread), str(faster)]


def _is_large_half(timing: Timing) -> bool:
    cell = timing.cell
    return ITEM_BYTES[cell.dtype] == 2 and cell.bytes_moved / 2 >= LARGE_BYTES


def gains_over(
    experiment: Experiment,
    results: Results,
    counts: Callable[[Timing], bool] = lambda timing: True,
) -> dict[str, list[float]]:
    """Provider -> its latency over the package's, of every timing that counts and both have."""
    gains: dict[str, list[float]] = {}
    for timing in experiment.timings:
        if timing.cell.provider == OURS or not counts(timing):
            continue
        ours = results.rows.get(timing._replace(cell=timing.cell.by(OURS)))
        row = results.rows.get(timing)
        of_provider = gains.setdefault(timing.cell.provider, [])
        if row and ours and row.status == ours.status == "measured":
            of_provider.append(row.seconds / ours.seconds)
    return gains


def reasons(experiment: Experiment, results: Results) -> Iterator[str]:
    rows = map(results.rows.get, experiment.timings)
    why = Counter(
        (row.timing.cell.provider, row.status, row.reason)
        for row in rows
        if row and row.status != "measured"
    )
    if why:
        yield from ("", "## Without a speed", "")
    for (provider, status, reason), count in why.items():
        yield f"- `{provider}`, {count} timings {status}: {pages.quoted(reason)}"
