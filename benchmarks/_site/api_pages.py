"""Write the package's functions into the published site, as pages made from their docstrings."""

import subprocess
import sys
from pathlib import Path

from .._engine.system.process import ROOT
from .page import PAGE

# Not torchtitan's, which imports its library.
MODULES = (
    "rope_triton",
    "rope_triton.transformer",
    *(
        f"rope_triton.integrations.{name}"
        for name in ("flash_attention", "transformers", "megatron", "vllm")
    ),
)
FIRST = "rope_triton.html"
TEMPLATES = Path(__file__).with_name("api_templates")
_LINK = f'<a href="api/{FIRST}" hidden>'


def write(site: Path) -> None:
    """Add the pages, and show the overview's link to them.

    Raises RuntimeError if the overview has no such link: the site is of another version.
    """
    overview = site / PAGE
    text = overview.read_text(encoding="utf-8")
    if text.count(_LINK) != 1:
        raise RuntimeError(f"{overview}: expected {_LINK!r} once, to show it")
    how = ("--docformat", "numpy", "--no-show-source", "--template-directory", str(TEMPLATES))
    where = ("--output-directory", str(site / "api"))
    subprocess.run([sys.executable, "-m", "pdoc", *how, *where, *MODULES], cwd=ROOT, check=True)
    overview.write_text(text.replace(_LINK, _LINK.replace(" hidden", "")), encoding="utf-8")
