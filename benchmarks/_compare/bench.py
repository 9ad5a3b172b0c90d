"""Measure a commit, and changes of it, on this machine's GPU for the evidence."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from .._machine_code import worker_pool
from .._subjects import cell as cell_of
from .._subjects.metrics import ARCHITECTURES
from .._subjects.rope.cells import Cell
from .._subjects.rope.grid import GRIDS, cells
from .._system import checkout, gpu_monitor, machine
from .._system.errors import CouldNotRunError
from .._verdict import rules
from . import exact, mutants, session
from .command import ROOT, SCRATCH
from .pool import Pool
from .rounds import Plan, Round, Rounds

ROUNDS = 12
# A run of a version against itself has the fewest rounds that a verdict needs: on an H200 it takes
# four minutes.
AA_ROUNDS = rules.MIN_ROUNDS

Versions = Mapping[str, checkout.Arm]


class EvidenceError(CouldNotRunError):
    """Evidence that cannot be made as asked; the message says why."""


def small_grid() -> list[Cell]:
    """The cells that a comparison times first."""
    return cells(GRIDS["small"])


def pooled(bench: "Bench", name: str, versions: Versions, count: int, job: dict) -> Pool:
    """The medians of rounds, to 5 digits: that is far below the noise, and half of a file."""
    pool = Pool.of(bench.rounds(name, versions, count, job), versions)
    return Pool(
        pool.subjects,
        {
            arm: np.array([[float(f"{value:.5g}") for value in row] for row in rows])
            for arm, rows in pool.seconds.items()
        },
    )


class Bench:
    """The machine, the version to start from, and rounds of any versions on this GPU.

    ``deadline`` in ``time.monotonic``'s seconds.
    """

    def __init__(self, commit: str, deadline: float, scratch: Path = SCRATCH):
        self.scratch, self.sources, self._deadline = scratch, scratch / "sources", deadline
        self.base = checkout.from_commit(commit, ROOT, self.sources)
        self.machine, self._arch = machine.probe()
        self._uuid = gpu_monitor.gpu_uuid()

    def rounds(self, name: str, versions: Versions, count: int, job: dict) -> list[Round]:
        """Rounds of the versions, reversed in turns; kept, so that a killed run goes on."""
        with self._open(name, versions, job) as kept:
            if not kept.rounds(name):
                self._compile(kept.plan, job)
            kept.run(name, count, job)
            return kept.rounds(name)

    def _compile(self, plan: Plan, job: dict) -> None:
        """Fill Triton's cache on all cores; a timing process compiles one kernel at a time."""
        if self._arch not in ARCHITECTURES:
            return
        timed = [cell_of(suite, params) for suite, params in job["cells"]]
        for root, arm in {version.root: arm for arm, version in plan.arms.items()}.items():
            ledger = worker_pool.Ledger(f"compiled of {arm}")
            ledger.cache = plan.cache
            exact.compiled_surface(root, self._arch, timed, ledger, ())

    def answers(self, name: str, versions: Versions, job: dict) -> dict[str, dict]:
        """What one process of each version answers; kept as well."""
        with self._open(name, versions, job) as kept:
            return kept.check(job)

    def mutant(self, name: str) -> checkout.Arm:
        """The version to start from with a known bad change."""
        return checkout.from_directory(
            name, self.sources, lambda to: mutants.apply(name, self.base.root, to)
        )

    @contextlib.contextmanager
    def _open(self, name: str, versions: Versions, job: dict) -> Iterator[Rounds]:
        header = {
            "digests": {arm: version.digest for arm, version in versions.items()},
            "job": job,
            "machine": dict(self.machine),
            "suite": session.suite_digest(),
        }
        cache = session.cache(self.scratch, self.machine)
        plan = Plan(dict(versions), cache, self._uuid, self._deadline)
        of = f"{self.base.digest[:8]}-{self.machine['machine']}"
        path = self.scratch / "evidence" / f"{name}-{of}.jsonl"
        with gpu_monitor.gpu_lock(self._uuid, 0.0), Rounds(plan, path, header) as kept:
            yield kept
