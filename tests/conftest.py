"""Where the tests run: on a GPU if there is one, otherwise in Triton's interpreter on the CPU."""

import fcntl
import gc
import json
import os
import sys
import tempfile
from pathlib import Path

import pytest
import torch

# One of the GPUs for each process of tests, before CUDA is initialized: they take turns.
_gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
if _gpus == [""]:
    _gpus = [str(index) for index in range(torch.cuda.device_count())]
if "PYTEST_XDIST_WORKER" in os.environ and _gpus:
    _worker = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    os.environ["CUDA_VISIBLE_DEVICES"] = _gpus[_worker % len(_gpus)]

# Triton reads this when a kernel is defined, so it must be set before rope_triton is imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

PACKAGE = "ROPE_TRITON_PACKAGE"
"""Environment variable: the directory that holds the ``rope_triton`` to test, not the suite's."""

# pytest has put the suite's own directory first by now, whichever way it was started. The other one
# goes first for the package alone: it may be a checkout, with tests and benchmarks of its own.
_others = [os.path.abspath(os.environ[PACKAGE])] if PACKAGE in os.environ else []
sys.path[:0] = _others
import rope_triton  # noqa: E402

del sys.path[: len(_others)]

from benchmarks._engine.subject import DEFAULT, load  # noqa: E402
from benchmarks._engine.system import machine  # noqa: E402
from tests import browser as browsers  # noqa: E402
from tests import publishing  # noqa: E402
from tests.gpu import record  # noqa: E402

if triton.knobs.runtime.interpret:
    from triton.runtime import interpreter

    _patch = interpreter._patch_lang

    def _patch_once(fn):
        """The interpreter patches its language again for every nested function: half its time."""
        used = [
            namespace
            for namespace in (tl, tl.core)
            if any(namespace is v for v in fn.__globals__.values())
        ]
        patched = not any(tl.core.is_builtin(namespace.load) for namespace in used)
        scope = interpreter._LangPatchScope() if patched else _patch(fn)
        # Triton 3.6 makes an int of an array of one dimension, which NumPy 2.5 refuses.
        scope.set_attr(tl.core.tensor, "__index__", lambda self: self.handle.data.item())
        return scope

    interpreter._patch_lang = _patch_once

load(DEFAULT)  # reports and verdicts know its metrics

COMPILED = torch.cuda.is_available() and not triton.knobs.runtime.interpret

_gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0] or "0"
LOCK = Path(tempfile.gettempdir(), f"rope-triton-tests-{os.getuid()}-{_gpu}.lock")
"""Shared by all processes of tests that use the same GPU."""

_left_out = pytest.StashKey[int]()


def pytest_configure():
    expected, actual = os.environ.get(PACKAGE), Path(rope_triton.__file__).resolve().parents[1]
    if expected is not None and actual != Path(expected).resolve():
        raise pytest.UsageError(
            f"{PACKAGE}={expected}: rope_triton should have come from there, it came from {actual}"
        )


def pytest_report_header():
    return f"rope_triton: {Path(rope_triton.__file__).parent}"


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_auto_num_workers():
    """Processes for ``-n auto``: one for each core, at most 8; with GPUs at most 4 on each.

    Each has 24 GiB of a GPU's memory then: the largest test takes 21.
    """
    cores = len(os.sched_getaffinity(0))
    if not COMPILED:
        return min(8, cores)
    on_each = min(4, torch.cuda.get_device_properties(0).total_memory // (24 << 30))
    return max(1, min(cores, on_each * torch.cuda.device_count()))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    """A test marked ``alone`` waits until no other process runs one on its GPU."""
    if not COMPILED:
        return (yield)
    kind = fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH
    with LOCK.open("w") as file:
        fcntl.flock(file, kind)  # until it is closed
        return (yield)


@pytest.hookimpl(tryfirst=True)  # before ``-m`` selects
def pytest_collection_modifyitems(config, items):
    if COMPILED:
        for item in items:
            if item.get_closest_marker("gpu_or_interpreter"):
                item.add_marker("gpu")
            if item.get_closest_marker("alone"):
                # What disturbs a clock, another GPU of the host say, hardly does so twice.
                item.add_marker(pytest.mark.flaky(reruns=1))
        # Last, as they wait until no other test runs.
        items.sort(key=lambda item: item.get_closest_marker("alone") is not None)
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


def pytest_terminal_summary(terminalreporter, exitstatus, config):
    ended = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    if COMPILED and ended and not _others and record.runs_all(config):
        counts = {name: len(reports) for name, reports in terminalreporter.stats.items()}
        record.write(machine.machine_record(), counts)
        terminalreporter.write_line(f"recorded in {record.RECORD}")


@pytest.fixture
def device() -> str:
    """The device whose tensors the kernel takes here."""
    return "cuda" if COMPILED else "cpu"


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A toy GPU, versions that behave on it as specified, and ``compare``: see ``tests/lab.py``."""
    from tests.lab import Lab

    return Lab(tmp_path, monkeypatch).init()


@pytest.fixture(scope="module", autouse=True)
def _old_objects_set_aside():
    """What measures cells collects garbage after each: not in all that pytest holds, every time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _gpu_memory_given_back():
    """Another process of tests may need it."""
    yield
    if COMPILED and torch.cuda.memory_reserved() > 1 << 30:
        gc.collect()
        torch.cuda.empty_cache()


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The site of the shipped results, published in a clone as a user does."""
    return publishing.published(publishing.cloned(tmp_path_factory.mktemp("site") / "clone"))


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
    """A window of Chromium, as new. What a page writes to its console is an error."""
    _chromium.reset()
    yield _chromium
    _chromium.require_silence()
