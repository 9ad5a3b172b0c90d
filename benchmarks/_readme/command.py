"""``python -m benchmarks readme``: put the tables where README.md marks their place."""

import argparse
import re
import sys
from collections.abc import Callable, Mapping

from .._sweep.state import SweepError
from .tables import ROOT, STEPS, TABLES, ReadmeError, unnamed

README = ROOT / "README.md"
_MARKED = re.compile(
    r"(<!-- table: (?P<name>[a-z]+) -->\n)(?P<old>.*?)(<!-- /table -->\n)", re.DOTALL
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Write the tables of README.md anew from the results that are stored."
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit status 1 if a table differs"
    )


def run(check: bool) -> int:
    """Write or check; 0 when the tables are those of the results, 1 when not, 3 when it failed."""
    try:
        old = README.read_text()
        new = generated(old)
    except (ReadmeError, SweepError) as error:
        print(f"could not run: {error}", file=sys.stderr)
        return 3
    if check:
        for name in drifted(old, new):
            print(f"{README.name}: table {name!r} differs: python -m benchmarks readme")
        return int(old != new)
    for name in unnamed():
        print(f"not shown, {STEPS.name} does not name its commit: {name}")
    README.write_text(new)
    print(f"{README}: {', '.join(drifted(old, new)) or 'nothing'} written anew")
    return 0


def generated(text: str, tables: Mapping[str, Callable[[], list[str]]] = TABLES) -> str:
    """The text with every marked table made anew; all else stays.

    Raises
    ------
    ReadmeError
        If a marked table is unknown, or a known one has no place or several.
    """
    names = [match["name"] for match in _MARKED.finditer(text)]
    if sorted(names) != sorted(tables):
        raise ReadmeError(
            f"README.md must mark the tables {', '.join(tables)} once each, by "
            f"<!-- table: NAME --> and <!-- /table --> on lines of their own; found "
            f"{', '.join(names) or 'none'}"
        )

    def made(match: re.Match) -> str:
        lines = tables[match["name"]]()
        body = "".join(f"{line}\n" for line in lines)
        return f"{match[1]}{body}{match[4]}"

    return _MARKED.sub(made, text)


def drifted(old: str, new: str) -> list[str]:
    """Names of the tables that differ."""
    before, after = (
        {match["name"]: match["old"] for match in _MARKED.finditer(text)} for text in (old, new)
    )
    return [name for name in after if before[name] != after[name]]
