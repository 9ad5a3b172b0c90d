"""An experiment's rows as CSV and Markdown. Measures nothing, decides nothing."""

import csv
import io
import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import astuple, fields
from pathlib import Path

from ..._cells.forms import ITEM_BYTES
from ..cells import PeerCell
from . import closeness
from .experiments import (
    COMPILE,
    COMPILE_ANGLES,
    ENGINE,
    GBPS,
    MILLISECONDS,
    OURS,
    SEED,
    SHARE,
    Experiment,
    Figure,
    Timing,
    position,
)
from .state import Results, Row

PUBLISHED = Path(__file__).with_name("published.json")

# Metric -> its unit, its value of a row, how it is written.
METRICS: dict[str, tuple[str, Callable[[Row], float], str]] = {
    GBPS: ("GB/s", lambda row: row.gbps, ".0f"),
    MILLISECONDS: ("milliseconds a call", lambda row: row.seconds * 1e3, ".4f"),
    SHARE: ("share of `copy_`'s speed", lambda row: row.share, ".3f"),
}
# Where bandwidth has settled, and the seeds read theirs off.
SETTLED_SEQ_LEN = 2048
# From here on no cache helps, and launches cost nothing.
LARGE_BYTES = 16_000_000


def value(figure: Figure, row: Row) -> float:
    """What the figure shows of a row that was measured."""
    return METRICS[figure.metric][1](row)


def source(header: dict) -> list[str]:
    """Machine and software, commit, command: a line each, for every file."""
    machine = header["machine"]
    software = "".join(f", {name} {version}" for name, version in header["software"].items())
    return [
        f"{machine['gpu']} (driver {machine['driver']}, torch {machine['torch']}, "
        f"triton {machine['triton']}{software})",
        f"commit {header['commit'][:8]}, grid {header['grid']}",
        header["command"],
    ]


# --- CSV ------------------------------------------------------------------------------------------


def as_csv(experiment: Experiment, results: Results) -> str:
    """A line for each timing; the first lines, which begin with ``#``, say where it comes from."""
    text = io.StringIO()
    text.writelines(f"# {line}\n" for line in source(results.header))
    writer = csv.writer(text, lineterminator="\n")
    names = [field.name for field in fields(PeerCell)]
    measured = ["status", "latency_s", "copy_s", "gbps", "share_of_copy", "gpu", "reason"]
    writer.writerow(["direction", *names, "bytes_moved", *measured])
    for timing in experiment.timings:
        if timing in results.rows:
            writer.writerow(_csv_row(results.rows[timing]))
    return text.getvalue()


def _csv_row(row: Row) -> list:
    cell = row.timing.cell
    numbers: list = ["", "", "", ""]
    if row.status == "measured":
        numbers = [
            f"{row.seconds:.6g}",
            f"{row.copy_seconds:.6g}",
            f"{row.gbps:.5g}",
            f"{row.share:.4f}",
        ]
    who = [row.gpu, "" if row.status == "measured" else row.reason]
    return [row.timing.direction, *astuple(cell), cell.bytes_moved, row.status, *numbers, *who]


# --- Markdown -------------------------------------------------------------------------------------


def as_markdown(experiment: Experiment, results: Results, told: dict[str, str], drawn: bool) -> str:
    """The experiment's page.

    Parameters
    ----------
    told : dict of str -> str
        What each provider computes, in a line.
    drawn : bool
        Whether the plots lie beside the page.
    """
    machine, commit, command = source(results.header)
    lines = [f"# {experiment.title}", "", f"{machine}, {commit}:", "", "```sh", command, "```", ""]
    lines += _summary(experiment, results)
    if experiment.name == "milliseconds":
        lines += ["", *closeness_lines(results)]
    for figure in experiment.figures:
        unit = METRICS[figure.metric][0]
        lines += ["", f"## {figure.title}", ""]
        if drawn:
            lines += [f"![{figure.title}]({figure.name}.png)", ""]
        lines += [f"{unit[0].upper()}{unit[1:]}:", "", *figure_table(figure, results)]
    lines += ["", *_providers(experiment, told), *_reasons(experiment, results)]
    return "\n".join(lines) + "\n"


