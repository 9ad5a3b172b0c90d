"""The branch that stores the history: one commit with the results and nothing else.

It is replaced as a whole, so that the repository does not grow by every version of every file.
"""

import itertools
import json
import math
import shutil
import tempfile
from pathlib import Path

from .._engine.system.repository import committed_files, git_text, write_files

BRANCH = "refs/heads/benchmark-results"
_RESULTS = Path("benchmarks") / "results"
_RESTORED = Path(".asv") / "restored"  # no ref: asv numbers the commits of all refs
_IDENTITY = {
    "GIT_AUTHOR_NAME": "benchmark history",
    "GIT_AUTHOR_EMAIL": "noreply@github.com",
    "GIT_COMMITTER_NAME": "benchmark history",
    "GIT_COMMITTER_EMAIL": "noreply@github.com",
}


def restore(root: Path, remote: str) -> bool:
    """Replace the checkout's results by the stored ones; False if none are stored.

    ``benchmarks.json``, which describes the benchmarks, stays that of the checkout: it and the
    benchmarks are one version. Raises RuntimeError if git fails, as where the remote does not
    answer: nothing counts as restored then.
    """
    (root / _RESTORED).unlink(missing_ok=True)
    commit = git_text(root, "ls-remote", "--end-of-options", remote, BRANCH).partition("\t")[0]
    if commit:
        git_text(root, "fetch", "--quiet", "--depth=1", "--no-tags", remote, commit)
        files = dict(committed_files(root, commit, _RESULTS.as_posix()))
        files.pop("benchmarks.json", None)
        for directory in (path for path in (root / _RESULTS).iterdir() if path.is_dir()):
            shutil.rmtree(directory)
        write_files(root, files, root / _RESULTS)
    (root / _RESTORED).parent.mkdir(exist_ok=True)
    (root / _RESTORED).write_text(commit, encoding="utf-8")
    return bool(commit)


def store(root: Path, remote: str) -> str:
    """Replace the branch by the checkout's results; its commit.

    Raises RuntimeError if nothing was restored before, the checkout has less than is stored, or the
    branch is no longer what was restored: what another job stored is never lost.
    """
    if not (root / _RESTORED).exists():
        raise RuntimeError("restore first, or what is stored would be lost")
    before = (root / _RESTORED).read_text(encoding="utf-8")
    if before:
        _require_no_loss(root, before)
    commit = git_text(root, "commit-tree", _tree(root), "-m", "Benchmark results", **_IDENTITY)
    lease = f"--force-with-lease={BRANCH}:{before}"
    git_text(root, "push", "--quiet", lease, "--end-of-options", remote, f"{commit}:{BRANCH}")
    return commit


def lost(before: dict, after: dict) -> list[str]:
    """Benchmarks of the first of two of asv's results, of which the second lacks a value.

    A value is there again if it is equal, of the same parameters and the same version.
    """
    new = _values(after)
    return [name for name, values in _values(before).items() if values - new.get(name, set())]


def _values(content: dict) -> dict[str, set[tuple]]:
    """Each benchmark's values, with what they are of; NaN is none."""
    return {
        name: {
            (cell, version, value)
            for cell, value in zip(itertools.product(*params), values or [], strict=False)
            if value is not None and not math.isnan(value)
        }
        for name, (values, params, version, *_) in content["results"].items()
    }


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
