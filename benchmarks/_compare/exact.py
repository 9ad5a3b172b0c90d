"""Compare exactly what two versions of the package compile to; needs no GPU.

The metrics have the names of the asv benchmarks of ``codegen``. A ledger keeps answers from one
comparison to the next.
"""

import collections
import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from .._cells.forms import BaseCell
from .._cells.grid import form_cell, subject_params
from .._cells.subjects import CODE_PARAMS, SURFACE_PARAMS, VARIANT_PARAMS
from .._machine_code import fingerprint, worker_pool
from .._verdict.notes import Note
from .._verdict.rules import UNITS, Exact, Key, judge_exact

_CALL_METRIC, _SURFACE_METRIC = "codegen.Codegen.track_", "codegen.Surface.track_"
_VARIANTS_METRIC = "codegen.Variants.track_variants"
_CALL_FACTS, _SURFACE_FACTS = (
    tuple(name.removeprefix(metric) for name in UNITS if name.startswith(metric))
    for metric in (_CALL_METRIC, _SURFACE_METRIC)
)


def codegen_facts(
    root: Path, ledger: worker_pool.Ledger | None = None, /, **subset: Iterable
) -> dict[Key, float | Exception]:
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
    facts, variants, _ = fingerprint.compile_sizes(calls, sweeps, root, ledger)
    values = {
        Key(_CALL_METRIC + name, _texts(call)): _fact(answer, name)
        for name in _CALL_FACTS
        for call, answer in facts.items()
    }
    return values | {Key(_VARIANTS_METRIC, _texts(sweep)): n for sweep, n in variants.items()}


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


class Surface(NamedTuple):
    """What a version's calls compile to on one architecture, and what they launch.

    facts: of every timing. reach: of ``fingerprint.compile_all``'s enumerations, "forms" and
    "dense", the sets "features" and the dicts "failures" of ``uncompiled.reach``.
    """

    facts: dict[Key, fingerprint.Facts | Exception]
    reach: dict[str, dict]

    def values(self, target: str) -> dict[Key, float | Exception]:
        """The exact metrics of ``codegen.Surface``, of the forms that were compiled."""
        found: dict[Key, float | Exception] = {}
        for _, form, direction in itertools.product(*SURFACE_PARAMS.values()):
            cell = form_cell(form)
            if direction not in cell.directions:
                continue
            timed = Key(cell.metrics[direction], subject_params(cell))
            if timed in self.facts:  # --only compiles less
                answer = self.facts[timed]
                for name in _SURFACE_FACTS:
                    subject = Key(_SURFACE_METRIC + name, (target, form, direction))
                    found[subject] = _fact(answer, name)
        return found


def compiled_surface(
    root: Path,
    target: str,
    cells: Iterable[BaseCell],
    ledger: worker_pool.Ledger | None = None,
    enumerations: Iterable[str] = ("forms", "dense"),
) -> Surface:
    """What the package compiles to and launches for each timing of these cells.

    Each cell is compiled at its own size, because a package may change kernels at any size. What
    PyTorch itself launches, such as a copy, is not in it.

    Parameters
    ----------
    root : Path
        Directory that holds the package.
    target : str
        One of ``subjects.ARCHITECTURES``, e.g. "sm_90".
    cells : iterable of BaseCell
        All directions of each are looked at.
    ledger : worker_pool.Ledger, optional
        Holds the answers that are known already, and receives the new ones.
    enumerations : iterable of str
        Those whose launches are described.

    Raises
    ------
    ValueError, ModuleNotFoundError, worker_pool.PoolError
        As ``fingerprint.compile_all`` does.
    RuntimeError
        If what calls launch cannot be described.
    """
    calls = {
        Key(metric, subject_params(cell)): fingerprint.call_of(target, cell, direction)
        for cell in cells
        for direction, metric in cell.metrics.items()
    }
    asked = {which: (target, which) for which in enumerations}
    # Sorted, dtypes become neighbours.
    answers = fingerprint.compile_all(sorted(set(calls.values())), (), root, ledger, asked.values())
    return Surface(
        {subject: answers.facts[call] for subject, call in calls.items()},
        {which: _joined(answers.reach[each]) for which, each in asked.items()},
    )


def _joined(parts: Iterable[dict | Exception]) -> dict:
    features: set[str] = set()
    failures: dict[str, str] = {}
    for part in parts:
        if isinstance(part, Exception):
            raise RuntimeError(f"what calls launch cannot be described: {part}") from part
        features |= set(part["features"])
        failures |= part["failures"]
    return {"features": features, "failures": failures}


def compare(
    base: Mapping[Key, float | Exception],
    head: Mapping[Key, float | Exception],
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


def problems(values: Mapping[Key, float | Exception], side: str) -> list[Note]:
    """Why values of a side are missing: a note for each distinct reason.

    A failure's traceback is cut to its last line; the compiler's messages are there.
    """
    reasons = collections.Counter(
        (str(value).strip().splitlines() or [type(value).__name__])[-1]
        for value in values.values()
        if isinstance(value, Exception)
    )
    return [Note("no value", why[:2000], side, count=count) for why, count in reasons.items()]
