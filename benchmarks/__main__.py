"""``python -m benchmarks``: the machine record, and the whole job in one command."""

import argparse
import fcntl
import itertools
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TextIO

from . import _figures, _machine
from ._compare import command as _compare
from ._compare import evidence as _evidence
from ._grid import (
    BACKWARD,
    FORWARD,
    GRID_VARIABLE,
    OWN_BENCHMARKS,
    active_grid,
    active_paths,
    cells,
    path_cells,
)
from ._progress import PROGRESS_VARIABLE, say
from ._readme import command as _readme
from ._sweep import command as _sweep

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
LOG = ROOT / ".asv" / "run.log"
ASV = [sys.executable, "-m", "asv"]


def main(arguments: list[str] | None = None) -> int:
    """Run a command; the exit status is that of asv where asv runs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    machine = commands.add_parser("machine", help="write the asv record of this machine and GPU")
    machine.set_defaults(command=_write_machine)
    run = commands.add_parser(
        "run",
        help="measure HEAD with this interpreter, print figures, publish the site",
        description=f"The grid is the one that {GRID_VARIABLE} names: full (default) or small.",
    )
    run.set_defaults(command=_run)
    figures = commands.add_parser("figures", help="print the figures of a stored result")
    figures.add_argument("machine", help="a directory of benchmarks/results")
    figures.add_argument("commit", help="a commit that was measured there")
    figures.set_defaults(command=_show_figures)
    compare = commands.add_parser("compare", help="two versions: slower, faster or wrong?")
    _compare.add_arguments(compare)
    compare.set_defaults(command=_compare.run)
    evidence = commands.add_parser("evidence", help="make what shows that compare can be trusted")
    _evidence.add_arguments(evidence)
    evidence.set_defaults(command=_evidence.run)
    sweep = commands.add_parser("sweep", help="the seeds' experiments, beside other libraries")
    _sweep.add_arguments(sweep)
    sweep.set_defaults(command=_sweep.run)
    readme = commands.add_parser("readme", help="write the README's tables from stored results")
    _readme.add_arguments(readme)
    readme.set_defaults(command=_readme.run)
    options = vars(parser.parse_args(arguments))
    return options.pop("command")(**options)


def _write_machine() -> int:
    record = _machine.machine_record()
    _machine.save_record(record)
    for key in sorted(record):
        print(f"{key:8} {record[key]}")
    print(f"\nasv files results under this name: asv run --machine {record['machine']}")
    return 0


def _run() -> int:
    timings, head = _timings(), _git("rev-parse", "HEAD")
    _refuse_dirty_package()
    _append_only()
    record = _machine.machine_record()
    _machine.save_record(record)
    say(f"machine {record['machine']}, torch {record['torch']}, triton {record['triton']}")
    if record["gpu"] == "none":
        say("no NVIDIA GPU here: all but codegen.*, for every architecture, will be n/a")
    else:
        say(f"{timings} timings on {record['gpu']}, and what a call costs besides")
    start, environment = time.time(), f"existing:{sys.executable}"
    LOG.parent.mkdir(exist_ok=True)
    with LOG.open("w") as log:
        options = ("-E", environment, "--machine", record["machine"], "--set-commit-hash", head)
        status = _asv(log, "run", "--show-stderr", "--bench", OWN_BENCHMARKS, *options)
        published = _asv(log, "publish")
    _print_figures(RESULTS / record["machine"], head, start)
    say(f"all that asv wrote, with the tables and the tracebacks: {LOG}")
    if published == 0:
        say(f"site: {ROOT / '.asv' / 'html' / 'index.html'} (serve it with: asv preview)")
    return status or published


def _timings() -> int:
    """How many the grid that the environment names has."""
    grids = [path_cells(active_paths(direction)) for direction in (FORWARD, BACKWARD)]
    return 2 * len(cells(active_grid())) + sum(map(len, grids))


def _show_figures(machine: str, commit: str) -> int:
    results, commit = RESULTS / machine, _git("rev-parse", "--verify", commit)
    if not list(results.glob(f"{commit[:8]}-*.json")):
        sys.exit(f"no result of commit {commit[:8]} in {results}")
    _print_figures(results, commit, since=0)
    return 0


def _refuse_dirty_package() -> None:
    """Exit unless the package is as committed: results are filed under the commit."""
    changed = _git("status", "--porcelain", "--", "rope_triton")
    if changed:
        sys.exit(
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
    # What is measured is what was found to be HEAD, whatever else is installed.
    paths = [str(ROOT), environment.get("ASV_PYTHONPATH")]
    environment["ASV_PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    # asv hides what benchmarks print; they find this process's stderr by its path.
    environment.setdefault(PROGRESS_VARIABLE, f"/proc/{os.getpid()}/fd/2")
    with subprocess.Popen(
        [*ASV, *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None  # a pipe
        for line in process.stdout:
            log.write(line)
            if _is_headline(line):
                print(line, end="", flush=True)
    return process.returncode


def _is_headline(line: str) -> bool:
    """Tell asv's messages from its tables, whose upper border has a message's bullet, and from what
    a benchmark wrote, which has four.
    """
    _, bullet, text = line.rpartition("·")
    return bool(bullet) and "····" not in line and not set(text) <= set("= \n")


def _print_figures(results: Path, commit: str, since: float) -> None:
    for path in sorted(results.glob(f"{commit[:8]}-*.json")):
        if path.stat().st_mtime < since:
            continue  # of another interpreter
        values = _figures.load_values(path)
        tables = (_figures.speed_table, _figures.path_table, _figures.codegen_table)
        for line in itertools.chain.from_iterable(table(values) for table in tables):
            print(line, flush=True)


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True)
    except FileNotFoundError:
        sys.exit("git is not on the PATH; results are filed under the commit that it names")
    if done.returncode:
        sys.exit(
            f"{done.stderr.strip()}\nresults are filed under a commit: measure in a clone, {ROOT} "
            "is none that git can read"
        )
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
