"""Python processes that have this suite, and nothing that lies beside it, on their path."""

import os
import subprocess
import sys
from pathlib import Path

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
