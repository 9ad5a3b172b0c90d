"""End a command for what went wrong: with one line, unless it is a fault of the suite."""

import os
import select
import signal
import sys
import traceback

from .arguments import COULD_NOT_RUN
from .progress import missing, say


class CouldNotRunError(RuntimeError):
    """A command cannot do what it was asked to; the message says all that the user needs."""


def status_of(error: Exception, hint: str = "") -> int:
    """Say what went wrong; the exit status.

    An error of the environment, such as a full disk, is no fault of the suite. Where nobody reads
    the output any more, nothing is said: ``... | head`` has what it wanted. ``hint`` says what an
    error of the environment leaves, and how to go on.
    """
    unread = isinstance(error, BrokenPipeError) and _is_unread()
    flush(drop=True)
    if unread:
        return 128 + signal.SIGPIPE
    if isinstance(error, OSError) and error.strerror:
        names = [str(name) for name in (error.filename, error.filename2) if name is not None]
        say("could not run: " + ": ".join([error.strerror, *names]) + hint)
    elif how := str(error) if isinstance(error, CouldNotRunError) else missing(error):
        say(f"could not run: {how}")
    else:
        traceback.print_exc()
        say("could not run: this is a fault of the suite")
    return COULD_NOT_RUN


def flush(drop: bool = False) -> None:
    """Write what is printed; what cannot be written is an error, unless it is dropped.

    Python tries again when it ends, and complains.
    """
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            if not drop:
                raise
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def _is_unread() -> bool:
    """Whether the output is a pipe that nobody reads any more."""
    output = select.poll()
    for descriptor in (1, 2):
        output.register(descriptor, 0)
    return any(event & select.POLLERR for _, event in output.poll(0))
