"""The branch that stores the history: one commit with the results and nothing else.

It is replaced as a whole, so that the repository does not grow by every version of every file.
Before, old results are thinned to their values, and the oldest go: a result of the full grid takes
about 400 kB, most of it statistics that asv needs to tell a change from noise in the newest
commits, and digits that no clock has. What is left takes about 70.
"""

import itertools
import json
import math
import shutil
import tempfile
from pathlib import Path

from .._system.files import write_atomically
from .._system.repository import committed_files, git_text, write_files

BRANCH = "refs/heads/benchmark-results"
KEEP_STATISTICS = 100
"""How many of a machine's newest results stay as they were measured."""

KEEP_RESULTS = 1000
"""How many of a machine's newest results stay at all: about 100 MB for the full grid."""

_COLUMNS = ["result", "params", "version", "started_at", "duration"]
_DIGITS = 6

_RESULTS = Path("benchmarks") / "results"
_RESTORED = Path(".asv") / "restored"  # no ref: asv numbers the commits of all refs
_IDENTITY = {
    "GIT_AUTHOR_NAME": "benchmark history",
    "GIT_AUTHOR_EMAIL": "noreply@github.com",
    "GIT_COMMITTER_NAME": "benchmark history",
    "GIT_COMMITTER_EMAIL": "noreply@github.com",
}


def stored(root: Path, remote: str) -> str:
    """The branch's commit at the remote, "" if it has no such branch.

    Raises
    ------
    RuntimeError
        If the remote does not answer, so that what is stored is unknown.
    """
    return git_text(root, "ls-remote", "--end-of-options", remote, BRANCH).partition("\t")[0]


def restore(root: Path, remote: str) -> bool:
    """Replace the checkout's results by the stored ones; False if none are stored.

    ``benchmarks.json``, which describes the benchmarks, stays that of the checkout: it and the
    benchmarks are one version. After an error nothing counts as restored.
    """
    (root / _RESTORED).unlink(missing_ok=True)
    commit = stored(root, remote)
    if commit:
        _replace_results(root, remote, commit)
    (root / _RESTORED).parent.mkdir(exist_ok=True)
    (root / _RESTORED).write_text(commit, encoding="utf-8")
    return bool(commit)


def _replace_results(root: Path, remote: str, commit: str) -> None:
    git_text(root, "fetch", "--quiet", "--depth=1", "--no-tags", remote, commit)
    files = dict(committed_files(root, commit, _RESULTS.as_posix()))
    files.pop("benchmarks.json", None)
    for directory in (path for path in (root / _RESULTS).iterdir() if path.is_dir()):
        shutil.rmtree(directory)
    write_files(root, files, root / _RESULTS)


def store(root: Path, remote: str) -> tuple[str, list[str]]:
    """Thin the checkout's results and replace the branch by them.

    Returns
    -------
    The branch's commit, and a line for each result that was thinned: nothing else ever takes
    something away from what is stored.

    Raises
    ------
    RuntimeError
        If nothing was restored before, the checkout has less than is stored, or the branch is no
        longer what was restored: what another job stored is never lost.
    """
    if not (root / _RESTORED).exists():
        raise RuntimeError("restore first, or what is stored would be lost")
    before = (root / _RESTORED).read_text(encoding="utf-8")
    if before:
        _require_no_loss(root, before)
    said = thin(root / _RESULTS)
    commit = git_text(root, "commit-tree", _tree(root), "-m", "Benchmark results", **_IDENTITY)
    lease = f"--force-with-lease={BRANCH}:{before}"
    git_text(root, "push", "--quiet", lease, "--end-of-options", remote, f"{commit}:{BRANCH}")
    return commit, said


def lost(before: dict, after: dict) -> list[str]:
    """Benchmarks of the first of two of asv's results, of which the second lacks a value.

    A value is there again if it is equal, of the same parameters and the same version.
    """
    new = _values(after)
    return [name for name, values in _values(before).items() if values - new.get(name, set())]


def _values(content: dict) -> dict[str, set[tuple]]:
    """Each benchmark's values, with what they are of; NaN is none."""
    found = {}
    for name, (values, params, version, *_) in content["results"].items():
        cells = zip(itertools.product(*params), values or [], strict=False)
        numbers = ((cell, version, value) for cell, value in cells if value is not None)
        found[name] = {each for each in numbers if not math.isnan(each[-1])}
    return found


def _require_no_loss(root: Path, before: str) -> None:
    """Compare the checkout's results with those of the stored commit."""
    changed = git_text(
        root, "diff-tree", "-r", "--no-renames", "--name-status", before, _tree(root)
    )
    for status, name in (line.split("\t") for line in changed.splitlines()):
        if status not in "AM":
            raise RuntimeError(f"{name} is stored and would be lost: nothing was stored")
        if status == "M" and "-" in Path(name).name:  # the others describe machine and benchmarks
            old = json.loads(git_text(root, "show", f"{before}:{name}"))
            metrics = lost(old, json.loads((root / name).read_bytes()))
            if metrics:
                text = ", ".join(metrics)
                raise RuntimeError(f"{name} would lose values of {text}: nothing was stored")


def _tree(root: Path) -> str:
    """The checkout's results as a tree in git, which holds nothing else."""
    with tempfile.TemporaryDirectory() as scratch:
        index = {"GIT_INDEX_FILE": str(Path(scratch) / "index")}
        git_text(root, "add", "--force", "--", str(_RESULTS), **index)
        return git_text(root, "write-tree", **index)


def thin(results: Path, statistics: int = KEEP_STATISTICS, kept: int = KEEP_RESULTS) -> list[str]:
    """Make old results of every machine small, and remove the oldest, by the commits' dates.

    Returns
    -------
    A line for each that was changed. The second run changes nothing.
    """
    said = []
    for machine in sorted(path.parent for path in results.glob("*/machine.json")):
        contents = {path: json.loads(path.read_bytes()) for path in machine.glob("*-*.json")}
        newest = sorted(contents, key=lambda p: (contents[p]["date"], p.name), reverse=True)
        for path in newest[kept:]:
            path.unlink()
            said.append(f"{machine.name}/{path.name}: removed")
        for path in newest[statistics:kept]:
            if contents[path]["result_columns"] != _COLUMNS:
                text = json.dumps(slim(contents[path]), separators=(",", ":"))
                write_atomically(path, text.encode())
                said.append(f"{machine.name}/{path.name}: values only")
    return said


def slim(content: dict) -> dict:
    """A result in asv's format without statistics, its values with six digits."""
    at = [content["result_columns"].index(name) for name in _COLUMNS]
    rows = {
        metric: [row[i] if i < len(row) else None for i in at]
        for metric, row in content["results"].items()
    }
    for row in rows.values():
        row[0] = row[0] and [_short(value) for value in row[0]]
    return content | {"result_columns": _COLUMNS, "results": rows}


def _short(value: float | None) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
