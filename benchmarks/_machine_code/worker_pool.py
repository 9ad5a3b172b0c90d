"""Many small jobs on all cores, each in a process of its own that has everything imported.

A survey starts a worker for each core. The worker imports the benchmarked package and compiles
nothing; it forks a child for each job. So no job depends on those before it, a compiler that
crashes or hangs costs one job, and nobody waits for torch again and again.
"""

import contextlib
import importlib
import itertools
import multiprocessing
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

from .._system import process as _process
from .._system.progress import report

_JOB_SECONDS = 120  # far above any compilation
_MAX_WORKERS = 8  # each holds a torch in memory


class SurveyError(RuntimeError):
    """No job can be answered; the message says why."""


class Question(NamedTuple):
    """What is asked of every job: ``finish(ask(*job))``, both functions of a module of this suite.

    ``ask`` runs in the job's fork, ``finish`` in its worker, whose caches last for many jobs.
    """

    title: str
    ask: Callable
    finish: Callable


class Ledger:
    """What a survey tells of its progress; this one reports each tenth to whoever waits.

    Its methods are called by one thread at a time.
    """

    def __init__(self, title: str):
        self._title, self._done, self._total = title, 0, 0

    def begin(self, jobs: Sequence[tuple]) -> dict[tuple, object]:
        """Take note of what is asked; the answers that are known already."""
        self._total += len(jobs)
        return {}

    def require_time(self) -> None:
        """Called before each job and every second; an exception ends the survey."""

    def add(self, job: tuple, answer: object) -> None:
        """Take note of an answer."""
        self._done += 1
        _report_progress(self._title, self._done, self._total)

    def end(self) -> None:
        """Called when the survey ends, however it does."""


# --- in the caller's process ----------------------------------------------------------------------


def survey(
    question: Question, groups: list[list[tuple]], package: Path, ledger: Ledger | None = None
) -> dict:
    """Answer a question for all jobs; each group goes to one worker.

    Parameters
    ----------
    question : Question
        What to find out.
    groups : list of lists of tuples
        The jobs; those of a group share what ``question.finish`` remembers.
    package : Path
        ``__init__.py`` of the package to benchmark, which the workers import by its directory's
        name.
    ledger : Ledger, optional
        Holds the answers that are known already, and receives the new ones. By default, none are
        known, and progress is reported.

    Returns
    -------
    dict
        For each job, in the order given, its answer or the exception in its place: if it raised
        ``NotImplementedError`` the same, otherwise ``RuntimeError`` with the traceback.

    Raises
    ------
    SurveyError
        If the package cannot be imported, or a worker ends.
    """
    ledger = ledger or Ledger(question.title)
    jobs = list(itertools.chain.from_iterable(groups))
    answers = ledger.begin(jobs)
    left = [[job for job in group if job not in answers] for group in groups]
    waiting = iter([group for group in left if group])
    n_workers = min(len(os.sched_getaffinity(0)), sum(map(bool, left)), _MAX_WORKERS)
    workers: list[_Worker] = []
    one_at_a_time = threading.Lock()

    def serve():
        try:
            worker = _Worker(package, scratch)
            workers.append(worker)
            with worker:
                for job in itertools.chain.from_iterable(waiting):
                    with one_at_a_time:
                        ledger.require_time()
                    answer = answers[job] = worker.ask(question, job)
                    with one_at_a_time:
                        ledger.add(job, answer)
        finally:
            list(waiting)  # empty by now, or this worker has failed and the others can stop

    try:
        with (
            # What a killed compiler leaves behind may still grow.
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch,
            ThreadPoolExecutor(_MAX_WORKERS) as pool,
        ):
            served = [pool.submit(serve) for _ in range(n_workers)]
            try:
                while wait(served, timeout=1.0).not_done:
                    with one_at_a_time:
                        ledger.require_time()
            except BaseException:
                for worker in workers:
                    worker.kill()  # or one that hangs would be waited for
                raise
            for each in served:
                each.result()
    finally:
        ledger.end()
    return {job: answers[job] for job in jobs}


