"""Measure one version of the package in a fresh process.

A process imports everything, says that it is ready, waits for its turn with the GPU, does one job
and ends. Jobs and answers are JSON, so that they can be stored as they are:

``{"task": "check", "cells": [[suite, params], ...], "exact": bool}``
    Is every cell, as the subject's ``cell`` takes it, right, forward and backward, and what does it
    put on the stream; on demand, what is exact of this version on this GPU.
``{"task": "measure", "cells": [...], "starts": bool, "seed": int}``
    Latencies of the cells whose recorded calls are right; on demand, of the import, the first call
    and a compilation. The seed shuffles which input goes with which output in memory: how they lie
    to each other moves a call by percents, so both processes of a round get one seed and every
    round another.
``{"task": "clock", "calls": [[metric, params], ...], "arch": str, "seed": int}``
    Host times of eager calls of several versions, all of them in this process; with an architecture
    on the CPU, under the stub driver.

The answer is ``{"timings": [[metric, params, samples], ...], "facts": [[metric, params, value],
...], "nodes": [[metric, params, text], ...], "unavailable": [[metric, params, reason], ...],
"errors": [[metric, params, reason], ...]}``: nodes as ``graph_nodes.described`` says them.
``"launches"``: what ``gpu_timer.launches`` took, before each pass and before the check.
``"seconds"``: what the parts of the job took. To clock several versions, the first five and
``"beside": [[metric, params, samples], ...]``, one of the versions' mean beside each sample, are in
``"versions"`` by name.
"""

import contextlib
import gc
import importlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from ..machine_code import host_cost, uncompiled
from ..measure import (
    call_costs,
    cell_outcomes,
    first_call,
    gpu_timer,
    graph_nodes,
    host_time,
    inputs,
    timed_cell,
)
from ..subject import Cell, Countable, Subject, load, metric
from ..system import copies, process
from ..system.errors import CouldNotRunError
from ..verdict.metrics import COUNTED, FAMILIES, HOST_CALL, IMPORT
from ..verdict.rules import Key

# The process is the unit: what varies within one needs no more than this. Each sample is of another
# pass over the cells, because what disturbs a GPU for milliseconds hits up to 11 cells in a row.
PASSES, SAMPLE_SECONDS = 3, 2e-3
# The process before has just kept the GPU busy.
WARM_UP_SECONDS = 0.5
READY, READY_TIMEOUT = "ready", 300.0
# What torch imports at the first gradient and at the first check.
_IMPORTED_LATER = "torch.fx.experimental.symbolic_shapes", "torch.distributed.tensor"

_MAIN = """
from benchmarks._engine.compare import measure
measure.main(*sys.argv[2:])
"""


class ProcessError(CouldNotRunError):
    """A measuring process died, or broke the protocol."""


