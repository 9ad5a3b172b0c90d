"""The processes that compile: one that hangs, dies or fails costs its own job."""

import itertools
import os
import pickle
import time

import pytest

from benchmarks._engine.machine_code import worker_pool


def work(what):
    match what:
        case "hang":
            time.sleep(60)
        case "die":
            os._exit(7)
        case "raise":
            raise ValueError("the message")
        case "lack":
            raise NotImplementedError("no such feature")
        case "odd":
            return object()
        case "text":
            return "no number"
        case "garbage":
            os.write(_answers_of_the_pool(), b"\0\0\0\x04junk")
        case "pickle":
            made = pickle.dumps(_Runs())
            os.write(_answers_of_the_pool(), len(made).to_bytes(4, "big") + made)
        case "endless":
            os.write(_answers_of_the_pool(), (2**31 - 1).to_bytes(4, "big"))
    return os.getpid()


class _Runs:
    """Makes a file where it is unpickled."""

    def __reduce__(self):
        return os.mkdir, (os.environ["UNPICKLED"],)


def _answers_of_the_pool():
    """What the package's code finds in its process: the pipe to whoever asked."""
    pipes = [fd for fd in range(3, 20) if _is_pipe(fd) and _is_pipe(fd) != _is_pipe(2)]
    return pipes[0]


def _is_pipe(fd):
    link = f"/proc/self/fd/{fd}"
    return os.path.lexists(link) and os.readlink(link).startswith("pipe:") and os.readlink(link)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that can be imported, in a pool that needs no Triton."""
    path = tmp_path / "toy" / "__init__.py"
    path.parent.mkdir()
    path.write_text("")
    monkeypatch.setattr(worker_pool, "_SERVE", SERVE)
    monkeypatch.setenv("UNPICKLED", str(tmp_path / "unpickled"))
    return path


SERVE = """
from benchmarks._engine.machine_code import worker_pool
worker_pool._import_problem = lambda package, prepare: None
worker_pool._JOB_SECONDS = 0.5
worker_pool.serve(sys.argv[2])
"""


def mapped(package, *groups):
    ledger = worker_pool.Ledger("codegen")
    kinds = dict.fromkeys(itertools.chain(*groups), int)
    jobs = [[(name,) for name in group] for group in groups]
    return worker_pool.map(work, jobs, package, ledger, kinds, prepare=dict)


def test_each_group_has_a_process_and_each_failure_is_its_own(package):
    groups = ("good", "hang", "die", "raise"), (), ("lack", "odd", "text", "on", "last")
    start = time.monotonic()
    answers = {name: answer for (name,), answer in mapped(package, *groups).items()}
    assert time.monotonic() - start < 30
    good, on, last = (answers.pop(name) for name in ("good", "on", "last"))
    assert len({good, on, os.getpid()}) == 3
    assert on == last  # one process, which outlives an exception
    lack = answers.pop("lack")
    assert type(lack) is NotImplementedError and str(lack) == "no such feature"
    messages = {
        "hang": "('hang',) was not done after 0.5 s",
        "die": "('die',) ended its process with exit status 7",
        "raise": "the message",
        "odd": "object is not JSON serializable",
        "text": "the answer of ('text',) must be a whole number",
    }
    for name, message in messages.items():
        assert type(answers[name]) is RuntimeError and message in str(answers[name])
    assert "in work" in str(answers["raise"])


@pytest.mark.parametrize("what", ["garbage", "pickle", "endless"])
def test_what_the_package_writes_among_the_answers_is_not_run(package, tmp_path, what):
    with pytest.raises(worker_pool.PoolError, match="the pool wrote what is no answer"):
        mapped(package, [what])
    assert not (tmp_path / "unpickled").exists()


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
        mapped(tmp_path / "a" / "b", ["good"])
