"""An experiment's figures as PNG and SVG, by matplotlib. Equal results give equal SVG files."""

import math
from pathlib import Path
from typing import NamedTuple

from .. import pages
from .experiments import AXES, COPY, OURS, Figure, Timing
from .state import Results
from .tables import METRICS, source


class Style(NamedTuple):
    colour: str
    marker: str
    line: str = "-"


# Okabe and Ito's colours, told apart with any colour vision; a marker each besides.
STYLES = {
    OURS: Style("#D55E00", "o"),
    "rope-triton-tables": Style("#E69F00", "s"),
    COPY: Style("#888888", "", "--"),
    "transformer-engine": Style("#009E73", "^"),
    "seed": Style("#CC79A7", "v"),
    "compile": Style("#56B4E9", "D"),
    "compile-angles": Style("#56B4E9", "d", "--"),
    "flash-attention": Style("#0072B2", "P"),
    "liger": Style("#000000", "X"),
    "fla": Style("#7A5C00", "<"),
    "pytorch": Style("#5A5A5A", ">", ":"),
    "quack": Style("#AA4499", "H"),
    "huggingface": Style("#AA3377", "h", "-."),
    "vllm": Style("#4477AA", "*", "-."),
    "flashinfer": Style("#117733", "8", "-."),
    "unsloth": Style("#228833", "d", "-."),
    "xformers": Style("#663333", "p", "-."),
}
_SIZE, _DPI = (8.4, 5.0), 150  # inches; 1260 pixels, shown at the width of a README


def draw(figure: Figure, results: Results, directory: Path) -> None:
    """Write ``NAME.png`` and ``NAME.svg``; ModuleNotFoundError without matplotlib."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    origin = "; ".join(source(results.header))
    with matplotlib.rc_context(pages.PLOT_SETTINGS):
        canvas = Canvas(figsize=_SIZE, layout="constrained")
        axes = canvas.subplots()
        _plot(axes, figure, results)
        _scale(axes, figure)
        _titles(axes, figure, results)
        canvas.legend(loc="outside lower center", ncols=4, fontsize=9, handlelength=2.6)
        png, svg = (directory / f"{figure.name}.{form}" for form in ("png", "svg"))
        canvas.savefig(png, dpi=_DPI, metadata={"Software": None, "Description": origin})
        canvas.savefig(svg, metadata={"Date": None, "Creator": None, "Description": origin})


def _plot(axes, figure: Figure, results: Results) -> None:
    _, value, _ = METRICS[figure.metric]
    for provider in figure.providers:
        style = STYLES[provider]
        cells = sorted(
            (cell for cell in figure.cells if cell.provider == provider),
            key=figure.position,
        )
        rows = [results.rows.get(Timing(figure.direction, cell)) for cell in cells]
        states = [row.status if row else "not measured" for row in rows]
        # A gap where there is no speed: no line leads over it.
        values = [value(row) if row and row.status == "measured" else math.nan for row in rows]
        axes.plot(
            [figure.position(cell) for cell in cells],
            values,
            color=style.colour,
            marker=style.marker,
            linestyle=style.line,
            markersize=5.5 if len(cells) < 20 else 4,
            linewidth=2.2 if provider == OURS else 1.4,
            # Where lines coincide, the copy's dashes lie over the others.
            zorder={OURS: 3, COPY: 4}.get(provider, 2),
            label=_label(provider, states),
            clip_on=False,
        )


def _label(provider: str, states: list[str]) -> str:
    """The provider, and how many of its points are missing for which reason."""
    missing = [s for s in ("wrong", "failed", "n/a", "not measured") if s in states]
    if not missing:
        return provider
    if len(set(states)) == 1:
        return f"{provider} ({missing[0]})"
    return f"{provider} ({', '.join(f'{states.count(s)} {s}' for s in missing)})"


def _scale(axes, figure: Figure) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    def plainly(number: float, _) -> str:
        return f"{number:g}"

    places = sorted({figure.position(cell) for cell in figure.cells})
    if figure.doubles:
        axes.set_xscale("log", base=2)
        axes.set_xticks(places)
    else:
        axes.set_xticks([place for place in places if place % 512 == 0] or places)
    axes.xaxis.set_major_formatter(FuncFormatter(plainly))
    axes.xaxis.set_minor_locator(NullLocator())
    if figure.metric == "milliseconds":
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(plainly))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(bottom=0)
    if figure.metric == "share":
        axes.axhline(1, color=STYLES[COPY].colour, linestyle=STYLES[COPY].line, label="copy = 1")


def _titles(axes, figure: Figure, results: Results) -> None:
    short, _, rest = figure.title.partition(" (")
    machine, commit, _ = source(results.header)
    where = f"{machine.partition(' (')[0]}, {commit}"
    about = f"{rest.removesuffix(')')}; {where}"
    axes.set_title(f"{short}\n", loc="left", fontsize=13, fontweight="bold")
    axes.text(0, 1.02, about, transform=axes.transAxes, fontsize=9, color="#555555")
    axes.set_xlabel(AXES[figure.axis][0])
    axes.set_ylabel(METRICS[figure.metric][0].replace("`", ""))
