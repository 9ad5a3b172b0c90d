"""Start Python processes that can import this suite, and nothing that lies beside it."""

import contextlib
import ctypes
import functools
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

SUITE = Path(__file__).resolve().parents[2]
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
from benchmarks._engine.system import process
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
    program = f"{_IMPORT_SUITE}process.die_with({os.getpid()})\n{code}{_LEAVE}"
    search = os.pathsep.join([*path, *map(os.path.abspath, sys.path)])
    # A terminal sends Ctrl-C to all its processes: this one ends the others, which print nothing.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        child = subprocess.Popen(
            # -P: else the current directory, with its own version, would come before all others.
            [sys.executable, "-P", "-c", program, suite, *arguments],
            env=os.environ | {"PYTHONPATH": search} | (env or {}),
            **options,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    for ended in [child for child in tuple(_children) if child.returncode is not None]:
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


def die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Let this process get a signal when its parent, or the thread that started it, ends."""
    _prctl(1, number)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os.kill(os.getpid(), number)  # it has ended before


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value)


# --- other programs -------------------------------------------------------------------------------

INTERRUPT = signal.SIGUSR1


def start_contained(command: Sequence[str], **options) -> subprocess.Popen:
    """Start a command, none of whose processes outlives this process, however it is ended.

    The process that is returned stands between: ``INTERRUPT`` reaches the command as Ctrl-C does,
    SIGTERM ends it and all that it started, whatever groups they are in.
    """
    code = f"{_IMPORT_SUITE}process.contain({os.getpid()}, sys.argv[2:])"
    suite = str(SUITE / "__init__.py")
    return subprocess.Popen([sys.executable, "-P", "-c", code, suite, *command], **options)


def contain(parent: int, command: Sequence[str]) -> NoReturn:
    """Run a command, and end all that it started when it ends, or on SIGTERM, or with the parent.

    What loses its parent becomes a child of this process, so no process escapes by being orphaned.
    """

    def end(number: int = signal.SIGTERM, frame: object = None) -> NoReturn:
        with contextlib.suppress(ChildProcessError):
            while True:
                for child in _children_of(os.getpid()):
                    os.kill(child, signal.SIGKILL)
                os.wait()
        os._exit(128 + number)

    def interrupt(number: int, frame: object) -> None:
        for child in started:
            child.send_signal(signal.SIGINT)

    started: list[subprocess.Popen] = []
    _prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
    signal.signal(signal.SIGTERM, end)
    die_with(parent, signal.SIGTERM)
    signal.signal(INTERRUPT, interrupt)
    # Handled and not ignored, which the command would inherit: a terminal sends it Ctrl-C itself.
    signal.signal(signal.SIGINT, lambda *_: None)
    started.append(subprocess.Popen(command))
    status = started[0].wait()
    end(status - 128 if status >= 0 else -status)


def _children_of(parent: int) -> Iterator[int]:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if int(stat.read_bytes().rpartition(b")")[2].split()[1]) == parent:
                yield int(stat.parent.name)


# --- functions ------------------------------------------------------------------------------------


_CALL = """
import pathlib, pickle
file = pathlib.Path(sys.argv[2])
function, args = pickle.loads(file.read_bytes())
file.write_bytes(pickle.dumps(function(*args)))
"""


def call(
    function: Callable,
    *args,
    path: tuple[str, ...] = (),
    env: dict | None = None,
    seconds: float | None = CALL_SECONDS,
):
    """Call a picklable function in a process with nothing of this one's memory; its result.

    Raises RuntimeError if the process fails, with what it printed, or is not done after
    ``seconds``.
    """
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "call.pickle")
        file.write_bytes(pickle.dumps((function, args)))
        to = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": scratch}
        with start(_CALL, str(file), path=path, env=env, **to) as process:
            try:
                output, _ = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                raise RuntimeError(f"a fresh process was not done after {seconds} s") from None
            finally:
                process.kill()
        if process.returncode:
            raise RuntimeError(f"a fresh process ended with {process.returncode}:\n{output}")
        return pickle.loads(file.read_bytes())


def map_calls(function: Callable, *columns: Iterable) -> Iterator:
    """As ``map``, each call by :func:`call` with no time limit, as many at once as there are cores.

    numpy has one thread in each. They end with this process, and with :func:`stop`.
    """
    one = functools.partial(call, function, env={"OPENBLAS_NUM_THREADS": "1"}, seconds=None)
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        yield from threads.map(one, *columns)
