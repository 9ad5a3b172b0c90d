"""Run many small jobs on all cores, in processes that have everything imported.

A server imports the benchmarked package, compiles nothing, and forks a process for each group of
jobs. So no group depends on another, and torch is imported once. A compiler that crashes or hangs
costs one job: another process does the rest of its group.

What comes out of these processes may be the package's own: it is read as JSON, and never run.
"""

import contextlib
import importlib
import itertools
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from ..system import process
from ..system.errors import CouldNotRunError
from ..system.progress import report
from ..system.untrusted import load_json, plain, validated
from . import same_modules

_JOB_SECONDS = 120  # far above any compilation
_MAX_FORKS = 16  # each compiler takes memory of its own
_MAX_BYTES = 100_000_000  # of an answer; the machine code of a call takes some 50,000

_Answered = tuple[tuple, object]  # a job and its answer


class PoolError(CouldNotRunError):
    """No job can be answered; the message says why."""


class Ledger:
    """The progress of a :func:`map`; this one reports each tenth to whoever waits.

    ``cache``: Triton's cache directory for the jobs; None: a new one, which is not kept.
    """

    cache: Path | None = None

    def __init__(self, title: str):
        self._title, self._done, self._total = title, 0, 0

    def begin(self, jobs: Sequence[tuple]) -> dict[tuple, object]:
        """Note the jobs; return the answers that are known already."""
        self._total += len(jobs)
        return {}

    def require_time(self) -> None:
        """Called before each answer and every second; an exception ends the map."""

    def add(self, job: tuple, answer: object) -> None:
        """Note an answer."""
        self._done += 1
        if self._done * 10 // self._total > (self._done - 1) * 10 // self._total:
            report(f"{self._title}: {self._done} of {self._total}")

    def end(self) -> None:
        """Called when the map ends, however it does."""


def map(
    task: Callable,
    groups: list[list[tuple]],
    package: Path,
    ledger: Ledger,
    kinds: Mapping[str, Any],
    prepare: Callable[[], object],
    finish: Callable[[Iterator[_Answered]], Iterator[_Answered]] = iter,
) -> dict:
    """Answer each job with ``task(*job)``, on all cores.

    task, prepare: functions of modules of this suite; ``prepare()`` is called once, before the
    processes are forked. groups: the jobs; those of a group run one after the other, in one
    process. package: ``__init__.py`` of what is benchmarked, which is imported by its directory's
    name. ledger: holds the answers that are known already, and receives the new ones. kinds: what
    the answer of a job must be, as ``untrusted.validated`` takes it, by the job's first item.
    finish: makes of the jobs and answers, as they come, those that are given out.

    In place of an answer stands ``NotImplementedError`` if the job raised that, and otherwise
    ``RuntimeError`` with the traceback, also if the answer is none of its kind. Raises PoolError if
    the package cannot be imported, or the server ends or writes what it never does.
    """
    jobs = list(itertools.chain.from_iterable(groups))
    answers = ledger.begin(jobs)
    left = [[job for job in group if job not in answers] for group in groups]
    try:
        if any(left):
            work = task, [group for group in left if group], prepare
            with contextlib.closing(_received(work, package, ledger, kinds)) as received:
                for job, answer in finish(received):
                    answers[job] = answer
                    ledger.add(job, answer)
    finally:
        ledger.end()
    return {job: answers[job] for job in jobs}


def _received(
    work: tuple, package: Path, ledger: Ledger, kinds: Mapping[str, Any]
) -> Generator[_Answered, None, None]:
    with _server(work, package, ledger.cache) as server:
        asked = dict(enumerate(itertools.chain.from_iterable(work[1])))
        while asked:
            ledger.require_time()
            while not server.poll(1.0):
                ledger.require_time()
            yield _next(server, asked, kinds)


def _next(server: Connection, asked: dict, kinds: Mapping[str, Any]) -> _Answered:
    """One of the jobs that are asked, which it no longer is then, and its answer."""
    content = b""
    try:
        content = server.recv_bytes(_MAX_BYTES)
        number, how, value = load_json(content, nan=True)
        if how == _NO_PACKAGE:
            raise PoolError(str(value))
        job = asked.pop(number)
    except (OSError, ValueError, TypeError, LookupError) as error:
        what = f"{content[:80]!r} ({type(error).__name__})"
        raise PoolError(f"the pool wrote what is no answer: {what}") from None
    if how != _ANSWER:
        return job, (NotImplementedError if how == _LACKS else RuntimeError)(str(value))
    try:
        return job, validated(kinds[job[0]], value, f"the answer of {job}")
    except ValueError as error:
        return job, RuntimeError(str(error))


_ANSWER, _LACKS, _FAILED, _NO_PACKAGE = "answer", "lacks", "failed", "no package"

_SERVE = """
from benchmarks._engine.machine_code import worker_pool
worker_pool.serve(sys.argv[2])
"""


