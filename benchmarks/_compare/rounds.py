"""Fresh processes of two versions in turns: watched, stored, and repeated where disturbed."""

import collections
import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from .._system import gpu_monitor
from .._system.checkout import Arm
from .._verdict.rules import Subject
from . import measure
from .state import Round, State

ATTEMPTS = 4  # of one round, then the GPU is no place to measure


class BudgetError(RuntimeError):
    """The time is up; what was measured is stored."""


class DisturbedError(RuntimeError):
    """A round was disturbed again and again."""


class Plan(NamedTuple):
    """Who is measured where.

    arms: by name, in the order of round 0; it is reversed in every other round, so that with two
    arms it alternates: A B | B A | A B. caches: Triton's cache directory of each. uuid: of the GPU.
    deadline: in ``time.monotonic``'s seconds.
    """

    arms: dict[str, Arm]
    caches: dict[str, Path]
    uuid: str
    deadline: float

    def order(self, number: int) -> list[str]:
        """The arms of a round in their order."""
        return list(self.arms)[:: 1 if number % 2 == 0 else -1]


class Processes:
    """Fresh processes, each started while the one before it measures: importing takes seconds."""

    def __init__(self, plan: Plan):
        self._plan = plan
        self._ahead: tuple[str, measure.Process] | None = None

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *exception) -> None:
        self._drop()

    def answer(self, arm: str, job: dict, following: str | None) -> dict:
        """Let a process of ``arm`` do a job, and get one of ``following`` ready meanwhile."""
        if self._ahead is None or self._ahead[0] != arm:
            self._drop()
            self._ahead = arm, self._start(arm)
        (_, process), self._ahead = self._ahead, None
        start = time.monotonic()
        try:
            process.wait_until_ready()
            if following is not None:
                self._ahead = following, self._start(following)
            answer = process.answer(job)
        finally:
            process.stop()
        if answer["gpu"].removeprefix("GPU-") != self._plan.uuid.removeprefix("GPU-"):
            raise measure.ProcessError(
                f"measured was GPU {answer['gpu']}, watched and locked is {self._plan.uuid}"
            )
        return answer | {"wall_seconds": time.monotonic() - start}

    def _start(self, arm: str) -> measure.Process:
        return measure.Process(self._plan.arms[arm].root, self._plan.caches[arm])

    def _drop(self) -> None:
        if self._ahead is not None:
            self._ahead[1].stop()
            self._ahead = None


def check(plan: Plan, state: State, job: dict, report: Callable[[str], None]) -> dict[str, dict]:
    """The answer of each arm to the job, from the state where it has it."""
    stored = {arm: state.load("check", 0, arm) for arm in plan.arms}
    answers = {arm: answer for arm, answer in stored.items() if answer is not None}
    missing = [arm for arm in plan.arms if arm not in answers]
    with Processes(plan) as processes:
        for arm, following in itertools.zip_longest(missing, missing[1:]):
            gpu_monitor.require_free(plan.uuid)
            start = time.monotonic()
            answers[arm] = processes.answer(arm, job, following)
            state.save("check", 0, arm, answers[arm])
            report(f"checked {arm} against the oracle, {time.monotonic() - start:.0f} s")
    return answers


def run(
    plan: Plan,
    state: State,
    phase: str,
    count: int,
    job: dict,
    report: Callable[[str], None],
    only: int | None = None,
) -> None:
    """Measure the rounds of a phase that the state lacks, or of the first ``only`` of them.

    With ``only`` the number of rounds is not settled; without, each round notes ``count``.

    Raises
    ------
    BudgetError
        If the next round would end after the deadline.
    DisturbedError, GpuBusyError, ProcessError
        If the GPU is not ours alone, or a process dies.
    """
    done = {each.number: each.payloads for each in state.rounds(phase)}
    wanted = count if only is None else only
    noted = {"of": count if only is None else None}
    todo = [number for number in range(wanted) if number not in done]
    took: list[float] = []
    with Processes(plan) as processes:
        for number, following in itertools.zip_longest(todo, todo[1:]):
            longest = max([*took, *map(_seconds, state.rounds(phase))], default=0.0)
            _require_time(plan, longest, phase, number, count)
            start = time.monotonic()
            ahead = None if following is None else plan.order(following)[0]
            done[number] = _round(
                plan, state, phase, number, job, noted, processes, ahead, done, report
            )
            took.append(time.monotonic() - start)
            left = statistics.mean(took) * (len(todo) + count - wanted - len(took))
            report(f"{phase}: round {number + 1} of {count}, {took[-1]:.0f} s, {left:.0f} s to go")


