"""The study ``mutants``: which known bad changes a comparison catches."""

import functools
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..._engine.compare import exact, measure
from ..._engine.compare.findings import facts_of
from ..._engine.compare.pool import Pool
from ..._engine.system import checkout
from ..._engine.verdict import rules
from ..._engine.verdict.metrics import HOST_COST
from ..._engine.verdict.rules import FAMILIES, Answer, Exact, Key, Timing
from ..._subjects import listed_cell
from ..._subjects.calls import BaseCell
from ..._subjects.rope.cells import path_cell
from ..._subjects.rope.grid import PATH_GRIDS, cells_of
from ..runner import Keep, Task
from . import mutants
from .bench import (
    ON_HOST,
    PROCESS_SECONDS,
    ROUNDS,
    SUBJECT,
    Bench,
    Document,
    header_of,
    small_grid,
)

# Mutants that take turns with one base: what a run that ends loses at most.
_AT_A_TIME = 5
_EXACT = "code", "facts"  # groups that no clock decides
_TARGETS, _DTYPE = ("sm_90", "gfx942"), "float16"  # what is compiled of each mutant


class Caught(Document):
    """The mutants; an entry has the outcome of one, and says of which commit it is.

    Parameters
    ----------
    bench : Bench
        The version that is mutated.
    only : sequence of str
        Names of mutants; empty for all.
    """

    name = "mutants"
    may_differ = ("command", "suite")

    def __init__(self, bench: Bench, only: Sequence[str] = ()):
        self.bench, self.header = bench, header_of(bench, self.name, ROUNDS)
        self._only = only or list(mutants.load())

    def tasks(self, entries: list[dict]) -> list[Task]:
        commit = self.bench.base.sha
        there = {entry["name"] for entry in entries if entry["commit"] == commit}
        missing = [name for name in self._only if name not in there]
        groups: dict[str, list[mutants.Mutant]] = {}
        for mutant in (mutants.load()[name] for name in missing):
            groups.setdefault(_group(mutant), []).append(mutant)
        return [
            self._task(group, several[begin : begin + _AT_A_TIME])
            for group, several in groups.items()
            for begin in range(0, len(several), _AT_A_TIME)
        ]

    def _task(self, group: str, several: Sequence[mutants.Mutant]) -> Task:
        processes = 1 if group in _EXACT else ROUNDS
        label = ", ".join(mutant.name for mutant in several)
        seconds = processes * PROCESS_SECONDS * (1 + len(several))
        return Task(label, seconds, functools.partial(self._measure, group, several))

    def _measure(self, group: str, several: Sequence[mutants.Mutant], keep: Keep) -> None:
        bench, names = self.bench, [mutant.name for mutant in several]
        versions = {"base": bench.base} | {name: _mutant(bench, name) for name in names}
        label, pools = "-".join([group, *names]), {}
        if group in _EXACT:
            if group == "code":
                values = {name: exact_values(one.root, names) for name, one in versions.items()}
            else:
                answers = bench.answers(label, versions, measure.check_job([]))
                values = {name: facts_of(answer) for name, answer in answers.items()}
            failed = {n: _failed(exact.compare(values["base"], values[n])) for n in names}
        else:
            cells = _cells(group, names)
            job = measure.timing_job(cells, ON_HOST if group == "host" else ())
            pool = bench.pool(label, versions, ROUNDS, job)
            for name in names:
                seconds = {side: pool.seconds[side] for side in ("base", name)}
                pools[name] = Pool(pool.subjects, seconds)
            failed = {}
            for one in several:
                timings = _timings(one.name, pools[one.name])
                failed[one.name] = _failed(timings)
                doubts = rules.inconclusive(timings, frozenset())
                unclear = {timing.key for timing in doubts if one.concerns(timing.key)}
                if unclear and not failed[one.name]:
                    pair = {side: versions[side] for side in ("base", one.name)}
                    pools[one.name] = bench.second_look(one.name, pair, cells, unclear)
                    failed[one.name] = slower(one.name, pools[one.name])
        commit = bench.base.sha
        keep(*(outcome(one, commit, failed[one.name], pools.get(one.name)) for one in several))

    def document(self, header: dict, entries: list[dict], stored: dict) -> dict:
        """The outcomes beside those of other mutants that the file has by the same rules."""
        same = all(stored.get(key) == header[key] for key in ("machine", "rounds", "rules"))
        earlier = stored["mutants"] if same else []
        return header | {"mutants": in_order([*earlier, *entries])}

    def lines(self, header: dict, entries: list[dict]) -> list[str]:
        return [
            f"{'caught' if entry['caught'] else 'SURVIVED'}: {entry['name']}: {entry['by']}"
            for entry in in_order(entries)
        ]


