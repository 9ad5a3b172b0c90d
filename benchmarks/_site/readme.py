"""``python -m benchmarks readme``: write the tables where the READMEs mark their place."""

import argparse
import re
from collections.abc import Callable
from pathlib import Path

from .._system.process import ROOT
from . import readme_evidence as evidence
from . import readme_tables as asv
from .readme_tables import STEPS, ReadmeError, Stored, results, unnamed

TABLES: dict[str, Callable[[list[Stored]], list[str]]] = {
    **{"summary": asv.summary, "speed": asv.speed, "history": asv.history},
    **{"paths": asv.paths, "calls": asv.calls},
    "peers": lambda _: evidence.peers(),
    "held": lambda _: evidence.held(),
    "rope": lambda _: evidence.rope_share(),
    "tested": lambda _: evidence.tested(),
    "training": lambda _: evidence.steps(),
    "targets": lambda _: evidence.targets(),
    "simulation": lambda _: evidence.simulation(),
}

PAGES = {
    ROOT / "README.md": ("summary", "rope", "tested"),
    ROOT / "benchmarks" / "README.md": (
        "speed",
        "history",
        "paths",
        "calls",
        "peers",
        "held",
        "training",
        "targets",
        "simulation",
    ),
}
"""Which page has which tables."""

_MARKED = re.compile(
    r"(<!-- table: (?P<name>[a-z]+) -->\n)(?P<old>.*?)(<!-- /table -->\n)", re.DOTALL
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Write the tables of the READMEs anew from the results that are stored."
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit status 1 if a table differs"
    )


def run(check: bool) -> int:
    """Write or check; 0 when the tables are those of the results, 1 when not."""
    pages = {path: (path.read_text(encoding="utf-8"), generated(path)) for path in PAGES}
    if check:
        for path, (old, new) in pages.items():
            for name in drifted(old, new):
                where = path.relative_to(ROOT)
                print(f"{where}: table {name!r} differs: python -m benchmarks readme")
        return int(any(old != new for old, new in pages.values()))
    for name in unnamed():
        print(f"not shown, {STEPS.name} does not name its commit: {name}")
    for path, (old, new) in pages.items():
        path.write_text(new, encoding="utf-8")
        print(f"{path}: {', '.join(drifted(old, new)) or 'nothing'} written anew")
    return 0


def generated(path: Path) -> str:
    """The text of a page with every marked table made anew; all else stays.

    Raises
    ------
    ReadmeError
        If a marked table is unknown, or a known one has no place or several.
    """
    text, wanted = path.read_text(encoding="utf-8"), PAGES[path]
    names = [match["name"] for match in _MARKED.finditer(text)]
    if sorted(names) != sorted(wanted):
        raise ReadmeError(
            f"{path.relative_to(ROOT)} must mark the tables {', '.join(wanted)} once each, by "
            f"<!-- table: NAME --> and <!-- /table --> on lines of their own; found "
            f"{', '.join(names) or 'none'}"
        )

    stored = results()

    def made(match: re.Match) -> str:
        body = "".join(f"{line}\n" for line in TABLES[match["name"]](stored))
        return f"{match[1]}{body}{match[4]}"

    return _MARKED.sub(made, text)


def drifted(old: str, new: str) -> list[str]:
    """Names of the tables that differ."""
    before, after = (
        {match["name"]: match["old"] for match in _MARKED.finditer(text)} for text in (old, new)
    )
    return [name for name in after if before[name] != after[name]]
