"""``python -m benchmarks readme``: write the tables where the pages mark their place."""

import argparse
import re
from pathlib import Path

from .._engine.system.errors import CouldNotRunError
from .._engine.system.process import ROOT
from .readme_tables import TABLES

PAGES = (
    "README.md",
    "benchmarks/README.md",
    "benchmarks/METHOD.md",
    "benchmarks/evidence/README.md",
    "benchmarks/evidence/training/README.md",
)
_MARKED = re.compile(r"(<!-- table: (\w+) -->\n)(.*?)(<!-- /table -->\n)", re.DOTALL)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = f"Write the tables of {', '.join(PAGES)} anew, from stored results."


def run() -> int:
    """Write the pages; name those that changed."""
    for page in PAGES:
        path = ROOT / page
        old, new = path.read_text(encoding="utf-8"), generated(path)
        if old != new:
            path.write_text(new, encoding="utf-8")
            print(f"{page} is written anew")
    return 0


def generated(path: Path) -> str:
    """The text of a page with every marked table made anew; all else stays.

    Raises
    ------
    CouldNotRunError
        If a marked table is unknown, or a mark has no end.
    """
    text = path.read_text(encoding="utf-8")
    names = marked(text)
    if len(names) != text.count("<!-- table:") or not TABLES.keys() >= set(names):
        raise CouldNotRunError(
            f"{path} must mark tables by lines <!-- table: NAME --> and <!-- /table -->, with a "
            f"name of {', '.join(TABLES)}; it marks {', '.join(names)}"
        )

    def replace(match: re.Match) -> str:
        return match[1] + "".join(f"{line}\n" for line in TABLES[match[2]]()) + match[4]

    return _MARKED.sub(replace, text)


def marked(text: str) -> list[str]:
    """Names of a page's tables."""
    return [match[2] for match in _MARKED.finditer(text)]
