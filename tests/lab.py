"""A GPU of the test's own, a repository of versions, and ``python -m benchmarks compare`` on both.

A version of the package says in a file how it behaves on that GPU, see :class:`Gpu`. What is real:
git, the order of processes, the stored rounds, the lock, the verdict, and the report.
"""

import contextlib
import json
import types
from pathlib import Path

import numpy as np
import pytest

from benchmarks import __main__ as entry
from benchmarks._engine.compare import command, exact, measure, rounds
from benchmarks._engine.machine_code.facts import Facts
from benchmarks._engine.machine_code.host_cost import HostCost
from benchmarks._engine.report.notes import texts
from benchmarks._engine.subject import keys_of, metric
from benchmarks._engine.system import checkout, errors, gpu_monitor, machine, process
from benchmarks._engine.verdict.rules import Key
from benchmarks._engine.verdict.schema import Comparison, from_json
from tests import toy
from tests.git import git

ROOT = Path(__file__).resolve().parents[1]
SHA = "0123456789abcdef0123456789abcdef01234567"
UUID = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
MACHINE = {
    **{"machine": "toy-gpu", "os": "Linux", "arch": "x86_64", "cpu": "c", "num_cpu": "1"},
    **{"ram": "", "torch": "2.11.0", "triton": "3.6.0", "driver": "580.1", "gpu": "Toy"},
}
PASS, FAIL, CANNOT_TELL, COULD_NOT_RUN = 0, 1, 2, 3
KILLED = 9

# Four cells: eight timings of the GPU, and four of the host.
CELLS = toy.CELLS
SMALL, LARGE = "1024 float32", "1048576 float32"
FORWARD, BACKWARD = "toy.Forward.track_latency", "toy.Backward.track_latency"
# A cell that is timed forward only.
ONCE = toy.Cell(4096, "bfloat16", "once")
ONCE_KEY = Key("once.Forward.track_latency", ONCE.params)
HOST = ["toy.Call.track_forward", "toy.Call.track_forward_backward"]
IMPORT, COMPILE, WARM_START = (
    f"host.FirstCall.track_{name}" for name in ("import", "compile", "warm_start")
)
LAUNCHES = Key("toy.Launches.track_launches", ())
REGISTERS, SPILLS = "toy.Code.track_registers", "toy.Code.track_spilled_bytes"
VARIANTS = "toy.Variants.track_variants"
CALL = ("sm_90", "float32", "forward")

ROUNDS = 10  # the fewest
CHECKS = 2  # processes that look at the output before anything is timed
ALL = CHECKS + 2 * ROUNDS


# --- a GPU of the test's own ----------------------------------------------------------------------


class Killed(BaseException):
    """Ends a run as Ctrl-C does: no ``except Exception`` sees it."""