def in_order(entries: Sequence[dict]) -> list[dict]:
    """The mutants of the index in its order, each as it was measured last."""
    last = {entry["name"]: entry for entry in entries}
    return [last[name] for name in mutants.load() if name in last]


def _group(mutant: mutants.Mutant) -> str:
    if not mutant.needs_gpu:
        return "code"
    if any(metric.startswith(("surface.", "modules.")) for metric in mutant.caught_by):
        return "forms"
    if any(metric.startswith(FAMILIES["gpu"]) for metric in mutant.caught_by):
        return "speed"
    return "host" if mutant.caught_by[0].startswith(FAMILIES["host"]) else "facts"


def outcome(
    mutant: mutants.Mutant, commit: str, failed: list[dict], pool: Pool | None = None
) -> dict:
    """A mutant's entry in the file: whether the metrics that must fail are among those that did.

    With the medians of the processes that timed it, if a clock decided.
    """
    relevant = [one for one in failed if mutant.concerns(Key(one["metric"], tuple(one["params"])))]
    metrics = {one["metric"] for one in relevant}
    worst = max(relevant, key=lambda one: one["change"], default=None)
    return {
        "name": mutant.name,
        "change": mutant.change,
        "commit": commit,
        "must_fail": list(mutant.caught_by),
        "caught": set(mutant.caught_by) <= metrics,
        "by": "nothing that must fail failed"
        if worst is None
        else f"{len(relevant)} failed, the worst {worst['metric']} {tuple(worst['params'])}: "
        f"{worst['base']:.6g} -> {worst['head']:.6g}",
        "failed": relevant,
    } | ({} if pool is None else {"pool": pool.as_json()})


def exact_values(root: Path, names: Iterable[str]) -> dict:
    """What is exact of a version: of the calls of these mutants, and some of asv's machine code."""
    several = [mutants.load()[name] for name in names]
    forms = {form for mutant in several for form in mutant.where}
    host = [key for key in SUBJECT.host_calls() if forms & {*key[1]}]
    metrics = {metric for mutant in several for metric in mutant.caught_by}
    targets = [] if metrics <= HOST_COST.keys() else _TARGETS  # of the machine code
    asked = [
        one
        for target in targets
        for one in SUBJECT.compilations(target)
        if {*one.params} & ({_DTYPE} if one.suite == "codegen.Codegen" else forms)
    ]
    counted = [one for target in targets for one in SUBJECT.variants(target)]
    counted = [one for one in counted if _DTYPE in one.params]
    return exact.compiled(
        SUBJECT, root, _TARGETS[0], (), asked, counted, enumerations=(), host=host
    ).values


def _mutant(bench: Bench, name: str) -> checkout.Version:
    """The bench's version with a known bad change."""
    return checkout.from_directory(
        name, bench.sources, lambda to: mutants.apply(name, bench.base.root, to)
    )


def _cells(group: str, names: list[str]) -> list[BaseCell]:
    """What is timed of each mutant of a group: what one of them must be slower in, and the rest."""
    if group == "forms":
        index = mutants.load()
        return [*{listed_cell(form): None for name in names for form in index[name].where}]
    # Only a call whose output is read next pays for a kernel that writes past L2.
    read_next = cells_of(path_cell, {**PATH_GRIDS["small"], "path": ("then-read",)})
    return [*small_grid(), *read_next] if group == "speed" else []


def slower(name: str, pool: Pool) -> list[dict]:
    """The timings of a mutant that failed."""
    return _failed(_timings(name, pool))


def _timings(name: str, pool: Pool) -> list[Timing]:
    families = pool.judged("base", name).values()
    return [timing for family in families for timing in family.timings]


def _failed(verdicts: Iterable[Exact | Timing]) -> list[dict]:
    return [
        {
            "metric": verdict.key.metric,
            "params": list(verdict.key.params),
            "base": verdict.base,
            "head": verdict.head,
            "change": verdict.head - verdict.base
            if verdict.base == 0
            else verdict.head / verdict.base - 1,
        }
        for verdict in verdicts
        if verdict.answer is Answer.FAIL and verdict.base is not None and verdict.head is not None
    ]