@contextlib.contextmanager
def _server(work: tuple, package: Path, cache: Path | None) -> Iterator[Connection]:
    """A process that runs :func:`serve`: JSON comes out, for each job its number and answer."""
    # A killed compiler may still write there while it is removed.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        Path(scratch, "jobs.pickle").write_bytes(pickle.dumps(work))
        server = process.start(
            _SERVE,
            str(package),
            path=(str(package.parent.parent),),
            env={
                "TRITON_CACHE_DIR": str(cache or Path(scratch, "cache")),
                "TMPDIR": scratch,
                # Threads do not survive a fork, so let there be none.
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            cwd=scratch,
        )
        assert server.stdout is not None  # a pipe
        try:
            with Connection(os.dup(server.stdout.fileno()), writable=False) as answers:
                yield answers
        except EOFError:
            raise PoolError(f"the pool ended with exit status {server.wait()}, see above") from None
        finally:
            server.kill()
            server.communicate()


# --- in the server --------------------------------------------------------------------------------


def serve(package: str) -> None:
    """Send the answers of the jobs in this directory to stdout, for the package of this file."""
    answers = Connection(os.dup(1), readable=False)
    os.dup2(2, 1)  # what the package prints must not end up among the answers
    try:
        task, groups, prepare = pickle.loads(Path("jobs.pickle").read_bytes())
    except FileNotFoundError:  # Ctrl-C ended who asked, while this process began: it is next
        return
    if problem := _import_problem(package, prepare):
        answers.send_bytes(json.dumps([0, _NO_PACKAGE, problem]).encode())
        return
    numbers = {job: number for number, job in enumerate(itertools.chain.from_iterable(groups))}
    for job, answer in _answers(task, groups):
        answers.send_bytes(f"[{numbers[job]}, {answer}]".encode())


def _import_problem(package: str, prepare: Callable[[], object]) -> str | None:
    name = Path(package).parent.name
    try:
        _prepare_triton()
        file = importlib.import_module(name).__file__
    except Exception:
        return f"{name} cannot be imported from {package}:\n{traceback.format_exc()}"
    if file is None or not os.path.samefile(file, package):
        return f"{name} was to be imported from {package}, but came from {file}"
    prepare()
    _hash_kernels(name)
    return None


def _prepare_triton() -> None:
    """Do once what every fork would repeat, which takes two seconds."""
    from triton.runtime.cache import triton_key

    triton_key()  # hashes the whole compiler and keeps the result
    same_modules.reuse()
    importlib.import_module("triton.experimental.gluon")  # imported by the first kernel launch
    importlib.import_module("torch.fx.experimental.symbolic_shapes")  # by the first gradient


def _hash_kernels(package: str) -> None:
    """Let Triton hash the kernels' sources, which takes as long as all else in most jobs."""
    from triton.runtime.jit import JITFunction

    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == package:
            for kernel in vars(module).values():
                if isinstance(kernel, JITFunction):
                    with contextlib.suppress(Exception):  # the job that launches it says why
                        _ = kernel.cache_key


def _answers(task: Callable, groups: list[list[tuple]]) -> Iterator[tuple[tuple, str]]:
    """Each job, and how it ended and with what: two values of JSON."""
    waiting = [group for group in groups if group][::-1]
    at_once = min(len(waiting), len(os.sched_getaffinity(0)), _MAX_FORKS)
    forks: dict = dict(_fork(task, waiting.pop()) for _ in range(at_once))
    while forks:
        ready: list = wait(list(forks))
        for receiver in ready:
            fork, jobs = forks.pop(receiver)
            job, *left = jobs
            try:
                yield job, receiver.recv()
                goes_on = bool(left)
            except EOFError:
                yield job, _why_ended(fork, job)
                goes_on = False
            if goes_on:
                forks[receiver] = fork, left
                continue
            receiver.close()
            if left:
                waiting.append(left)
            if waiting:
                forks |= [_fork(task, waiting.pop())]


def _fork(task: Callable, jobs: list[tuple]):
    """A process that does these jobs, with what it sends their answers through."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    fork = context.Process(target=_work, args=(task, jobs, sender, os.getpid()))
    fork.start()
    sender.close()
    return receiver, (fork, jobs)


def _work(task: Callable, jobs: list[tuple], sender: Connection, server: int) -> None:
    process.die_with(server)
    for job in jobs:
        signal.setitimer(signal.ITIMER_REAL, _JOB_SECONDS)  # whose signal ends the process
        sender.send(_attempt(task, *job))


def _why_ended(fork, job: tuple) -> str:
    fork.join()
    if fork.exitcode == -signal.SIGALRM:
        return _as_json(_FAILED, f"{job} was not done after {_JOB_SECONDS} s")
    return _as_json(_FAILED, f"{job} ended its process with exit status {fork.exitcode}")


def _attempt(task: Callable, *job) -> str:
    try:
        return _as_json(_ANSWER, plain(task(*job)))
    except NotImplementedError as error:
        return _as_json(_LACKS, str(error))
    except Exception:
        return _as_json(_FAILED, traceback.format_exc())


def _as_json(how: str, value: object) -> str:
    return f"{json.dumps(how)}, {json.dumps(value)}"