def figure_table(figure: Figure, results: Results) -> list[str]:
    """A row for each place on the axis, a column for each provider."""
    places = list(dict.fromkeys(position(figure.axis, cell) for cell in figure.cells))
    at = {(position(figure.axis, cell), cell.provider): cell for cell in figure.cells}
    lines = [
        f"| {figure.axis.label} | " + " | ".join(figure.providers) + " |",
        "|---" * (1 + len(figure.providers)) + "|",
    ]
    for place in places:
        found = (
            _written(figure, results.rows.get(Timing(figure.direction, at[place, provider])))
            for provider in figure.providers
        )
        lines.append(f"| {place:g} | " + " | ".join(found) + " |")
    return lines


def _written(figure: Figure, row: Row | None) -> str:
    if row is None:
        return "not measured"
    if row.status == "measured":
        return f"{value(figure, row):{METRICS[figure.metric][2]}}"
    return row.status if row.status == "n/a" else f"**{row.status}**"


def _summary(experiment: Experiment, results: Results) -> list[str]:
    if experiment.name == "throughput":
        return [*seed_table(experiment, results), "", *gain_table(experiment, results)]
    return gain_table(experiment, results)


def seed_table(experiment: Experiment, results: Results) -> list[str]:
    """The first seed's published figures beside ours, by batch."""
    published = json.loads(PUBLISHED.read_text())["throughput"]
    theirs = {each["batch"]: each for each in published["batches"]}
    lines = [
        f"Medians from {SETTLED_SEQ_LEN} tokens on. The seed: {published['machine']}, "
        f"{published['source']}; there TransformerEngine settles at about "
        f"{published['transformer_engine_gbps']} GB/s.",
        "",
        "| batch | seed, published | over TransformerEngine | here: rope-triton | "
        "TransformerEngine | over it | the seed's design | over it |",
        "|---" * 8 + "|",
    ]
    for figure in experiment.figures:
        (batch,) = {cell.batch for cell in figure.cells}
        seed = theirs[batch]
        gbps = "not given" if seed["gbps"] is None else f"about {seed['gbps']} GB/s"
        ours, engine, design = (
            settled(figure, results, provider) for provider in (OURS, ENGINE, SEED)
        )
        lines.append(
            f"| {batch} | {gbps} | {seed['gain']:+.0%} | {_gbps(ours)} | {_gbps(engine)} | "
            f"{_gain(ours, engine)} | {_gbps(design)} | {_gain(ours, design)} |"
        )
    return lines


def settled(figure: Figure, results: Results, provider: str) -> float | str:
    """Median GB/s of a provider where bandwidth has settled, or why there is none."""
    rows = [
        results.rows.get(Timing(figure.direction, cell))
        for cell in figure.cells
        if cell.provider == provider and cell.seq_len >= SETTLED_SEQ_LEN
    ]
    states = {row.status if row else "not measured" for row in rows} or {"not measured"}
    if states != {"measured"}:
        return next(s for s in ("wrong", "failed", "not measured", "n/a") if s in states)
    return statistics.median(row.gbps for row in rows if row)


def _gbps(found: float | str) -> str:
    return found if isinstance(found, str) else f"{found:.0f} GB/s"


def _gain(ours: float | str, other: float | str) -> str:
    return "" if isinstance(ours, str) or isinstance(other, str) else f"{ours / other - 1:+.0%}"


def gain_table(experiment: Experiment, results: Results) -> list[str]:
    """How much faster the package is than each other provider, over an experiment's cells."""
    lines = [
        "How many times as fast as each other the package is, where both were measured:",
        "",
        "| provider | timings | least | median | most | timings in which it is faster |",
        "|---|---|---|---|---|---|",
    ]
    for provider, gains in gains_over(experiment, results).items():
        if gains:
            ordered = f"{min(gains):.2f} | {statistics.median(gains):.2f} | {max(gains):.2f}"
            faster = sum(gain < 1 for gain in gains)
            lines.append(f"| {provider} | {len(gains)} | {ordered} | {faster} |")
        else:
            lines.append(f"| {provider} | none | | | | |")
    return [*lines, *_over_the_compiler(experiment, results)]


