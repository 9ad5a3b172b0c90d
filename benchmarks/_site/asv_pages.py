"""Adapt asv's own pages: beside the overview, for phones, a legend below the plot, no other host.

All of them are one file, which asv calls ``index.html``.
"""

import json
import re
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

# The releases that asv loads from other hosts, as their authors published them. Two are not the
# files that it names, because npm lacks those: flot's are the sources of that release, not
# minified, and stupid-table is of a later one.
VENDOR = HERE / "vendor" / "asv"
DIRECTORY = "libraries"
"""Where they lie in the site."""

_CDNJS = "https://cdnjs.cloudflare.com/ajax/libs"
_FLOT = f"{_CDNJS}/flot/0.8.3/jquery.flot"
_BOOTSTRAP = "https://cdn.jsdelivr.net/npm/bootstrap@3.1.1/dist"
FILES = {
    "https://code.jquery.com/jquery-3.3.1.min.js": "jquery-3.3.1/jquery.min.js",
    f"{_FLOT}.min.js": "flot-0.8.3/jquery.flot.js",
    f"{_FLOT}.time.min.js": "flot-0.8.3/jquery.flot.time.js",
    f"{_FLOT}.selection.min.js": "flot-0.8.3/jquery.flot.selection.js",
    f"{_FLOT}.categories.min.js": "flot-0.8.3/jquery.flot.categories.js",
    "https://cdn.jsdelivr.net/npm/flot-orderbars@1.0.0/js/jquery.flot.orderBars.js": (
        "flot-orderbars-1.0.0/jquery.flot.orderBars.js"
    ),
    f"{_CDNJS}/stupidtable/1.0.1/stupidtable.min.js": (
        "stupid-table-plugin-1.1.3/stupidtable.min.js"
    ),
    f"{_CDNJS}/blueimp-md5/2.19.0/js/md5.min.js": "blueimp-md5-2.19.0/md5.min.js",
    f"{_BOOTSTRAP}/js/bootstrap.min.js": "bootstrap-3.1.1/bootstrap.min.js",
    f"{_BOOTSTRAP}/css/bootstrap.min.css": "bootstrap-3.1.1/bootstrap.min.css",
}
"""Address in asv's index.html -> file below :data:`VENDOR`."""

_FOREIGN = re.compile(
    r"""<(?:script|link)\b[^>]*\b(src|href)=["']?((?:https?:)?//[^"'\s>]+)[^>]*>"""
)
_ON_ERROR = ' onerror="js_load_failure()"'  # asv's: shows error.html
_ERROR_NOW = re.compile(r"<h3>.*</p>", re.DOTALL)
_ERROR = """<h3>A script of this site failed to load.</h3>
    <p>Reload the page; if that does not help, what was published is incomplete.</p>"""


def local(html: str) -> str:
    """A page of asv's, every script and style of another host replaced by the file beside it."""
    return _FOREIGN.sub(_local_tag, html)


def _local_tag(tag: re.Match) -> str:
    attribute, url = tag.groups()
    if url not in FILES:
        expected = ", ".join(FILES)
        raise RuntimeError(f"asv's index.html loads {url}; {VENDOR} has what is for {expected}")
    file = f'"{DIRECTORY}/{FILES[url]}"'
    if attribute == "src":
        return f"<script src={file}{_ON_ERROR}>"
    return f'<link rel="stylesheet" href={file}>'


def adapt(site: Path, benchmarks: Iterable[str], graphs) -> None:
    """Rename and change the page in a site that ``asv publish`` is writing, and add its libraries.

    Raises RuntimeError if asv's pages have no place for a change, or ask another host for something
    that is not here, as in another version of asv.
    """
    error = site / "error.html"
    text, count = _ERROR_NOW.subn(_ERROR, error.read_text(encoding="utf-8"))
    if count != 1:
        raise RuntimeError(f"{error}: expected asv's text about the internet connection")
    error.write_text(text, encoding="utf-8")
    index = site / "index.html"
    text = local(index.read_text(encoding="utf-8"))
    absent = json.dumps(_absent(benchmarks, graphs)).replace("<", "\\u003c")
    data = f'<script type="application/json" id="absent">{absent}</script>\n    '
    for place, added in (*_BEFORE.items(), (_LAST, data)):
        if text.count(place) != 1:
            raise RuntimeError(f"{index}: expected {place!r} once, before which {added!r} goes")
        text = text.replace(place, added + place)
    shutil.copytree(VENDOR, site / DIRECTORY)
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
