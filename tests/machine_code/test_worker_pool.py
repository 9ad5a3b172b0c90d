"""The processes that compile: one that hangs, dies or fails costs its own job."""

import os
import time

import pytest

from benchmarks._machine_code import worker_pool


class _Awkward(Exception):
    """Cannot be pickled and sent from one process to another."""

    def __reduce__(self):
        raise TypeError("stays here")


def work(what):
    match what:
        case "hang":
            time.sleep(60)
        case "die":
            os._exit(7)
        case "raise":
            raise _Awkward("the message")
        case "lack":
            raise NotImplementedError("no such feature")
    return os.getpid()


def test_each_group_has_a_process_and_each_failure_is_its_own(monkeypatch):
    monkeypatch.setattr(worker_pool, "_JOB_SECONDS", 0.5)
    jobs = [("good",), ("hang",), ("die",), ("raise",), ("lack",), ("on",), ("last",)]
    start = time.monotonic()
    found = dict(worker_pool._answers(work, [jobs[:4], [], jobs[4:]]))
    assert time.monotonic() - start < 30
    assert len({found[jobs[0]], found[jobs[5]], os.getpid()}) == 3
    assert found[jobs[5]] == found[jobs[6]]  # one process, which outlives an exception
    assert str(found[jobs[1]]) == "('hang',) was not done after 0.5 s"
    assert str(found[jobs[2]]) == "('die',) ended its process with exit status 7"
    assert "in work" in str(found[jobs[3]]) and "the message" in str(found[jobs[3]])
    assert [type(found[job]) for job in jobs[1:4]] == [RuntimeError] * 3
    assert type(found[jobs[4]]) is NotImplementedError and str(found[jobs[4]]) == "no such feature"
    assert found.keys() == set(jobs)


@pytest.mark.parametrize(("total", "lines"), [(10, 10), (3, 3), (1000, 10)])
def test_progress_is_reported_for_each_tenth(total, lines, monkeypatch):
    reports = []
    monkeypatch.setattr(worker_pool, "report", reports.append)
    ledger = worker_pool.Ledger("codegen")
    ledger.begin([(number,) for number in range(total)])
    for number in range(total):
        ledger.add((number,), None)
    assert len(reports) == lines
    assert reports[-1] == f"codegen: {total} of {total}"


def test_a_server_that_ends_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(worker_pool, "_SERVE", "sys.exit(3)")
    with pytest.raises(worker_pool.PoolError, match="ended with exit status 3"):
        worker_pool.map(work, [[("good",)]], tmp_path / "a" / "b", worker_pool.Ledger("codegen"))


def test_package_that_is_but_a_directory_is_a_problem(tmp_path, monkeypatch):
    """It imports, as a namespace, and has no file."""
    package = tmp_path / "hollow" / "__init__.py"
    package.parent.mkdir()
    monkeypatch.setattr(worker_pool, "_prepare_triton", lambda: None)
    monkeypatch.syspath_prepend(tmp_path)
    expected = f"hollow was to be imported from {package}, but came from None"
    assert worker_pool._import_problem(str(package)) == expected
