"""Measure the commits of a branch that have no results of a machine yet."""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from .._engine.system import checkout, gpu_monitor
from .._engine.system.baseline import commits_since
from .._engine.system.repository import git_text
from .._subjects.rope.grid import OWN_BENCHMARKS
from . import asv_fixes, run

NO_GPU = "no-gpu-"
"""Prefix of the names of machines without a GPU."""

NEWEST_COMMITS = 10
"""Most commits that one run measures for the first time."""

WAIT_SECONDS = 3600
"""How long to wait for the GPU, which a comparison may hold."""

BEGIN_SECONDS = 85 * 60
"""How long after the start a commit is begun: history.yml ends the step 15 minutes later."""


def missing(root: Path, machine: str, limit: int) -> list[str]:
    """Commits of HEAD's first-parent line that changed the package and have no result.

    The newest ``limit`` of them, oldest first: after a failure the next run takes what is left.
    """
    stored = (root / "benchmarks" / "results" / machine).glob("*-*.json")
    measured = {path.name.split("-")[0] for path in stored}
    changed = commits_since(root, None, "HEAD")
    return [commit for commit in changed if commit[:8] not in measured][-limit:]


# Not of the first results: which GPU it was.
TOOLCHAIN = ("torch", "triton", "gpu_id")


def remeasured(root: Path, machine: str, toolchain: Mapping[str, str | None]) -> list[str]:
    """The newest commit that has results, if none are of this torch, Triton and GPU.

    Another starts a new line on asv's pages: the commit is on both.
    """
    stored: dict[str, list[dict]] = {}
    for path in (root / "benchmarks" / "results" / machine).glob("*-*.json"):
        result = json.loads(path.read_bytes())
        stored.setdefault(result["commit_hash"], []).append(result["params"])
    log = git_text(root, "log", "--first-parent", "--format=%H", "HEAD").split()
    newest = next((commit for commit in log if commit in stored), None)
    if newest is None:
        return []
    toolchains = [{name: params.get(name) for name in TOOLCHAIN} for params in stored[newest]]
    return [] if toolchain in toolchains else [newest]


def installed(machine: str) -> dict[str, str | None]:
    """What results will be stored with of these: ``python -m benchmarks machine``'s."""
    from asv.machine import MachineCollection

    record = MachineCollection.load(machine)
    return {name: record.get(name) for name in TOOLCHAIN}


def measure(root: Path, machine: str) -> int:
    """Let asv measure the :func:`remeasured` and :func:`missing` commits with today's benchmarks.

    The GPU is held. After ``BEGIN_SECONDS`` no other commit is begun: the next run takes what is
    left. The exit status is 1 if a commit failed.
    """
    end = time.monotonic() + BEGIN_SECONDS
    asv_fixes.fill_results(root)
    repeated = remeasured(root, machine, installed(machine))
    for commit in repeated:
        print(f"{machine}: torch or triton changed, once more: {commit[:8]}", flush=True)
    commits = missing(root, machine, NEWEST_COMMITS)
    print(f"{machine}: {len(commits)} commits to measure", flush=True)
    commits = repeated + commits
    failed = []
    with gpu_of(machine), tempfile.TemporaryDirectory() as scratch:
        for number, commit in enumerate(commits):
            if time.monotonic() > end:
                print(f"{machine}: no time for {len(commits) - number} of {len(commits)} commits")
                break
            if _run(root, machine, commit, Path(scratch)):
                failed.append(commit)
    for commit in failed:
        print(f"{machine}: {commit} failed, or some of its cells did: see above", flush=True)
    return bool(failed)


def gpu_of(machine: str) -> contextlib.AbstractContextManager:
    """Hold the machine's GPU against every other user of the lock; nothing without a GPU."""
    if machine.startswith(NO_GPU):
        return contextlib.nullcontext()
    return gpu_monitor.gpu_lock(gpu_monitor.gpu_uuid(), WAIT_SECONDS)


def _run(root: Path, machine: str, commit: str, scratch: Path) -> int:
    """Measure a commit, and once more what failed of it; the status of the last try.

    A machine may fail for a moment. What fails twice is the kernel's: it is stored so.
    """
    package = checkout.from_commit(commit, root, scratch).root
    status = _asv(root, machine, commit, package, OWN_BENCHMARKS)
    failed = _failed(root, machine, commit) if status else []
    if failed:
        print(f"{machine}: {commit} once more: {', '.join(failed)}", flush=True)
        status = _asv(root, machine, commit, package, f"^({'|'.join(map(re.escape, failed))})$")
    return status


def _asv(root: Path, machine: str, commit: str, package: Path, pattern: str) -> int:
    # asv hides PYTHONPATH from benchmarks, and has this instead. The old package comes first.
    paths = os.pathsep.join([str(package), str(root)])
    options = ["--bench", pattern, "-E", f"existing:{sys.executable}", "--machine", machine]
    command = [*run.ASV, "run", *options, "--set-commit-hash", commit]
    print(f"{machine}: {commit}", flush=True)
    environment = os.environ | {"ASV_PYTHONPATH": paths}
    return subprocess.run(command, cwd=root, env=environment, stdin=subprocess.DEVNULL).returncode


def _failed(root: Path, machine: str, commit: str) -> list[str]:
    """The benchmarks of which asv stored a cell without a value just now."""
    stored = (root / asv_fixes.RESULTS / machine).glob(f"{commit[:8]}-*.json")
    newest = max(stored, key=lambda path: path.stat().st_mtime, default=None)
    results = json.loads(newest.read_bytes())["results"] if newest else {}
    return sorted(name for name, (cells, *_) in results.items() if None in (cells or [None]))
