# PYTHON_ARGCOMPLETE_OK: a shell may run this file to complete a command line
"""The command line, ``python -m benchmarks``.

Its --help works in a bare Python: what needs numpy, torch or asv is imported where it runs.
"""

import argparse
import contextlib
import io
import os
import signal
import sys
import threading
import time
from typing import NoReturn

from ._engine.compare import command as _compare
from ._engine.compare import release_search as _release
from ._engine.subject import DEFAULT, load
from ._engine.system import errors, machine, process
from ._engine.system.arguments import Parser
from ._engine.system.progress import say
from ._site import figures as _figures
from ._site import readme as _readme
from ._site import run as _run
from ._studies import study_command as _studies

_STATUSES = """\
Exit status: 0 done; 3 could not run, or an argument is invalid; 130 stopped by Ctrl-C. For the
meaning of 1 and 2, see COMMAND --help."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command; the exit status is that of asv where asv runs.

    Whatever ends it otherwise is said here: Ctrl-C, what it cannot do, a package that is not
    installed and an error of the environment in one line, a fault of the suite with its traceback.
    """
    options: dict = {}
    try:
        load(DEFAULT)  # its metrics have names and units in every command
        parser = _parser()
        with contextlib.suppress(ModuleNotFoundError):
            import argcomplete

            argcomplete.autocomplete(parser)  # ends the process if a shell asks for completions
        options = vars(parser.parse_args(arguments))
        words = {name: options[name] for name in options.keys() - {"command", "goes_on"}}
        status = options["command"](**words)
        errors.flush()
        return status
    except KeyboardInterrupt as stop:
        resumes = _resumes(options)
        say(f"stopped; {resumes}" if resumes else "stopped")
        return 128 + next(iter(stop.args), signal.SIGINT)
    except Exception as error:
        resumes = _resumes(options)
        return errors.status_of(error, f"; what was measured is kept, {resumes}" if resumes else "")
    finally:
        errors.flush(drop=True)


def _resumes(options: dict) -> str:
    """How to go on with what was measured, "" where nothing is kept."""
    if not options.get("goes_on") or options.get("show"):
        return ""
    again = " without --afresh" if options.get("afresh") else ""
    return f"the same command{again} resumes"


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


_COMMANDS = {
    "run": (_run, "measure HEAD, print the figures, write the web pages"),
    "figures": (_figures, "print the figures of a stored result"),
    "compare": (_compare, "compare two versions: slower, faster or wrong?"),
    "release": (
        _release,
        "compare HEAD with the last release; find the commits that made it slower",
    ),
    "study": (_studies, "measure it beside others; how reliable is compare?"),
    "readme": (_readme, "write the READMEs' tables from stored results"),
}
_RESUMED = ("compare", "release", "study")
"""Commands that keep what they measured when they are stopped."""


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
    for name, (module, about) in _COMMANDS.items():
        command = commands.add_parser(name, help=about)
        module.add_arguments(command)
        command.set_defaults(command=module.run, goes_on=name in _RESUMED)
    return parser


def _write_machine() -> int:
    record = machine.machine_record()
    machine.save_record(record)
    for key in sorted(record):
        print(f"{key:8} {record[key]}")
    print(f"\nasv files results under this name: asv run --machine {record['machine']}")
    return 0


if __name__ == "__main__":
    stop_on_signals()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a locale may lack an arrow or a "µ"
    sys.exit(main())