def report_kept(state: State, phase: str, report: Callable[[str], None]) -> None:
    """Say how many rounds of a phase an earlier run has left, before this one measures any."""
    kept = len(state.rounds(phase))
    if kept:
        report(f"{phase}: {kept} rounds were there already")


def _require_time(plan: Plan, expected: float, phase: str, number: int, count: int) -> None:
    if time.monotonic() + expected > plan.deadline:
        raise BudgetError(
            f"the time is up before round {number + 1} of {count} of {phase}: what was measured is "
            "kept, and the same command goes on from there"
        )


def settled(state: State, phase: str) -> int | None:
    """How many rounds an earlier run settled on for a phase, None if none did."""
    counts = {
        payload["of"] for each in state.rounds(phase) for payload in each.payloads.values()
    } - {None}
    return max(counts, default=None)


def affordable(plan: Plan, state: State, phase: str, most: int, like: str) -> int:
    """Rounds of a phase that there is time for, an even number up to ``most``.

    Each as long as the longest of the phase ``like``; those that the state has take no more time.
    """
    longest = max(map(_seconds, state.rounds(like)))
    left = max(0.0, plan.deadline - time.monotonic())
    return min(most, len(state.rounds(phase)) + int(left / longest)) // 2 * 2


def _seconds(done: Round) -> float:
    return sum(payload["wall_seconds"] for payload in done.payloads.values())


def minutes(state: State) -> float:
    """What the processes that count have taken so far, those of earlier runs too."""
    return sum(payload["wall_seconds"] for payload in state.payloads()) / 60


def _round(
    plan: Plan,
    state: State,
    phase: str,
    number: int,
    job: dict,
    noted: dict,
    processes: Processes,
    ahead: str | None,
    done: Mapping[int, dict[str, dict]],
    report: Callable[[str], None],
) -> dict[str, dict]:
    order = plan.order(number)
    for _ in range(ATTEMPTS):
        gpu_monitor.require_free(plan.uuid)
        with gpu_monitor.Watch(plan.uuid) as watching:
            answers = {
                arm: processes.answer(arm, job | {"seed": number}, following)
                for arm, following in zip(order, [*order[1:], ahead], strict=True)
            }
        seen = watching.summary()
        payloads = {arm: answers[arm] | {"watch": seen} | noted for arm in order}
        earlier = [next(iter(each.values()))["watch"] for each in done.values()]
        reason = gpu_monitor.disturbance(seen, earlier)
        if not reason:
            for arm in order:
                state.save(phase, number, arm, payloads[arm])
            return payloads
        state.set_aside(phase, number, reason, payloads)
        report(f"{phase}: round {number + 1} is repeated: {reason}")
    raise DisturbedError(f"round {number + 1} of {phase} was disturbed {ATTEMPTS} times: {reason}")


def medians(rounds: Sequence[Round], arm: str) -> list[dict[Subject, float]]:
    """The medians of an arm's processes, by round: see :func:`medians_of`."""
    usual = _usual([payload for each in rounds for payload in each.payloads.values()])
    return [medians_of(each.payloads[arm], usual) for each in rounds]


def medians_of(payload: dict, usual: Mapping[str, float] | None = None) -> dict[Subject, float]:
    """The median of each subject that a process timed, seconds.

    Where a yardstick was clocked beside it, sample by sample, it is the median share of that, times
    what the yardstick usually takes, here or by ``usual``. On an H200's host that had neighbours
    the difference of two processes varied by 8 to 14 % from round to round, by call, and so by 2.5
    to 6 %.
    """
    beside = payload.get("beside", {})
    usual = _usual([payload]) if usual is None else usual
    return {
        Subject(metric, tuple(params)): _median(values, beside.get(metric), usual.get(metric))
        for metric, params, values in payload["timings"]
    }


def _usual(payloads: Sequence[dict]) -> dict[str, float]:
    """The median of each metric's yardstick over processes, seconds."""
    samples = collections.defaultdict(list)
    for payload in payloads:
        for metric, values in payload.get("beside", {}).items():
            samples[metric].append(statistics.median(values))
    return {metric: statistics.median(values) for metric, values in samples.items()}


def _median(values: list[float], beside: list[float] | None, usual: float | None) -> float:
    if beside is None or usual is None:
        return statistics.median(values)
    shares = (seconds / own for seconds, own in zip(values, beside, strict=True))
    return usual * statistics.median(shares)
