"""Measure several versions in turns, in fresh processes; discard and repeat invalid rounds."""

import contextlib
import functools
import hashlib
import itertools
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

from ..subject import load
from ..system import copies, gpu_monitor
from ..system.checkout import Version
from ..system.errors import CouldNotRunError
from ..system.journal import Journal
from ..system.progress import say
from . import measure

ATTEMPTS = 4  # of one round, then the GPU is no place to measure
# Processes that import while another measures: on an H200's host that takes longer than measuring.
AHEAD = 2
CHECKED_AT_ONCE = 2  # processes
TOGETHER = "together"  # the process that has all versions
LAUNCH_SHIFT = 0.05
"""A round is invalid when launches in one of its processes take longer by more than this share.

Another GPU of the host that works makes each launch 0.33 us shorter, often for the whole of a
process, which is some 15 % of a small kernel's time. On a quiet host, the times of small kernels in
the processes of a round differ by 0.5 %.
"""


class BudgetError(CouldNotRunError):
    """The time is up; what was measured is kept."""


class InvalidRoundError(CouldNotRunError):
    """A round was invalid again and again."""


class Plan(NamedTuple):
    """Which versions are measured, and where.

    subject: its module. versions: by name. cache: Triton's cache directory.
    uuid: of the GPU. deadline: in ``time.monotonic``'s seconds. arch: of the stub driver, to clock
    calls without a GPU.
    """

    subject: str
    versions: dict[str, Version]
    cache: Path
    uuid: str
    deadline: float
    arch: str = ""

    def order(self, number: int) -> list[str]:
        """The versions of a round in their order.

        Two rounds have both orders, A B | B A or B A | A B. Which, is drawn: what disturbs every
        fourth process would otherwise disturb one version alone.
        """
        seed = "".join(version.digest for version in self.versions.values())
        drawn = hashlib.sha256(f"{seed} {number // 2}".encode()).digest()[0]
        return list(self.versions)[:: 1 if (number + drawn) % 2 == 0 else -1]


class Round(NamedTuple):
    """A process of each version, and one of all of them if calls are clocked on the host.

    answers: by version's name, with what the process of all versions says of it. watch: what the
    GPU did meanwhile. discarded: why the round does not count, "" if it does.
    """

    phase: str
    number: int
    answers: dict[str, dict]
    watch: dict
    discarded: str = ""

    @property
    def seconds(self) -> float:
        return sum(answer["wall_seconds"] for answer in self.answers.values())


