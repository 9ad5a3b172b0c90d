"""``python -m benchmarks training --parity``: train the providers on one GPU, and compare."""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from .._system import machine, process, suite
from .._system.errors import CouldNotRunError
from .._system.journal import Journal
from .._system.progress import missing, say
from . import parity_results, results
from .parity import JOBS, STEPS, Job, Run, cost, runs, text_digest, trained, with_rope
from .providers import PROVIDERS
from .sizes import PARITY

DONE, BAD = 0, 1
NAME = "parity"
_FINE = (parity_results.PASS, parity_results.UNAVAILABLE)
# A change of these is another experiment.
_TRAINING = tuple(f"_training/{name}.py" for name in ("network", "parity", "providers", "sizes"))


class ParityError(CouldNotRunError):
    """The command cannot go on; the message says why."""


def head(chosen: Sequence[str] | None) -> dict:
    """What a journal of loss curves begins with, beside package and machine.

    Curves of different providers go into one journal.

    Raises
    ------
    ParityError
        If none of the chosen providers has RoPE.
    """
    words = ["python -m benchmarks training --parity"]
    words += [f"--providers {','.join(_names(chosen))}"] if chosen else []
    return {
        **{"format": parity_results.FORMAT, "schema": parity_results.SCHEMA, "point": str(PARITY)},
        **{"batch": PARITY.batch, "steps": STEPS, "text": text_digest()},
        **{"suite": suite.digest(_TRAINING), "command": " ".join(words)},
    }


def _names(chosen: Sequence[str] | None) -> tuple[str, ...]:
    names = with_rope(chosen or PROVIDERS)
    if not names:
        raise ParityError(f"loss curves are of providers with RoPE, got {chosen}")
    return names


def run(
    journal: Journal,
    shown: dict,
    options: argparse.Namespace,
    uuid: str,
    deadline: float,
    directories: Sequence[Path],
) -> int:
    """Train what is missing, and publish after each process; the status that the curves deserve.

    Parameters
    ----------
    journal : Journal
        The curves that are there.
    shown : dict
        The header to publish.
    options : Namespace
        Of ``providers`` and ``budget``.
    uuid : str
        The GPU's.
    deadline : float
        Of ``time.monotonic``.
    directories : sequence of Path
        Where tables, curves and the plot go.
    """
    names = _names(options.providers)
    known = parity_results.by_key(journal.entries)
    wanted = {each: [job for job in JOBS if (each, job) not in known] for each in runs(names)}
    left = {each: jobs for each, jobs in wanted.items() if jobs}
    costs = {each: cost(each, len(jobs)) for each, jobs in left.items()}
    say(
        f"{PARITY}: {sum(map(len, left.values()))} loss curves, of {', '.join(names)}; about "
        f"{sum(costs.values()) / 60:.0f} minutes by an estimate for an H100; at most "
        f"{options.budget:g} minutes"
    )
    for each, jobs in left.items():
        start = time.monotonic()
        if start + costs[each] > deadline:
            say(f"no time for {each}, {costs[each]:.0f} s; the same command goes on from there")
            break
        journal.append(*_trained_apart(each, jobs, uuid, shown["machine"]["gpu"]))
        say(f"{each}: {len(jobs)} curves, {time.monotonic() - start:.0f} s")
        _publish(names, shown, journal.entries, directories, drawn=False)
    drawn = _drawn(names, shown, journal.entries, directories)
    judged = _publish(names, shown, journal.entries, directories, drawn)
    for line in parity_results.table(judged):
        print(line)
    print(f"\n{PARITY}: {directories[-1]}")
    bad = [row for row in judged if row.status not in _FINE]
    for row in bad:
        print(f"{row.status.upper()}: {row.provider} in {row.dtype}, {row.task}: {row.why}")
    return BAD if bad else DONE


def _publish(
    names: Sequence[str],
    header: dict,
    entries: Sequence[dict],
    directories: Sequence[Path],
    drawn: bool,
) -> list[parity_results.Row]:
    """Write the curves as JSON lines, and what they say as Markdown; the rows of its table."""
    judged = parity_results.rows(names, entries)
    page = parity_results.as_markdown(header, judged, drawn)
    results.write(NAME, (header, *entries), page, directories)
    return judged


def _drawn(
    names: Sequence[str], header: dict, entries: Sequence[dict], directories: Sequence[Path]
) -> bool:
    """Write the plot if matplotlib is installed, and say whether it is."""
    package = f"commit {header['commit'][:8]}" if header["commit"] else "a working tree"
    about = f"{PARITY} on {header['machine']['gpu']}, {package}"
    try:
        for directory in directories:
            parity_results.draw(names, entries, about, directory / f"{NAME}.png")
    except ModuleNotFoundError as error:
        if (how := missing(error)) is None:
            raise
        say(f"no plot: {how}; then the same command draws it")
        return False
    return True


def _trained_apart(run: Run, jobs: Sequence[Job], uuid: str, gpu: str) -> list[dict]:
    """The curves from a process of their own; a process that ends early is each one's error.

    Raises
    ------
    ParityError
        If the process ends before it finds the GPU.
    """
    with tempfile.TemporaryDirectory() as scratch:
        noted = Path(scratch, "found")
        try:
            return process.call(
                *(_work, run, jobs, uuid, gpu, noted), env={"CUDA_VISIBLE_DEVICES": uuid}
            )
        except RuntimeError as error:
            if not noted.exists():
                raise ParityError(f"no process can train on {uuid}: {error}") from error
            status, _, output = str(error).partition("\n")
            why = {"error": f"{status}\n{output[-2000:]}"}
            return [{**job._asdict(), **run._asdict(), **why} for job in jobs]


def _work(run: Run, jobs: Sequence[Job], uuid: str, gpu: str, noted: Path) -> list[dict]:
    """In a fresh process that sees one GPU."""
    if reason := machine.why_another_gpu(uuid, gpu):
        raise ParityError(reason)
    noted.touch()
    return trained(run, PARITY, jobs, "cuda")
