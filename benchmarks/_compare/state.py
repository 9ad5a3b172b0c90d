"""What a comparison has measured so far, in a directory that a kill at any point leaves sound.

A fresh process' result is one file, written whole or not at all, and never changed, moved or
deleted after. A round whose measurement was disturbed or cut in half is set aside by one more file
that says why; its next attempt has a number, and files, of its own. Whatever in the directory is
not as it was written is an error, and is left alone.
"""

import hashlib
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from .._system.files import TEMPORARY, locked_by, plain_json, write_atomically

SCHEMA = 1
"""Version of the files' layout; another one is refused."""

ARMS = ("base", "head")

_FORMAT = "rope-triton comparison"
_MANIFEST, _LOCK = "manifest.json", "lock"
_ASIDE = "aside"  # stands where a result's name has its arm
_NAME = r"[a-z][a-z0-9-]*"
_FILE = re.compile(rf"({_NAME})\.(\d{{4}})\.(\d+)\.({_NAME})\.json")
_MAX_ROUND = 9999
_HALF = "the run ended before every arm of the round was measured"


class StateError(RuntimeError):
    """A directory that does not hold a sound state of this comparison, or is in use."""


class Round(NamedTuple):
    """A complete round: its number, and the payload of each arm."""

    number: int
    payloads: dict[str, dict]


class Aside(NamedTuple):
    """An attempt at a round that does not count: why, and the payloads of the arms measured."""

    phase: str
    number: int
    attempt: int
    reason: str
    payloads: dict[str, dict]


class _File(NamedTuple):
    phase: str
    number: int
    attempt: int
    arm: str  # or _ASIDE

    @property
    def name(self) -> str:
        return f"{self.phase}.{self.number:04d}.{self.attempt}.{self.arm}.json"


class State:
    """The stored rounds of one comparison; :meth:`open` makes one, a ``with`` block closes it.

    A result has a phase ("look1"), a round's number (0 to 9999) and an arm; a round is complete
    when all ``arms`` are there.
    """

    def __init__(self, directory: Path, arms: tuple[str, ...], lock):
        self.directory, self.arms, self._lock = directory, arms, lock

    @classmethod
    def open(
        cls, directory: str | os.PathLike, manifest: dict, arms: Iterable[str] = ARMS
    ) -> "State":
        """Start a state, or resume one that was started with an equal manifest.

        Parameters
        ----------
        directory : path
            Made if missing; nothing but the state may be in it.
        manifest : dict
            All that must agree for results to be of one comparison; plain JSON.
        arms : iterable of str
            Names of the versions that a round measures.

        Raises
        ------
        StateError
            If the directory is in use, was started with another manifest, or holds a file that is
            damaged or not a state's. Nothing is overwritten or deleted then.
        """
        directory, arms = Path(directory), tuple(arms)
        manifest = plain_json(manifest, "manifest")
        for arm in arms:
            _check_name(arm, "arm")
        _refuse_foreign(directory, arms)
        directory.mkdir(parents=True, exist_ok=True)
        state = cls(directory, arms, _lock(directory))
        try:
            _refuse_foreign(directory, arms)
            state._agree(manifest)
            state._verify()
            for leftover in directory.glob(f"{TEMPORARY}*"):
                leftover.unlink()  # of a write that was cut short
        except BaseException:
            state.close()
            raise
        return state

    def close(self) -> None:
        """Let another process open the state."""
        self._lock.close()

    def __enter__(self) -> "State":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def save(self, phase: str, number: int, arm: str, payload: dict) -> None:
        """Store what a fresh process measured, for good.

        Judge the process first, and store a disturbed one with :meth:`set_aside`: after a kill,
        what was saved counts.

        Raises
        ------
        StateError
            If the arm of this round is there already.
        ValueError
            If a name is not one, or the payload is not plain JSON with finite numbers.
        """
        if arm not in self.arms:
            raise ValueError(f"arm must be one of {self.arms}, got {arm!r}")
        file = _File(*self._attempt(phase, number), arm)
        if file in self._files():
            raise StateError(f"{self.directory / file.name} is there: a result is written once")
        self._write(file, {"payload": plain_json(payload, file.name)})

    def set_aside(
        self, phase: str, number: int, reason: str, unsaved: dict[str, dict] | None = None
    ) -> None:
        """Let a round's present attempt not count; the round is free to be measured again.

        Parameters
        ----------
        reason : str
            In words, for the report.
        unsaved : dict of arm -> payload
            What was measured and not saved; kept as evidence.
        """
        file = _File(*self._attempt(phase, number), _ASIDE)
        unsaved = plain_json(unsaved or {}, file.name)
        if not reason or not set(unsaved) <= set(self.arms):
            raise ValueError(
                f"a reason and payloads of {self.arms} are needed, got {reason!r}, {list(unsaved)}"
            )
        self._write(file, {"reason": reason, "unsaved": unsaved})

    def discard_incomplete_rounds(self, *phases: str) -> int:
        """Set aside the rounds that lack an arm, and return how many; call it when resuming.

        A pause between the arms would spoil their pairing. Without ``phases``, of every phase.
        """
        halves = [
            (phase, number)
            for (phase, number), payloads in self._current().items()
            if set(payloads) != set(self.arms) and (not phases or phase in phases)
        ]
        for phase, number in halves:
            self.set_aside(phase, number, _HALF)
        return len(halves)

    def load(self, phase: str, number: int, arm: str) -> dict | None:
        """The payload of one arm of a round, None where there is none that counts."""
        return self._current().get((phase, number), {}).get(arm)

    def rounds(self, phase: str) -> list[Round]:
        """The complete rounds of a phase, by number."""
        return [
            Round(number, payloads)
            for (of, number), payloads in sorted(self._current().items())
            if of == phase and set(payloads) == set(self.arms)
        ]

    def payloads(self) -> list[dict]:
        """Every payload that counts."""
        return [payload for each in self._current().values() for payload in each.values()]

    def aside(self) -> list[Aside]:
        """Every attempt that was set aside, in order."""
        files = self._files()
        attempts = []
        for file in sorted(file for file in files if file.arm == _ASIDE):
            content = self._read(file)
            same = (other for other in files if other[:3] == file[:3] and other != file)
            payloads = {other.arm: self._read(other)["payload"] for other in same}
            attempts.append(Aside(*file[:3], content["reason"], payloads | content["unsaved"]))
        return attempts

    def _current(self) -> dict[tuple[str, int], dict[str, dict]]:
        """(phase, number) -> arm -> payload, of the attempts that count."""
        files = self._files()
        rounds: dict[tuple[str, int], dict[str, dict]] = defaultdict(dict)
        for file in sorted(files):
            if file.arm != _ASIDE and file._replace(arm=_ASIDE) not in files:
                rounds[file.phase, file.number][file.arm] = self._read(file)["payload"]
        return dict(rounds)

    def _attempt(self, phase: str, number: int) -> tuple[str, int, int]:
        _check_name(phase, "phase")
        if type(number) is not int or not 0 <= number <= _MAX_ROUND:
            raise ValueError(f"round must be an integer of 0 to {_MAX_ROUND}, got {number!r}")
        aside = (file for file in self._files() if file.arm == _ASIDE)
        return phase, number, sum(file[:2] == (phase, number) for file in aside)

    def _files(self) -> set[_File]:
        matches = (_FILE.fullmatch(name) for name in os.listdir(self.directory))
        return {_File(m[1], int(m[2]), int(m[3]), m[4]) for m in matches if m}

    def _read(self, file: _File) -> dict:
        path = self.directory / file.name
        content = _read_document(path)
        if content.get("of") != list(file):
            raise StateError(f"{path} holds the result of {content.get('of')}: it was renamed")
        return content

    def _write(self, file: _File, content: dict) -> None:
        write_atomically(self.directory / file.name, _document({"of": list(file), **content}))

    def _agree(self, manifest: dict) -> None:
        path = self.directory / _MANIFEST
        if not path.exists():
            if self._files():
                raise StateError(f"{self.directory} holds results, and no {_MANIFEST} says of what")
            write_atomically(path, _document(manifest))
            return
        differences = list(_differences(_read_document(path), manifest))
        if differences:
            raise StateError(
                f"{self.directory} holds another comparison:\n  "
                + "\n  ".join(differences)
                + "\ngive another directory, or delete this one if its results are not wanted"
            )

    def _verify(self) -> None:
        """Read every file, and see that no attempt is missing below another."""
        files = self._files()
        for file in files:
            self._read(file)
            for attempt in range(file.attempt):
                earlier = file._replace(attempt=attempt, arm=_ASIDE)
                if earlier not in files:
                    raise StateError(
                        f"{self.directory} holds {file.name}, but not {earlier.name}, which must "
                        "come before it: a file was removed"
                    )


