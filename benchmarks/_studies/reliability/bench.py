"""Measure a commit, and changes of it, on this machine's GPU for the evidence."""

import contextlib
import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path

import numpy as np

from ..._engine.compare import exact, measure, session
from ..._engine.compare.pool import Pool
from ..._engine.compare.rounds import Plan, Rounds
from ..._engine.machine_code import worker_pool
from ..._engine.subject import DEFAULT, Cell, keys_of, load, timings
from ..._engine.system import checkout
from ..._engine.system.files import write_atomically
from ..._engine.verdict import rules
from ..._engine.verdict.rules import Key
from ..._subjects.rope.cells import RopeCell, grid_cell
from ..._subjects.rope.grid import GRIDS, cells_of
from ..runner import Part, Place

SUBJECT = load(DEFAULT)
ON_HOST = timings(SUBJECT)["host"] | timings(SUBJECT)["start"]
"""All that a clock of the host may time."""
ROUNDS = 12
# A run of a version against itself has the fewest rounds that a verdict needs: on an H200 it takes
# four minutes.
AA_ROUNDS = rules.MIN_ROUNDS
PROCESS_SECONDS = 12.0
"""An estimate of one process that times the small grid."""

Versions = Mapping[str, checkout.Version]


def small_grid() -> list[RopeCell]:
    """The cells that a comparison times first."""
    return cells_of(grid_cell, GRIDS["small"])


_to_five_digits = np.vectorize(lambda value: float(f"{value:.5g}"), otypes=[float])


class Bench:
    """The version to start from, and rounds of any versions on the GPU of ``place``."""

    def __init__(self, place: Place):
        self.place, self.base = place, place.version
        self.sources = place.scratch / "sources"

    def pool(self, name: str, versions: Versions, count: int, job: dict) -> Pool:
        """The medians of rounds of the versions; rounds are kept, so that a killed run goes on."""
        with self._open(name, versions, job) as stored:
            if not stored.rounds(name):
                self._compile(stored.plan, job)
            stored.run(name, count, job)
            pool = Pool.of(stored.rounds(name), versions)
        # To 5 digits: that is far below the noise, and half of a file.
        seconds = {name: _to_five_digits(rows) for name, rows in pool.seconds.items()}
        return Pool(pool.subjects, seconds)

    def second_look(
        self, name: str, versions: Versions, cells: Iterable[Cell], unclear: Set[Key]
    ) -> Pool:
        """What is inconclusive, measured anew as in a comparison: that decides then."""
        job = measure.timing_job([cell for cell in cells if keys_of(cell) & unclear], unclear)
        pool = self.pool(f"look2-{name}", versions, session.EXTENSION_ROUNDS, job)
        columns = [column for column, key in enumerate(pool.subjects) if key in unclear]
        seconds = {side: rows[:, columns] for side, rows in pool.seconds.items()}
        return Pool([pool.subjects[column] for column in columns], seconds)

    def _compile(self, plan: Plan, job: dict) -> None:
        """Fill Triton's cache on all cores; a timing process compiles one kernel at a time."""
        if self.place.arch not in SUBJECT.TARGETS:
            return
        alone = job["alone"] or {"cells": []}
        timed = [SUBJECT.cell(suite, params) for suite, params in alone["cells"]]
        for root, name in {version.root: name for name, version in plan.versions.items()}.items():
            ledger = worker_pool.Ledger(f"compiled of {name}")
            ledger.cache = plan.cache
            exact.compiled(SUBJECT, root, self.place.arch, timed, (), (), ledger, ())

    def answers(self, name: str, versions: Versions, job: dict) -> dict[str, dict]:
        """What one process of each version answers; kept as well."""
        with self._open(name, versions, job) as stored:
            return stored.check(job)

    @contextlib.contextmanager
    def _open(self, name: str, versions: Versions, job: dict) -> Iterator[Rounds]:
        place = self.place
        header = {
            "digests": {name: version.digest for name, version in versions.items()},
            "job": job,
            "machine": dict(place.machine),
            "suite": session.suite_digest(SUBJECT),
        }
        cache = session.cache(place.scratch, place.machine)
        plan = Plan(DEFAULT, dict(versions), cache, place.uuid, place.deadline)
        with Rounds(plan, place.directory / "rounds" / f"{name}.jsonl", header) as stored:
            yield stored


def header_of(bench: Bench, name: str, rounds: int) -> dict:
    """The header of a part that measures versions in so many rounds each."""
    return {
        "command": f"python -m benchmarks study {name} --commit {bench.base.sha}",
        "machine": dict(bench.place.machine),
        "rounds": rounds,
        "suite": session.suite_digest(SUBJECT),
        "rules": {key: dataclasses.asdict(rule) for key, rule in rules.RULES.items()},
    }


class Document(Part):
    """A part whose file is one JSON document, made of the entries and of the file before."""

    def document(self, header: dict, entries: list[dict], stored: dict) -> dict:
        """The document; ``stored``: what the file has so far, empty if there is none."""
        raise NotImplementedError

    def publish(self, header: dict, entries: list[dict], directory: Path, final: bool) -> None:
        path = directory / f"{self.name}.json"
        stored = json.loads(path.read_bytes()) if path.exists() else {}
        directory.mkdir(parents=True, exist_ok=True)
        text = json_lines(self.document(header, entries, stored))
        write_atomically(path, f"{text}\n".encode())


def json_lines(value, indent: str = "") -> str:
    """JSON with a line for each entry, down to the rows of a table."""
    inner = indent + " "
    if isinstance(value, Mapping):
        items = value.items()
        entries = [f"{inner}{json.dumps(key)}: {json_lines(item, inner)}" for key, item in items]
    elif isinstance(value, list) and value and isinstance(value[0], (list, dict)):
        entries = [inner + json.dumps(item, allow_nan=False) for item in value]
    else:
        return json.dumps(value, allow_nan=False)
    opening, closing = "{}" if isinstance(value, Mapping) else "[]"
    return f"{opening}\n" + ",\n".join(entries) + f"\n{indent}{closing}"
