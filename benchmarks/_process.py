"""Python processes that have this suite, and nothing that lies beside it, on their path."""

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

CALL_SECONDS = 600

# Finds the suite by its file: the directory above it can hold another version of what is
# benchmarked, and must not get on the path.
_IMPORT_SUITE = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("benchmarks", sys.argv[1])
module = sys.modules["benchmarks"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
"""

# What is done is not lost when the interpreter is taken down: torch's autograd threads abort a
# process that ends just then ("terminate called without an active exception").
_LEAVE = """
import os
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)
"""


def start(
    code: str, *arguments: str, path: tuple[str, ...] = (), env: dict | None = None, **options
) -> subprocess.Popen:
    """Start Python code that can import ``benchmarks`` and all that this process can.

    The code finds ``arguments`` from ``sys.argv[2]`` on; at its end the process ends at once,
    and no exit handlers run. ``path`` goes before this process's, ``env`` over its environment, and
    ``options`` to :class:`subprocess.Popen`.
    """
    suite = str(Path(__file__).with_name("__init__.py").resolve())
    search = os.pathsep.join([*path, *map(os.path.abspath, sys.path)])
    return subprocess.Popen(
        # -P: else the current directory, with its own version, would come before all others.
        [sys.executable, "-P", "-c", _IMPORT_SUITE + code + _LEAVE, suite, *arguments],
        env=os.environ | {"PYTHONPATH": search} | (env or {}),
        **options,
    )


_CALL = """
import pathlib, pickle
file = pathlib.Path(sys.argv[2])
function, args = pickle.loads(file.read_bytes())
file.write_bytes(pickle.dumps(function(*args)))
"""


def call(function: Callable, *args, path: tuple[str, ...] = (), env: dict | None = None):
    """What a function that can be pickled returns in a process with nothing of this one's memory.

    Raises
    ------
    RuntimeError
        If the process fails, with what it printed, or is not done after ``CALL_SECONDS``.
    """
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "call.pickle")
        file.write_bytes(pickle.dumps((function, args)))
        process = start(
            _CALL,
            str(file),
            path=path,
            env=env,
            cwd=scratch,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            output, _ = process.communicate(timeout=CALL_SECONDS)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"a fresh process was not done after {CALL_SECONDS} s") from None
        finally:
            process.kill()
            process.wait()
        if process.returncode:
            raise RuntimeError(f"a fresh process ended with {process.returncode}:\n{output}")
        return pickle.loads(file.read_bytes())