def _report_progress(title: str, done: int, total: int) -> None:
    if done * 10 // total > (done - 1) * 10 // total:  # each tenth
        report(f"{title}: {done} of {total}")


_START_WORKER = """
from benchmarks._machine_code import worker_pool
worker_pool.work(sys.argv[2])
"""


class _Worker:
    """A process that runs :func:`work`: pickled jobs go in, pickled answers come out."""

    def __init__(self, package: Path, scratch: str):
        changes = {
            # New, and this survey's own: nothing old is read, nothing is left behind.
            "TRITON_CACHE_DIR": str(Path(scratch, "cache")),
            "TMPDIR": scratch,
            # Threads do not survive a fork, so let there be none.
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        self._process = _process.start(
            _START_WORKER,
            str(package),
            path=(str(package.parent.parent),),
            env=changes,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=scratch,
        )
        jobs, answers = self._process.stdin, self._process.stdout
        assert jobs is not None and answers is not None  # pipes
        self._jobs, self._answers = jobs, answers

    def __enter__(self) -> "_Worker":
        try:
            problem = self._receive()
            if problem:
                raise SurveyError(problem)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception) -> None:
        self._process.communicate()  # closes its stdin, at which it ends

    def kill(self) -> None:
        self._process.kill()

    def ask(self, question: Question, job: tuple):
        with contextlib.suppress(BrokenPipeError):  # then there is no answer either
            _send((question, job), self._jobs)
        return self._receive()

    def _receive(self):
        try:
            return pickle.load(self._answers)
        except EOFError:
            status = self._process.wait()
            raise SurveyError(f"a worker ended with exit status {status}, see above") from None


# --- in a worker: a fork for each job -------------------------------------------------------------


def work(package: str) -> None:
    """Answer the jobs on stdin until it is closed, for the package whose file is given.

    The first answer says why there will be no others, or None.
    """
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the package prints must not end up among the answers
    problem = _import_problem(package)
    _send(problem, answers)
    while not problem:
        try:
            question, job = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        _send(_answer(question, job), answers)


def _send(message, pipe) -> None:
    pickle.dump(message, pipe)
    pipe.flush()


def _import_problem(package: str) -> str | None:
    name = Path(package).parent.name
    try:
        _prepare_triton()
        found = importlib.import_module(name).__file__
    except Exception:
        return f"{name} cannot be imported from {package}:\n{traceback.format_exc()}"
    if found is None or not os.path.samefile(found, package):
        return f"{name} was to be imported from {package}, but came from {found}"
    return None


def _prepare_triton() -> None:
    """Do once what otherwise each fork does again, two seconds' worth."""
    from triton.runtime.cache import triton_key

    triton_key()  # hashes the whole compiler and keeps the result
    importlib.import_module("triton.experimental.gluon")  # imported by the first kernel launch
    importlib.import_module("torch.fx.experimental.symbolic_shapes")  # by the first gradient


def _answer(question: Question, job: tuple):
    answer = _in_fork(question.ask, job)
    return answer if isinstance(answer, Exception) else _attempt(question.finish, answer)


def _in_fork(function: Callable, job: tuple):
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    worker = os.getpid()

    def answer():
        _process.die_with(worker)
        sender.send(_attempt(function, *job))

    process = context.Process(target=answer)
    process.start()
    sender.close()
    try:
        if receiver.poll(_JOB_SECONDS):
            return receiver.recv()
        process.kill()
        return RuntimeError(f"{job} was not done after {_JOB_SECONDS} s")
    except EOFError:
        process.join()
        return RuntimeError(f"{job} ended its process with exit status {process.exitcode}")
    finally:
        process.join()


def _attempt(function: Callable, *args):
    """The function's result, or what stands for its exception: not every exception pickles."""
    try:
        return function(*args)
    except NotImplementedError as error:
        return NotImplementedError(str(error))
    except Exception:
        return RuntimeError(traceback.format_exc())
