"""``python -m benchmarks._site``: the steps of the workflow that keeps the published history."""

import argparse
import subprocess
import sys
from pathlib import Path

from .._engine.subject import DEFAULT, load
from .._engine.system.arguments import Parser
from .._engine.system.process import ROOT
from . import accept, branch

RESULTS = ROOT / "benchmarks" / "results"


def main(arguments: list[str] | None = None) -> int:
    """Run a command. Exit status: 0; 1 where part of it failed, and the rest was done; 3 for a
    mistake in the arguments; with ``hold``, that of the command.

    Only what uses the GPU imports what this needs: the rest runs with nothing installed.
    """
    parser = Parser(
        prog="python -m benchmarks._site",
        description="The steps of the workflow that keeps the published history.",
    )
    commands = parser.add_subparsers(required=True, dest="command")
    restore = commands.add_parser("restore", help="take the stored results, if there are any")
    restore.add_argument("remote")
    missing = commands.add_parser("measure", help="measure what main has and a machine has not")
    missing.add_argument("machine")
    hold = commands.add_parser("hold", help="run a command while nothing else measures on the GPU")
    hold.add_argument("machine")
    hold.add_argument("line", nargs=argparse.PARSER, metavar="COMMAND")
    incoming = commands.add_parser("accept", help="check results of other jobs, and add them")
    incoming.add_argument("incoming", type=Path, help="holds a directory results-MACHINE for each")
    incoming.add_argument("machines", nargs="+", help="the machines that may report")
    store = commands.add_parser("store", help="store the results in place of others")
    store.add_argument("remote")
    pages = commands.add_parser("api", help="add the package's functions to a published site")
    pages.add_argument("site", type=Path)
    options = parser.parse_args(arguments)
    match options.command:
        case "restore":
            restored = branch.restore(ROOT, options.remote)
            print("restored" if restored else "nothing is stored yet: starting from this clone's")
        case "measure":
            from . import to_measure

            return to_measure.measure(ROOT, options.machine)
        case "hold":
            from . import to_measure

            with to_measure.gpu_of(options.machine):
                return subprocess.run(options.line, stdin=subprocess.DEVNULL).returncode
        case "accept":
            return _accept(options.incoming, options.machines)
        case "store":
            print(branch.store(ROOT, options.remote))
        case "api":
            from . import api_pages

            api_pages.write(options.site)
    return 0


def _accept(incoming: Path, machines: list[str]) -> int:
    """Take each machine's results on its own: a bad one costs the others nothing."""
    commits, status = accept.commits_of(ROOT), 0
    for machine in machines:
        directory = incoming / f"results-{machine}"
        if not directory.is_dir():
            print(f"{machine}: no results came")
            continue
        try:
            names = accept.accept(directory, machine, RESULTS, commits)
        except accept.RefusedError as error:
            print(f"{machine}: refused: {error}")
            status = 1
        else:
            print(f"{machine}: {len(names)} results")
    return status


if __name__ == "__main__":
    load(DEFAULT)
    sys.exit(main())
