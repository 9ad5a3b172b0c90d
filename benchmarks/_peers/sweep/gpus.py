"""Fresh processes that measure, one a GPU at a time, and what each of several GPUs is given."""

import contextlib
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from typing import IO

from ..._measure.workload import Outcome
from ..._system import process
from ..._system.progress import PROGRESS_VARIABLE
from .experiments import Timing
from .state import Row, SweepError, from_json

# The slowest is a compilation by torch.compile, which takes seconds.
CELL_SECONDS = 300.0
# Of a process, which costs five seconds to start and to warm up; what a lost process loses is one.
GROUP_TIMINGS = 72

_MAIN = """
from benchmarks._peers.sweep import worker
worker.main()
"""


class ProcessLost(RuntimeError):
    """A measuring process ended, or said nothing for too long; the message has its last words."""


class Worker:
    """A fresh process that sees one GPU and nothing of the others; a ``with`` block ends it.

    Parameters
    ----------
    uuid : str
        Of the GPU, as NVML and CUDA name it.

    Raises
    ------
    SweepError
        If the process cannot be started, or finds another GPU than the one it was given.
    """

    def __init__(self, uuid: str):
        self.uuid = uuid
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115, it lives as long as the process
        self._popen = process.start(
            _MAIN,
            env={"CUDA_VISIBLE_DEVICES": uuid, PROGRESS_VARIABLE: os.devnull},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            # What ends the sweep is not for it: a cell that is cut short would count as a failure.
            start_new_session=True,
        )
        stdin, stdout = self._popen.stdin, self._popen.stdout
        assert stdin is not None and stdout is not None  # pipes
        self._stdin: IO[str] = stdin
        self._stdout: IO[str] = stdout

    def __enter__(self) -> "Worker":
        try:
            self.gpu = self._hello()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception) -> None:
        self._popen.kill()  # it has nothing left to do, and holds the GPU's memory
        self._popen.wait()
        self._stdout.close()
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        self._log.close()

    def _hello(self) -> str:
        try:
            found = self._receive()
        except ProcessLost as error:
            problem = f"no process could be started to measure on {self.uuid}: {error}"
            raise SweepError(problem) from error
        if found["gpus"] != 1 or found["uuid"] != self.uuid:
            raise SweepError(
                f"a process was to see GPU {self.uuid} alone, and sees {found['gpus']}, "
                f"the first {found['uuid'] or 'none'}"
            )
        return found["gpu"]

    def answers(self, job: dict) -> Iterator[dict]:
        """What the process says about a job, line by line, the line that ends it included.

        Raises
        ------
        ProcessLost
            If the process ends, or says nothing for ``CELL_SECONDS``.
        """
        with contextlib.suppress(BrokenPipeError):  # then there is no answer either
            self._stdin.write(json.dumps(job) + "\n")
            self._stdin.flush()
        while True:
            answer = self._receive()
            yield answer
            if "done" in answer:
                return

    def _receive(self) -> dict:
        timer = threading.Timer(CELL_SECONDS, self._popen.kill)
        timer.daemon = True  # nothing waits for it when the sweep is stopped
        timer.start()
        try:
            line = self._stdout.readline()
        finally:
            timer.cancel()
        if not line.endswith("\n"):
            raise ProcessLost(self._last_words())
        return json.loads(line)

    def _last_words(self) -> str:
        status = self._popen.wait()
        self._log.seek(0)
        words = self._log.read().strip()[-2000:]
        said = f":\n{words}" if words else ""
        return f"the process ended with {status}, or was ended after {CELL_SECONDS:.0f} s{said}"


def dealt(timings: Sequence[Timing], gpus: int) -> list[list[Timing]]:
    """What each GPU measures: whole points, all providers together, in turns.

    Depends on the timings and the number of GPUs alone.
    """
    points: dict[tuple, list[Timing]] = {}
    for timing in timings:
        values = astuple(timing.cell)
        points.setdefault((timing.direction, *values[1:]), []).append(timing)
    hands: list[list[Timing]] = [[] for _ in range(gpus)]
    for index, point in enumerate(points.values()):
        hands[index % gpus] += point
    return hands


def groups(timings: Sequence[Timing]) -> Iterator[list[Timing]]:
    """The timings of one fresh process after the other: of one direction, and not too many."""
    group: list[Timing] = []
    for timing in timings:
        if group and (timing.direction != group[0].direction or len(group) >= GROUP_TIMINGS):
            yield group
            group = []
        group.append(timing)
    if group:
        yield group


def measure(
    hands: Sequence[Sequence[Timing]],
    uuids: Sequence[str],
    keep: Callable[[Row], object],
    model: str,
) -> None:
    """Measure what each GPU was dealt, all GPUs at once; a lost process costs one timing.

    ``keep`` is called with each row as it is known, by one thread at a time.

    Raises
    ------
    SweepError
        If a process cannot be started, or a GPU is not of the model that the results are filed
        under.
    """
    lock, stop = threading.Lock(), threading.Event()

    def kept(row: Row) -> None:
        with lock:
            keep(row)

    def serve(uuid: str, hand: Sequence[Timing]) -> None:
        try:
            for group in groups(hand):
                if stop.is_set():
                    return
                _measure_group(uuid, group, kept, model, stop)
        except BaseException:
            stop.set()
            raise

    with ThreadPoolExecutor(len(uuids)) as pool:
        served = [pool.submit(serve, *each) for each in zip(uuids, hands, strict=True)]
        try:
            for each in served:
                each.result()
        except BaseException:
            stop.set()  # with Ctrl-C, too: the others end with their cell
            raise


def _measure_group(
    uuid: str,
    group: Sequence[Timing],
    keep: Callable[[Row], None],
    model: str,
    stop: threading.Event,
) -> None:
    left = list(group)
    while left and not stop.is_set():
        with Worker(uuid) as worker:
            if worker.gpu != model:
                raise SweepError(f"GPU {uuid} is a {worker.gpu}, and the results are a {model}'s")
            try:
                for row in rows(worker, left):
                    left.remove(row.timing)
                    keep(row)
                    if stop.is_set():
                        return
                problem = "the process said that it was done before it was"
            except ProcessLost as error:
                problem = str(error)
        if process.stopping():
            return  # the process was ended with the sweep: nothing is wrong with its timing
        if left:  # the first of these was being measured
            keep(Row(left.pop(0), Outcome(error=problem), uuid))


def rows(worker: Worker, timings: Sequence[Timing]) -> Iterator[Row]:
    """The rows of timings of one direction, as the process finishes them."""
    cells = [astuple(timing.cell) for timing in timings]
    for answer in worker.answers({"direction": timings[0].direction, "cells": cells}):
        if "done" not in answer:
            yield from_json(answer)
