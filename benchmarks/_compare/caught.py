"""Find out which known bad changes the comparison catches, for ``mutants.json``."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from .._subjects import listed_cell
from .._subjects.calls import BaseCell
from .._subjects.rope.grid import PATH_GRIDS, path_cells
from .._system.progress import say
from .._verdict.rules import FAMILIES, Answer, Exact, Subject, Timing
from . import exact, measure, mutants
from .bench import ROUNDS, Bench, pooled, small_grid
from .findings import facts_of
from .pool import Pool

# Mutants that take turns with one base: what a run that ends loses at most.
_AT_A_TIME = 5


def in_order(entries: Sequence[dict]) -> list[dict]:
    """The mutants of the index in its order, each as it was made last."""
    last = {entry["name"]: entry for entry in entries}
    return [last[name] for name in mutants.load() if name in last]


def missing(entries: Sequence[dict], commit: str) -> list[str]:
    """The mutants of the index that are not among those made of this commit."""
    there = {entry["name"] for entry in entries if entry["commit"] == commit}
    return [name for name in mutants.load() if name not in there]


def made(bench: Bench, names: Sequence[str]) -> Iterator[list[dict]]:
    """The outcomes of mutants of the bench's version, a few at a time."""
    groups: dict[str, list[mutants.Mutant]] = {}
    for mutant in (mutants.load()[name] for name in names):
        groups.setdefault(_group(mutant), []).append(mutant)
    for group, several in groups.items():
        for begin in range(0, len(several), _AT_A_TIME):
            yield _made(bench, group, several[begin : begin + _AT_A_TIME])


def _made(bench: Bench, group: str, several: Sequence[mutants.Mutant]) -> list[dict]:
    names = [mutant.name for mutant in several]
    pools: dict[str, Pool] = {}
    if group == "code":
        failures = _by_code(bench, names)
    elif group == "facts":
        failures = _by_facts(bench, names)
    else:
        pools = _timed(bench, group, names)
        failures = {name: slower(name, pool) for name, pool in pools.items()}
    return [
        outcome(each, bench.base.sha, failures[each.name], pools.get(each.name)) for each in several
    ]


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
    relevant = [
        one for one in failed if mutant.concerns(Subject(one["metric"], tuple(one["params"])))
    ]
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


def _by_code(bench: Bench, names: list[str]) -> dict[str, list[dict]]:
    forms = _forms(names)

    def facts(root: Path) -> dict:
        code = exact.codegen_facts(root, target=("sm_90", "gfx942"), dtype=("float16",))
        return code | exact.compiled_surface(root, "sm_90", forms, enumerations=()).values("sm_90")

    base, found = facts(bench.base.root), {}
    for name in names:
        found[name] = _failed(exact.compare(base, facts(bench.mutant(name).root)))
        say(f"{name}: {len(found[name])} exact values failed")
    return found


def _by_facts(bench: Bench, names: list[str]) -> dict[str, list[dict]]:
    versions = {"base": bench.base} | {name: bench.mutant(name) for name in names}
    answers = bench.answers("-".join(["facts", *names]), versions, measure.check_job([]))
    facts = {name: facts_of(answer) for name, answer in answers.items()}
    return {name: _failed(exact.compare(facts["base"], facts[name])) for name in names}


def _timed(bench: Bench, group: str, names: list[str]) -> dict[str, Pool]:
    """The medians of the base and of each mutant."""
    versions = {"base": bench.base} | {name: bench.mutant(name) for name in names}
    job = measure.timing_job(_cells(group, names), host=group == "host")
    whole = pooled(bench, "-".join([group, *names]), versions, ROUNDS, job)
    return {
        name: Pool(whole.subjects, {arm: whole.seconds[arm] for arm in ("base", name)})
        for name in names
    }


def _cells(group: str, names: list[str]) -> list[BaseCell]:
    """What is timed of each mutant of a group: what one of them must be slower in, and the rest."""
    if group == "forms":
        return _forms(names)
    # Only a call whose output is read next pays for a kernel that writes past L2.
    read_next = [cell for cell in path_cells(PATH_GRIDS["small"]) if cell.path == "then-read"]
    return [*small_grid(), *read_next] if group == "speed" else []


def _forms(names: Iterable[str]) -> list[BaseCell]:
    """The forms in which mutants must fail."""
    known = mutants.load()
    return list(dict.fromkeys(listed_cell(form) for name in names for form in known[name].where))


def slower(name: str, pool: Pool) -> list[dict]:
    """The timings of a mutant that failed."""
    families = pool.judged("base", name).values()
    return _failed(timing for family in families for timing in family.timings)


def _failed(verdicts: Iterable[Exact | Timing]) -> list[dict]:
    return [
        {
            "metric": each.subject.metric,
            "params": list(each.subject.params),
            "base": each.base,
            "head": each.head,
            "change": each.head - each.base if each.base == 0 else each.head / each.base - 1,
        }
        for each in verdicts
        if each.answer is Answer.FAIL and each.base is not None and each.head is not None
    ]
