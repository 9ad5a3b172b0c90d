"""Exact facts of the machine code that a call compiles to, for any GPU, without a GPU.

The benchmarked package is called through its public names with CPU tensors, under a stub driver.
The kernels that it launches are compiled and counted. Nothing depends on a clock or on other
calls, so a result is exact: two commits that differ in it differ in their code (or in Triton's
version).

Cells that differ in numbers alone are called in a process of their own; the caller's Triton is
never touched, nor imported.
"""

import functools
import importlib.util
import itertools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, NamedTuple, TypedDict

from ..subject import Cell, Compilation, Subject, load
from ..system.untrusted import Size
from . import facts, host_cost, uncompiled, worker_pool
from .facts import Called, Facts
from .host_cost import HostCost
from .stub_driver import StubDriver

# With any of these Triton compiles something other than what users get, or nothing.
_REFUSED_VARIABLES = (
    "TRITON_INTERPRET",
    "TRITON_OVERRIDE_ARCH",
    "TRITON_KERNEL_OVERRIDE",
    "TRITON_STORE_BINARY_ONLY",
)


HostKey = tuple[str, tuple[str, ...]]
"""A metric or class of asv, and parameters."""

_HOST_GROUP = 60  # calls whose host cost is counted in a process
_FEWEST_JOBS = 20  # of a process that compiles: to fork one takes as long as four that are cached


class Compiled(NamedTuple):
    """A call to compile: for an architecture, a cell in one direction.

    In the backward only the kernels of the backward pass count.
    """

    target: str
    cell: Cell
    direction: str


class Answers(NamedTuple):
    """What :func:`compile_all` returns.

    ``NotImplementedError`` in place of an answer: the package lacks the function or says that it
    lacks the feature. ``RuntimeError``, with the traceback: any other failure.

    facts: of each call. variants: how many kernels the cells of each compilation have. reach: what
    the groups of cells launch, see ``uncompiled.reach``; an exception in place of a group's. host:
    what each of these calls, and the import, does on the host.
    """

    facts: dict[Compiled, Facts | Exception]
    variants: dict[Compilation, int | Exception]
    reach: dict[tuple[str, str], list[dict | Exception]]
    host: dict[HostKey, HostCost | Exception]


def compile_all(
    subject: Subject,
    calls: Iterable[Compiled] = (),
    variants: Iterable[Compilation] = (),
    root: str | os.PathLike | None = None,
    ledger: worker_pool.Ledger | None = None,
    enumerations: Iterable[tuple[str, str]] = (),
    host: Iterable[HostKey] = (),
) -> Answers:
    """Compile calls, and count the variants of others, on all cores, reporting progress.

    variants: of ``subject.variants``; each kernel that a process compiles costs its user a
    compilation. root: holds the package; by default, it is what this process would import.
    enumerations: targets with "listed" or "dense", cells of the subject whose launches are
    described, with nothing compiled. host: which of :func:`host_keys` to count.

    Raises ModuleNotFoundError if there is no package; PoolError if it cannot be imported, or an
    environment variable changes what Triton compiles; ValueError if the subject lacks a target.
    """
    package = _package_file(subject.PACKAGE, root)
    name, calls, variants = subject.__name__, list(calls), list(variants)
    enumerations = list(enumerations)
    _refuse(subject, [*calls, *variants, *enumerations])
    facts_of = {call: ("facts", name, call.target, *_row(call)) for call in calls}
    counted = {one: ("variants", name, one.target, *map(str, one.params)) for one in variants}
    reached = {
        (target, which): [
            ("reach", name, target, which, index) for index in range(len(getattr(subject, which)()))
        ]
        for target, which in enumerations
    }
    executed = {key: _host_job(name, subject.TARGET, key) for key in host}
    executing = list(executed.values())
    # These take longest, so they begin first, each in a process that nothing else changes.
    alone = [[job] for job in itertools.chain(*reached.values(), counted.values(), executing[:1])]
    # These come last: what they launch is compiled then.
    counting = [executing[i : i + _HOST_GROUP] for i in range(1, len(executing), _HOST_GROUP)]
    results = worker_pool.map(
        *(_answer, [*alone, *_groups(facts_of), *counting], package),
        *(ledger or worker_pool.Ledger("codegen"), _KINDS),
        prepare=functools.partial(uncompiled.prepare, name),
        finish=facts.read,
    )
    return Answers(
        {call: results[job] for call, job in facts_of.items()},
        {compilation: results[job] for compilation, job in counted.items()},
        {key: [results[job] for job in jobs] for key, jobs in reached.items()},
        {key: results[job] for key, job in executed.items()},
    )