class Gpu:
    """Answers jobs as the version's ``behaviour.json`` says, with seeded noise.

    Keys of the behaviour, all optional: "slower" ({cell or metric: factor}), "wrong" and "cannot"
    ([cell]: failed, or impossible, when it is checked), "fails" and "full" ({cell or metric:
    [number of its timing process, from 1]}: failed, or out of memory, when it is timed), "start",
    "import" and "compile" (seconds), "launches", "registers", "spills", "variants" (exact values),
    "code" (its machine code, as a text), "codes" ({cell: machine code}), "nodes" (what each call
    puts on the stream, as a text), "features" (what calls launch).
    """

    def __init__(self):
        self.begun, self.answered, self.working = 0, 0, 0
        self.jobs = []  # (root, job) of every answer of a process of one version
        self.before = lambda number: None  # called as process ``number`` gets its job
        self.noise = lambda key, number: 0.01 if key.metric in HOST else 0.001
        self.pace = lambda key, number: 1.0
        self.host_pace = lambda number: 1.0  # of all calls in a process of all versions
        self.launch = lambda number: 2.3e-6  # of a small kernel that is no version's
        self.events = lambda number: {}
        self.busy = ""
        self.starts = False  # whether first calls are timed
        self.clocked = []  # jobs of processes of all versions

    def answer(self, root: Path, job: dict) -> dict:
        self.working += 1
        try:
            return self._answer(root, job)
        finally:
            self.working -= 1

    def _answer(self, root: Path, job: dict) -> dict:
        self.begun += 1
        self.before(self.begun)
        behaviour = behaviour_of(root)
        rows = {kind: [] for kind in ("timings", "facts", "nodes", "unavailable", "errors")}
        rows["gpu"] = UUID
        cells = {
            " ".join(params): [
                Key(metric(cell, direction), cell.params)
                for cell in (toy.cell(suite, params),)
                for direction in cell.directions
            ]
            for suite, params in job["cells"]
        }
        if job["task"] == "check":
            self._check(cells, behaviour, rows, job["exact"])
        else:
            self._measure(cells, root, behaviour, job["starts"], rows)
        self.answered += 1
        self.jobs.append((root, job))
        return json.loads(json.dumps(rows))

    def _check(self, cells, behaviour, rows, exact) -> None:
        for kind, where in (("wrong", "errors"), ("cannot", "unavailable")):
            lost = [k for name in cells if name in behaviour.get(kind, ()) for k in cells[name]]
            rows[where] += [[*key, f"Traceback\nit is {kind}"] for key in lost]
        put = behaviour.get("nodes", "1 x kernel")
        rows["nodes"] = [[*key, put] for keys in cells.values() for key in keys]
        if exact:
            rows["facts"].append([*LAUNCHES, behaviour.get("launches", 1)])

    def clock(self, roots: dict[str, Path], job: dict) -> dict:
        """Answer for a process of several versions."""
        self.clocked.append(job)
        keys = [Key(metric, tuple(params)) for metric, params in job["calls"]]
        versions = {}
        for number, (name, root) in enumerate(roots.items()):
            rows = {kind: [] for kind in ("timings", "unavailable", "errors")}
            nth = len(self.clocked)
            self._time(keys, behaviour_of(root), rows, nth, seed=(len(self.clocked), number))
            pace = self.host_pace(nth)
            for row in rows["timings"]:
                row[2] = [pace * seconds for seconds in row[2]]
            beside = [[*row[:2], [1e-5 * pace] * 3] for row in rows["timings"]]
            versions[name] = rows | {"beside": beside}
        return json.loads(json.dumps({"versions": versions, "gpu": UUID}))

    def _measure(self, cells, root, behaviour, starts: bool, rows) -> None:
        rows["launches"] = [self.launch(self.begun)] * 3
        nth = 1 + sum(at == root and job["task"] == "measure" for at, job in self.jobs)
        if starts and self.starts:
            names = {IMPORT: "import", WARM_START: "start", COMPILE: "compile"}
            for metric, name in names.items():
                rows["timings"].append([metric, [], [behaviour.get(name, 0.1)]])
        timed = [key for keys in cells.values() for key in keys]
        self._time(timed, behaviour, rows, nth, seed=self.begun)

    def _time(self, timed, behaviour, rows, nth, seed) -> None:
        generator = np.random.default_rng(seed)
        factors = behaviour.get("slower", {})
        for key in timed:
            seconds = 1e-5 * self.pace(key, self.begun)
            seconds *= factors.get(" ".join(key.params), 1) * factors.get(key.metric, 1)
            seconds *= float(np.exp(self.noise(key, self.begun) * generator.normal()))
            rows["timings"].append([*key, [seconds] * 3])
        for kind, where in (("fails", "errors"), ("full", "unavailable")):
            names = {name for name, when in behaviour.get(kind, {}).items() if nth in when}
            lost = [row for row in rows["timings"] if names & {row[0], " ".join(row[1])}]
            rows["timings"] = [row for row in rows["timings"] if row not in lost]
            rows[where] += [[*row[:2], "Traceback\nlost in the round"] for row in lost]

    def require_free(self, uuid: str) -> None:
        assert uuid == UUID
        if self.busy or self.working:
            raise gpu_monitor.GpuBusyError(self.busy or "a process of our own")

    def watching(self, uuid: str):
        """Stands for ``Watch``; the judgement of what it saw is the real one."""
        assert uuid == UUID
        return contextlib.nullcontext(types.SimpleNamespace(summary=self._summary))

    def _summary(self) -> dict:
        clocks = {"sm_mhz": [1900, 1980, 1980], "memory_mhz": [3201, 3201, 3201]}
        seen = {"samples": 9, "under_load": 9, "processes": 1, "events": {}, **clocks}
        return seen | self.events(self.answered)


