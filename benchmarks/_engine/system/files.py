"""Write files that a kill leaves whole, and take locks that end with their process."""

import contextlib
import fcntl
import os
import sys
from pathlib import Path

TEMPORARY = ".tmp-"
"""Prefix of the name of a file that is still being written."""


def write_atomically(path: Path, data: bytes, durable: bool = True) -> None:
    """Write a file so that a kill at any point leaves it as it was or whole.

    ``durable``: and so that it is on the disk when this returns.
    """
    scratch = path.with_name(TEMPORARY + path.name)
    try:
        with scratch.open("wb") as stream:
            stream.write(data)
            stream.flush()
            if durable:
                os.fsync(stream.fileno())
        os.replace(scratch, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(scratch)
        if isinstance(error, OSError):
            error.filename, error.filename2 = str(path), None  # a full disk names none
        raise
    if not durable:
        return
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # or a crash could still forget the name
    finally:
        os.close(directory)


def locked_by(descriptor: int) -> str | None:
    """Lock an open file for this process, and write its name there; None if that was possible.

    Otherwise who holds it: "pid 12 (python -m benchmarks ...)". The lock ends with the descriptor,
    so also with the process, however that ends.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        written = os.pread(descriptor, 300, 0).decode(errors="replace")
        text = "".join(c for c in written if c.isprintable())  # anyone may have written it
        return text or "a process that has not written its pid yet"
    os.ftruncate(descriptor, 0)
    command = " ".join(sys.orig_argv)[:200].replace("\n", " ")
    os.pwrite(descriptor, f"pid {os.getpid()} ({command})".encode(errors="replace"), 0)
    return None
