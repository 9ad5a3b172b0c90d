"""``python -m benchmarks training``: measure the providers on one GPU in rounds, and show them."""

import argparse
import itertools
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from .._system import checkout, gpu_monitor, machine, process, suite
from .._system.arguments import positive_minutes, some_seconds
from .._system.errors import CouldNotRunError
from .._system.journal import Journal
from .._system.process import ROOT
from .._system.progress import say
from . import measuring, parity_command, results
from .providers import PROVIDERS
from .sizes import POINTS, STEP, Point

SCRATCH = ROOT / ".asv" / "training"
EVIDENCE = ROOT / "benchmarks" / "evidence" / "training"
DONE, BAD = 0, 1
ROUNDS = 6  # the fewest with an interval of 95 %


class TrainingError(CouldNotRunError):
    """The command cannot go on; the message says why."""


# Their versions are part of what is measured. Liger has other kernels where CuTe DSL is installed.
_DISTRIBUTIONS = ("liger-kernel", "nvidia-cutlass-dsl", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12")
# A change of these is another measurement.
_MEASURING = tuple(
    f"_training/{name}.py" for name in ("measuring", "network", "providers", "sizes")
)

# What a round is said to take: a process to start, a function to compile and, when torch's cache
# has it, to load; a share of the peak that a step reaches. On an H200 with 16 cores the first round
# of 410M-2048 took 112 s, and others 59 to 69 s.
_START, _COMPILE, _LOAD, _PROFILE, _REACHED = 8.0, 3.5, 1.3, 0.5, 0.3
_CHECK_CALLS = 4

_DESCRIPTION = """\
Measure a training step of a transformer, and one attention sublayer, on the first GPU that
CUDA_VISIBLE_DEVICES shows: eager and compiled PyTorch, with this package's RoPE, with the plain
formula and without RoPE. Each round is a fresh process, in which the providers take turns. Figures
are written after every round. If a run was stopped or ran out of time, the same command resumes it.
A library that is not installed is n/a. With --parity each provider with RoPE trains a small model
instead, and its loss curves are compared with float32's. Exit status: 0 done, 1 a provider failed
or rounds are missing, 3 could not run."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    only = "measure only this size and context; may be repeated; default: all"
    add("--only", choices=POINTS, action="append", help=only)
    add(
        "--providers",
        type=_providers,
        metavar="A,B",
        help=f"some of {', '.join(PROVIDERS)}; default: all",
    )
    rounds = f"rounds to measure; default: {ROUNDS}"
    add("--rounds", type=_rounds, default=ROUNDS, metavar="N", help=rounds)
    curves = "compare loss curves with float32's; nothing is timed"
    add("--parity", action="store_true", help=curves)
    add(
        "--budget",
        type=positive_minutes,
        default=60.0,
        metavar="MINUTES",
        help="time limit; default: 60",
    )
    add("--output", type=Path, metavar="DIR", help="where to write; default: in .asv/training")
    add("--ship", action="store_true", help="also write to benchmarks/evidence/training")
    waits = "how long to wait for a GPU that another measurement uses; default: 0"
    add("--wait", type=some_seconds, default=0.0, metavar="SECONDS", help=waits)
    add("--afresh", action="store_true", help="rename what was measured before, and start again")


def _providers(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := [name for name in names if name not in PROVIDERS]:
        raise argparse.ArgumentTypeError(f"providers are {', '.join(PROVIDERS)}, got {unknown}")
    return tuple(name for name in PROVIDERS if name in names)


def _rounds(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"a whole number above 0 is needed, got {text!r}")
    return int(text)


def run(**given) -> int:
    """Do what the arguments say; the exit status."""
    options = argparse.Namespace(**given)
    names = options.providers or tuple(PROVIDERS)
    if options.ship and (options.providers or options.rounds < ROUNDS):
        raise TrainingError(f"what ships has every provider and at least {ROUNDS} rounds")
    if options.parity and (options.only or options.rounds != ROUNDS):
        raise TrainingError(
            "loss curves have a size and seeds of their own: no --only, no --rounds"
        )
    version = checkout.from_working_tree(ROOT, SCRATCH / "sources")
    if options.ship and not version.sha:
        raise TrainingError("what ships is of a commit, and rope_triton differs from HEAD")
    record, _ = machine.probe()
    if record["gpu"] == "none":
        raise TrainingError(
            "a training step needs an NVIDIA GPU: torch.cuda.is_available() is False"
        )
    directory = SCRATCH / record["machine"] / (version.sha or version.digest)[:8]
    directories = [options.output or directory / "output"]
    directories += [EVIDENCE] if options.ship else []
    deadline = time.monotonic() + 60 * options.budget
    uuid, statuses = gpu_monitor.gpu_uuid(), []
    head = {
        **{"commit": version.sha, "package": version.digest, "machine": record},
        **{"software": machine.versions(_DISTRIBUTIONS)},
    }
    if options.parity:
        head = parity_command.head(options.providers) | head
        path = directory / "parity.jsonl"
        with (
            gpu_monitor.gpu_lock(uuid, options.wait),
            _journal(path, head, options.afresh) as journal,
        ):
            shown = journal.header | {"command": head["command"]}
            return parity_command.run(journal, shown, options, uuid, deadline, directories)
    points = [POINTS[name] for name in dict.fromkeys(options.only or POINTS)]
    say(_said(points, names, options))
    with gpu_monitor.gpu_lock(uuid, options.wait):
        for point in points:
            of_point = {
                **{"format": results.FORMAT, "schema": results.SCHEMA, "point": str(point)},
                **{"batch": point.batch, "providers": list(names), **head},
                **{"suite": suite.digest(_MEASURING), "command": _command(options, point)},
            }
            with _journal(directory / f"{point}.jsonl", of_point, options.afresh) as journal:
                shown = journal.header | {"command": of_point["command"]}
                for _ in _rounds_of(journal, point, names, options.rounds, uuid, deadline):
                    _publish(point, shown, journal.entries, directories)
                statuses.append(_shown(point, shown, journal.entries, directories, options.rounds))
    return max(statuses)


def _journal(path: Path, head: dict, afresh: bool) -> Journal:
    if afresh and path.exists():
        say(f"renamed to {path.rename(path.with_suffix(f'.{time.time_ns()}.jsonl'))}")
    return Journal(path, head, may_differ=("command",))


# --- cost -----------------------------------------------------------------------------------------


def cost(point: Point, names: Sequence[str]) -> tuple[float, float]:
    """Seconds that the first round of a point and each other one may take, estimated.

    The first compiles what is later in torch's cache.
    """
    compiled = sum(PROVIDERS[name].backend is not None for name in names)
    functions = 2 * compiled + (compiled > 0)  # attention and a layer of each, one head
    calls, parts = 0.0, 0
    for part in itertools.chain.from_iterable(PROVIDERS[name].parts() for name in names):
        once = point.flops(part) / (_REACHED * max(results.PEAK_FLOPS.values()))
        sample = max(measuring.SAMPLE_SECONDS[part], 2 * once) + once
        calls += _CHECK_CALLS * once + measuring.TURNS * sample
        parts += 1
    each = _START + _LOAD * functions + calls
    return each + (_COMPILE - _LOAD) * functions + _PROFILE * parts, each


def _said(points: Sequence[Point], names: Sequence[str], options: argparse.Namespace) -> str:
    costs = [cost(point, names) for point in points]
    seconds = sum(first + (options.rounds - 1) * each for first, each in costs)
    return (
        f"{', '.join(map(str, points))}: {options.rounds} rounds each of {', '.join(names)}; about "
        f"{seconds / 60:.0f} minutes by an estimate for an H100, of which a first round takes "
        f"{costs[0][0]:.0f} s and another {costs[0][1]:.0f} s; at most {options.budget:g} minutes"
    )


# --- measure --------------------------------------------------------------------------------------


def _rounds_of(
    journal: Journal, point: Point, names: Sequence[str], count: int, uuid: str, deadline: float
) -> Iterator[dict]:
    """Measure the rounds that are missing, and store each; end before the deadline."""
    gpu = journal.header["machine"]["gpu"]
    if known := len(journal.entries):
        say(f"{point}: {known} rounds were there already")
    for number in range(known, count):
        estimated = cost(point, names)[number > 0]
        expected = max((each["seconds"] for each in journal.entries[1:]), default=estimated)
        start = time.monotonic()
        if start + expected > deadline:
            say(
                f"{point}: no time for round {number + 1} of {count}, about {expected:.0f} s; the "
                "same command goes on from there"
            )
            return
        gpu_monitor.require_free(uuid)
        with gpu_monitor.Watch(uuid) as watching:
            rows = _measured(point, names, number, journal.entries, uuid, gpu)
        seconds = time.monotonic() - start
        seen = watching.summary()
        entry = {"rows": rows, "seconds": seconds, "watch": seen}
        disturbed = gpu_monitor.why_invalid(seen, [each["watch"] for each in journal.entries])
        journal.append(entry)
        said = f"; disturbed: {disturbed}" if disturbed else ""
        say(f"{point}: round {number + 1} of {count}, {seconds:.0f} s{said}")
        yield entry


def _measured(
    point: Point, names: Sequence[str], number: int, before: Sequence[dict], uuid: str, gpu: str
) -> dict[str, dict]:
    """The rows of a round; what failed in an earlier one is not called again.

    A provider that ends the process costs that process, and the next one goes without it.

    Raises
    ------
    TrainingError
        If a process ends before any provider is called.
    """
    rows = {
        name: row for each in before for name, row in each["rows"].items() if "parts" not in row
    }
    environment = {"CUDA_VISIBLE_DEVICES": uuid}
    with tempfile.TemporaryDirectory() as scratch:
        noted = Path(scratch, "provider")
        while left := [name for name in names if name not in rows]:
            noted.write_text("", encoding="utf-8")
            order = left[:: 1 if number % 2 == 0 else -1]
            job = point, order, number == 0, uuid, gpu, noted
            try:
                rows |= process.call(_work, *job, env=environment)
            except RuntimeError as error:
                blamed = noted.read_text(encoding="utf-8")
                if blamed not in left:
                    raise TrainingError(f"no process can measure on {uuid}: {error}") from error
                status, _, output = str(error).partition("\n")
                rows[blamed] = {"error": f"{status}\n{output[-2000:]}"}
    return {name: rows[name] for name in names}


def _work(
    point: Point, names: Sequence[str], profiled: bool, uuid: str, gpu: str, noted: Path
) -> dict[str, dict]:
    """In a fresh process that sees one GPU."""
    if reason := machine.why_another_gpu(uuid, gpu):
        raise TrainingError(reason)
    return measuring.measured(point, names, profiled=profiled, note=noted.write_text)


def _command(options: argparse.Namespace, point: Point) -> str:
    words = ["python -m benchmarks training", f"--only {point}"]
    words += [f"--providers {','.join(options.providers)}"] if options.providers else []
    words += [f"--rounds {options.rounds}"] if options.rounds != ROUNDS else []
    return " ".join(words)


# --- show -----------------------------------------------------------------------------------------


def _publish(point: Point, header: dict, entries: Sequence[dict], directories: list[Path]) -> None:
    """Write a point's rounds as JSON lines, and its figures as Markdown."""
    page = results.as_markdown(header, results.of_entries(point, header, entries))
    results.write(str(point), (header, *entries), page, directories)


def _shown(
    point: Point, header: dict, entries: Sequence[dict], directories: list[Path], count: int
) -> int:
    """Print a point's tables; the status that they deserve."""
    if not entries:
        return BAD
    _publish(point, header, entries, directories)
    found = results.of_entries(point, header, entries)
    print(f"\n# {point}")
    for line in results.tables(found):
        print(line)
    print(f"\n{point}: {directories[-1]}")
    bad = [each for each in found if each.status == "failed" and each.part == STEP]
    for figure in bad:
        print(f"FAILED: {figure.provider}: {figure.why}")
    return BAD if bad or len(entries) < count else DONE
