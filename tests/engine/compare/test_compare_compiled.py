"""What is compiled: it is kept, a run whose time was up goes on from it, and compared exactly."""

import contextlib
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks._engine.compare import compiled, exact
from benchmarks._engine.machine_code import facts, worker_pool
from benchmarks._engine.verdict.rules import Answer
from tests import toy
from tests.lab import (
    ALL,
    CALL,
    CANNOT_TELL,
    COULD_NOT_RUN,
    FAIL,
    FORWARD,
    MACHINE,
    PASS,
    REGISTERS,
    SMALL,
    SPILLS,
    VARIANTS,
    behaviour_of,
    fake_code,
)

FACTS = facts.Facts(32, 0, 0, 16, 412, 8, 1, "digest", "code", 0)
JOB = ("facts", "tests.toy", "sm_90", "toy", "forward", "1024", "float32")
ABSENT = ("facts", "tests.toy", "sm_90", "once", "forward", "4096", "bfloat16")
SWEEP = ("variants", "tests.toy", "sm_90", "sm_90")
JOBS = [("variants", number) for number in range(10)]
ANSWERS = {JOB: FACTS, ABSENT: NotImplementedError("not once"), SWEEP: 2}


class Book:
    """The journal of one version, and what its ledgers say."""

    def __init__(self, scratch: Path, patch: pytest.MonkeyPatch):
        self.version, self.said = compiled.Store(scratch, toy, "digest", MACHINE), []
        patch.setattr(compiled, "say", self.said.append)

    def ledger(self) -> compiled.Ledger:
        return compiled.Ledger("base", self.version, time.monotonic() + 60, "the same command")

    def stored(self, *jobs: tuple) -> dict:
        return self.ledger().begin(jobs or list(ANSWERS))


@pytest.fixture
def book(tmp_path, monkeypatch):
    return Book(tmp_path, monkeypatch)


# --- what is kept ---------------------------------------------------------------------------------


def test_answers_of_every_kind_are_found_again(book):
    book.version.add(ANSWERS)
    answers = book.stored()
    assert (answers[JOB], answers[SWEEP]) == (FACTS, 2)
    assert type(answers[ABSENT]) is NotImplementedError and str(answers[ABSENT]) == "not once"
    assert book.said[-1] == "base: 3 of 3 were compiled by an earlier run"
    assert book.stored(JOB, (*JOB[:-1], 4)) == {JOB: FACTS}


def test_a_failure_is_tried_again(book):
    """The machine's memory may have been to blame."""
    ledger = book.ledger()
    for job, answer in (ANSWERS | {JOB: RuntimeError("ended with exit status -9")}).items():
        ledger.add(job, answer)
    ledger.end()
    assert book.stored().keys() == {ABSENT, SWEEP}


def test_a_map_that_is_killed_leaves_what_it_had(book, monkeypatch):
    monkeypatch.setattr(compiled, "_KEEP_SECONDS", 0.0)
    book.ledger().add(JOB, FACTS)  # and then no end
    assert book.stored() == {JOB: FACTS}


def test_a_damaged_journal_is_never_believed(book):
    book.version.add({JOB: FACTS})
    path = book.version.path
    path.write_bytes(path.read_bytes().replace(b"412", b"41,2"))
    assert book.stored() == {}
    assert "line 2, is damaged" in book.said[0] and "is compiled again" in book.said[0]
    book.version.add({SWEEP: 2})
    assert book.stored() == {SWEEP: 2}


def test_the_versions_that_were_last_used_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "KEEP", 2)
    versions = [compiled.Store(tmp_path, toy, name, MACHINE) for name in "abc"]
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
        book.version.add({(*JOB[:-1], number): FACTS})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    answers = book.stored(*ANSWERS, *((*JOB[:-1], number) for number in range(8)))
    assert len(answers) == len(ANSWERS) + 8


def test_a_journal_is_of_all_that_the_machine_code_depends_on(tmp_path, monkeypatch):
    def here(digest="a", **machine):
        return compiled.Store(tmp_path, toy, digest, MACHINE | machine).path

    first = here()
    journals = [first, here("b"), here(triton="3.7.0"), here(torch="2.12.0")]
    for name in ("TRITON_PTXAS_PATH", "DISABLE_LLVM_OPT", "PTXAS_OPTIONS", "TOY_KERNEL_CHECK"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "1")
            journals.append(here())
    with monkeypatch.context() as patch:
        patch.setattr(compiled.platform, "python_version", lambda: "3.99.0")
        journals.append(here())
    with monkeypatch.context() as patch:
        patch.setattr(compiled.suite, "digest", lambda *files: "another way of measuring")
        journals.append(here())
    assert len(set(journals)) == len(journals) == 10
    monkeypatch.setenv("TRITON_CACHE_DIR", "elsewhere")
    assert here(driver="1.0") == first


