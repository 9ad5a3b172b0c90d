"""Report progress and missing packages beside the output. Imports no torch."""

import contextlib
import os
import sys

PROGRESS_VARIABLE = "ROPE_PROGRESS"
"""Environment variable that names a file to write progress to, instead of the terminal."""

_INSTALL = {
    **dict.fromkeys(("asv", "asv_runner", "numpy", "pynvml", "torch", "triton"), "bench"),
    "matplotlib": "sweep",
}


def missing(error: BaseException) -> str | None:
    """How to install the package whose absence is the error; None if it is another error."""
    if not isinstance(error, ModuleNotFoundError) or error.name not in _INSTALL:
        return None
    extra = _INSTALL[error.name]
    return f"{error.name} is not installed: pip install -c constraints.txt -e '.[{extra}]'"


def say(message: str) -> None:
    """Tell the user something of a command of this suite, beside its output."""
    print(message, file=sys.stderr, flush=True)


def report(message: str) -> None:
    """Tell the user something while a benchmark runs; asv hides its stdout and stderr."""
    path = os.environ.get(PROGRESS_VARIABLE, "/dev/tty")
    with (
        contextlib.suppress(OSError),
        open(path, "a", encoding="utf-8") as stream,
    ):  # e.g. no terminal
        stream.write(f"\n{message}\n")
