"""The last answer of the nightly comparison, as its workflow wrote it for the overview."""

from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal, TypedDict

from .._engine.system.baseline import commits_since
from .._engine.system.repository import GitError
from .._engine.system.untrusted import Text, load_json, validated

FILE = Path(".asv") / "nightly.json"
"""Where ``history.yml`` puts it before it publishes."""

_Commit = Annotated[str, Text("[0-9a-f]{40}")]


class _Stored(TypedDict):
    answer: Literal["pass", "fail", "cannot tell"]
    base: _Commit
    head: _Commit
    machine: Annotated[str, Text(r"[a-z0-9_-]+", 60)]
    measured: Annotated[str, Text(r"[0-9T:-]+Z", 30)]
    report: Annotated[str, Text(r"https://github\.com/[\w./-]+", 200)]


def last(root: Path, branch: str) -> dict | None:
    """What the file of a checkout says, None without one; a damaged file is an error.

    ``measured`` is in milliseconds; ``waiting`` is how many commits of the branch changed the
    package since, None where the clone lacks ``head``. All else is as stored.
    """
    path = root / FILE
    if not path.exists():
        return None
    stored = validated(_Stored, load_json(path.read_bytes()), str(FILE))
    measured = datetime.fromisoformat(stored["measured"])
    try:
        waiting = len(commits_since(root, stored["head"], branch))
    except GitError:
        waiting = None
    return {**stored, "measured": int(1000 * measured.timestamp()), "waiting": waiting}
