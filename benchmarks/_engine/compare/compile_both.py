"""Compile both versions of a comparison, and keep what was compiled."""

from collections.abc import Callable, Mapping, Sequence

from ..machine_code import worker_pool
from ..subject import Cell, Compilation, Subject
from ..system.progress import say
from . import exact, selection
from .findings import ARMS
from .options import Request


def compile_both(
    request: Request,
    targets: Sequence[str],
    target: str,
    cells: Sequence[Cell],
    ledgers: Mapping[str, worker_pool.Ledger],
    compiled: Callable[[str], None] = lambda arm: None,
) -> dict[str, exact.Code]:
    """Compile the versions, one after the other: Triton's cache has what they have in common.

    What asv tracks is compiled for ``targets``, the cells for ``target``. ``compiled`` is called
    with each arm when Triton's cache has all of it.
    """
    code, subject = {}, request.subject
    compilations = [one for gpu in targets for one in _tracked(subject, gpu, cells)]
    variants = [one for gpu in targets for one in subject.variants(gpu)]
    for arm in ARMS:
        say(f"compiling the {arm} for {', '.join(targets)}")
        code[arm] = exact.compiled(
            *(subject, request.pair[arm].root, target, cells, compilations, variants), ledgers[arm]
        )
        compiled(arm)
    facts = facts_of(code)
    say(
        f"{target}: same machine code in {len(selection.identical(facts))} of "
        f"{len(facts[ARMS[0]])} timings"
    )
    return code


def _tracked(subject: Subject, target: str, cells: Sequence[Cell]) -> list[Compilation]:
    """What asv tracks; of the listed cells, those that are among ``cells``."""
    left_out = {cell for group in subject.listed() for cell in group} - {*cells}
    return [one for one in subject.compilations(target) if not left_out & {*one.cells}]


def facts_of(code: Mapping[str, exact.Code]) -> dict[str, selection.Compiled]:
    """Each arm's facts by timing."""
    return {arm: code[arm].facts for arm in ARMS}


def values_of(code: Mapping[str, exact.Code]) -> dict[str, Mapping]:
    """Each arm's exact values."""
    return {arm: code[arm].values for arm in ARMS}