def raise_again() -> None:
    """In place of ``traceback.print_exc``: let the test fail of what the command caught."""
    raise


def behaviour_of(root: Path) -> dict:
    return json.loads(next(root.rglob("behaviour.json")).read_text())


def fake_process(gpu: Gpu):
    class Process:
        def __init__(self, subject, root, cache, copies=None, on_gpu=True):
            assert cache.is_dir() and subject == toy.__name__
            self.root, self.copies, self.on_gpu, self.stopped = root, copies, on_gpu, False

        def wait_until_ready(self):
            assert not self.stopped

        def answer(self, job):
            job = json.loads(json.dumps(job))
            if job["task"] == "clock":
                answer = gpu.clock({n: self.root / c for n, c in self.copies.items()}, job)
                return answer if self.on_gpu else answer | {"gpu": ""}
            return gpu.answer(self.root, job)

        def stop(self):
            self.stopped = True

        kill = stop

    return Process


def facts_of(code: str) -> Facts:
    """Facts of a machine code that differ from those of any other."""
    return Facts(32, 0, 0, 0, 64, 4, 0, digest=code, code=code, saved_bytes=0)


def cost_of(executed: str) -> HostCost:
    """What a call does on the host that executes so many instructions."""
    return HostCost(executed, len(executed), 1, 1, 1)


def fake_code(
    subject, root: Path, target: str, cells, compilations=(), variants=(), ledger=None, host=()
) -> exact.Code:
    """One machine code for all calls, but those in the behaviour's "codes", {cell: code}.

    On the host a call executes the behaviour's "executes", and the import "imports" instructions.
    """
    behaviour = behaviour_of(root)
    code, codes = behaviour.get("code", root.name), behaviour.get("codes", {})
    reach = {"features": set(behaviour.get("features", ())), "failures": {}}
    facts = {
        key: facts_of(codes.get(" ".join(key.params), code)) for c in cells for key in keys_of(c)
    }
    values = {
        Key(REGISTERS, CALL): behaviour.get("registers", 32),
        Key(SPILLS, CALL): behaviour.get("spills", 0),
        Key(VARIANTS, CALL[:1]): behaviour.get("variants", 1),
    }
    executed = {}
    if host:
        changed = behaviour.get("executes", {})  # by metric and parameters
        keys = (Key(*key) for key in {**subject.eager(), **subject.host_calls()})
        executed = {key: cost_of(changed.get(key.words, "the same")) for key in keys}
        values[Key("host_cost.Import.track_bytecodes", ())] = behaviour.get("imports", 1000)
    none = {"features": set(), "failures": {}}
    return exact.Code(facts, values, {"dense": reach, "listed": none}, executed)


# --- a repository of versions, and the command ----------------------------------------------------