class Rounds(Journal):
    """Rounds of fresh processes on one GPU, in a journal; a ``with`` block closes it."""

    def __init__(self, plan: Plan, path: Path, header: dict):
        super().__init__(path, header)
        self.plan = plan
        self._ready: dict[str, list[measure.Process]] = {n: [] for n in (*plan.versions, TOGETHER)}
        self._begun = itertools.count()  # processes of all versions
        self._scratch = tempfile.TemporaryDirectory()
        self._checking: dict[str, tuple[measure.Process, Future[dict]]] = {}  # by name
        self._checks = ThreadPoolExecutor(CHECKED_AT_ONCE)
        self._checks_begun = float("inf")
        self._of_earlier_runs = Counter(one.phase for one in self._all() if not one.discarded)

    def rounds(self, phase: str) -> list[Round]:
        """The rounds of a phase that count, by number."""
        return [one for one in self._all() if one.phase == phase and not one.discarded]

    @property
    def discarded(self) -> list[str]:
        """The rounds that were discarded, and why."""
        bad = [one for one in self._all() if one.discarded]
        return [f"{one.phase}, round {one.number + 1}: {one.discarded}" for one in bad]

    @property
    def checked(self) -> dict[str, dict]:
        """The answer of each version that was checked, by its name."""
        return {entry["version"]: entry["check"] for entry in self.entries if "check" in entry}

    @property
    def minutes(self) -> float:
        """What the processes that count have taken so far, those of earlier runs too."""
        checks = sum(answer["wall_seconds"] for answer in self.checked.values())
        return (checks + sum(one.seconds for one in self._all() if not one.discarded)) / 60

    def _all(self) -> list[Round]:
        return [Round(**entry["round"]) for entry in self.entries if "round" in entry]

    def settled(self, key: str):
        """What an earlier run settled on under this key, None if none did."""
        values = [entry["settled"] for entry in self.entries if key in entry.get("settled", {})]
        return values[0][key] if values else None

    def settle(self, key: str, value: object):
        """What an earlier run settled on under this key; if none did, this value, from now on."""
        if self.settled(key) is None:
            self.append({"settled": {key: value}})
        return self.settled(key)

    def get_ready(self, versions: Sequence[str]) -> None:
        """Start the processes that are missing for the first turns of ``versions``."""
        for name, turns in Counter(versions[:AHEAD]).items():
            for _ in range(turns - len(self._ready[name])):
                self._ready[name].append(self._start(name))

    def begin_check(self, name: str, job: dict) -> None:
        """Let a process of this version answer the job, unless the journal has its answer."""
        if name not in self.checked and name not in self._checking:
            if not self._checking:  # else our own processes are on the GPU
                gpu_monitor.require_free(self.plan.uuid)
            self._checks_begun = min(self._checks_begun, time.monotonic())
            process = self._take(name)
            self._checking[name] = process, self._checks.submit(self._answer, process, job)

    def check(self, job: dict, then: Sequence[str] = ()) -> dict[str, dict]:
        """The answer of each version to the job, from the journal where it has it.

        Several processes at a time: nothing that they find depends on a clock. Processes for the
        turns ``then`` get ready meanwhile.
        """
        for name in self.plan.versions:
            self.begin_check(name, job)
        self.get_ready(then)
        start = self._checks_begun
        names = {answered: name for name, (_, answered) in self._checking.items()}
        left = set(names)
        while left:
            done, left = wait(left, return_when=FIRST_COMPLETED)
            # What was answered is stored before a failure ends the others.
            for answered in sorted(done, key=lambda future: future.exception() is not None):
                answer, name = answered.result(), names[answered]
                start, seconds = time.monotonic(), time.monotonic() - start
                self.append({"version": name, "check": answer | {"wall_seconds": seconds}})
                say(f"checked {name}, {seconds:.0f} s")
        self._checking = {}
        return self.checked

    def run(self, phase: str, count: int, job: dict, only: int | None = None) -> None:
        """Measure the rounds of a phase that are not there yet, or of the first ``only`` of them.

        Raises BudgetError if the next round would end after the deadline; InvalidRoundError,
        GpuBusyError or ProcessError if the GPU is not ours alone, or a process dies.
        """
        if earlier := self._of_earlier_runs.pop(phase, 0):
            say(f"{phase}: {earlier} rounds were there already")
        took: list[float] = []
        for number in range(len(self.rounds(phase)), only or count):
            self._require_time(phase, number, count, took)
            start = time.monotonic()
            then = self._turns(number + 1, job) if number + 1 < count else []
            self._measure_round(phase, number, job, then)
            took.append(time.monotonic() - start)
            left = statistics.mean(took) * (count - number - 1)
            say(f"{phase}: round {number + 1} of {count}, {took[-1]:.0f} s, {left:.0f} s to go")

    def affordable(self, phase: str, most: int, like: str) -> int:
        """Rounds of a phase that there is time for, an even number up to ``most``.

        Each as long as the longest of the phase ``like``; those that are there take no more time.
        """
        longest = max(one.seconds for one in self.rounds(like))
        left = max(0.0, self.plan.deadline - time.monotonic())
        return min(most, len(self.rounds(phase)) + int(left / longest)) // 2 * 2

    def close(self) -> None:
        begun = [process for process, _ in self._checking.values()]
        for process in begun:
            process.kill()
        self._checks.shutdown(cancel_futures=True)
        for process in itertools.chain(begun, *self._ready.values()):
            process.stop()
        self._scratch.cleanup()
        super().close()

    def _turns(self, number: int, job: dict) -> list[str]:
        """The processes of a round in their order."""
        alone = self.plan.order(number) if job["alone"] else []
        return [*alone, *([TOGETHER] if job["together"] else [])]

    def _require_time(self, phase: str, number: int, count: int, took: list[float]) -> None:
        seconds = [*took, *(one.seconds for one in self.rounds(phase))]
        if time.monotonic() + max(seconds, default=0.0) > self.plan.deadline:
            raise BudgetError(
                f"the time is up before round {number + 1} of {count} of {phase}: what was "
                "measured is kept, and the same command goes on from there"
            )

    def _measure_round(self, phase: str, number: int, job: dict, then: Sequence[str]) -> None:
        turns, seed = self._turns(number, job), {"seed": number}
        jobs = dict.fromkeys(turns, job["alone"])
        if job["together"]:
            jobs[TOGETHER] = job["together"] | {"arch": self.plan.arch}
        for _ in range(ATTEMPTS):
            with self._watched() as watching:
                answers = {
                    name: self._answer(self._take(name), jobs[name] | seed, [*turns[turn:], *then])
                    for turn, name in enumerate(turns, start=1)
                }
            _share(answers)
            watch, reason = {}, ""
            if watching is not None:
                watch = watching.summary()
                earlier = [one.watch for one in self.rounds(phase)]
                reason = gpu_monitor.why_invalid(watch, earlier) or _why_apart(answers)
            measured = Round(phase, number, answers, watch, reason)
            self.append({"round": measured._asdict()})
            if not reason:
                return
            say(f"{phase}: round {number + 1} is repeated: {reason}")
        raise InvalidRoundError(
            f"round {number + 1} of {phase} was invalid {ATTEMPTS} times: {reason}"
        )

    @contextlib.contextmanager
    def _watched(self) -> Iterator[gpu_monitor.Watch | None]:
        """What the GPU does meanwhile, which must be free."""
        if self.plan.arch:
            yield None
            return
        gpu_monitor.require_free(self.plan.uuid)
        with gpu_monitor.Watch(self.plan.uuid) as watching:
            yield watching

    def _answer(self, process: measure.Process, job: dict, then: Sequence[str] = ()) -> dict:
        """What a fresh process answers; those of the next turns get ready meanwhile."""
        start = time.monotonic()
        try:
            process.wait_until_ready()
            self.get_ready(then)
            answer = process.answer(job)
        finally:
            process.stop()
        if answer["gpu"].removeprefix("GPU-") != self.plan.uuid.removeprefix("GPU-"):
            raise measure.ProcessError(
                f"measured was GPU {answer['gpu']}, watched and locked is {self.plan.uuid}"
            )
        return answer | {"wall_seconds": time.monotonic() - start}

    def _start(self, name: str) -> measure.Process:
        subject, versions, cache = self.plan.subject, self.plan.versions, self.plan.cache
        if name != TOGETHER:
            return measure.Process(subject, versions[name].root, cache)
        # What is imported first may be faster: it is another version every time.
        names = dict([*self._names.items()][:: 1 if next(self._begun) % 2 == 0 else -1])
        directory = Path(self._scratch.name)
        return measure.Process(subject, directory, cache, names, not self.plan.arch)

    @functools.cached_property
    def _names(self) -> dict[str, str]:
        """By version, the name of the copy of its package, all of which are written now."""
        roots = {name: version.root for name, version in self.plan.versions.items()}
        package, directory = load(self.plan.subject).PACKAGE, Path(self._scratch.name)
        return copies.write(package, roots, directory)

    def _take(self, name: str) -> measure.Process:
        ready = self._ready[name]
        return ready.pop(0) if ready else self._start(name)


def _share(answers: dict[str, dict]) -> None:
    """Give each version's answer what the process of all versions says of it."""
    if (together := answers.pop(TOGETHER, None)) is None:
        return
    seconds = together["wall_seconds"] / len(together["versions"])
    for name, rows in together["versions"].items():
        answer = answers.setdefault(name, {"wall_seconds": 0.0, "launches": []})
        answer["wall_seconds"] += seconds
        for kind, of_kind in rows.items():
            answer[kind] = [*answer.get(kind, ()), *of_kind]


def _why_apart(answers: Mapping[str, dict]) -> str:
    """Why the processes of a round cannot be compared, in words; empty if they can be."""
    samples = {name: answer["launches"] for name, answer in answers.items()}
    seconds = {name: statistics.median(values) for name, values in samples.items() if values}
    if not seconds or max(seconds.values()) <= min(seconds.values()) * (1 + LAUNCH_SHIFT):
        return ""
    times = ", ".join(f"{1e6 * value:.2f} us in {name}" for name, value in seconds.items())
    return f"launches did not take the same time in all processes: {times}"