def _lock(directory: Path):
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    lock = os.fdopen(os.open(directory / _LOCK, flags, 0o666), "r+b", buffering=0)
    holder = locked_by(lock.fileno())
    if holder is not None:
        lock.close()
        raise StateError(
            f"{directory} is in use by {holder}: wait until it ends, or give another directory"
        )
    return lock


def _check_name(name: str, what: str) -> None:
    if not isinstance(name, str) or not re.fullmatch(_NAME, name) or name == _ASIDE:
        raise ValueError(
            f"{what} must be lower-case letters, digits and '-', not {_ASIDE!r}; got {name!r}"
        )


def _refuse_foreign(directory: Path, arms: tuple[str, ...]) -> None:
    """Raise StateError if anything is in the directory that a state does not write."""
    if not directory.exists():
        return
    if not directory.is_dir():
        raise StateError(f"{directory} is not a directory")
    for path in sorted(directory.iterdir()):
        name = path.name.removeprefix(TEMPORARY)
        match = _FILE.fullmatch(name)
        ours = match[4] in (*arms, _ASIDE) if match else name in (_MANIFEST, _LOCK)
        if not ours or path.is_symlink() or not path.is_file():
            raise StateError(
                f"{path} is no file of a comparison of {' and '.join(arms)}: give a directory of "
                "its own, or take the file away"
            )


def _document(content: dict) -> bytes:
    head = {"format": _FORMAT, "schema": SCHEMA, "sha256": _digest(content)}
    return json.dumps(head | {"content": content}, indent=1, allow_nan=False).encode()


def _read_document(path: Path) -> dict:
    try:
        document = json.loads(path.read_bytes())
    except ValueError as error:
        raise StateError(f"{path} is damaged: {error}") from error
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise StateError(f"{path} is not a file of a {_FORMAT}")
    if document.get("schema") != SCHEMA:
        raise StateError(f"{path} has schema {document.get('schema')!r}, this suite has {SCHEMA}")
    content = document.get("content")
    if not isinstance(content, dict) or document.get("sha256") != _digest(content):
        raise StateError(f"{path} is damaged or was edited: its checksum does not agree")
    return content


def _digest(content) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _differences(stored, present, where: str = "") -> Iterator[str]:
    if isinstance(stored, dict) and isinstance(present, dict):
        for key in sorted({*stored, *present}):
            inner = f"{where}.{key}" if where else key
            yield from _differences(stored.get(key, "(none)"), present.get(key, "(none)"), inner)
    elif json.dumps(stored, sort_keys=True) != json.dumps(present, sort_keys=True):
        yield f"{where}: stored {stored!r}, present {present!r}"
