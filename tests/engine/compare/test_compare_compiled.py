"""What was compiled of a version is kept, and a run whose time was up goes on from it."""

import contextlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks._engine.compare import compiled, exact
from benchmarks._engine.compare.rounds import BudgetError
from benchmarks._engine.machine_code import facts, worker_pool
from tests import toy
from tests.lab import CANNOT_TELL, COULD_NOT_RUN, MACHINE, PASS, fake_code

FACTS = facts.Facts(32, 0, 0, 16, 412, 8, 1, "digest", "code", 0)
CALL = ("facts", "tests.toy", "sm_90", "toy", "forward", "1024", "float32")
ABSENT = ("facts", "tests.toy", "sm_90", "once", "forward", "4096", "bfloat16")
SWEEP = ("variants", "tests.toy", "sm_90", "sm_90")
ANSWERS = {CALL: FACTS, ABSENT: NotImplementedError("not once"), SWEEP: 2}


class Book:
    """Ledgers of one version, and what they say."""

    def __init__(self, scratch: Path, patch: pytest.MonkeyPatch):
        self.version, self.said = compiled.Version(scratch, toy, "digest", MACHINE), []
        patch.setattr(compiled, "say", self.said.append)

    def ledger(self, seconds: float = 60.0) -> compiled.Ledger:
        deadline = time.monotonic() + seconds
        progress = compiled.Progress(deadline, "the same command")
        return compiled.Ledger("base", self.version, progress)

    def known(self, *jobs: tuple) -> dict:
        return self.ledger().begin(jobs or list(ANSWERS))


@pytest.fixture
def book(tmp_path, monkeypatch):
    return Book(tmp_path, monkeypatch)


# --- what is kept ---------------------------------------------------------------------------------


def test_answers_of_every_kind_are_found_again(book):
    book.version.add(ANSWERS)
    found = book.known()
    assert (found[CALL], found[SWEEP]) == (FACTS, 2)
    assert type(found[ABSENT]) is NotImplementedError and str(found[ABSENT]) == "not once"
    assert book.said[-1] == "base: 3 of 3 were compiled by an earlier run"
    assert book.known(CALL, (*CALL[:-1], 4)) == {CALL: FACTS}


def test_a_failure_is_tried_again(book):
    """The machine's memory may have been to blame."""
    ledger = book.ledger()
    for job, answer in (ANSWERS | {CALL: RuntimeError("ended with exit status -9")}).items():
        ledger.add(job, answer)
    ledger.end()
    assert book.known().keys() == {ABSENT, SWEEP}


def test_a_map_that_is_killed_leaves_what_it_had(book, monkeypatch):
    monkeypatch.setattr(compiled, "_KEEP_SECONDS", 0.0)
    book.ledger().add(CALL, FACTS)  # and then no end
    assert book.known() == {CALL: FACTS}


def test_a_damaged_journal_is_never_believed(book):
    book.version.add({CALL: FACTS})
    path = book.version.path
    path.write_bytes(path.read_bytes().replace(b"412", b"41,2"))
    assert book.known() == {}
    assert "line 2, is damaged" in book.said[0] and "is compiled again" in book.said[0]
    book.version.add({SWEEP: 2})
    assert book.known() == {SWEEP: 2}


def test_the_versions_that_were_last_used_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "KEEP", 2)
    versions = [compiled.Version(tmp_path, toy, name, MACHINE) for name in "abc"]
    for age, version in enumerate(versions[:2]):
        version.add({SWEEP: 2})
        os.utime(version.path, (age, age))
    assert versions[0].read() == {SWEEP: 2}
    versions[2].add({SWEEP: 2})
    assert [version.path.exists() for version in versions] == [True, False, True]
    assert len(list(versions[0].path.parent.iterdir())) == 2 * 2


def test_versions_that_are_compiled_at_once_share_a_journal(book):
    start = threading.Barrier(8)

    def write(number):
        start.wait()
        book.version.add(ANSWERS)
        book.version.add({(*CALL[:-1], number): FACTS})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    found = book.known(*ANSWERS, *((*CALL[:-1], number) for number in range(8)))
    assert len(found) == len(ANSWERS) + 8


def test_a_journal_is_of_all_that_the_machine_code_depends_on(tmp_path, monkeypatch):
    def here(digest="a", **machine):
        return compiled.Version(tmp_path, toy, digest, MACHINE | machine).path

    first = here()
    found = [first, here("b"), here(triton="3.7.0"), here(torch="2.12.0")]
    for name in ("TRITON_PTXAS_PATH", "DISABLE_LLVM_OPT", "PTXAS_OPTIONS", "TOY_KERNEL_CHECK"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "1")
            found.append(here())
    with monkeypatch.context() as patch:
        patch.setattr(compiled.platform, "python_version", lambda: "3.99.0")
        found.append(here())
    with monkeypatch.context() as patch:
        patch.setattr(compiled.suite, "digest", lambda *files: "another way of measuring")
        found.append(here())
    assert len(set(found)) == len(found) == 10
    monkeypatch.setenv("TRITON_CACHE_DIR", "elsewhere")
    assert here(driver="1.0") == first


# --- how far it is --------------------------------------------------------------------------------


