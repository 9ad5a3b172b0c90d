"""The branch that stores the history: one commit with the results and nothing else.

It is replaced as a whole, so that the repository does not grow by every version of every file.
"""

import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

BRANCH = "refs/heads/benchmark-results"
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
        If the remote cannot be asked: then nobody knows what is stored.
    """
    return git(root, "ls-remote", "--end-of-options", remote, BRANCH).partition("\t")[0]


def restore(root: Path, remote: str) -> bool:
    """Replace the checkout's results by the stored ones; False if none are stored.

    ``benchmarks.json``, which describes the benchmarks, stays that of the checkout: it and the
    benchmarks are one version.
    """
    commit = stored(root, remote)
    (root / _RESTORED).parent.mkdir(exist_ok=True)
    (root / _RESTORED).write_text(commit)
    if not commit:
        return False
    git(root, "fetch", "--quiet", "--depth=1", "--no-tags", remote, commit)
    archive = subprocess.run(
        ["git", "-C", root, "archive", "--format=tar", commit, str(_RESULTS)],
        check=True,
        capture_output=True,
    ).stdout
    for directory in (path for path in (root / _RESULTS).iterdir() if path.is_dir()):
        shutil.rmtree(directory)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        members = [m for m in tar.getmembers() if m.name != str(_RESULTS / "benchmarks.json")]
        tar.extractall(root, members, filter="data")
    return True


def store(root: Path, remote: str) -> str:
    """Replace the branch by the checkout's results; its commit.

    Raises
    ------
    RuntimeError
        If nothing was restored before, or the branch is no longer what was restored: what another
        job stored is never lost.
    """
    if not (root / _RESTORED).exists():
        raise RuntimeError("restore first, or what is stored would be lost")
    before = (root / _RESTORED).read_text()
    with tempfile.TemporaryDirectory() as scratch:
        index = {"GIT_INDEX_FILE": str(Path(scratch) / "index")}
        git(root, "add", "--force", "--", str(_RESULTS), **index)
        tree = git(root, "write-tree", **index)
    commit = git(root, "commit-tree", tree, "-m", "Benchmark results", **_IDENTITY)
    lease = f"--force-with-lease={BRANCH}:{before}"
    git(root, "push", "--quiet", lease, "--end-of-options", remote, f"{commit}:{BRANCH}")
    return commit


def git(root: Path, *arguments: str, **variables: str) -> str:
    """What git prints in a checkout; RuntimeError, with what it complains of, if it fails."""
    environment = os.environ | variables
    done = subprocess.run(
        ["git", "-C", root, *arguments], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()