def _row(call: Compiled) -> tuple[str, ...]:
    return call.cell.suite, call.direction, *call.cell.params


def host_keys(subject: Subject) -> list[HostKey]:
    """What is counted on the host: the import first, which takes longest, and all calls."""
    return [(host_cost.IMPORT, ()), *host_cost.all_calls(subject)]


def _host_job(name: str, target: str, key: HostKey) -> tuple:
    return ("host", name, target, key[0], *key[1]) if key[1] else ("import", name, target)


def _groups(jobs: dict[Compiled, tuple]) -> list[list[tuple]]:
    """The jobs by what they have code in common with, to be compiled once; the longest first.

    Small groups share a process.
    """
    groups: dict[tuple, list[tuple]] = {}
    for call, job in jobs.items():
        words = [text for text in call.cell.params if not _is_number(text)]
        groups.setdefault((call.target, call.cell.suite, *words), []).append(job)
    # No core is left with a long one at the end.
    packed: list[list[tuple]] = []
    for group in sorted(groups.values(), key=len, reverse=True):
        full = not packed or len(packed[-1]) >= _FEWEST_JOBS
        if full or packed[-1][0][:3] != group[0][:3]:  # of another architecture
            packed.append([])
        packed[-1].extend(group)
    return packed


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()


def _refuse(subject: Subject, jobs: list[tuple]) -> None:
    variables = [name for name in _REFUSED_VARIABLES if name in os.environ]
    if variables:
        names = ", ".join(variables)
        raise worker_pool.PoolError(f"unset {names}: Triton would not compile what users get")
    targets = {job.target if isinstance(job, Compiled | Compilation) else job[0] for job in jobs}
    if unknown := targets.difference(subject.TARGETS):
        raise ValueError(f"expected some of {subject.TARGETS}, got {sorted(unknown)}")


def _package_file(package: str, root: str | os.PathLike | None) -> Path:
    if root is not None:
        file = Path(root).resolve() / package / "__init__.py"
        if not file.is_file():
            raise ModuleNotFoundError(f"no {package} in {root}")
        return file
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            f"{package}, which is to be benchmarked, cannot be imported: "
            "install it or put its directory on PYTHONPATH (under asv, ASV_PYTHONPATH)"
        )
    return Path(spec.origin).resolve()


# --- in a process for each group of jobs: calling the package -------------------------------------


class _Reach(TypedDict):
    """See ``uncompiled.reach``."""

    features: Annotated[list[str], Size(0, 1_000_000)]
    failures: Annotated[dict[str, str], Size(0, 1_000_000)]


_KINDS = {
    **{"facts": Called, "variants": int, "reach": _Reach},
    **dict.fromkeys(("host", "import"), HostCost),
}


def _answer(kind: str, name: str, target: str, *job) -> Called | int | dict | HostCost:
    subject = load(name)
    if kind == "import":
        return host_cost.of_import(subject.PACKAGE)
    if kind == "host":
        metric, *params = job
        call = _host_calls(name)[metric, (*params,)]
        uncompiled.skip_work()
        return host_cost.of_call(uncompiled.counting_driver(target), host_cost.step(call))
    if kind == "facts":
        suite, direction, *params = job
        return _called(target, subject.cell(suite, params), direction)
    if kind == "reach":
        which, index = job
        return uncompiled.reach(target, getattr(subject, which)()[index])
    (one,) = (v for v in subject.variants(target) if (*map(str, v.params),) == job)
    return uncompiled.variants(target, one.cells, one.direction)


@functools.cache
def _host_calls(name: str) -> dict:
    return host_cost.all_calls(load(name))


def _called(target: str, cell: Cell, direction: str) -> Called:
    driver, files = _compiling(target)
    saved = uncompiled.call(driver, cell, direction)
    launches = driver.launches
    kernels = [facts.kernel_of(files[one.kernel.metadata.hash], one) for one in launches]
    return Called(kernels, saved)


@functools.cache
def _compiling(target: str) -> tuple[StubDriver, dict[str, dict[str, str]]]:
    """The driver of a process, and the files of each kernel that it compiles, by the kernel's hash.

    Triton keeps a kernel for later calls, with the driver that it was compiled by.
    """
    import triton

    files: dict[str, dict[str, str]] = {}
    triton.knobs.compilation.listener = lambda *, metadata, metadata_group, **_: files.update(
        {metadata["hash"]: metadata_group}
    )
    return StubDriver.activate(target), files
