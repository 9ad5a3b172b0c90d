"""Read the arguments that several commands take, and exit alike for a mistake in them."""

import argparse
import math
import os
import sys
from pathlib import Path
from typing import NoReturn

COULD_NOT_RUN = 3
"""Exit status of a command that could not run, and why was said: never an answer."""


class Parser(argparse.ArgumentParser):
    """Exits with ``COULD_NOT_RUN`` for a mistake: argparse's 2 is an answer of ``compare``."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(COULD_NOT_RUN, f"{self.prog}: error: {message}\n")


def some_seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"a number of 0 or more is needed, got {text!r}")
    return value


def positive_minutes(text: str) -> float:
    if not (value := some_seconds(text)):
        raise argparse.ArgumentTypeError("a number above 0 is needed, got 0")
    return value


def output_file(text: str) -> Path:
    path = Path(text).absolute()
    # To be known before minutes of measuring.
    if not os.access(path.parent, os.W_OK) or (path.exists() and not path.is_file()):
        raise argparse.ArgumentTypeError(f"no file can be written at {path}")
    return path.resolve()


STDOUT = Path("-")
"""What :func:`file_or_stdout` returns for the standard output."""


def file_or_stdout(text: str) -> Path:
    return STDOUT if text == str(STDOUT) else output_file(text)