class Lab:
    """A repository whose commits behave as specified, the GPU, and the command on both."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, package: str = "rope_triton"):
        self.root, self.gpu, self.patch, self.package = root, Gpu(), patch, package
        self.scratch = root / ".asv" / "compare"
        self.report, self.machine, self.arch = root / "report.json", dict(MACHINE), "sm_90"
        patch.setattr(command, "DEFAULT", toy.__name__)
        patch.setattr(toy, "PACKAGE", package)
        patch.setattr(toy, "CELLS", [*CELLS])
        for name, value in (("ROOT", root), ("SCRATCH", self.scratch)):
            patch.setattr(command, name, value)
        patch.setattr(machine, "probe", lambda: (self.machine, self.arch))
        patch.setattr(errors, "traceback", types.SimpleNamespace(print_exc=raise_again))
        patch.setattr(measure, "Process", fake_process(self.gpu))
        patch.setattr(rounds, "CHECKED_AT_ONCE", 1)  # processes in a fixed order
        patch.setattr(exact, "compiled", fake_code)
        patch.setattr(gpu_monitor, "LOCK_DIRECTORY", root)
        patch.setattr(gpu_monitor, "gpu_uuid", lambda: UUID)
        patch.setattr(gpu_monitor, "require_free", self.gpu.require_free)
        patch.setattr(gpu_monitor, "Watch", self.gpu.watching)

    def init(self) -> "Lab":
        self.git("init", "-q", "-b", "main")
        (self.root / "README.md").write_text("toy\n")
        self.git("add", "README.md")
        self.git("commit", "-q", "-m", "no package")
        self.git("tag", "empty")
        return self

    def git(self, *arguments: str) -> str:
        return git(self.root, *arguments)

    def write(self, **behaviour) -> None:
        """Let the working tree behave like this."""
        package = self.root / self.package
        package.mkdir(exist_ok=True)
        (package / "__init__.py").write_text("")
        (package / "behaviour.json").write_text(json.dumps(behaviour))

    def commit(self, tag: str, **behaviour) -> str:
        """A commit that behaves like this; its hash."""
        self.write(**behaviour)
        self.git("add", self.package)
        self.git("commit", "-q", "--allow-empty", "-m", tag)
        self.git("tag", tag)
        return self.git("rev-parse", "HEAD")

    def with_once(self) -> None:
        """Let there be a cell that is timed forward only, too."""
        self.patch.setattr(toy, "CELLS", [*CELLS, ONCE])

    def versions(self, base: dict, head: dict) -> None:
        # "is" makes them differ where their behaviour does not.
        self.commit("base", **{"is": "base"} | base)
        self.commit("head", **{"is": "head"} | head)

    def compare(self, *arguments: str, rounds: int = ROUNDS) -> int:
        """The exit status of ``compare``, with few rounds and a JSON report."""
        given = arguments or ("base", "head")
        words = ["compare", *given, "--json", str(self.report)]
        words += [] if "--exact-only" in given else ["--rounds", str(rounds)]
        self.report.unlink(missing_ok=True)
        return status_of(words)

    @property
    def found(self) -> Comparison:
        return from_json(json.loads(self.report.read_text()))

    @property
    def notes(self) -> list[str]:
        return texts(self.found.notes)

    @property
    def wrong(self) -> list[str]:
        return texts(self.found.wrong)

    @property
    def unmeasured(self) -> list[str]:
        return texts(self.found.unmeasured)

    def timing(self, key: Key):
        (timing,) = (timing for timing in self.found.timings if timing.key == key)
        return timing

    def states(self) -> list[Path]:
        return sorted((self.scratch / "states").glob("*.jsonl"))


def free_gpu(patch: pytest.MonkeyPatch, bench, root: Path) -> None:
    """Let there be a GPU on which nothing else runs, a clean checkout, and a bench's answers."""
    version = checkout.Version("working tree", SHA, "digest", root)
    patch.setattr(checkout, "from_working_tree", lambda *_: version)
    patch.setattr(machine, "probe", lambda: (dict(MACHINE), "sm_90"))
    patch.setattr(gpu_monitor, "gpu_uuid", lambda: UUID)
    patch.setattr(gpu_monitor, "gpu_lock", lambda *_: contextlib.nullcontext())
    patch.setattr(gpu_monitor, "require_free", lambda uuid: None)
    patch.setattr(process, "call", bench.call)


def status_of(words: list[str]) -> int:
    """The exit status of ``python -m benchmarks``, whether it returns or exits."""
    try:
        return entry.main(words)
    except SystemExit as end:
        return end.code


def both(name: str) -> list[Key]:
    return [Key(metric, tuple(name.split())) for metric in (FORWARD, BACKWARD)]


def noisy(lab: Lab, name: str, second: float) -> None:
    """Let a cell be noisy in the first look, with ``second`` as its noise in the second."""

    def noise(subject, number):
        if " ".join(subject.params) != name:
            return 0.01 if subject.metric in HOST else 0.001
        return 0.1 if number <= ALL else second

    lab.gpu.noise = noise
