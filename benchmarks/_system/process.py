"""Start Python processes that can import this suite, and nothing that lies beside it."""

import ctypes
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

SUITE = Path(__file__).resolve().parents[1]
"""The directory of ``benchmarks``."""

ROOT = SUITE.parent
"""Root of the clone that holds this suite."""

CALL_SECONDS = 600

# Finds the suite by its file: the directory above it can hold another version of what is
# benchmarked, and must not get on the path.
_IMPORT_SUITE = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("benchmarks", sys.argv[1])
module = sys.modules["benchmarks"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from benchmarks._system import process
process.die_with({parent})
"""

# What is done is not lost when the interpreter is taken down: torch's autograd threads abort a
# process that ends just then ("terminate called without an active exception").
_LEAVE = """
import os
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)
"""

_children: set[subprocess.Popen] = set()
_stopping = threading.Event()


def start(
    code: str, *arguments: str, path: tuple[str, ...] = (), env: dict | None = None, **options
) -> subprocess.Popen:
    """Start Python code that can import ``benchmarks`` and all that this process can.

    The code finds ``arguments`` from ``sys.argv[2]`` on; at its end the process ends at once,
    and no exit handlers run. ``path`` goes before this process's, ``env`` over its environment, and
    ``options`` to :class:`subprocess.Popen`. It ends with the thread that started it, and with
    :func:`stop`; Ctrl-C does not reach it.
    """
    suite = str(SUITE / "__init__.py")
    whole = _IMPORT_SUITE.format(parent=os.getpid()) + code + _LEAVE
    search = os.pathsep.join([*path, *map(os.path.abspath, sys.path)])
    # A terminal sends Ctrl-C to all its processes: this one ends the others, which print nothing.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        child = subprocess.Popen(
            # -P: else the current directory, with its own version, would come before all others.
            [sys.executable, "-P", "-c", whole, suite, *arguments],
            env=os.environ | {"PYTHONPATH": search} | (env or {}),
            **options,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    for ended in [each for each in tuple(_children) if each.returncode is not None]:
        _children.discard(ended)
    _children.add(child)
    if stopping():
        child.kill()  # it began while the others were ended
    return child


def stop() -> None:
    """End every process that :func:`start` started, and those that it will start, at once."""
    _stopping.set()
    for child in tuple(_children):
        child.kill()


def stopping() -> bool:
    """Whether processes end because :func:`stop` ends them."""
    return _stopping.is_set()


def die_with(parent: int) -> None:
    """Let this process be killed when its parent, or the parent's thread that started it, ends."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)  # it has ended before


_CALL = """
import pathlib, pickle
file = pathlib.Path(sys.argv[2])
function, args = pickle.loads(file.read_bytes())
file.write_bytes(pickle.dumps(function(*args)))
"""


def call(function: Callable, *args, path: tuple[str, ...] = (), env: dict | None = None):
    """Call a picklable function in a process with nothing of this one's memory; its result.

    Raises
    ------
    RuntimeError
        If the process fails, with what it printed, or is not done after ``CALL_SECONDS``.
    """
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "call.pickle")
        file.write_bytes(pickle.dumps((function, args)))
        to = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": scratch}
        with start(_CALL, str(file), path=path, env=env, **to) as process:
            try:
                output, _ = process.communicate(timeout=CALL_SECONDS)
            except subprocess.TimeoutExpired:
                raise RuntimeError(f"a fresh process was not done after {CALL_SECONDS} s") from None
            finally:
                process.kill()
        if process.returncode:
            raise RuntimeError(f"a fresh process ended with {process.returncode}:\n{output}")
        return pickle.loads(file.read_bytes())
