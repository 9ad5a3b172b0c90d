"""Compare exactly what two versions of the package compile to; needs no GPU."""

import collections
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..machine_code import fingerprint, worker_pool
from ..machine_code.fingerprint import Compiled
from ..machine_code.host_cost import HostCost
from ..subject import Cell, Compilation, Subject, metric
from ..system.progress import say
from ..verdict.metrics import HOST_COST, UNITS
from ..verdict.note import Note
from ..verdict.rules import Exact, Key, judge_exact

Facts = fingerprint.Facts
Values = Mapping[Key, float | Exception]
ENUMERATIONS = ("listed", "dense")


class Code(NamedTuple):
    """What a version's calls compile to, and what they launch.

    facts: of every timing, on one architecture. values: asv's exact values, or the exception in
    their place. reach: of the subject's listed and dense cells, the sets "features" and the dicts
    "failures" of ``uncompiled.reach``. host: what calls do on the host, by timing or by asv's
    class.
    """

    facts: dict[Key, Facts | Exception]
    values: dict[Key, float | Exception]
    reach: dict[str, dict]
    host: Mapping[Key, HostCost | Exception] = types.MappingProxyType({})


NOT_COMPILED = Code({}, {}, {})


def compiled(
    subject: Subject,
    root: Path,
    target: str,
    cells: Iterable[Cell],
    compilations: Sequence[Compilation],
    variants: Sequence[Compilation] = (),
    ledger: worker_pool.Ledger | None = None,
    enumerations: Sequence[str] = ENUMERATIONS,
    host: Iterable[fingerprint.HostKey] = (),
) -> Code:
    """Compile what the cells of the version below ``root`` run on a target, and what asv tracks.

    Each cell is compiled at its own size, because a package may change kernels at any size. What
    PyTorch itself launches, such as a copy, is not in it. ``compilations`` and ``variants`` may be
    of any targets. The other parameters and errors are those of ``fingerprint.compile_all``.
    RuntimeError if what calls launch cannot be described.
    """
    timings = {
        Key(metric(cell, direction), cell.params): Compiled(target, cell, direction)
        for cell in cells
        for direction in cell.directions
    }
    tracked = {one: Compiled(one.target, one.cells[0], one.direction) for one in compilations}
    answers = fingerprint.compile_all(
        *(subject, dict.fromkeys([*timings.values(), *tracked.values()]), variants, root, ledger),
        enumerations=[(target, which) for which in enumerations],
        host=host,
    )
    values: dict[Key, float | Exception] = {}
    for one, call in tracked.items():
        for name in _names(one.suite):
            facts = answers.facts[call]
            value = facts if isinstance(facts, Exception) else getattr(facts, name)
            values[_key(one, name)] = value
    values |= {_key(one, "variants"): count for one, count in answers.variants.items()}
    for (suite, params), cost in answers.host.items():
        for name in _names(suite):
            value = cost if isinstance(cost, Exception) else getattr(cost, name)
            values[Key(f"{suite}.track_{name}", params)] = value
    return Code(
        {key: answers.facts[call] for key, call in timings.items()},
        values,
        {which: _joined(answers.reach[target, which]) for which in enumerations},
        {Key(*key): cost for key, cost in answers.host.items()},
    )


def compile_both(
    subject: Subject,
    roots: Mapping[str, Path],
    targets: Sequence[str],
    target: str,
    cells: Sequence[Cell],
    ledgers: Mapping[str, worker_pool.Ledger],
    done: Callable[[str], None] = lambda name: None,
) -> dict[str, Code]:
    """Compile the versions, one after the other: Triton's cache has what they have in common.

    What asv tracks is compiled for ``targets``, but of the listed cells only those that are among
    ``cells``, and these for ``target``. ``done`` is called with a version's name when it is
    compiled.
    """
    left_out = {cell for group in subject.listed() for cell in group} - {*cells}
    tracked = [one for gpu in targets for one in subject.compilations(gpu)]
    compilations = [one for one in tracked if not left_out & {*one.cells}]
    variants = [one for gpu in targets for one in subject.variants(gpu)]
    counted = not HOST_COST.keys().isdisjoint(subject.UNITS)
    host = fingerprint.host_keys(subject) if counted else ()
    code = {}
    for name, root in roots.items():
        say(f"compiling the {name} for {', '.join(targets)}")
        code[name] = compiled(
            *(subject, root, target, cells, compilations, variants, ledgers[name]), host=host
        )
        done(name)
    return code


def _names(suite: str) -> list[str]:
    """The facts that asv's class tracks."""
    prefix = f"{suite}.track_"
    exact = (name for name, unit in UNITS.items() if unit.exact and name.startswith(prefix))
    return [name.removeprefix(prefix) for name in exact]


def _key(compilation: Compilation, name: str) -> Key:
    return Key(f"{compilation.suite}.track_{name}", (*map(str, compilation.params),))


def _joined(parts: Iterable[dict | Exception]) -> dict:
    features: set[str] = set()
    failures: dict[str, str] = {}
    for part in parts:
        if isinstance(part, Exception):
            raise RuntimeError(f"what calls launch cannot be described: {part}") from part
        features |= set(part["features"])
        failures |= part["failures"]
    return {"features": features, "failures": failures}


def compare(base: Values, head: Values, *, clock_decides: bool = False) -> list[Exact]:
    """The verdict on every exact value that either side has; see :func:`problems`.

    ``clock_decides``: see ``rules.judge_exact``.
    """
    pairs = {key: (_number(base.get(key)), _number(head.get(key))) for key in {**base, **head}}
    return [
        judge_exact(key, before, after, clock_decides)
        for key, (before, after) in pairs.items()
        if (before, after) != (None, None)
    ]


def _number(value: float | Exception | None) -> float | None:
    return None if isinstance(value, Exception) else value


def problems(values: Mapping[str, Values]) -> list[Note]:
    """Why values of each side are missing: a note for each distinct reason.

    A failure's traceback is cut to its last line; the compiler's messages are there.
    """
    notes = []
    for side, of_side in values.items():
        reasons = collections.Counter(
            (str(value).strip().splitlines() or [type(value).__name__])[-1]
            for value in of_side.values()
            if isinstance(value, Exception)
        )
        notes += [Note("no value", why[:2000], side, count=n) for why, n in reasons.items()]
    return notes
