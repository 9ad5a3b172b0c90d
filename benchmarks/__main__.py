# PYTHON_ARGCOMPLETE_OK: a shell may run this file to complete a command line
"""The command line, ``python -m benchmarks``.

Its --help works in a bare Python: what needs numpy, torch or asv is imported where it runs.
"""

import argparse
import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NoReturn, TextIO

from ._cells.grid import GRID_VARIABLE, GRIDS, OWN_BENCHMARKS, active
from ._compare import command as _compare
from ._compare import creep as _creep
from ._peers.sweep import command as _sweep
from ._site import asv_fixes
from ._site import figures as _figures
from ._site import readme as _readme
from ._system import machine, process
from ._system.arguments import COULD_NOT_RUN, Parser, positive_minutes
from ._system.process import ROOT
from ._system.progress import PROGRESS_VARIABLE, missing, say
from ._system.repository import GitError, git_text
from ._training import command as _training

RESULTS = ROOT / asv_fixes.RESULTS
LOG = ROOT / ".asv" / "run.log"
ASV = [sys.executable, "-m", "asv"]
ASV_SECONDS = 5.0

_STORED = 10  # commits that a message names
_STATUSES = """\
Exit status: 0 done; 3 could not run, or an argument is invalid; 130 stopped by Ctrl-C. For the
meaning of 1 and 2, see COMMAND --help."""


class CouldNotRunError(RuntimeError):
    """A command cannot do what it was asked to; the message says why."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command; the exit status is that of asv where asv runs.

    Ctrl-C ends it with one line and 130, what it cannot do and a package that is not installed with
    one line and 3.
    """
    options: dict = {}
    try:
        parser = _parser()
        with contextlib.suppress(ModuleNotFoundError):
            import argcomplete

            argcomplete.autocomplete(parser)  # ends the process if a shell asks for completions
        options = vars(parser.parse_args(arguments))
        given = {name: options[name] for name in options.keys() - {"command", "goes_on"}}
        return options["command"](**given)
    except KeyboardInterrupt as stop:
        again = " without --afresh" if options.get("afresh") else ""
        kept = options.get("goes_on") and options.get("what") != "simulation"
        say(f"stopped; the same command{again} resumes" if kept else "stopped")
        return 128 + next(iter(stop.args), signal.SIGINT)
    except (CouldNotRunError, machine.MachineError) as error:
        say(f"could not run: {error}")
        return COULD_NOT_RUN
    except ModuleNotFoundError as error:
        how = missing(error)
        if how is None:
            raise
        say(f"could not run: {how}")
        return COULD_NOT_RUN


_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def stop_on_signals() -> None:
    """Let Ctrl-C, SIGTERM and SIGHUP end what this process started, then ``main``."""

    def stop(number: int, frame: object) -> NoReturn:
        for each in _STOPPING:
            signal.signal(each, signal.SIG_IGN)  # the rest takes a moment: do not begin it again
        process.stop()
        raise KeyboardInterrupt(number)

    for each in _STOPPING:
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, stop)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_insist, args=(reader, threading.get_ident()), daemon=True).start()


