"""What the pages and plots of all studies share."""

from collections.abc import Iterable, Iterator
from typing import Any

PLOT_SETTINGS = {
    "svg.hashsalt": "rope-triton",  # ids in the file, else random
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
}


def environment(header: dict[str, Any]) -> str:
    """The GPU and the software that a header names."""
    machine = header["machine"]
    software = "".join(f", {name} {version}" for name, version in header["software"].items())
    return (
        f"{machine['gpu']} (driver {machine['driver']}, torch {machine['torch']}, "
        f"triton {machine['triton']}{software})"
    )


def package(header: dict[str, Any]) -> str:
    """What was measured."""
    return f"commit {header['commit'][:8]}" if header["commit"] else "a working tree"


def head(title: str, header: dict[str, Any], about: str) -> list[str]:
    """The head of a page: its title, where its figures come from, and the command."""
    source = f"{environment(header)}, {package(header)}, {about}:"
    return [f"# {title}", "", source, "", "```sh", header["command"], "```"]


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """The lines of a Markdown table."""
    columns = list(columns)
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def last_line(text: str) -> str:
    """What went wrong, of a traceback."""
    lines = [line for line in text.splitlines() if line.strip()]
    named = [line for line in lines if not line[0].isspace() and "Error" in line]
    return " ".join((named or lines or [""])[-1].split())


def quoted(text: str) -> str:
    """Text of others, as Markdown shows it and does not read it."""
    shown = (text if len(text) <= 300 else f"{text[:300]} ...").replace("```", "'''")
    return f"``` {shown} ```"
