"""Store measurements line by line, so that a killed command goes on from them.

The first line, the header, says what was measured and where; the other lines are the entries. Each
is a JSON object. A kill at any point leaves complete lines and perhaps the beginning of one more,
which is dropped. A file with anything else in it is an error, and is left as it is.
"""

import contextlib
import json
import os
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from .errors import CouldNotRunError
from .files import locked_by, write_atomically


class JournalError(CouldNotRunError):
    """A journal that is damaged, of something else, or in use; the message says which."""


class Journal:
    """A journal that is open for more entries; a ``with`` block closes it.

    path: made if missing; the lock lies beside it, in ``<name>.lock``. header: all that must agree
    for entries to belong together, plain JSON, and as an attribute what is stored. may_differ: keys
    of it that need not agree. wait: whether to wait while another process has it open. entries: in
    the order in which they were written.

    Raises JournalError if the file is in use, damaged, no journal, or has another header. It is
    unchanged then.
    """

    def __init__(
        self, path: Path, header: dict, may_differ: Collection[str] = (), wait: bool = False
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(path, wait)
        try:
            if not path.exists():
                write_atomically(path, _line(header))
            data = path.read_bytes()
            end = data.rfind(b"\n") + 1
            try:
                self.header, *self.entries = _contents(path, data[:end])
                _agree(path, self.header, json.loads(_line(header)), may_differ)
            except JournalError as error:
                how = "start again with --afresh, or move the file away"
                raise JournalError(f"{error}\n{how}") from None
            self._stream = path.open("r+b")
        except BaseException:
            self._lock.close()
            raise
        self._stream.truncate(end)
        self._stream.seek(end)

    def append(self, *entries: dict) -> None:
        """Write entries, plain JSON with finite numbers; they are on the disk when this returns."""
        lines = [_line(entry) for entry in entries]
        try:
            self._stream.write(b"".join(lines))
            self._stream.flush()
            os.fsync(self._stream.fileno())
        except OSError as error:
            error.filename = self._stream.name  # a full disk names none
            with contextlib.suppress(OSError):
                self._stream.close()  # or the next entry would follow a part of this one
            raise
        self.entries += map(json.loads, lines)

    def close(self) -> None:
        """Let another process open the journal."""
        with self._lock:
            self._stream.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception) -> None:
        self.close()


def read(path: Path) -> list[dict]:
    """The header and the entries of a journal, or of what is published of one.

    Raises JournalError if it is damaged, also at its end.
    """
    return _contents(path, path.read_bytes())


def keep_newest(directory: Path, count: int) -> None:
    """Delete all journals of a directory but so many, those used last, and those in use."""
    paths = directory.glob("*.jsonl")
    with contextlib.suppress(FileNotFoundError):  # another process deletes them
        for path in sorted(paths, key=lambda path: -path.stat().st_mtime)[count:]:
            with contextlib.suppress(JournalError), _lock(path, wait=False):
                path.unlink()
                path.with_name(f"{path.name}.lock").unlink()


def _lock(path: Path, wait: bool):
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    descriptor = os.open(path.with_name(f"{path.name}.lock"), flags, 0o666)
    lock = os.fdopen(descriptor, "r+b", buffering=0)
    while (holder := locked_by(descriptor)) is not None:
        if not wait:
            lock.close()
            raise JournalError(f"{path} is in use by {holder}: wait until it ends")
        time.sleep(0.01)
    return lock


def _contents(path: Path, data: bytes) -> list[dict]:
    *lines, rest = data.split(b"\n")
    if rest or not lines:
        raise JournalError(f"{path} is no journal, or was cut: it does not end with a line")
    contents = []
    for number, line in enumerate(lines, 1):
        try:
            if line.endswith(b"\r"):
                raise ValueError("it ends with CR LF, where a journal has LF alone")
            contents.append({**json.loads(line.decode())})
        except (ValueError, TypeError) as error:
            raise JournalError(f"{path}, line {number}, is damaged: {error}") from error
    return contents


def _agree(path: Path, stored: dict, present: dict, may_differ: Collection[str]) -> None:
    stored, present = (
        {key: value for key, value in header.items() if key not in may_differ}
        for header in (stored, present)
    )
    if differences := list(_differences(stored, present)):
        raise JournalError(
            f"{path} holds other measurements, which are not mixed with new ones:\n  "
            + "\n  ".join(differences)
        )


def _differences(stored, present, where: str = "") -> Iterator[str]:
    if isinstance(stored, dict) and isinstance(present, dict):
        for key in sorted({*stored, *present}):
            inner = f"{where}.{key}" if where else key
            yield from _differences(stored.get(key, "(none)"), present.get(key, "(none)"), inner)
    elif stored != present:
        yield f"{where}: stored {stored!r}, present {present!r}"


def _line(content: dict) -> bytes:
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode() + b"\n"