def _over_the_compiler(experiment: Experiment, results: Results) -> Iterator[str]:
    gains = gains_over(experiment, results, _is_large_half)
    for provider in (COMPILE, COMPILE_ANGLES):
        if found := gains.get(provider):
            yield ""
            yield (
                f"In half precision, from {LARGE_BYTES // 10**6} MB a tensor on: at least "
                f"{min(found):.2f} times as fast as `{provider}`, in {len(found)} timings."
            )


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
        provider = timing.cell.provider
        if provider == OURS or not counts(timing):
            continue
        mine = results.rows.get(_of(timing, OURS))
        row = results.rows.get(timing)
        found = gains.setdefault(provider, [])
        if row and mine and row.status == mine.status == "measured":
            found.append(row.seconds / mine.seconds)
    return gains


def _of(timing: Timing, provider: str) -> Timing:
    return timing._replace(cell=PeerCell(provider, *astuple(timing.cell)[1:]))


def _providers(experiment: Experiment, told: dict[str, str]) -> list[str]:
    names = dict.fromkeys(timing.cell.provider for timing in experiment.timings)
    return ["## Providers", "", *(f"- `{name}`: {told[name]}" for name in names)]


def _reasons(experiment: Experiment, results: Results) -> Iterator[str]:
    """What has no speed and why, each reason once."""
    why: dict[tuple[str, str, str], int] = {}
    for timing in experiment.timings:
        row = results.rows.get(timing)
        if row and row.status != "measured":
            key = timing.cell.provider, row.status, row.reason
            why[key] = why.get(key, 0) + 1
    if why:
        yield from ("", "## Without a speed", "")
    for (provider, status, reason), count in why.items():
        yield f"- `{provider}`, {count} timings {status}: {_code(reason)}"


def _code(text: str) -> str:
    """Text of others as Markdown shows it and does not read it."""
    shown = text if len(text) <= 300 else text[:300] + " ..."
    return "``` " + shown.replace("```", "'''") + " ```"


# --- is it close? ---------------------------------------------------------------------------------


def closeness_lines(results: Results) -> list[str]:
    """Which tolerance the package's result passes against which arithmetic, and why."""
    lines = ["## Is the result close to PyTorch's?", ""]
    if not results.checks:
        return [*lines, "Not checked."]
    seq_lens = list(dict.fromkeys(found["seq_len"] for found in results.checks.values()))
    passed = promise_is_kept(results)
    lines += [
        f"`assert_close` against the {closeness.ROUNDED}: "
        + ("passes for every length." if passed else "**FAILS**."),
        "",
        "| against the | tolerance | rtol, atol | "
        + " | ".join(map(str, seq_lens))
        + " | furthest apart |",
        "|---" * (4 + len(seq_lens)) + "|",
    ]
    for against, tolerance in dict.fromkeys(key[1:] for key in results.checks):
        found = [results.checks[seq_len, against, tolerance] for seq_len in seq_lens]
        answers = ["passes" if f["passes"] else f"fails: {_share(f['outside'])}" for f in found]
        limits = f"{found[0]['rtol']:g}, {found[0]['atol']:g}"
        largest = max(f["largest"] for f in found)
        lines.append(
            f"| {against} | `{tolerance}` | {limits} | {' | '.join(answers)} | {largest:.2g} |"
        )
    lines += ["", "Columns: sequence lengths; of a failure, the share of elements outside.", ""]
    return [
        *lines,
        closeness.WHY,
        "",
        "The second seed's own check failed; which tolerance and arithmetic it used is not on "
        "record here, so this shows which fail for a right result, and why.",
    ]


def promise_is_kept(results: Results) -> bool:
    """Whether the check that must pass was made and passes for every length."""
    found = [
        each["passes"]
        for each in results.checks.values()
        if (each["against"], each["tolerance"]) == closeness.PROMISED
    ]
    return bool(found) and all(found)


def _share(outside: float) -> str:
    return f"{outside:.2%}" if outside >= 1e-4 else f"{outside:.0e}"
