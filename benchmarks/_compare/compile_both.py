"""Compile both versions of a comparison, and keep what was compiled."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .._cells.forms import BaseCell
from .._cells.subjects import SURFACE_PARAMS
from .._machine_code import worker_pool
from .._system.checkout import Arm
from .._system.progress import say
from .._verdict.notes import Note
from .._verdict.rules import Key
from . import compiled, exact, selection
from .findings import ARMS, BASE

Pair = Mapping[str, Arm]  # base, head
Code = dict[str, dict[Key, float | Exception]]  # by arm
Surfaces = Mapping[str, exact.Surface]  # by arm; empty if the GPU's architecture is not known
Ledgers = Callable[[str], worker_pool.Ledger]  # a new one for each arm and map


def ledgers_of(
    pair: Pair,
    machine: Mapping[str, str],
    scratch: Path,
    cache: Path,
    *,
    deadline: float,
    afresh: bool,
) -> Ledgers:
    """What is kept of both versions; ``afresh`` drops it. ``deadline``: see ``Progress``."""
    again = "the same command" + (", without --afresh," if afresh else "")
    progress = {arm: compiled.Progress(deadline, again) for arm in ARMS}
    kept = {arm: compiled.Version(scratch, pair[arm].digest, machine) for arm in ARMS}
    if afresh:
        for version in kept.values():
            version.drop()
    return lambda arm: compiled.Ledger(arm, kept[arm], progress[arm], cache)


def compile_both(
    pair: Pair,
    targets: Sequence[str],
    target: str,
    cells: Sequence[BaseCell],
    ledgers: Ledgers,
    compiled: Callable[[str], None] = lambda arm: None,
) -> tuple[Code, Surfaces]:
    """Compile the versions, one after the other: Triton's cache has what they have in common.

    ``compiled`` is called with each arm when Triton's cache has all of it.

    Returns
    -------
    The exact values of asv's ``Codegen`` and ``Variants`` for ``targets``, and what the cells
    compile to for ``target``, whose values are among the first where the suite tracks them.
    """
    code: Code = {}
    surfaces: dict[str, exact.Surface] = {}
    for arm in ARMS:
        say(f"compiling the {arm} for {', '.join(targets)}")
        root = pair[arm].root
        with ThreadPoolExecutor() as pool:
            values = pool.submit(exact.codegen_facts, root, ledgers(arm), target=targets)
            surfaces[arm] = exact.compiled_surface(root, target, cells, ledgers(arm))
            code[arm] = values.result()
        compiled(arm)
    same, of = len(selection.identical(facts_of(surfaces))), len(surfaces[BASE].facts)
    say(f"{target}: same machine code in {same} of {of} timings")
    return _with_surfaces(code, surfaces, target), surfaces


def _with_surfaces(code: Code, surfaces: Surfaces, target: str) -> Code:
    """With the exact values of the surface, where the suite tracks them for this target."""
    if target not in SURFACE_PARAMS["target"]:
        return code
    return {arm: code[arm] | surfaces[arm].values(target) for arm in ARMS}


def facts_of(surfaces: Surfaces) -> dict[str, selection.Compiled]:
    """Each arm's facts by timing."""
    return {arm: surfaces[arm].facts if surfaces else {} for arm in ARMS}


def unreached(surfaces: Surfaces) -> list[Note]:
    """What only the head's calls launch and no form of the list does."""
    reach = {arm: each.reach for arm, each in surfaces.items()}
    return selection.unreached(reach) if reach else []