def _insist(reader: int, main_thread: int) -> None:
    """Repeat the first signal until it is handled.

    Python misses one that comes just before the main thread starts to wait for another thread.
    """
    (number,) = os.read(reader, 1)
    while not process.stopping():
        signal.pthread_kill(main_thread, number)
        time.sleep(0.05)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m benchmarks",
        description="Measure rope_triton and judge what changed.",
        epilog=_STATUSES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    machine = commands.add_parser(
        "machine",
        help="write the record of this machine that asv needs",
        description="Write the record of this machine under which asv stores results: its name, "
        "GPU, driver, CUDA, torch and triton.",
    )
    machine.set_defaults(command=_write_machine)
    run = commands.add_parser(
        "run",
        help="measure HEAD, print the figures, write the web pages",
        description="Measure HEAD with this interpreter, print the figures, and write the web "
        "pages to .asv/html. Without a GPU, only the compiled machine code is measured. Exit "
        "status: that of asv (0 done, 2 a benchmark failed), or 3 could not run.",
    )
    run.add_argument(
        "--grid",
        choices=sorted(GRIDS),
        help=f"cells to measure; default: the value of {GRID_VARIABLE}, or full",
    )
    run.set_defaults(command=_run)
    figures = commands.add_parser(
        "figures",
        help="print the figures of a stored result",
        description="Print the figures of a stored result.",
    )
    figures.add_argument(
        "machine",
        nargs="?",
        help="name of a directory in .asv/results; default: the one with the newest result",
    )
    figures.add_argument(
        "commit", nargs="?", help="a commit that was measured there; default: the newest one"
    )
    figures.set_defaults(command=_show_figures)
    compare = commands.add_parser("compare", help="compare two versions: slower, faster or wrong?")
    _compare.add_arguments(compare)
    compare.set_defaults(command=_compare.run, goes_on=True)
    creep = commands.add_parser(
        "creep", help="is HEAD slower than the last release, and since when?"
    )
    _creep.add_arguments(creep)
    creep.set_defaults(command=_creep.run, goes_on=True)
    evidence = commands.add_parser("evidence", help="measure how reliable compare is")
    _add_evidence_arguments(evidence)
    evidence.set_defaults(command=_make_evidence, goes_on=True)
    sweep = commands.add_parser("sweep", help="measure the package beside other libraries")
    _sweep.add_arguments(sweep)
    sweep.set_defaults(command=_sweep.run, goes_on=True)
    training = commands.add_parser("training", help="what RoPE costs in a training step")
    _training.add_arguments(training)
    training.set_defaults(command=_training.run, goes_on=True)
    readme = commands.add_parser("readme", help="write the READMEs' tables from stored results")
    _readme.add_arguments(readme)
    readme.set_defaults(command=_readme.run)
    return parser


def _add_evidence_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Make a file of benchmarks/evidence. All but simulation, which reads aa.json, need a GPU."
    )
    parser.add_argument("what", choices=("aa", "power", "mutants", "simulation"), help="the file")
    parser.add_argument("--commit", default="HEAD", help="version to measure; default: HEAD")
    parser.add_argument(
        "--budget",
        type=positive_minutes,
        default=60.0,
        metavar="MINUTES",
        help="time limit; default: 60",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        type=_mutant,
        metavar="MUTANT",
        help="measure only this mutant and keep the others in the file; may be repeated",
    )


def _mutant(name: str) -> str:
    from ._compare import mutants

    known = mutants.load()
    if name not in known:
        raise argparse.ArgumentTypeError(f"mutants are {', '.join(known)}, got {name!r}")
    return name


def _make_evidence(**options) -> int:
    from ._compare import evidence

    return evidence.run(**options)


def _write_machine() -> int:
    record = machine.machine_record()
    machine.save_record(record)
    for key in sorted(record):
        print(f"{key:8} {record[key]}")
    print(f"\nasv files results under this name: asv run --machine {record['machine']}")
    return 0


def _run(grid: str | None) -> int:
    if grid:
        os.environ[GRID_VARIABLE] = grid  # for asv and what it starts
    try:
        active(GRIDS)
    except ValueError as error:  # of the variable that names the grid
        raise CouldNotRunError(str(error)) from None
    head = _git("rev-parse", "HEAD")
    _refuse_dirty_package()
    _require_main()
    _append_only()
    record = machine.machine_record()
    machine.save_record(record)
    say(f"machine {record['machine']}, torch {record['torch']}, triton {record['triton']}")
    if record["gpu"] == "none":
        say("no NVIDIA GPU here: codegen.* is measured for every architecture, all else is n/a")
    start, environment = time.time(), f"existing:{sys.executable}"
    LOG.parent.mkdir(exist_ok=True)
    with LOG.open("w") as log:
        options = ("-E", environment, "--machine", record["machine"], "--set-commit-hash", head)
        status = _asv(log, "run", "--show-stderr", "--bench", OWN_BENCHMARKS, *options)
        published = _asv(log, "publish")
    _print_figures(RESULTS / record["machine"], head, start)
    say(f"asv's whole output, with tables and tracebacks: {LOG}")
    if published == 0:
        say(f"site: {ROOT / '.asv' / 'html' / 'index.html'} (serve it with: asv preview)")
    return status or published


