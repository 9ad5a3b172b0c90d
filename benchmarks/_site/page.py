"""Write the overview into asv's site, as its ``index.html``.

The page is one file that asks no server for anything: style, script and data are inside. It draws
with uPlot, in ``vendor`` as its authors published it.
"""

import html
import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = "index.html"
_PLACEHOLDERS = {
    "/*STYLE*/": ("vendor/uPlot.min.css", "overview.css"),
    "/*SCRIPT*/": ("vendor/uPlot.iife.min.js", "overview.js"),
}


def write(site: Path, project: str, data: dict) -> None:
    """Add the page to a site that ``asv publish`` is writing."""
    (site / PAGE).write_text(render(project, data), encoding="utf-8")


def render(project: str, data: dict) -> str:
    """The page as text. Nothing in ``data`` can end the script that carries it."""
    page = (HERE / "overview.html").read_text(encoding="utf-8")
    for placeholder, files in _PLACEHOLDERS.items():
        page = page.replace(
            placeholder, "\n".join((HERE / name).read_text(encoding="utf-8") for name in files)
        )
    page = page.replace("PROJECT", html.escape(project))
    # Last, so that nothing in the data is taken for a placeholder.
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return page.replace("/*DATA*/", text)
