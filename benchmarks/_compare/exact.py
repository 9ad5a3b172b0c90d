"""Compare exactly what two versions of the package compile to; needs no GPU.

The metrics have the names of the asv benchmarks of ``codegen``. A ledger keeps answers from one
comparison to the next.
"""

import collections
import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path

from .._cells.grid import AnyCell, PathCell, subject_params
from .._cells.subjects import CODE_PARAMS, VARIANT_PARAMS
from .._machine_code import fingerprint, worker_pool
from .._verdict.rules import UNITS, Exact, Subject, judge_exact

_CALL_METRIC = "codegen.Codegen.track_"
_VARIANTS_METRIC = "codegen.Variants.track_variants"
_CALL_FACTS = tuple(
    name.removeprefix(_CALL_METRIC) for name in UNITS if name.startswith(_CALL_METRIC)
)


def codegen_facts(
    root: Path, ledger: worker_pool.Ledger | None = None, /, **subset: Iterable
) -> dict[Subject, float | Exception]:
    """Compile all calls of ``codegen.Codegen`` and all sweeps of ``codegen.Variants``.

    Parameters
    ----------
    root : Path
        Directory that holds the package.
    ledger : worker_pool.Ledger, optional
        Holds the answers that are known already, and receives the new ones.
    **subset : iterable
        Values of one of their parameters to restrict it to, e.g. ``target=("sm_90", "gfx942")``; a
        size or hidden size restricts the calls only.

    Returns
    -------
    dict
        The exact metrics, or the exception in their place.

    Raises
    ------
    ValueError
        If there is no such parameter, or it has no such value.
    ModuleNotFoundError, worker_pool.PoolError
        As ``fingerprint.compile_all`` does.
    """
    calls, sweeps = _restricted(CODE_PARAMS, subset), _restricted(VARIANT_PARAMS, subset)
    facts, variants = fingerprint.compile_sizes(calls, sweeps, root, ledger)
    values = {
        Subject(_CALL_METRIC + name, _texts(call)): _fact(answer, name)
        for name in _CALL_FACTS
        for call, answer in facts.items()
    }
    return values | {Subject(_VARIANTS_METRIC, _texts(sweep)): n for sweep, n in variants.items()}


def _restricted(params: Mapping[str, tuple], subset: Mapping[str, Iterable]) -> list[tuple]:
    """The product of parameters; all of ``VARIANT_PARAMS`` are in ``CODE_PARAMS``."""
    values = {name: tuple(wanted) for name, wanted in subset.items()}
    for name, wanted in values.items():
        if not wanted or not set(wanted) <= set(CODE_PARAMS.get(name, ())):
            raise ValueError(f"expected some of {CODE_PARAMS}, got {name}={wanted}")
    return list(itertools.product(*(values.get(name, CODE_PARAMS[name]) for name in params)))


def _fact(answer: fingerprint.Facts | Exception, name: str) -> float | Exception:
    return answer if isinstance(answer, Exception) else getattr(answer, name)


def _texts(values: tuple) -> tuple[str, ...]:
    return tuple(str(value) for value in values)


def _asked(arch: str, cell: AnyCell, direction: str) -> tuple:
    """The call of a timing as ``fingerprint.compile_all`` takes it."""
    if isinstance(cell, PathCell):
        return arch, cell.dtype, cell.path, direction, cell.mib
    size = cell.hidden_size, cell.seq_len, cell.batch
    return arch, cell.dtype, cell.format, direction, *size


def cell_digests(
    root: Path, arch: str, cells: Iterable[AnyCell], ledger: worker_pool.Ledger | None = None
) -> dict[Subject, str | Exception]:
    """Digest of what the package compiles to and launches for each timing of these cells.

    Each cell is compiled at its own size, because a package may change kernels at any size. Where
    two roots agree in a subject, the GPU runs the same kernels on the same grid. What PyTorch
    itself launches, such as a copy, is not in it.

    Parameters
    ----------
    root : Path
        Directory that holds the package.
    arch : str
        One of ``subjects.ARCHITECTURES``, e.g. "sm_90".
    cells : iterable of AnyCell
        All directions of each are looked at.
    ledger : worker_pool.Ledger, optional
        Holds the answers that are known already, and receives the new ones.

    Raises
    ------
    ValueError, ModuleNotFoundError, worker_pool.PoolError
        As ``fingerprint.compile_all`` does.
    """
    calls = {
        Subject(metric, subject_params(cell)): _asked(arch, cell, direction)
        for cell in cells
        for direction, metric in cell.metrics.items()
    }
    # Sorted, dtypes become neighbours.
    answers = fingerprint.compile_all(sorted(calls.values()), (), root, ledger)[0]
    facts = {subject: answers[call] for subject, call in calls.items()}
    return {s: each if isinstance(each, Exception) else each.digest for s, each in facts.items()}


def compare(
    base: Mapping[Subject, float | Exception],
    head: Mapping[Subject, float | Exception],
    *,
    clock_decides: bool = False,
) -> list[Exact]:
    """The verdict on every subject that has a value on either side; see :func:`problems`.

    ``clock_decides``: see ``rules.judge_exact``.
    """
    pairs = {
        subject: (_number(base.get(subject)), _number(head.get(subject)))
        for subject in {**base, **head}
    }
    return [
        judge_exact(subject, before, after, clock_decides)
        for subject, (before, after) in pairs.items()
        if (before, after) != (None, None)
    ]


def _number(value: float | Exception | None) -> float | None:
    return None if isinstance(value, Exception) else value


def problems(values: Mapping[Subject, float | Exception]) -> list[str]:
    """Why values are missing: a line for each distinct reason, with how many it explains.

    A failure's traceback is cut to its last line; the compiler's messages are there.
    """
    reasons = collections.Counter(
        (str(value).strip().splitlines() or [type(value).__name__])[-1]
        for value in values.values()
        if isinstance(value, Exception)
    )
    return [f"{count} values missing: {reason}" for reason, count in reasons.items()]
