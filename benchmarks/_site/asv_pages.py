"""Adapt asv's own pages: beside the overview, for phones too, a graph's legend below its plot.

All of them are one file, which asv calls ``index.html``.
"""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = "asv.html"
_FILES = ("asv_pages.css", "asv_pages.js")
_TAB = '<li id="nav-li-" class="active">'
_LAST = '<link rel="shortcut icon" href="swallow.ico"/>'  # after all of asv's styles and scripts
_BEFORE = {
    _TAB: '<li id="nav-li-overview"><a href="index.html">Overview</a></li>\n\t',
    _LAST: """<meta name="viewport" content="width=device-width, initial-scale=1">
    <link rel="stylesheet" href="asv_pages.css">
    <script src="asv_pages.js"></script>
    """,
}


def adapt(site: Path, benchmarks: Iterable[str], graphs) -> None:
    """Rename and change the page in a site that ``asv publish`` is writing.

    Parameters
    ----------
    benchmarks, graphs
        As asv hands them to ``OutputPublisher.publish``.

    Raises
    ------
    RuntimeError
        If asv's index.html has no place for a change, as in another version of asv.
    """
    index = site / "index.html"
    text = index.read_text(encoding="utf-8")
    absent = json.dumps(_absent(benchmarks, graphs)).replace("<", "\\u003c")
    data = f'<script type="application/json" id="absent">{absent}</script>\n    '
    for place, added in (*_BEFORE.items(), (_LAST, data)):
        if text.count(place) != 1:
            raise RuntimeError(f"{index}: expected {place!r} once, before which {added!r} goes")
        text = text.replace(place, added + place)
    for name in _FILES:
        shutil.copy(HERE / name, site)
    (site / PAGE).write_text(text, encoding="utf-8")
    index.unlink()


def _absent(benchmarks: Iterable[str], graphs) -> list[str]:
    """The graphs that asv's page would ask for in vain: of every benchmark on every machine."""
    drawn = {graph.path: graph for _, graph in graphs}
    asked = {
        graph.get_file_path(graph.params, name) for graph in drawn.values() for name in benchmarks
    }
    return sorted(f"{path}.json" for path in asked - drawn.keys())
