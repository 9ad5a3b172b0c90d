"""Compile both versions of a comparison, and keep what was compiled."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .._cells.forms import BaseCell
from .._cells.subjects import SURFACE_PARAMS
from .._machine_code import worker_pool
from .._system.checkout import Arm
from .._verdict.rules import Subject
from . import compiled, exact, selection
from .findings import ARMS, BASE

Pair = Mapping[str, Arm]  # base, head
Report = Callable[[str], None]
Code = dict[str, dict[Subject, float | Exception]]  # by arm
Surfaces = Mapping[str, exact.Surface]  # by arm; empty if the GPU's architecture is not known
Ledgers = Callable[[str], worker_pool.Ledger]  # a new one for each arm and map


def ledgers_of(
    pair: Pair,
    machine: Mapping[str, str],
    scratch: Path,
    report: Report,
    *,
    deadline: float,
    afresh: bool,
) -> Ledgers:
    """What is kept of both versions; ``afresh`` drops it. ``deadline``: see ``Progress``."""
    again = "the same command" + (", without --afresh," if afresh else "")
    progress = compiled.Progress(deadline, report, again)
    kept = {arm: compiled.Version(scratch, pair[arm].digest, machine) for arm in ARMS}
    if afresh:
        for version in kept.values():
            version.drop()
    return lambda arm: compiled.Ledger(arm, kept[arm], progress)


def compile_grid(pair: Pair, targets: Sequence[str], ledgers: Ledgers, report: Report) -> Code:
    """The exact values of asv's ``Codegen`` and ``Variants`` for these targets."""
    report(f"compiling both versions for {', '.join(targets)}")

    def values(arm: str) -> dict[Subject, float | Exception]:
        return exact.codegen_facts(pair[arm].root, ledgers(arm), target=targets)

    with ThreadPoolExecutor() as pool:
        return dict(zip(ARMS, pool.map(values, ARMS), strict=True))


def compile_surfaces(
    pair: Pair, target: str, cells: Sequence[BaseCell], ledgers: Ledgers, report: Report
) -> Surfaces:
    """What both versions compile these cells to."""

    def compiled_of(arm: str) -> exact.Surface:
        return exact.compiled_surface(pair[arm].root, target, cells, ledgers(arm))

    with ThreadPoolExecutor() as pool:
        surfaces = dict(zip(ARMS, pool.map(compiled_of, ARMS), strict=True))
    same, of = len(selection.identical(facts_of(surfaces))), len(surfaces[BASE].facts)
    report(f"{target}: same machine code in {same} of {of} timings")
    return surfaces


def compile_for(
    pair: Pair, target: str, cells: list[BaseCell], ledgers: Ledgers, report: Report
) -> tuple[Code, Surfaces]:
    """Both versions on one architecture: the exact values, and the surface."""
    with ThreadPoolExecutor() as pool:
        code = pool.submit(compile_grid, pair, (target,), ledgers, report)
        surfaces = compile_surfaces(pair, target, cells, ledgers, report)
        return with_surfaces(code.result(), surfaces, target), surfaces


def with_surfaces(code: Code, surfaces: Surfaces, target: str) -> Code:
    """With the exact values of the surface, where the suite tracks them for this target."""
    if target not in SURFACE_PARAMS["target"]:
        return code
    return {arm: code[arm] | surfaces[arm].values(target) for arm in ARMS}


def facts_of(surfaces: Surfaces) -> dict[str, selection.Compiled]:
    """Each arm's facts by timing."""
    return {arm: surfaces[arm].facts if surfaces else {} for arm in ARMS}


def unreached(surfaces: Surfaces) -> list[str]:
    """What only the head's calls launch and no form of the list does, a sentence each."""
    reach = {arm: each.reach for arm, each in surfaces.items()}
    return selection.unreached(reach) if reach else []