class Process:
    """A fresh process with one version of the package, started ahead of its turn.

    subject: its module. root: the directory that holds the package. cache: Triton's cache.
    names: where the process has several versions, those of their packages below ``root``.
    on_gpu: whether it finds a GPU.
    """

    def __init__(
        self,
        subject: str,
        root: Path,
        cache: Path,
        names: Mapping[str, str] | None = None,
        on_gpu: bool = True,
    ):
        self._scratch = tempfile.TemporaryDirectory()
        self._answer = Path(self._scratch.name, "answer.json")
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115, it lives as long as the process
        self._popen = process.start(
            *(_MAIN, subject, str(self._answer), json.dumps(names or {})),
            path=(str(root),),
            env={"TRITON_CACHE_DIR": str(cache)} | ({} if on_gpu else {"CUDA_VISIBLE_DEVICES": ""}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            encoding="utf-8",
        )

    def wait_until_ready(self) -> None:
        """Return when the process has imported everything and has not touched the GPU.

        Raises ProcessError if it died; its last words are in the message.
        """
        hanging = threading.Timer(READY_TIMEOUT, self._popen.kill)
        hanging.daemon = True  # nothing waits for it when the comparison is stopped
        hanging.start()
        assert self._popen.stdout is not None  # a pipe
        ready = any(line == READY + "\n" for line in self._popen.stdout)
        hanging.cancel()
        if not ready:
            self._popen.wait()
            raise ProcessError(f"a process died before it was ready:\n{self._last_words()}")

    def answer(self, job: dict, timeout: float = 1800.0) -> dict:
        """Let a process that is ready do its job; it has ended when this returns.

        Raises ProcessError if it dies, or takes longer than ``timeout`` seconds; its last words are
        in the message.
        """
        try:
            self._popen.communicate(json.dumps(job) + "\n", timeout=timeout)
        except subprocess.TimeoutExpired as error:
            self.stop()
            raise ProcessError(f"a process took longer than {timeout:.0f} s") from error
        if self._popen.returncode or not self._answer.exists():
            status = self._popen.returncode
            raise ProcessError(f"a process ended with {status}:\n{self._last_words()}")
        return json.loads(self._answer.read_bytes())

    def kill(self) -> None:
        """Let another thread's :meth:`answer` raise ProcessError now."""
        self._popen.kill()

    def stop(self) -> None:
        """End the process, whatever it does."""
        if self._popen.poll() is None:
            self._popen.kill()
        self._popen.communicate()
        self._log.close()
        self._scratch.cleanup()

    def _last_words(self) -> str:
        self._log.seek(0)
        return self._log.read()[-4000:]


def main(subject_name: str, answer: str, packages: str = "{}") -> None:
    """In the fresh process: import, wait for a job on stdin, write its answer to a file."""
    start = time.perf_counter()
    import torch

    subject = load(subject_name)
    root = os.environ["PYTHONPATH"].split(os.pathsep)[0]
    names = json.loads(packages)
    own_import = [
        first_call.import_package(one, root) for one in names.values() or [subject.PACKAGE]
    ]
    for module in _IMPORTED_LATER:
        with contextlib.suppress(ImportError):  # a torch without it has no need of it
            importlib.import_module(module)
    imported = time.perf_counter() - start
    print(READY, flush=True)
    job = json.loads(sys.stdin.readline())
    task = job.pop("task")
    cells = [subject.cell(suite, params) for suite, params in job.pop("cells", ())]
    if task == "clock":
        answers = _clock(subject, names, **job)
    elif task == "check":
        torch.set_num_threads(1)  # the compilers have the cores, and threads would wait for them
        answers = _check(subject, cells, **job)
    else:
        answers = _measure(subject, cells, **job)
        if job["starts"]:
            answers["timings"].append([IMPORT, [], own_import])
    answers["gpu"] = ""
    if os.environ.get("CUDA_VISIBLE_DEVICES") != "":  # else no GPU is used
        answers["gpu"] = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    answers["seconds"]["import"] = imported
    Path(answer).write_text(json.dumps(answers, allow_nan=False), encoding="utf-8")


def check_job(cells: Iterable[Cell]) -> dict:
    """The job that checks cells, and says what is exact."""
    return {"task": "check", "cells": rows_of(cells), "exact": True}


def timing_job(cells: Iterable[Cell], host: Iterable[Key] = ()) -> dict:
    """The jobs of a round that times cells and, of the host, ``host``; it adds its seed to each.

    "alone": that of a process of each version. "together": that of one which has all versions, and
    clocks calls; the round adds the architecture. None if there is nothing to do.
    """
    starts, calls = (
        sorted(key for key in host if key.metric.startswith(FAMILIES[family]))
        for family in ("start", "host")
    )
    rows = rows_of(cells)
    alone = {"task": "measure", "cells": rows, "starts": bool(starts)}
    together = {"task": "clock", "calls": calls}
    return {
        "alone": alone if rows or starts else None,
        "together": together if calls else None,
    }


def rows_of(cells: Iterable[Cell]) -> list[tuple[str, tuple[str, ...]]]:
    """Suite and parameters of each cell, as the subject's ``cell`` takes them."""
    return [(cell.suite, cell.params) for cell in cells]


def _measure(subject: Subject, cells: list[Cell], starts: bool, seed: int) -> dict:
    answers, shuffle = _Answers(), random.Random(seed).shuffle
    if starts:
        answers.add_host(call_costs.warm_start_here(subject))
    with answers.clocked("cells"):
        for group in timed_cell.groups(cells) or [[]]:
            _time(group, shuffle, answers)
    if starts:
        with answers.clocked("starts"):
            answers.add_host(call_costs.compile_here(subject))
    return vars(answers)


def _clock(subject: Subject, names: Mapping[str, str], calls: list, arch: str, seed: int) -> dict:
    """Clock calls of all versions, block by block in an order that the seed draws.

    A version's samples are from every other block, those of the first from the rest, so that no
    two versions of a comparison have the noise of one block in common. Each has beside it the
    geometric mean over the versions in its block.
    """
    calls_of = {
        (HOST_CALL if suite == COUNTED else suite, params): call
        for (suite, params), call in host_cost.all_calls(subject).items()
    }
    asked = {(name, tuple(params)): calls_of[name, tuple(params)] for name, params in calls}
    answers = {version: _Answers() for version in names}
    if arch:
        import torch

        torch.set_num_threads(1)
        uncompiled.skip_work()
        uncompiled.counting_driver(arch)
    made: dict[tuple, dict[str, host_time.EagerCall]] = {key: {} for key in asked}
    for version, name in names.items():
        with copies.imported_as(subject.PACKAGE, name):
            for key, one in asked.items():
                call = cell_outcomes.attempt(_eager, key, one, bool(arch))
                if isinstance(call, Exception):
                    if cell_outcomes.ends_use(call):
                        raise call
                    answers[version].add_host({key: call})
                else:
                    made[key][version] = call
    if not arch:
        gpu_timer.warm_up(WARM_UP_SECONDS)  # a GPU that never works is not watched
    start = time.perf_counter()
    of_all = {key: versions for key, versions in made.items() if len(versions) == len(names)}
    samples = host_time.times_in_turns(of_all, random.Random(seed).shuffle)
    for (name, params), of_versions in samples.items():
        if isinstance(of_versions, Exception):
            raise of_versions
        means = [*map(statistics.geometric_mean, zip(*of_versions.values(), strict=True))]
        for number, version in enumerate(names):
            half, row = slice(min(number, 1), None, 2), [name, list(params)]
            answers[version].timings.append([*row, of_versions[version][half]])
            answers[version].beside.append([*row, means[half]])
    keys = "timings", "facts", "unavailable", "errors", "beside"
    return {
        "versions": {v: {key: vars(one)[key] for key in keys} for v, one in answers.items()},
        "seconds": {"clock": time.perf_counter() - start},
    }


def _check(subject: Subject, cells: list[Cell], exact: bool) -> dict:
    answers = _Answers()
    with answers.clocked("cells"):
        for cell in cells:
            with answers.about(cell, cell.directions):
                _check_cell(cell, answers)
    if exact:
        with answers.clocked("exact"):
            answers.add_host(call_costs.exact_facts(subject))
    return vars(answers)


def _eager(key: tuple, call: Countable, on_cpu: bool) -> host_time.EagerCall:
    """A call to be clocked. On a GPU the result of a call that is always timed is checked."""
    if key[0] != HOST_CALL and not on_cpu:
        assert isinstance(call, tuple)
        return host_time.eager_call(*call)
    direction = call[1] if isinstance(call, tuple) else key[1][-1]
    make = host_cost.step if on_cpu else host_time.on_gpu
    return host_time.counted_call(make(call), direction)


class _Answers:
    def __init__(self) -> None:
        self.timings: list[list] = []
        self.facts: list[list] = []
        self.nodes: list[list] = []
        self.unavailable: list[list] = []
        self.errors: list[list] = []
        self.beside: list[list] = []
        self.launches: list[float] = []
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def clocked(self, part: str) -> Iterator[None]:
        """Note how long a part of the job takes: what a comparison costs follows from it."""
        start = time.perf_counter()
        yield
        self.seconds[part] = time.perf_counter() - start

    @contextlib.contextmanager
    def about(self, cell: Cell, directions: Iterable[str]) -> Iterator[None]:
        """File what goes wrong inside under these timings of the cell, and free what they took."""
        import torch

        try:
            yield
        except Exception as error:
            if cell_outcomes.cannot_be_had(error):
                where = self.unavailable
            elif not cell_outcomes.gpu_is_lost():
                where = self.errors
            else:
                raise  # nothing that follows can be measured in this process
            reason = cell_outcomes.why_not(error)
            traceback.clear_frames(error.__traceback__)  # they hold what was allocated
            where.extend(_row(cell, direction, reason) for direction in directions)
            gc.collect()
            torch.cuda.empty_cache()

    def add_host(self, values: dict) -> None:
        for (name, params), value in values.items():
            key = [name, list(params)]
            if isinstance(value, NotImplementedError):
                self.unavailable.append([*key, str(value)])
            elif isinstance(value, Exception):
                self.errors.append([*key, str(value)])
            else:
                (self.timings if isinstance(value, list) else self.facts).append([*key, value])


def _row(cell: Cell, direction: str, answer) -> list:
    return [metric(cell, direction), list(cell.params), answer]


def _time(cells: list[Cell], shuffle: Callable[[list], None], answers: _Answers) -> None:
    """Time cells whose buffers fit into memory together: a sample of each in every pass over them.

    With no cells the GPU is warmed up all the same.
    """
    import torch

    timed = _advanced([_steps(cell, shuffle, answers) for cell in cells])
    launches = gpu_timer.launches()
    gpu_timer.warm_up(WARM_UP_SECONDS)
    while timed:
        answers.launches.append(launches.time(1))
        timed = _advanced(timed)
    del launches
    gc.collect()
    torch.cuda.empty_cache()  # the next group finds memory as this one found it


def _steps(cell: Cell, shuffle: Callable[[list], None], answers: _Answers) -> Iterator[None]:
    """Record a cell's calls, all directions on the same inputs; then a sample at each step.

    The last step checks them and files the samples. After a failure there are no more steps.
    """
    with answers.about(cell, cell.directions):
        timed = timed_cell.TimedCell(cell, cell.directions, arrange=shuffle)
        for _ in range(PASSES):
            yield
            timed.sample(1, SAMPLE_SECONDS)
        yield
        for direction, samples in zip(cell.directions, timed.checked(), strict=True):
            answers.timings.append(_row(cell, direction, samples))


def _advanced(timed: list[Iterator[None]]) -> list[Iterator[None]]:
    """Those of the cells that have another step, after this one."""
    ended = object()
    return [steps for steps in timed if next(steps, ended) is not ended]


def _check_cell(cell: Cell, answers: _Answers) -> None:
    """Check a cell's calls, and file what they put on the stream."""
    import torch

    torch.cuda.empty_cache()  # what the cell before left is free
    timed_cell.check_memory(cell, 1)
    torch.manual_seed(0)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x, call = inputs.random(cell), cell.call(inputs.DEVICE)
        for direction in cell.directions:
            with answers.about(cell, [direction]):
                (function,) = timed_cell.calls(call, direction, [x])
                timed_cell.check_once(call, direction, function, x)
                nodes = graph_nodes.described(function, stream)
                answers.nodes.append(_row(cell, direction, nodes))
