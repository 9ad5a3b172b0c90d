"""Digest the files that measure, committed or not, so that figures are kept apart by them."""

import hashlib
from collections.abc import Iterable

from .process import SUITE


def digest(patterns: Iterable[str]) -> str:
    """SHA-256, in hexadecimal, of the files of this suite that match, and of their names.

    Raises
    ------
    ValueError
        If a pattern matches no file: the digest would not say what it is to say.
    """
    found = hashlib.sha256()
    for pattern in patterns:
        files = sorted(SUITE.glob(pattern))
        if not files:
            raise ValueError(f"no file of {SUITE} matches {pattern!r}")
        for file in files:
            name = str(file.relative_to(SUITE)).encode()
            found.update(name + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return found.hexdigest()
