"""The published site, made in a clone as a user makes it."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks._site import page

ROOT = Path(__file__).resolve().parent.parent
READY = "document.documentElement.dataset.ready === 'yes'"
"""What is true in a browser when it shows the overview."""


def cloned(clone: Path, *options: str) -> Path:
    """Clone this repository, with the benchmarks as they are in the working tree."""
    source = ["-s", ROOT] if not options else [*options, ROOT.as_uri()]
    subprocess.run(["git", "clone", "-q", *source, clone], check=True)
    for name in ("benchmarks", "asv.conf.json"):
        target = clone / name
        shutil.rmtree(target) if target.is_dir() else target.unlink()
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, target)
    # asv publishes main; a clone of a checkout of something else has none.
    if subprocess.run(["git", "-C", clone, "rev-parse", "-q", "--verify", "main"]).returncode:
        subprocess.run(["git", "-C", clone, "branch", "main"], check=True)
    return clone


def published(clone: Path) -> Path:
    """The directory of the pages that asv makes of a clone's results."""
    done = subprocess.run(
        [sys.executable, "-m", "asv", "publish", "--no-pull"],
        cwd=clone,
        env=os.environ | {"HOME": str(clone.parent)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return clone / ".asv" / "html"


def overview_data(site: Path) -> dict:
    """What the overview of a site carries."""
    text = (site / page.PAGE).read_text()
    (carried,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    return json.loads(carried)


def change_overview(site: Path, name: str, change: Callable[[dict], object]) -> None:
    """Add a page to the site: the overview with its data changed in place."""
    data = overview_data(site)
    change(data)
    (site / name).write_text(page.render("name", data))
