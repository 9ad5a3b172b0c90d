"""Write ``overview.html`` into asv's site, and a tab to it on asv's own pages.

The page is one file that asks no server for anything: style, script and data are inside. It draws
with uPlot, in ``vendor`` as its authors published it.
"""

import html
import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = "overview.html"
_PLACEHOLDERS = {
    "/*STYLE*/": ("vendor/uPlot.min.css", "overview.css"),
    "/*SCRIPT*/": ("vendor/uPlot.iife.min.js", "overview.js"),
}
_TAB_BEFORE = '<li id="nav-li-" class="active">'
_TAB = f'<li id="nav-li-overview"><a href="{PAGE}">Overview</a></li>\n\t'


def write(site: str | Path, project: str, data: dict) -> None:
    """Add the page and the tab to a site that ``asv publish`` is writing.

    Raises
    ------
    RuntimeError
        If asv's index.html has no place for a tab, as in another version of asv.
    """
    site = Path(site)
    (site / PAGE).write_text(render(project, data))
    index = site / "index.html"
    text = index.read_text()
    if text.count(_TAB_BEFORE) != 1:
        raise RuntimeError(f"{index}: expected {_TAB_BEFORE!r} once, before which the tab goes")
    index.write_text(text.replace(_TAB_BEFORE, _TAB + _TAB_BEFORE))


def render(project: str, data: dict) -> str:
    """The page as text. Nothing in ``data`` can end the script that carries it."""
    page = (HERE / "overview.html").read_text()
    for placeholder, files in _PLACEHOLDERS.items():
        page = page.replace(placeholder, "\n".join((HERE / name).read_text() for name in files))
    page = page.replace("PROJECT", html.escape(project))
    # Last, so that nothing in the data is taken for a placeholder.
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return page.replace("/*DATA*/", text)
