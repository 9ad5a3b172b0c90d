"""``python -m benchmarks run``: let asv measure HEAD, print the figures, write the web pages."""

import argparse
import contextlib
import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TextIO

from .._engine.system import gpu_monitor, machine, process
from .._engine.system.errors import CouldNotRunError
from .._engine.system.process import ROOT
from .._engine.system.progress import PROGRESS_VARIABLE, say
from .._engine.system.repository import GitError, git_text
from .._subjects.rope.grid import GRID_VARIABLE, GRIDS, OWN_BENCHMARKS, active
from . import figures
from .figures import git

LOG = ROOT / ".asv" / "run.log"
ASV = [sys.executable, "-m", "asv"]
ASV_SECONDS = 5.0

# asv's patterns for what needs no GPU.
_EXACT = {
    "full": r"^(codegen|host_cost)\.",
    "small": r"^(codegen\.(Codegen|Variants)|host_cost)\.",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Measure HEAD with this interpreter, print the figures, and write the web pages to "
        ".asv/html. Without a GPU, only exact values are measured: machine code and host cost. "
        "Exit status: that of asv (0 done, 2 a benchmark failed), or 3 could not run."
    )
    parser.add_argument(
        "--grid",
        choices=sorted(GRIDS),
        help=f"cells to measure; default: the value of {GRID_VARIABLE}, or full",
    )


def run(grid: str | None) -> int:
    """Measure, print, publish; the exit status."""
    if grid:
        os.environ[GRID_VARIABLE] = grid  # for asv and what it starts
    try:
        active(GRIDS)
    except ValueError as error:  # of the variable that names the grid
        raise CouldNotRunError(str(error)) from None
    head = git("rev-parse", "HEAD")
    _refuse_dirty_package()
    _require_main()
    _append_only()
    record = machine.machine_record()
    machine.save_record(record)
    say(f"machine {record['machine']}, torch {record['torch']}, triton {record['triton']}")
    benchmarks = OWN_BENCHMARKS
    alone: contextlib.AbstractContextManager = contextlib.nullcontext()
    if record["gpu"] == "none":
        benchmarks = _EXACT[os.environ.get(GRID_VARIABLE, "full")]
        say("no NVIDIA GPU here: only exact values are measured; time, memory and error need one")
    else:
        alone = gpu_monitor.gpu_lock(gpu_monitor.gpu_uuid(), 0.0)
    results = figures.RESULTS / record["machine"]
    LOG.parent.mkdir(exist_ok=True)
    with LOG.open("w", encoding="utf-8") as log:
        options = ("-E", f"existing:{sys.executable}", "--machine", record["machine"])
        words = ("--show-stderr", "--bench", benchmarks, *options, "--set-commit-hash", head)
        with alone:
            before = _written(results, head)
            status = _asv(log, "run", *words)
        published = _asv(log, "publish")
    for path, *_ in sorted(_written(results, head) - before):
        figures.show(path)
    say(f"asv's whole output, with tables and tracebacks: {LOG}")
    if published == 0:
        say(f"site: {ROOT / '.asv' / 'html'}, shown by: {sys.executable} -m asv preview --browser")
    return status or published


def _written(results: Path, commit: str) -> set[tuple[Path, int, int]]:
    """The results of a commit, each with what another version of the file has not."""
    paths = results.glob(f"{commit[:8]}-*.json")
    return {(path, path.stat().st_ino, path.stat().st_mtime_ns) for path in paths}


def _require_main() -> None:
    """Exit unless the clone has the branch whose history asv publishes."""
    try:
        git_text(ROOT, "rev-parse", "--verify", "--quiet", "main^{commit}")
    except GitError:
        raise CouldNotRunError(
            "asv shows the history of the branch main, which this clone does not have: "
            "git branch main origin/main"
        ) from None


def _refuse_dirty_package() -> None:
    """Exit unless the package is as committed: results are filed under the commit."""
    changed = git("status", "--porcelain", "--", "rope_triton")
    if changed:
        raise CouldNotRunError(
            "rope_triton differs from HEAD, under which the results would be filed:\n"
            f"{changed}\ncommit it, or measure without storing: asv run -E existing:python3"
        )


def _append_only() -> None:
    """Let the benchmarks' progress and this process write to one file without overwriting."""
    for stream in (1, 2):
        fcntl.fcntl(stream, fcntl.F_SETFL, fcntl.fcntl(stream, fcntl.F_GETFL) | os.O_APPEND)


def _asv(log: TextIO, *arguments: str) -> int:
    """Run asv on this checkout, its output to the log and the headlines of it to stdout."""
    environment = dict(os.environ)
    # Measure this checkout, which is HEAD, whatever else is installed.
    paths = [str(ROOT), environment.get("ASV_PYTHONPATH")]
    environment["ASV_PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    # asv hides what benchmarks print; they find this process's stderr by its path.
    environment.setdefault(PROGRESS_VARIABLE, f"/proc/{os.getpid()}/fd/2")
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as problems,
        process.start_contained(
            [*ASV, *arguments],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=problems,
            encoding="utf-8",
            errors="replace",
        ) as asv,
    ):
        assert asv.stdout is not None  # a pipe
        try:
            for line in asv.stdout:
                log.write(line)
                if _is_headline(line):
                    print(line, end="", flush=True)
        except KeyboardInterrupt:
            _end(asv)  # its traceback is of no use
            raise
        asv.wait()
        problems.seek(0)
        text = problems.read()
        log.write(text)
        print(text, end="", file=sys.stderr, flush=True)
    return asv.returncode


def _end(asv: subprocess.Popen) -> None:
    """Wait for asv to end, then interrupt it, then end it: Ctrl-C in a terminal has reached it."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        asv.wait(ASV_SECONDS)
    if asv.poll() is None:
        asv.send_signal(process.INTERRUPT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        asv.wait(ASV_SECONDS)
    asv.terminate()  # with all that it started


def _is_headline(line: str) -> bool:
    """Whether a line is a message from asv, not a table's border or a benchmark's output."""
    _, bullet, text = line.rpartition("·")
    return bool(bullet) and "····" not in line and not set(text) <= set("= \n")
