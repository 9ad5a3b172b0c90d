"""Check the results that another job measured, and add them to asv's.

That job ran code of the main branch on a machine of the project, which may be broken: what it sends
can show wrong figures of what it measured, and cannot change what is stored. Nor does one machine's
artifact reach the results of another; every job of a run may upload one of any name.
"""

import json
import re
from collections.abc import Set
from pathlib import Path

from .._engine.system.repository import git_text
from .branch import lost

_NAME = re.compile(r"machine\.json|[0-9a-f]{8}-[A-Za-z0-9._+-]{1,180}\.json")


class RefusedError(Exception):
    """What came is not what asv writes; the message says where."""


def commits_of(root: Path) -> set[str]:
    """Full hashes of HEAD's history."""
    return set(git_text(root, "rev-list", "HEAD").split())


def accept(incoming: Path, machine: str, results: Path, commits: Set[str]) -> list[str]:
    """Check one machine's results, and add them to asv's only if all are good; their names.

    ``incoming`` is a directory of asv's result files and the machine.json alone, ``results`` asv's,
    ``commits`` all that may have results. Raises RefusedError, and has written nothing, if anything
    is not as it should be, or lacks or changes a value that ``results`` has.
    """
    contents: dict[str, dict] = {}
    directory = results / machine
    for path in sorted(incoming.iterdir()):
        name = path.name
        _require(_NAME.fullmatch(name), f"{name!r}: not a name of asv's results")
        try:
            content = contents[name] = json.loads(path.read_bytes())
            if name == "machine.json":
                _require(content["machine"] == machine, f"{name}: not of {machine}")
            else:
                _require_result(name, content, directory / name, commits)
        except (KeyError, TypeError, AttributeError, ValueError, OSError) as error:
            raise RefusedError(f"{name}: not what asv writes: {error!r}") from None
    _require("machine.json" in contents, "no machine.json")
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        # Written anew, so nothing but data gets through.
        (directory / name).write_text(json.dumps(content, separators=(",", ":")), encoding="utf-8")
    return sorted(contents.keys() - {"machine.json"})


def _require_result(name: str, content: dict, stored: Path, commits: Set[str]) -> None:
    commit, machine = content["commit_hash"], stored.parent.name
    _require(commit in commits, f"{name}: {commit} is no commit of this branch")
    expected = f"{commit[:8]}-{content['env_name']}.json"
    _require(name == expected, f"{name}: asv calls it {expected}")
    _require(content["params"]["machine"] == machine, f"{name}: not of {machine}")
    before = json.loads(stored.read_bytes()) if stored.exists() else content
    metrics = ", ".join(lost(before, content))
    _require(not metrics, f"{name}: values that are stored are others or gone: {metrics}")


def _require(condition, message: str) -> None:
    if not condition:
        raise RefusedError(message)
