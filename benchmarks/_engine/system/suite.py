"""Digest the files that measure, committed or not, so that figures are kept apart by them."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from .process import SUITE


def digest(patterns: Iterable[str], more: Iterable[Path] = ()) -> str:
    """SHA-256, in hexadecimal, of the files of this suite that match, of more, and of their names.

    Raises ValueError if a pattern matches no file: the digest would not say what it is to say.
    """
    content = hashlib.sha256()
    files = list(more)
    for pattern in patterns:
        matching = sorted(SUITE.glob(pattern))
        if not matching:
            raise ValueError(f"no file of {SUITE} matches {pattern!r}")
        files += matching
    for file in files:
        name = str(file.relative_to(SUITE) if file.is_relative_to(SUITE) else file.name).encode()
        content.update(name + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return content.hexdigest()