def test_progress_is_reported_from_time_to_time(book, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(compiled.time, "monotonic", lambda: now[0])
    book.version.add(dict.fromkeys(JOBS, 7))
    jobs = [("variants", number) for number in range(100)]
    ledger = book.ledger()
    ledger.begin(jobs)
    now[0] += 60  # of importing torch
    for job in jobs[10:]:
        ledger.add(job, 7)
        now[0] += 4.0
    progress = book.said[1:]
    assert progress[0] == "compiled 15 of 100, about 6 minutes to go"  # 16 s after the first
    assert progress[1] == "compiled 19 of 100, about 5 minutes to go"
    assert "compiled 79 of 100, about 1 minutes to go" in progress
    assert progress[-1] == "compiled 100 of 100"
    assert len(progress) == 23


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture
def compiling(lab, monkeypatch):
    """Without a GPU, versions are ten jobs each; a server answers ``limit`` of them, then stops."""
    lab.machine["gpu"] = "none"
    lab.limit, lab.compiled, lab.crashes = 10**9, [], False

    class Server:
        def __init__(self, jobs):
            self.numbers = iter(range(len(jobs)))

        def poll(self, seconds):
            return lab.crashes or len(lab.compiled) < lab.limit or time.sleep(0.01)

        def recv_bytes(self, most):
            if len(lab.compiled) == lab.limit:
                raise worker_pool.PoolError("the pool ended")
            number = next(self.numbers)
            lab.compiled.append(number)
            return json.dumps([number, "answer", 7]).encode()

    @contextlib.contextmanager
    def server(work, package, cache):
        assert cache.is_dir()
        yield Server([job for group in work[1] for job in group])

    def code(subject, root, *rest, host):
        answers = worker_pool.map(abs, [JOBS], root, rest[-1], {"variants": int}, len)
        assert answers == dict.fromkeys(JOBS, 7)
        return fake_code(subject, root, *rest)

    monkeypatch.setattr(worker_pool, "_server", server)
    monkeypatch.setattr(exact, "compiled", code)
    return lab


def test_it_stops_in_time_and_goes_on_from_there(compiling, capsys):
    compiling.versions({}, {})
    again = "which are kept: the same command{} goes on from there"
    in_a_second = "base", "head", "--budget", "0.02"
    compiling.limit = 0
    assert compiling.compare(*in_a_second, "--afresh") == COULD_NOT_RUN
    assert again.format(", without --afresh,") in capsys.readouterr().err
    compiling.limit = 12
    assert compiling.compare(*in_a_second) == COULD_NOT_RUN
    assert "compiled 2 of 10, " + again.format("") in capsys.readouterr().err.splitlines()[-1]
    compiling.limit, compiling.crashes = 15, True
    assert compiling.compare() == COULD_NOT_RUN
    assert "could not run: the pool ended" in capsys.readouterr().err
    compiling.limit = 10**9
    assert compiling.compare() == PASS
    assert len(compiling.compiled) == 20
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
        (["--all"], "none", 20),
        (["--budget", "3"], "none", 3),
        ([], "Toy", 15),
    ],
    ids=str,
)
def test_budget(arguments, gpu, minutes, lab, monkeypatch):
    asked = []

    def compare(request, unmeasured, scratch):
        asked.append((request.deadline - time.monotonic()) / 60)
        return unmeasured

    lab.versions({}, {})
    lab.machine["gpu"] = gpu
    monkeypatch.setattr("benchmarks._engine.compare.session.compare", compare)
    assert lab.compare("base", "head", *arguments) == CANNOT_TELL  # nothing was judged
    assert asked == [pytest.approx(minutes, abs=0.5)]


# --- what is exact: without a GPU, and of the same sources ----------------------------------------


def test_same_sources_are_not_measured(lab, capsys):
    lab.commit("base")
    lab.commit("head")
    assert lab.compare() == PASS
    assert lab.gpu.begun == 0
    assert lab.found.same_sources and not lab.found.timings
    assert "both versions have the same sources" in capsys.readouterr().out


def test_same_sources_are_measured_where_asked(lab):
    lab.commit("base")
    assert lab.compare("base", "base", "--all") == PASS
    assert lab.gpu.answered == ALL
    assert len(lab.found.timings) == 12 and len(lab.found.identical) == 8
    assert "--all" in lab.found.reproduce


@pytest.mark.parametrize("option", [None, "--exact-only"])
@pytest.mark.parametrize("worse", [{}, {"spills": 8}, {"variants": 7}])
def test_only_what_is_exact(lab, option, worse):
    lab.versions({}, {"slower": {SMALL: 2.0}} | worse)
    if option is None:
        lab.machine["gpu"] = "none"
    assert lab.compare("base", "head", *filter(None, [option])) == (FAIL if worse else PASS)
    assert lab.gpu.begun == 0
    assert {value.key.metric for value in lab.found.exact} == {REGISTERS, SPILLS, VARIANTS}
    (note,) = (note for note in lab.notes if "not measured" in note)
    assert note.startswith(option or "no NVIDIA GPU: ")


@pytest.mark.parametrize(
    "words",
    [["--only", f"{FORWARD} {SMALL}"], ["--rounds", "14"], ["--wait", "3"]],
    ids=lambda words: words[0],
)
def test_what_means_nothing_without_a_clock_is_refused(lab, words, capsys):
    lab.versions({}, {})
    assert lab.compare("base", "head", *words, "--exact-only") == COULD_NOT_RUN
    assert f"--exact-only times nothing on a GPU: leave out {words[0]}" in capsys.readouterr().err


def test_package_that_does_not_compile(lab, monkeypatch):
    def code(subject, root, *rest, host):
        made = fake_code(subject, root, *rest)
        if behaviour_of(root).get("is") == "head":
            made.values[SPILLS, CALL] = RuntimeError("Traceback\nptxas: no such luck")
        return made

    lab.versions({}, {})
    lab.machine["gpu"] = "none"
    monkeypatch.setattr(exact, "compiled", code)
    assert lab.compare() == FAIL
    assert [e.change for e in lab.found.exact if e.answer is Answer.FAIL] == ["missing"]
    assert "head: 1 exact value missing: ptxas: no such luck" in lab.notes
