"""``python -m benchmarks compare BASE [HEAD]``: two versions in, a verdict and a status out.

What measures and judges is imported where it runs: --help works without numpy and torch.
"""

import argparse
import dataclasses
import json
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ..subject import DEFAULT, load
from ..system import repository
from ..system.arguments import (
    STDOUT,
    file_or_stdout,
    output_file,
    positive_minutes,
    some_seconds,
)
from ..system.errors import CouldNotRunError
from ..system.files import write_atomically
from ..system.process import ROOT, SUITE
from ..verdict.release import only_words
from ..verdict.rules import MAX_ROUNDS, MIN_ROUNDS, Answer, Key

if TYPE_CHECKING:
    from ..system.checkout import Version
    from ..verdict.schema import Comparison

SCRATCH = ROOT / ".asv" / "compare"

STATUS = {Answer.PASS: 0, Answer.FAIL: 1, Answer.CANNOT_TELL: 2}

ROUNDS = 12
# Where little changed the first look takes 5 on an H200; the rest is for all that may have changed,
# and for a second look.
BUDGET_MINUTES = 15
# Two versions take 4 to 8 on two cores.
EXACT_BUDGET_MINUTES = 20

_DESCRIPTION = """\
Measure two versions of the package in fresh processes that take turns, and judge each cell and the
change as a whole. Without a GPU, or with --exact-only, compare the machine code for all
architectures and what calls cost on the host. If a run was stopped or ran out of time, the same
command resumes it.

Exit status: 0 pass, 1 fail, 2 cannot tell, 3 could not run."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--subject",
        default=DEFAULT,
        metavar="MODULE",
        help=f"module that says what is measured; default: {DEFAULT}",
    )
    base = parser.add_argument("base", help="commit or branch to compare with")
    parser.add_argument("head", nargs="?", help="commit or branch; default: the working tree")
    parser.add_argument(
        "--rounds",
        type=_rounds,
        default=ROUNDS,
        help=f"even number, {MIN_ROUNDS} to {MAX_ROUNDS}; default: {ROUNDS}",
    )
    parser.add_argument(
        "--budget",
        type=positive_minutes,
        metavar="MINUTES",
        help=f"time limit; default: {BUDGET_MINUTES}, or {EXACT_BUDGET_MINUTES} without the GPU",
    )
    parser.add_argument(
        "--exact-only",
        action="store_true",
        help="do not use the GPU: compare the machine code, and what calls cost on the host",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="measure also what is the same in both versions, as far as the time permits",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        type=_key,
        metavar="'METRIC PARAMETER ...'",
        help="time only this; may be repeated",
    )
    parser.add_argument(
        "--afresh",
        action="store_true",
        help="discard what earlier runs of this comparison measured and compiled",
    )
    parser.add_argument(
        "--wait",
        type=some_seconds,
        default=0.0,
        metavar="SECONDS",
        help="how long to wait for a GPU that another measurement uses; default: 0",
    )
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write the report as JSON")
    parser.add_argument(
        "--markdown",
        type=file_or_stdout,
        metavar="FILE",
        help="write the report to this file as Markdown; -: print it as Markdown",
    )

    class Show(argparse.Action):
        def __call__(self, parser, namespace, values, option_string=None):
            setattr(namespace, self.dest, values)
            base.required = False

    parser.add_argument(
        "--show",
        action=Show,
        type=Path,
        nargs="?",
        const=SUITE / "evidence" / "reports" / "fail.json",
        metavar="FILE",
        help="measure nothing: print the report that --json wrote, which needs nothing installed; "
        "default: a change that failed on an H200",
    )


def _rounds(text: str) -> int:
    if not text.isdecimal() or int(text) % 2 or not MIN_ROUNDS <= int(text) <= MAX_ROUNDS:
        raise argparse.ArgumentTypeError(
            f"an even number of {MIN_ROUNDS} to {MAX_ROUNDS} is needed, got {text!r}"
        )
    return int(text)


def _key(text: str) -> Key:
    metric, *params = text.split() or [""]
    if "." not in metric:
        raise argparse.ArgumentTypeError(f"a metric and its parameters are needed, got {text!r}")
    return Key(metric, tuple(params))


def run(**options) -> int:
    """Compare, write, print; the exit status."""
    asked = argparse.Namespace(**options)
    if asked.show:
        _report(_stored(asked.subject, asked.show), asked.markdown)
        return 0
    return STATUS[compare(asked).answer]


def compare(options: argparse.Namespace) -> "Comparison":
    """The comparison that the options ask for, printed and written."""
    from ..verdict.schema import to_json

    start = time.monotonic()
    comparison = _measured(options, start)
    minutes = comparison.minutes + (time.monotonic() - start) / 60
    comparison = dataclasses.replace(comparison, minutes=minutes)
    if options.json:
        document = json.dumps(to_json(comparison), indent=1, allow_nan=False)
        write_atomically(options.json, document.encode())
    _report(comparison, options.markdown)
    return comparison


def _stored(subject: str, file: Path) -> "Comparison":
    from ..system.untrusted import load_json
    from ..verdict.schema import from_json

    load(subject)
    try:
        return from_json(load_json(file.read_bytes()))
    except ValueError as error:
        raise CouldNotRunError(f"{file} is no report of compare --json: {error}") from None


def _report(comparison: "Comparison", markdown_file: Path | None) -> None:
    """Print the report; also write it to a file as Markdown, or print that alone for "-"."""
    from ..report.markdown import markdown
    from ..report.terminal import terminal

    text = markdown(comparison, repository.page(ROOT)) if markdown_file else ""
    if markdown_file and markdown_file != STDOUT:
        write_atomically(markdown_file, text.encode())
    print(text if markdown_file == STDOUT else terminal(comparison))


def _versions(package: str, options: argparse.Namespace) -> "dict[str, Version]":
    from ..system import checkout

    place = ROOT, SCRATCH / "sources", package
    base = checkout.from_commit(options.base, *place)
    if options.head is None:
        return {"base": base, "head": checkout.from_working_tree(*place)}
    return {"base": base, "head": checkout.from_commit(options.head, *place)}


def _measured(options: argparse.Namespace, start: float) -> "Comparison":
    """The comparison, its minutes those of earlier runs."""
    from ..system import machine as _machine
    from ..verdict.note import Note
    from ..verdict.schema import Comparison, Side
    from . import session

    _require_effect(options)
    subject = load(options.subject)
    pair = _versions(subject.PACKAGE, options)
    base, head = pair["base"], pair["head"]
    machine, arch = _machine.probe()
    same = base.digest == head.digest
    changes = repository.requirement_changes(base.requirements, head.requirements)
    comparison = Comparison(
        base=Side(base.name, base.sha),
        head=Side(head.name, head.sha),
        machine=machine,
        same_sources=same,
        unmeasured=tuple(Note("requirement", change) for change in changes),
        reproduce=_reproduce(options),
    )
    if same and not options.all:
        return comparison
    only_exact = options.exact_only or machine["gpu"] == "none"
    usual = EXACT_BUDGET_MINUTES if only_exact else BUDGET_MINUTES
    request = session.Request(
        subject=subject,
        pair=pair,
        arch=arch,
        rounds=options.rounds,
        deadline=start + 60 * (options.budget or usual),
        exact_only=options.exact_only,
        wait_seconds=options.wait,
        afresh=options.afresh,
        everything=options.all,
        only=frozenset(options.only),
    )
    return session.compare(request, comparison, SCRATCH)


def _require_effect(options: argparse.Namespace) -> None:
    """Refuse what means nothing where no clock is looked at."""
    times = {
        "--only": options.only,
        "--rounds": options.rounds != ROUNDS,
        "--wait": options.wait,
    }
    if options.exact_only and any(times.values()):
        flags = " and ".join(flag for flag, value in times.items() if value)
        raise CouldNotRunError(f"--exact-only times nothing on a GPU: leave out {flags}")


def _reproduce(options: argparse.Namespace) -> str:
    words = ["python -m benchmarks compare", shlex.quote(options.base)]
    words += [shlex.quote(options.head)] if options.head else []
    words += [f"--rounds {options.rounds}"] if options.rounds != ROUNDS else []
    words += ["--exact-only"] * options.exact_only + ["--all"] * options.all
    words += map(shlex.quote, only_words(options.only))
    words += [f"--subject {shlex.quote(options.subject)}"] * (options.subject != DEFAULT)
    return " ".join(words)
