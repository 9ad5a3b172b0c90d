"""Progress of long measurements, for whoever waits. Imports no torch."""

import contextlib
import os
import sys

PROGRESS_VARIABLE = "ROPE_PROGRESS"
"""Environment variable that names a file to write progress to, instead of the terminal."""


def say(message: str) -> None:
    """Tell the user something of a command of this suite, beside its output."""
    print(message, file=sys.stderr, flush=True)


def report(message: str) -> None:
    """Tell the user something while a benchmark runs; asv hides its stdout and stderr."""
    path = os.environ.get(PROGRESS_VARIABLE, "/dev/tty")
    with contextlib.suppress(OSError), open(path, "a") as stream:  # e.g. no terminal
        stream.write(f"\n{message}\n")
