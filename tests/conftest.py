"""Where the tests run: on a GPU if there is one, otherwise in Triton's interpreter on the CPU."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

# Triton reads this when a kernel is defined, so it must be set before rope_triton is imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

import triton  # noqa: E402

from . import browser as browsers  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
COMPILED = torch.cuda.is_available() and not triton.knobs.runtime.interpret

_left_out = pytest.StashKey[int]()


def pytest_collection_modifyitems(config, items):
    if COMPILED:
        return
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if gpu:
        config.stash[_left_out] = len(gpu)
        config.hook.pytest_deselected(items=gpu)
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]


def pytest_report_collectionfinish(config):
    count = config.stash.get(_left_out, 0)
    if not count:
        return None
    reason = "TRITON_INTERPRET=1" if torch.cuda.is_available() else "torch finds no CUDA GPU"
    return f"left out {count} tests marked 'gpu', which need compiled kernels: {reason}"


@pytest.fixture
def device() -> str:
    """The device whose tensors the kernel takes here."""
    return "cuda" if COMPILED else "cpu"


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A toy GPU, versions that behave on it as told, and ``compare``: see ``tests/lab.py``."""
    from tests.lab import Lab

    return Lab(tmp_path, monkeypatch).init()


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The site of the shipped results, published in a clone as a user does."""
    clone = tmp_path_factory.mktemp("site") / "clone"
    subprocess.run(["git", "clone", "-q", "-s", ROOT, clone], check=True)
    for name in ("benchmarks", "asv.conf.json"):  # as they are in the working tree
        target = clone / name
        shutil.rmtree(target) if target.is_dir() else target.unlink()
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, target)
    # asv publishes main; a clone of a checkout of something else has none.
    if subprocess.run(["git", "-C", clone, "rev-parse", "-q", "--verify", "main"]).returncode:
        subprocess.run(["git", "-C", clone, "branch", "main"], check=True)
    done = subprocess.run(
        [sys.executable, "-m", "asv", "publish", "--no-pull"],
        cwd=clone,
        env=os.environ | {"HOME": str(clone.parent)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return clone / ".asv" / "html"


@pytest.fixture(scope="session")
def index(site):
    """asv's index of the site: benchmarks, commits, machines."""
    return json.loads((site / "index.json").read_text())


@pytest.fixture(scope="session")
def address(site):
    with browsers.serving(site) as url:
        yield url


@pytest.fixture(scope="session")
def _chromium(tmp_path_factory):
    if missing := browsers.missing():
        pytest.fail(missing) if browsers.required() else pytest.skip(missing)
    with browsers.running(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture
def browser(_chromium):
    """A window of Chromium, as new."""
    _chromium.reset()
    return _chromium
