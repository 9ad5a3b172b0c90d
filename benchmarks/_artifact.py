"""The JSON in an artifact that may be anything: read within limits, or refused.

Nothing of the archive is unpacked to the disk. Only what GitHub's own uploader writes is read: one
ordinary file, stored or deflated. What the archive says of itself is checked before memory is spent
on it, and no more is inflated than a file may have.
"""

import io
import json
import stat
import struct
import zipfile

MEMBER = "comparison.json"
MAX_ARCHIVE_BYTES = 2_000_000
MAX_DOCUMENT_BYTES = 4_000_000  # the full grid takes 0.6 MB
_MAX_DIRECTORY_BYTES = 1000  # one entry takes some 70

_KINDS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# How hard it was deflated, that the sizes follow the content, that the name is UTF-8.
_FLAGS = 0x806 | 0x8
# The record that ends an archive, and the beginning of the one before it in an archive of ZIP64.
_END = struct.Struct("<4s4H2LH")
_END_SIGNATURE, _ZIP64_SIGNATURE, _ZIP64_BYTES = b"PK\5\6", b"PK\6\7", 20


class ArtifactError(ValueError):
    """The artifact is not what the job writes; the message says what is wrong with it."""


def read(archive: bytes):
    """What the JSON of the only file in an archive says, as ``json.loads`` gives it.

    Raises
    ------
    ArtifactError
        If it is anything else.
    """
    return _document(_content(archive))


def _content(archive: bytes) -> bytes:
    if len(archive) > MAX_ARCHIVE_BYTES:
        raise ArtifactError(f"the archive has more than {MAX_ARCHIVE_BYTES} bytes")
    try:
        _require_small_directory(archive)
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            member = _member(opened)
            with opened.open(member) as file:
                return file.read(member.file_size + 1)  # which then compares the checksum
    except ArtifactError:
        raise
    except Exception as error:  # of a dozen types, which are nowhere listed
        what = f"{type(error).__name__}: {error!s:.200}"
        raise ArtifactError(f"no archive can be read: {what}") from None


def _require_small_directory(archive: bytes) -> None:
    """Refuse what makes ``zipfile`` read a directory of many entries."""
    if len(archive) < _END.size:
        raise ArtifactError("no archive can be read: it is too short")
    signature, *disks, here, members, size, _, comment = _END.unpack(archive[-_END.size :])
    if signature != _END_SIGNATURE or comment:
        raise ArtifactError("no archive can be read: its end is missing")
    if archive[: -_END.size][-_ZIP64_BYTES:].startswith(_ZIP64_SIGNATURE):
        raise ArtifactError("no archive can be read: it is one of ZIP64")
    if any(disks):
        raise ArtifactError("no archive can be read: it is a part of one")
    if here != members or members != 1 or size > _MAX_DIRECTORY_BYTES:
        raise ArtifactError(f"only {MEMBER} may be in the archive, got {members} files")


def _member(opened: zipfile.ZipFile) -> zipfile.ZipInfo:
    """The only file, if it is an ordinary one of an acceptable size."""
    members = opened.infolist()
    # ``filename`` ends at a byte 0, ``orig_filename`` does not.
    if [each.orig_filename for each in members] != [MEMBER]:
        names = [each.orig_filename for each in members[:5]]
        raise ArtifactError(f"only {MEMBER} may be in the archive, got {names!r:.200}")
    (member,) = members
    if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG):
        raise ArtifactError(f"{MEMBER} is no ordinary file")
    if member.flag_bits & ~_FLAGS or member.volume:
        raise ArtifactError(f"no archive can be read: {MEMBER} is encrypted, patched or split")
    if member.compress_type not in _KINDS:
        raise ArtifactError(f"no archive can be read: {MEMBER} is neither stored nor deflated")
    if member.file_size > MAX_DOCUMENT_BYTES:
        raise ArtifactError(f"{MEMBER} has more than {MAX_DOCUMENT_BYTES} bytes")
    return member


def _document(content: bytes):
    try:
        return json.loads(
            content.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_object
        )
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{MEMBER} is no JSON: {error!s:.200}") from None


def _no_constant(name: str):
    raise ValueError(f"{name} is no number")


def _object(pairs: list[tuple]) -> dict:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key comes twice in one object")
    return made
