"""Run one comparison, of machine code or on a GPU, and keep what it measures."""

import hashlib
import itertools
import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ..machine_code import worker_pool
from ..subject import Subject, files
from ..system import checkout, gpu_monitor, suite
from ..system.journal import keep_newest
from ..verdict.note import Note
from ..verdict.schema import Comparison
from . import compiled, exact, findings, on_gpu, rounds, selection
from .findings import BASE, HEAD, SIDES
from .options import Request
from .rounds import Rounds

_MOST_JOURNALS = 100  # of comparisons, half a megabyte each
_MOST_KERNELS = 20_000  # in Triton's cache, some 4 GB
_Machine = Mapping[str, str]

_MEASURING = (
    *("_engine/subject.py", "_engine/measure/*.py", "_engine/system/process.py"),
    *("_engine/compare/measure.py", "_engine/compare/rounds.py"),
)


def compare(request: Request, unmeasured: Comparison, scratch: Path) -> Comparison:
    """Compare two versions on this machine, keeping what is measured below ``scratch``.

    ``unmeasured`` says who is compared, and on which machine. The minutes of the comparison that is
    returned are those of earlier runs.
    """
    machine, subject = unmeasured.machine, request.subject
    triton_cache = cache(scratch, machine)
    ledgers, again = {}, "the same command" + ", without --afresh," * request.afresh
    for side, digest in request.digests.items():
        store = compiled.Store(scratch, subject, digest, machine)
        if request.afresh:
            store.drop()
        ledgers[side] = compiled.Ledger(side, store, request.deadline, again, triton_cache)
    if machine["gpu"] == "none" or request.exact_only:
        return _compare_code(request, unmeasured, ledgers)
    uuid = gpu_monitor.gpu_uuid()
    with gpu_monitor.gpu_lock(uuid, request.wait_seconds):
        plan = rounds.Plan(
            subject.__name__, _in_order(request), triton_cache, uuid, request.deadline
        )
        journal = scratch / "states" / f"{_name(request, machine)}.jsonl"
        if request.afresh:
            journal.unlink(missing_ok=True)
        if journal.exists():
            os.utime(journal)
        keep_newest(journal.parent, _MOST_JOURNALS)
        with Rounds(plan, journal, _header(request, plan, machine)) as measured:
            return on_gpu.Run(request, ledgers, measured).compare(unmeasured)


def _compare_code(
    request: Request, unmeasured: Comparison, ledgers: Mapping[str, worker_pool.Ledger]
) -> Comparison:
    """Compare the machine code alone, for all architectures."""
    subject = request.subject
    listed = [*itertools.chain.from_iterable(subject.listed())]
    code = exact.compile_both(
        *(subject, request.roots, subject.TARGETS, subject.TARGET, listed, ledgers)
    )
    values = {side: one.values for side, one in code.items()}
    total, same = len(code[BASE].facts), len(selection.identical(selection.facts_of(code, {})))
    return replace(
        unmeasured,
        exact=tuple(exact.compare(values[BASE], values[HEAD])),
        unmeasured=(*unmeasured.unmeasured, *selection.unreached(code)),
        notes=(
            Note("no GPU", "--exact-only" if request.exact_only else "no NVIDIA GPU"),
            Note("code differs", subject.TARGET, count=total - same, total=total),
            *findings.problems(values),
        ),
    )


# --- where it is kept, and what must agree --------------------------------------------------------


def cache(scratch: Path, machine: _Machine) -> Path:
    """Triton's cache directory on this machine, of all versions; creates it.

    Triton names a kernel by all that it depends on. Of a full directory the newer half is kept,
    which another comparison may just have compiled.
    """
    path = scratch / "cache" / f"{machine['machine']}-triton{machine['triton']}"
    path.mkdir(parents=True, exist_ok=True)
    kernels = list(path.iterdir())
    if len(kernels) > _MOST_KERNELS:
        newest_first = sorted(kernels, key=lambda kernel: -kernel.stat().st_mtime)
        for kernel in newest_first[_MOST_KERNELS // 2 :]:
            shutil.rmtree(kernel, ignore_errors=True)  # another comparison may delete it too
    return path


def _name(request: Request, machine: _Machine) -> str:
    versions = "-".join(version.sha[:8] or version.digest[:8] for version in request.pair.values())
    asked = f"{request.grid}-{request.rounds}" + ("-every-cell" if request.every_cell else "")
    if request.only:
        only = repr(sorted(request.only)).encode()
        asked += f"-only-{hashlib.sha256(only).hexdigest()[:8]}"
    return f"{versions}-{asked}-{machine['machine']}"


def _in_order(request: Request) -> dict[str, checkout.Version]:
    """The versions, first the one that goes first in the first round."""
    seed = hashlib.sha256("".join(request.digests.values()).encode()).digest()[0]
    return {side: request.pair[side] for side in (SIDES if seed % 2 == 0 else SIDES[::-1])}


def _header(request: Request, plan: rounds.Plan, machine: _Machine) -> dict:
    return {
        "subject": plan.subject,
        "digests": request.digests,
        "grid": request.grid,
        "rounds": request.rounds,
        "every_cell": request.every_cell,
        "only": sorted(request.only),
        "extension_rounds": on_gpu.EXTENSION_ROUNDS,
        "first": plan.order(0)[0],
        "machine": dict(machine),
        "gpu": plan.uuid,
        "python": platform.python_version(),
        "suite": suite_digest(request.subject),
    }


def suite_digest(subject: Subject) -> str:
    """Digest of the files that measure: what other files measured is not mixed in."""
    return suite.digest(_MEASURING, files(subject))
