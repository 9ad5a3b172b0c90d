"""Store measurements line by line, so that a killed command goes on from them.

The first line, the header, says what was measured and where; the other lines are the entries. Each
is JSON with a checksum of itself and of all lines before it. A kill at any point leaves whole lines
and perhaps the beginning of one more, which is dropped. A file that was changed in any other way is
an error, and is left as it is.
"""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from .errors import CouldNotRunError
from .files import locked_by, write_atomically

_CHECKSUM = "sha256"


class JournalError(CouldNotRunError):
    """A journal that is damaged, of something else, or in use; the message says which."""


class Journal:
    """A journal that is open for more entries; a ``with`` block closes it.

    Parameters
    ----------
    path : Path
        Made if missing. The lock lies beside it, in ``<name>.lock``.
    header : dict
        All that must agree for entries to belong together; plain JSON.
    may_differ : collection of str
        Keys of the header that need not agree.
    wait : bool
        Whether to wait while another process has it open.

    Attributes
    ----------
    header, entries
        The stored header, and the entries in the order in which they were written.

    Raises
    ------
    JournalError
        If the file is in use, damaged, no journal, or has another header. It is unchanged then.
    """

    def __init__(
        self, path: Path, header: dict, may_differ: Collection[str] = (), wait: bool = False
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(path, wait)
        try:
            header = _plain(header)
            if not path.exists():
                write_atomically(path, _line(header, _digest(header, "")))
            data = path.read_bytes()
            whole = data[: data.rfind(b"\n") + 1]
            try:
                (self.header, *self.entries), self._last = _contents(path, whole)
                if not self._last:
                    raise JournalError(f"{path} is no journal to go on with: it has no checksums")
                _agree(path, self.header, header, may_differ)
            except JournalError as error:
                how = "start again with --afresh, or move the file away"
                raise JournalError(f"{error}\n{how}") from None
            self._stream = path.open("r+b")
        except BaseException:
            self._lock.close()
            raise
        self._stream.truncate(len(whole))
        self._stream.seek(len(whole))

    def append(self, *entries: dict) -> None:
        """Write entries, plain JSON with finite numbers; they are on the disk when this returns."""
        plain, lines, last = [_plain(entry) for entry in entries], [], self._last
        for entry in plain:
            last = _digest(entry, last)
            lines.append(_line(entry, last))
        try:
            self._stream.write(b"".join(lines))
            self._stream.flush()
            os.fsync(self._stream.fileno())
        except OSError as error:
            error.filename = self._stream.name  # a full disk names none
            with contextlib.suppress(OSError):
                self._stream.close()  # or the next entry would follow a part of this one
            raise
        self.entries += plain
        self._last = last

    def close(self) -> None:
        """Let another process open the journal."""
        with self._lock:
            self._stream.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception) -> None:
        self.close()


def read(path: Path) -> list[dict]:
    """The header and the entries of a file of this form, with checksums or, as published, without.

    Raises
    ------
    JournalError
        If it is damaged, also at its end.
    """
    return _contents(path, path.read_bytes())[0]


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


def _contents(path: Path, data: bytes) -> tuple[list[dict], str]:
    """What a file holds, and its last checksum, "" if the first line has none."""
    *lines, rest = data.split(b"\n")
    if rest or not lines:
        raise JournalError(f"{path} is no journal, or was cut: it does not end with a line")
    contents, last, checksums = [], "", False
    for number, line in enumerate(lines, 1):
        try:
            content = json.loads(line)
            given = content.pop(_CHECKSUM, "")
        except (ValueError, AttributeError, TypeError) as error:
            raise JournalError(f"{path}, line {number}, is damaged: {error}") from error
        checksums = checksums or (number == 1 and given != "")
        last = _digest(content, last) if checksums else ""
        if given != last:
            raise JournalError(f"{path}, line {number}, was changed: its checksum is wrong")
        contents.append(content)
    return contents, last


def _agree(path: Path, stored: dict, present: dict, may_differ: Collection[str]) -> None:
    stored, present = (
        {key: value for key, value in each.items() if key not in may_differ}
        for each in (stored, present)
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
    elif _text(stored) != _text(present):
        yield f"{where}: stored {stored!r}, present {present!r}"


def _plain(content: dict) -> dict:
    if _CHECKSUM in content:
        raise ValueError(f"{_CHECKSUM!r} is the name of the checksum, got {content}")
    return json.loads(json.dumps(content, allow_nan=False))


def _text(content) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def _digest(content: dict, before: str) -> str:
    return hashlib.sha256((before + _text(content)).encode()).hexdigest()


def _line(content: dict, checksum: str) -> bytes:
    return json.dumps(content | {_CHECKSUM: checksum}, separators=(",", ":")).encode() + b"\n"