def test_progress_of_both_versions_is_told_from_time_to_time(book, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(compiled.time, "monotonic", lambda: now[0])
    progress = compiled.Progress(1e9, "")
    progress.begin(50, 0)
    progress.begin(50, 10)
    now[0] += 60  # of importing torch
    for _ in range(90):
        progress.add()
        now[0] += 4.0
    assert book.said[0] == "compiled 15 of 100, about 6 minutes to go"  # 16 s after the first
    assert book.said[1] == "compiled 19 of 100, about 5 minutes to go"
    assert "compiled 79 of 100, about 1 minutes to go" in book.said
    assert book.said[-1] == "compiled 100 of 100"
    assert len(book.said) == 23


# --- a map ----------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch):
    """Let a server answer with the last entry of a job; the jobs that it was asked."""
    jobs: list = []

    class Server:
        def poll(self, seconds):
            return self.left[0][-1] != "hang"

        def recv_bytes(self, most):
            if self.left[0][-1] == "crash":
                raise worker_pool.PoolError("the pool ended")
            jobs.append(self.left.pop(0))
            return b'[%d, "answer", 7]' % (len(jobs) - 2)

    @contextlib.contextmanager
    def server(work, package, cache):
        assert cache is None
        jobs.append("start")
        found = Server()
        found.left = [job for group in work[1] for job in group]
        yield found

    monkeypatch.setattr(worker_pool, "_server", server)
    return jobs


JOBS = [("variants", arch) for arch in ("sm_80", "sm_90", "gfx942")]


def map_jobs(ledger, jobs=JOBS):
    return worker_pool.map(
        abs, [jobs[:2], jobs[2:]], Path("unused"), ledger, {"variants": int}, len
    )


def test_a_map_asks_only_for_what_is_not_known(book, asked):
    book.version.add({JOBS[1]: 5})
    assert map_jobs(book.ledger()) == {JOBS[0]: 7, JOBS[1]: 5, JOBS[2]: 7}
    assert asked == ["start", JOBS[0], JOBS[2]]
    asked.clear()
    assert map_jobs(book.ledger()) == {JOBS[0]: 7, JOBS[1]: 5, JOBS[2]: 7}
    assert asked == []


@pytest.mark.parametrize(
    ("last", "error", "message"),
    [
        # Nothing compiles it, and the time goes by.
        ("hang", BudgetError, "compiled 1 of 3, which are kept: the same command goes on from"),
        ("crash", worker_pool.PoolError, "the pool ended"),
    ],
)
def test_a_map_that_stops_keeps_what_it_has(book, asked, last, error, message):
    with pytest.raises(error, match=message):
        map_jobs(book.ledger(seconds=1.0), [JOBS[0], ("variants", last), JOBS[2]])
    assert book.known(*JOBS) == {JOBS[0]: 7}


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture
def compiling(lab, monkeypatch):
    """Without a GPU, versions are ten calls each; ``limit`` of them fit into the time."""
    lab.machine["gpu"] = "none"
    lab.limit, lab.compiled = 10**9, []

    def code(subject, root, *rest):
        ledger, jobs = rest[-1], [("variants", number) for number in range(10)]
        known = ledger.begin(jobs)
        try:
            for job in jobs:
                if job not in known:
                    if len(lab.compiled) >= lab.limit:
                        ledger._progress._deadline = 0.0
                    ledger.require_time()
                    lab.compiled.append((root, job))
                    ledger.add(job, 1)
        finally:
            ledger.end()
        return fake_code(subject, root, *rest)

    monkeypatch.setattr(exact, "compiled", code)
    return lab


def test_without_a_gpu_it_stops_in_time_and_goes_on_from_there(compiling, capsys):
    compiling.versions({}, {})
    compiling.limit = 0
    assert compiling.compare("base", "head", "--afresh") == COULD_NOT_RUN
    said = capsys.readouterr().err
    assert "which are kept: the same command, without --afresh, goes on from there" in said
    compiling.limit = 12
    assert compiling.compare() == COULD_NOT_RUN
    said = capsys.readouterr().err.splitlines()
    assert "compiled 2 of 10, which are kept: the same command goes on from there" in said[-1]
    assert len(compiling.compiled) == 12
    compiling.limit = 10**9
    assert compiling.compare() == PASS
    assert len(compiling.compiled) == len(set(compiling.compiled)) == 20
    assert compiling.compare() == PASS
    assert len(compiling.compiled) == 20
    assert "base: 10 of 10 were compiled by an earlier run" in capsys.readouterr().err
    assert compiling.compare("base", "head", "--afresh") == PASS
    assert len(compiling.compiled) == 40
    compiling.commit("third", **{"is": "third"})
    assert compiling.compare("base", "third") == PASS
    assert len(compiling.compiled) == 50  # another comparison of the same base finds it


@pytest.mark.parametrize(
    ("arguments", "gpu", "minutes"),
    [
        (["--exact-only"], "Toy", 20),
        ([], "none", 20),
        (["--grid", "full"], "none", 20),
        (["--budget", "3"], "none", 3),
        ([], "Toy", 15),
    ],
    ids=str,
)
def test_budget(arguments, gpu, minutes, lab, monkeypatch):
    asked = []

    def compare(subject, unmeasured, pair, arch, options, *_):
        asked.append((options.deadline - time.monotonic()) / 60)
        return unmeasured

    lab.versions({}, {})
    lab.machine["gpu"] = gpu
    monkeypatch.setattr("benchmarks._engine.compare.session.compare", compare)
    assert lab.compare("base", "head", *arguments) == CANNOT_TELL  # nothing was judged
    assert asked == [pytest.approx(minutes, abs=0.5)]
