"""The processes that compile: one that hangs, dies or fails costs its own job."""

import os
import time

import pytest

from benchmarks._machine_code import worker_pool


class _Awkward(Exception):
    """Cannot be pickled and sent from one process to another."""

    def __reduce__(self):
        raise TypeError("stays here")


def _raise_awkward():
    raise _Awkward("the message")


def test_answer_comes_from_another_process():
    assert worker_pool._in_fork(os.getpid, ()) != os.getpid()


def test_job_that_hangs_is_killed(monkeypatch):
    monkeypatch.setattr(worker_pool, "_JOB_SECONDS", 0.2)
    start = time.monotonic()
    answer = worker_pool._in_fork(time.sleep, (60,))
    assert time.monotonic() - start < 30
    assert type(answer) is RuntimeError
    assert str(answer) == "(60,) was not done after 0.2 s"


def test_job_that_dies_says_how():
    answer = worker_pool._in_fork(os._exit, (7,))
    assert str(answer) == "(7,) ended its process with exit status 7"


def test_exception_that_does_not_pickle_arrives_as_its_traceback():
    answer = worker_pool._in_fork(_raise_awkward, ())
    assert type(answer) is RuntimeError
    assert "in _raise_awkward" in str(answer)
    assert "the message" in str(answer)


def test_failure_to_finish_is_an_answer_too():
    question = worker_pool.Question("halves", ask=abs, finish=lambda value: 1 / value)
    assert worker_pool._answer(question, (-4,)) == 0.25
    assert "ZeroDivisionError" in str(worker_pool._answer(question, (0,)))


@pytest.mark.parametrize(("total", "lines"), [(10, 10), (3, 3), (1000, 10)])
def test_progress_is_reported_for_each_tenth(total, lines, monkeypatch):
    reports = []
    monkeypatch.setattr(worker_pool, "report", reports.append)
    for done in range(1, total + 1):
        worker_pool._report_progress("codegen", done, total)
    assert len(reports) == lines
    assert reports[-1] == f"codegen: {total} of {total}"


def test_package_that_is_but_a_directory_is_a_problem(tmp_path, monkeypatch):
    """It imports, as a namespace, and has no file."""
    package = tmp_path / "hollow" / "__init__.py"
    package.parent.mkdir()
    monkeypatch.setattr(worker_pool, "_prepare_triton", lambda: None)
    monkeypatch.syspath_prepend(tmp_path)
    expected = f"hollow was to be imported from {package}, but came from None"
    assert worker_pool._import_problem(str(package)) == expected