def _show_figures(machine: str | None, commit: str | None) -> int:
    asv_fixes.fill_results(ROOT)
    stored = sorted(RESULTS.glob("*/*-*.json"), key=_date, reverse=True)
    known = sorted({path.parent.name for path in stored})
    if machine is not None:
        stored = [path for path in stored if path.parent.name == machine]
    if not stored:
        there = f"there are those of {', '.join(known)}" if known else f"{RESULTS} has none"
        raise CouldNotRunError(
            f"no results of a machine{f' {machine!r}' if machine else ''}: {there}"
        )
    results, sha = stored[0].parent, stored[0].name.partition("-")[0]
    if commit is None:
        say(f"machine {results.name}, commit {sha}")
    else:
        sha = _measured(commit, list(dict.fromkeys(path.name[:8] for path in stored)))
    _print_figures(results, sha, since=0)
    return 0


def _date(result: Path) -> tuple[int, Path]:
    return json.loads(result.read_text())["date"], result


def _measured(commit: str, stored: list[str]) -> str:
    """The full SHA of a commit among those that are stored, the newest first."""
    _git("rev-parse", "--git-dir")
    more = f" and {len(stored) - _STORED} older ones" if len(stored) > _STORED else ""
    there = f"stored, from the newest, are {', '.join(stored[:_STORED])}{more}"
    words = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
    try:
        sha = git_text(ROOT, *words)
    except GitError:
        said = f"{commit!r} is no commit of the repository {ROOT}; {there}"
        raise CouldNotRunError(said) from None
    if sha[:8] not in stored:
        raise CouldNotRunError(f"no result of commit {sha[:8]}; {there}")
    return sha


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
    changed = _git("status", "--porcelain", "--", "rope_triton")
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
        tempfile.TemporaryFile("w+", errors="replace") as problems,
        subprocess.Popen(
            [*ASV, *arguments],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=problems,
            text=True,
            errors="replace",
        ) as process,
    ):
        assert process.stdout is not None  # a pipe
        try:
            for line in process.stdout:
                log.write(line)
                if _is_headline(line):
                    print(line, end="", flush=True)
        except KeyboardInterrupt:
            _end(process)  # its traceback is of no use
            raise
        process.wait()
        problems.seek(0)
        text = problems.read()
        log.write(text)
        print(text, end="", file=sys.stderr, flush=True)
    return process.returncode


def _end(asv: subprocess.Popen) -> None:
    """Wait for asv to end, then interrupt it, then kill it: Ctrl-C in a terminal has reached it."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        asv.wait(ASV_SECONDS)
    if asv.poll() is None:
        asv.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        asv.wait(ASV_SECONDS)
    asv.kill()


def _is_headline(line: str) -> bool:
    """Whether a line is a message from asv, not a table's border or a benchmark's output."""
    _, bullet, text = line.rpartition("·")
    return bool(bullet) and "····" not in line and not set(text) <= set("= \n")


def _print_figures(results: Path, commit: str, since: float) -> None:
    for path in sorted(results.glob(f"{commit[:8]}-*.json")):
        if path.stat().st_mtime < since:
            continue  # of another interpreter
        values = _figures.load_values(path)
        for line in [*_figures.speed_table(values), *_figures.codegen_table(values)]:
            print(line, flush=True)


def _git(*arguments: str) -> str:
    """What git prints; where it fails, the command ends and says why."""
    try:
        return git_text(ROOT, *arguments)
    except GitError as error:
        raise CouldNotRunError(
            f"{error}\nresults are filed under a commit: measure in a clone, {ROOT} is none that "
            "git can read"
        ) from None


if __name__ == "__main__":
    stop_on_signals()
    sys.exit(main())
