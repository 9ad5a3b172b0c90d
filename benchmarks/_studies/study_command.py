"""``python -m benchmarks study NAME``: measure what shows how fast and how reliable this is."""

import argparse
import time
from collections.abc import Iterable
from pathlib import Path

from .._engine.system import checkout, gpu_monitor, machine
from .._engine.system.arguments import positive_minutes, some_seconds
from .._engine.system.journal import read
from .._engine.system.process import ROOT
from . import runner
from .peers import peers_study
from .reliability import reliability_studies
from .runner import Part, Place, Study, StudyError
from .training import parity, training_study

SCRATCH = ROOT / ".asv" / "studies"

STUDIES: dict[str, Study] = {
    "peers": peers_study.STUDY,
    "training": training_study.STUDY,
    "parity": parity.STUDY,
    **reliability_studies.STUDIES,
}

_EPILOG = """\
Files are written after every step. If a run was stopped or ran out of time, the same command
resumes it. The GPU is the first that CUDA_VISIBLE_DEVICES shows.

Exit status: 0 done, 1 something failed or is missing, 3 could not run."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Measure one of the studies below, and write its tables."
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    studies = parser.add_subparsers(dest="study", required=True, metavar="NAME")
    for name, study in STUDIES.items():
        options = studies.add_parser(
            name,
            help=study.about,
            description=study.description,
            epilog=_EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        _add_options(options, study)


def _add_options(parser: argparse.ArgumentParser, study: Study) -> None:
    add, names = parser.add_argument, tuple(study.names())
    parser.set_defaults(only=[], commit=None, redraw=None)
    if names:
        only = f"measure only this; may be repeated; default: all of {', '.join(names)}"
        add("--only", choices=names, metavar="NAME", action="append", default=[], help=only)
    budget = "time limit; default: 60"
    add("--budget", type=positive_minutes, default=60.0, metavar="MINUTES", help=budget)
    add("--output", type=Path, metavar="DIR", help="where to write; default: in .asv/studies")
    add("--ship", action="store_true", help="also write to benchmarks/evidence what is complete")
    waits = "how long to wait for a GPU that another measurement uses; default: 0"
    add("--wait", type=some_seconds, default=0.0, metavar="SECONDS", help=waits)
    add("--afresh", action="store_true", help="start over; earlier results are kept, renamed")
    if study.format:
        redraw = "measure nothing; write the pages and plots of what DIR holds again"
        add("--redraw", type=Path, metavar="DIR", help=redraw)
    if study.needs == "commit":
        add("--commit", default="HEAD", help="version to measure; default: HEAD")
    study.add_arguments(parser)


def run(**arguments) -> int:
    options = argparse.Namespace(**arguments)
    study = STUDIES[options.study]
    return _redraw(study, options) if options.redraw else _measure(study, options)


def _measure(study: Study, options: argparse.Namespace) -> int:
    """Measure the parts that are selected; StudyError without a GPU, or if none of them ships."""
    place = _place(study, options)
    parts = study.parts(options, place)
    if options.ship and place.uuid and not place.version.sha:
        raise StudyError("what ships is of a commit, and rope_triton differs from HEAD")
    directories = [options.output or place.directory / "output"]
    directories += _shipped(study, options, parts, place.machine)
    return runner.run(parts, place, directories, options.afresh, options.wait)


def _shipped(
    study: Study, options: argparse.Namespace, parts: Iterable[Part], machine: dict
) -> list[Path]:
    """The evidence, if parts are to be written there, too."""
    if not options.ship:
        return []
    for part in parts:
        if part.why_not_shipped:
            raise StudyError(f"{part.name} would not ship: {part.why_not_shipped}")
    return [study.evidence(machine["machine"])]


def _place(study: Study, options: argparse.Namespace) -> Place:
    sources, deadline = SCRATCH / "sources", time.monotonic() + 60 * options.budget
    if study.needs == "commit":
        version = checkout.from_commit(options.commit, ROOT, sources)
    else:
        version = checkout.from_working_tree(ROOT, sources)
    if not study.needs:
        return Place(version, {"machine": "no-gpu"}, "", "", SCRATCH, deadline)
    record, arch = machine.probe()
    if record["gpu"] == "none":
        raise StudyError(
            f"study {options.study} needs an NVIDIA GPU: torch.cuda.is_available() is False"
        )
    return Place(version, record, arch, gpu_monitor.gpu_uuid(), SCRATCH, deadline)


def _redraw(study: Study, options: argparse.Namespace) -> int:
    """Write the stored parts of a directory again; StudyError if it holds none."""
    assert study.stored
    good = []
    for path in sorted(options.redraw.glob("*.jsonl")):
        header, *entries = read(path)
        if header.get("format") == study.format and path.stem in (options.only or [path.stem]):
            part, output = study.stored(header, entries), options.output or options.redraw
            directories = [output, *_shipped(study, options, [part], header["machine"])]
            good.append(runner.publish(part, header, entries, directories))
    if not good:
        raise StudyError(f"{options.redraw} holds no files of study {options.study}")
    return runner.DONE if all(good) else runner.BAD
