"""Measure timings on every GPU at once: each GPU takes groups of timings from one queue."""

import itertools
import json
import math
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple

from ..._measure import workload
from ..._system import process
from ..._system.progress import PROGRESS_VARIABLE
from ..cells import PeerCell
from .experiments import Timing
from .state import Row, SweepError, as_json, from_json

# The slowest is a compilation by torch.compile, which takes seconds.
CELL_SECONDS = 300.0
# For one process, which takes five seconds to start and to warm up.
GROUP_TIMINGS = 72

_WORK = """
from benchmarks._peers.sweep import gpus
gpus.work(sys.argv[2])
"""


class ProcessLost(RuntimeError):
    """A measuring process ended, or said nothing for too long; the message has its last words."""


def grouped(timings: Sequence[Timing], gpus: int) -> list[list[Timing]]:
    """What is measured by one process each: whole points, with all providers, of one direction."""
    most = min(GROUP_TIMINGS, math.ceil(len(timings) / gpus))
    groups: list[list[Timing]] = []
    for _, found in itertools.groupby(timings, lambda t: (t.direction, *astuple(t.cell)[1:])):
        point = list(found)
        last = groups[-1] if groups else []
        if last and last[0].direction == point[0].direction and len(last + point) <= most:
            last += point
        else:
            groups.append(point)
    return groups


def measure(
    timings: Sequence[Timing], uuids: Sequence[str], keep: Callable[[Row], object], model: str
) -> None:
    """Measure on all GPUs at once; a lost process costs one timing.

    ``keep`` is called with each row as soon as it is known, by one thread at a time.

    Raises
    ------
    SweepError
        If a process cannot be started, or a GPU is not of the model that the results are filed
        under.
    """
    queue, lock = iter(grouped(timings, len(uuids))), threading.Lock()
    stop = threading.Event()

    def kept(row: Row) -> bool:
        with lock:
            keep(row)
        return not stop.is_set()

    def serve(uuid: str) -> None:
        try:
            while not stop.is_set():
                with lock:
                    group = next(queue, None)
                if group is None:
                    return
                _measure_group(uuid, group, kept, model)
        except BaseException:
            stop.set()
            raise

    with ThreadPoolExecutor(len(uuids)) as pool:
        served = [pool.submit(serve, uuid) for uuid in uuids]
        try:
            for each in served:
                each.result()
        except BaseException:
            stop.set()  # with Ctrl-C, too: the others end with their cell
            raise


def _measure_group(uuid: str, left: list[Timing], kept: Callable[[Row], bool], model: str) -> None:
    while left:
        try:
            for row in rows(uuid, tuple(left), model):
                left.remove(row.timing)
                if not kept(row):
                    return
        except ProcessLost as lost:
            if process.stopping():
                return  # the process was ended with the sweep: nothing is wrong with its timing
            if not kept(Row(left.pop(0), workload.Outcome(error=str(lost)), uuid)):
                return


def rows(uuid: str, timings: Sequence[Timing], model: str) -> Iterator[Row]:
    """The rows of timings of one direction, as a fresh process that sees one GPU finishes them.

    Raises
    ------
    SweepError
        If the process cannot be started, or finds another GPU than the one it was given.
    ProcessLost
        If it ends before all are measured, or says nothing for ``CELL_SECONDS``.
    """
    job = json.dumps([timings[0].direction, [astuple(timing.cell) for timing in timings]])
    with (
        tempfile.TemporaryFile("w+") as log,
        process.start(
            _WORK,
            job,
            env={"CUDA_VISIBLE_DEVICES": uuid, PROGRESS_VARIABLE: os.devnull},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            # What ends the sweep is not for it: a cell that is cut short would count as a failure.
            start_new_session=True,
        ) as child,
    ):
        try:
            try:
                hello = _answer(child, log)
            except ProcessLost as error:
                raise SweepError(
                    f"no process could be started to measure on {uuid}: {error}"
                ) from error
            for what, expected in {"gpus": 1, "uuid": uuid, "gpu": model}.items():
                if hello[what] != expected:
                    raise SweepError(
                        f"a process was to see GPU {uuid} alone, a {model}, and found "
                        f"{what} {hello[what]!r}"
                    )
            for _ in timings:
                yield from_json(_answer(child, log))
        finally:
            child.kill()  # it has nothing left to do, and holds the GPU's memory


def _answer(child: subprocess.Popen, log) -> dict:
    timer = threading.Timer(CELL_SECONDS, child.kill)
    timer.daemon = True  # nothing waits for it when the sweep is stopped
    timer.start()
    assert child.stdout is not None  # a pipe
    try:
        line = child.stdout.readline()
    finally:
        timer.cancel()
    if line.endswith("\n"):
        return json.loads(line)
    status = child.wait()
    log.seek(0)
    words = log.read().strip()[-2000:]
    raise ProcessLost(
        f"the process ended with {status}, or was ended after {CELL_SECONDS:.0f} s"
        + (f":\n{words}" if words else "")
    )


def work(job: str) -> None:
    """In a fresh process: say which GPU it sees, then measure and say a row for each cell."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not end up among the answers
    import torch

    def say(content: dict) -> None:
        print(json.dumps(content, allow_nan=False), file=answers, flush=True)

    count = torch.cuda.device_count()
    here = torch.cuda.get_device_properties(0) if count else None
    uuid = f"GPU-{here.uuid}" if here else ""
    say({"gpus": count, "gpu": here.name if here else "none", "uuid": uuid})
    direction, values = json.loads(job)
    cells: list = [PeerCell(*each) for each in values]

    def finished(cell, outcome: workload.Outcome) -> None:
        say(as_json(Row(Timing(direction, cell), outcome, uuid)))

    workload.measure_cells(cells, direction, finished)
