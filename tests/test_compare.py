"""``python -m benchmarks compare`` from its arguments to its exit status.

The GPU is the test's own: a version of the package says in a file how it behaves there, see
:class:`Gpu`. What is real: git, the order of processes, the stored rounds, the lock, the verdict,
the report and asv's results.
"""

import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import __main__ as entry
from benchmarks import _grid, _machine, _report
from benchmarks._compare import (
    arms,
    command,
    exact,
    measure,
    rounds,
    session,
    state,
    store,
    watch,
)
from benchmarks._verdict import Answer, Subject

ROOT = Path(__file__).resolve().parents[1]
UUID = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
MACHINE = {
    **{"machine": "toy-gpu", "os": "Linux", "arch": "x86_64", "cpu": "c", "num_cpu": "1"},
    **{"ram": "", "torch": "2.11.0", "triton": "3.6.0", "driver": "580.1", "gpu": "Toy"},
}
PASS, FAIL, CANNOT_TELL, COULD_NOT_RUN = 0, 1, 2, 3
KILLED = 9

# Four cells of the full grid: eight timings of the GPU, and four of the host.
GRID = {
    **{"seq_len": (128, 2048), "hidden_size": (64,), "batch": (1,)},
    **{"dtype": ("float32",), "format": ("sbhd", "bshd")},
}
CELLS = _grid.cells(GRID)
SMALL, LARGE = "128 64 1 float32 sbhd", "2048 64 1 float32 sbhd"
FORWARD, BACKWARD = measure.METRICS.values()
HOST = ["host.Call.track_forward", "host.Call.track_forward_backward"]
COMPILE, WARM_START = "host.FirstCall.track_compile", "host.FirstCall.track_warm_start"
LAUNCHES = Subject("host.Launches.track_launches", ("forward", "sbhd", "float32", "contiguous"))
REGISTERS = "codegen.Codegen.track_registers"
SPILLS = "codegen.Codegen.track_spilled_bytes"
VARIANTS = "codegen.Variants.track_variants"
CALL = ("sm_90", "float32", "sbhd", "forward", "64", "small")

ROUNDS = 10  # the fewest
CHECKS = 2  # processes that look at the output before anything is timed
ALL = CHECKS + 2 * ROUNDS


# --- a GPU of the test's own ----------------------------------------------------------------------


class Killed(BaseException):
    """Ends a run as Ctrl-C does: no ``except Exception`` sees it."""


class Gpu:
    """Answers jobs as the version's ``behaviour.json`` says, with seeded noise.

    Keys of the behaviour, all optional: "slower" ({cell or metric: factor}), "wrong" and "cannot"
    ([cell]: failed, or impossible, when it is checked), "fails" and "full" ({cell: [number of its
    timing process, from 1]}: failed, or out of memory, when it is timed), "start" (seconds of
    the first call), "launches", "registers", "spills", "variants" (exact values), "code" (its
    machine code, as a text).
    """

    def __init__(self):
        self.begun, self.answered = 0, 0
        self.jobs = []  # (root, job) of every answer
        self.before = lambda number: None  # called as process ``number`` gets its job
        self.noise = lambda subject, number: 0.01 if subject.metric in HOST else 0.001
        self.pace = lambda subject, number: 1.0
        self.events = lambda number: {}
        self.busy = ""
        self.starts = False  # whether first calls are timed

    def answer(self, root: Path, job: dict) -> dict:
        self.begun += 1
        self.before(self.begun)
        behaviour = behaviour_of(root)
        rows = {"timings": [], "facts": [], "unavailable": [], "errors": [], "gpu": UUID}
        names = [" ".join(map(str, cell)) for cell in job["cells"]]
        if job["task"] == "check":
            self._check(names, behaviour, rows)
        else:
            self._measure(names, root, behaviour, job["host"], rows)
        self.answered += 1
        self.jobs.append((root, job))
        return rows

    def _check(self, names, behaviour, rows) -> None:
        if self.starts:
            rows["timings"].append([COMPILE, [], [10 * behaviour.get("start", 0.1)]])
        for name, metric in itertools.product(names, (FORWARD, BACKWARD)):
            for kind, where in (("wrong", "errors"), ("cannot", "unavailable")):
                if name in behaviour.get(kind, ()):
                    rows[where].append([metric, name.split(), f"Traceback\nit is {kind}"])
        rows["facts"].append([LAUNCHES.metric, list(LAUNCHES.params), behaviour.get("launches", 1)])

    def _measure(self, names, root, behaviour, host: bool, rows) -> None:
        nth = 1 + sum(at == root and job["task"] == "measure" for at, job in self.jobs)
        subjects = []
        for name in names:
            both = [Subject(metric, tuple(name.split())) for metric in (FORWARD, BACKWARD)]
            lost = [
                where
                for kind, where in (("fails", "errors"), ("full", "unavailable"))
                if nth in behaviour.get(kind, {}).get(name, ())
            ]
            if lost:
                rows[lost[0]] += [[*subject, "Traceback\nlost in the round"] for subject in both]
            else:
                subjects += both
        if host and self.starts:
            rows["timings"].append([WARM_START, [], [behaviour.get("start", 0.1)]])
        if host:
            subjects += [Subject(metric, (fmt,)) for metric in HOST for fmt in ("sbhd", "bshd")]
        generator = np.random.default_rng(self.begun)
        for subject in subjects:
            factors = behaviour.get("slower", {})
            seconds = 1e-5 * self.pace(subject, self.begun)
            seconds *= factors.get(" ".join(subject.params), 1) * factors.get(subject.metric, 1)
            seconds *= float(np.exp(self.noise(subject, self.begun) * generator.normal()))
            rows["timings"].append([subject.metric, list(subject.params), [seconds] * 3])

    def require_free(self, uuid: str) -> None:
        assert uuid == UUID
        if self.busy:
            raise watch.GpuBusyError(self.busy)

    def watching(self, uuid: str) -> "Watching":
        assert uuid == UUID
        return Watching(self)


class Watching:
    """Stands for ``watch.Watch``; the judgement of what it saw is the real one."""

    def __init__(self, gpu: Gpu):
        self._gpu = gpu

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def summary(self) -> dict:
        clocks = {"sm_mhz": [1900, 1980, 1980], "memory_mhz": [3201, 3201, 3201]}
        seen = {"samples": 9, "under_load": 9, "processes": 1, "events": {}, **clocks}
        return seen | self._gpu.events(self._gpu.answered)


def behaviour_of(root: Path) -> dict:
    return json.loads(Path(root, "rope_triton", "behaviour.json").read_text())


def fake_process(gpu: Gpu):
    class Process:
        def __init__(self, root, cache):
            assert cache.is_dir()
            self.root, self.stopped = root, False

        def wait_until_ready(self):
            assert not self.stopped

        def answer(self, job):
            return json.loads(json.dumps(gpu.answer(self.root, json.loads(json.dumps(job)))))

        def stop(self):
            self.stopped = True

    return Process


def fake_code(root: Path, **subset) -> exact.CodegenFacts:
    behaviour = behaviour_of(root)
    values = {
        Subject(REGISTERS, CALL): behaviour.get("registers", 32),
        Subject(SPILLS, CALL): behaviour.get("spills", 0),
        Subject(VARIANTS, CALL[:4]): behaviour.get("variants", 1),
    }
    return exact.CodegenFacts(values, {})


def fake_digests(root: Path, arch: str, cells) -> dict[Subject, str]:
    code = behaviour_of(root).get("code", root.name)
    return {
        Subject(metric, tuple(measure.as_params(cell))): code
        for cell, metric in itertools.product(cells, (FORWARD, BACKWARD))
    }


# --- a repository of versions, and the command ----------------------------------------------------


class Lab:
    """A repository whose commits behave as they are told, the GPU, and the command on both."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch):
        self.root, self.gpu, self.patch = root, Gpu(), patch
        self.scratch, self.results = root / ".asv" / "compare", root / "benchmarks" / "results"
        self.report, self.machine, self.arch = root / "report.json", dict(MACHINE), "sm_90"
        for name, value in (("ROOT", root), ("SCRATCH", self.scratch), ("RESULTS", self.results)):
            patch.setattr(command, name, value)
        patch.setitem(_grid.GRIDS, "small", GRID)
        patch.setattr(_machine, "probe", lambda: (self.machine, self.arch))
        patch.setattr(measure, "Process", fake_process(self.gpu))
        patch.setattr(exact, "codegen_facts", fake_code)
        patch.setattr(exact, "cell_digests", fake_digests)
        patch.setattr(watch, "LOCK_DIRECTORY", root)
        patch.setattr(watch, "gpu_uuid", lambda: UUID)
        patch.setattr(watch, "require_free", self.gpu.require_free)
        patch.setattr(watch, "Watch", self.gpu.watching)

    def init(self) -> "Lab":
        self.results.mkdir(parents=True)
        (self.results / "benchmarks.json").write_text(json.dumps(discovered()))
        self.git("init", "-q", "-b", "main")
        (self.root / "README.md").write_text("toy\n")
        self.git("add", "README.md")
        self.git("commit", "-q", "-m", "no package")
        self.git("tag", "empty")
        return self

    def git(self, *arguments: str) -> str:
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        line = ["git", "-C", str(self.root), *identity, *arguments]
        return subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip()

    def write(self, **behaviour) -> None:
        """Let the working tree behave like this."""
        package = self.root / "rope_triton"
        package.mkdir(exist_ok=True)
        (package / "__init__.py").write_text("")
        (package / "behaviour.json").write_text(json.dumps(behaviour))

    def commit(self, tag: str, **behaviour) -> str:
        """A commit that behaves like this; its hash."""
        self.write(**behaviour)
        self.git("add", "rope_triton")
        self.git("commit", "-q", "--allow-empty", "-m", tag)
        self.git("tag", tag)
        return self.git("rev-parse", "HEAD")

    def versions(self, base: dict, head: dict) -> None:
        # "is" makes them differ where their behaviour does not.
        self.commit("base", **{"is": "base"} | base)
        self.commit("head", **{"is": "head"} | head)

    def compare(self, *arguments: str, rounds: int = ROUNDS) -> int:
        """The exit status of ``compare``, with few rounds and a JSON report."""
        given = arguments or ("base", "head")
        words = ["compare", *given, "--rounds", str(rounds), "--json", str(self.report)]
        self.report.unlink(missing_ok=True)
        return status_of(words)

    @property
    def found(self) -> _report.Comparison:
        return _report.from_json(json.loads(self.report.read_text()))

    def timing(self, subject: Subject):
        (timing,) = (each for each in self.found.timings if each.subject == subject)
        return timing

    def states(self) -> list[Path]:
        return sorted((self.scratch / "states").iterdir())

    def stored(self) -> list[Path]:
        return sorted((self.results / "toy-gpu").glob("*-compare-*.json"))


def discovered() -> dict:
    """What asv knows of the benchmarks whose values are stored."""

    def entry_of(name: str, **params) -> dict:
        return {
            **{"name": name, "unit": "seconds", "version": "1", "type": "track", "code": ""},
            **{
                "param_names": list(params),
                "params": [list(map(repr, v)) for v in params.values()],
            },
            **{"timeout": 60, "setup_cache_key": None},
        }

    steps = {name: [value] for name, value in zip("abcd", LAUNCHES.params, strict=True)}
    entries = [entry_of(metric, **GRID) for metric in (FORWARD, BACKWARD)]
    entries += [entry_of(metric, format=GRID["format"]) for metric in HOST]
    entries += [entry_of(LAUNCHES.metric, **steps), entry_of(WARM_START)]
    return {each["name"]: each for each in entries} | {"version": 2}


def status_of(words: list[str]) -> int:
    """The exit status of ``python -m benchmarks``, whether it returns or exits."""
    try:
        return entry.main(words)
    except SystemExit as end:
        return end.code


@pytest.fixture
def lab(tmp_path, monkeypatch) -> Lab:
    return Lab(tmp_path, monkeypatch).init()


def both(name: str) -> list[Subject]:
    return [Subject(metric, tuple(name.split())) for metric in (FORWARD, BACKWARD)]


# --- the three answers ----------------------------------------------------------------------------


def test_no_slower_passes(lab, capsys):
    lab.versions({}, {})
    assert lab.compare() == PASS
    found = lab.found
    assert found.answer is Answer.PASS
    assert {name: len(f.timings) for name, f in found.families.items()} == {"gpu": 8, "host": 4}
    assert (found.rounds, found.extension) == (ROUNDS, 0)
    assert not found.wrong and not found.notes and not found.disturbed and not found.identical
    assert lab.gpu.answered == ALL
    assert "PASS: none of 12 timings is slower by more than" in capsys.readouterr().out


def test_slower_cells_fail(lab):
    lab.versions({}, {"slower": {SMALL: 1.05}})
    assert lab.compare() == FAIL
    slower = [each for each in lab.found.timings if each.answer is Answer.FAIL]
    assert {each.subject for each in slower} == set(both(SMALL))
    assert all(0.045 < each.effect < 0.055 and each.change == "slower" for each in slower)


def test_the_versions_are_not_mixed_up(lab):
    lab.versions({"slower": {SMALL: 1.05}}, {})
    assert lab.compare() == PASS
    faster = {each.subject for each in lab.found.timings if each.change == "faster"}
    assert faster == set(both(SMALL))
    assert lab.found.base.name == "base"


def test_slower_on_the_host_fails(lab):
    lab.versions({}, {"slower": {HOST[0]: 1.3}})
    assert lab.compare() == FAIL
    slower = {each.subject for each in lab.found.timings if each.answer is Answer.FAIL}
    assert slower == {Subject(HOST[0], (fmt,)) for fmt in GRID["format"]}


def test_first_calls_are_shown_and_fail_nothing(lab, capsys):
    lab.gpu.starts = True
    lab.versions({}, {"start": 0.2, "launches": 1})
    assert lab.compare() == PASS
    (start,) = lab.found.families["start"].timings
    assert (start.subject, start.change) == (Subject(WARM_START, ()), "slower")
    (note,) = (note for note in lab.found.notes if "first call" in note)
    assert "base 1.00 s, head 2.00 s" in note
    assert "first call with an empty cache" in capsys.readouterr().out


def test_the_first_check_finds_an_empty_cache_and_the_rounds_what_it_compiled(lab):
    seen = []

    class Process(measure.Process):
        def __init__(self, root, cache):
            super().__init__(root, cache)
            seen.append(list(cache.iterdir()))
            (cache / "kernel").touch()

    lab.patch.setattr(measure, "Process", Process)
    lab.versions({}, {"slower": {SMALL: 1.2}})
    assert lab.compare() == FAIL
    assert [bool(files) for files in seen] == [False] * CHECKS + [True] * 2 * ROUNDS
    assert lab.compare() == FAIL
    seen.clear()
    assert lab.compare("base", "head", "--afresh") == FAIL
    assert [bool(files) for files in seen[:CHECKS]] == [False] * CHECKS


def test_wrong_output_fails_and_has_no_speed(lab):
    lab.versions({}, {"wrong": [SMALL], "slower": {SMALL: 0.5}})
    assert lab.compare() == FAIL
    assert lab.found.wrong == tuple(
        f"{metric} {SMALL}: it is wrong" for metric in (FORWARD, BACKWARD)
    )
    timed = {each.subject for each in lab.found.timings}
    assert set(both(LARGE)) <= timed and not timed & set(both(SMALL))


def test_wrong_everywhere_is_not_timed_at_all(lab):
    names = [" ".join(measure.as_params(cell)) for cell in CELLS]
    lab.versions({}, {"wrong": names})
    assert lab.compare() == FAIL
    assert lab.gpu.answered == CHECKS
    assert len(lab.found.wrong) == 8


def test_wrong_everywhere_in_both_versions_is_no_verdict(lab, capsys):
    names = [" ".join(measure.as_params(cell)) for cell in CELLS]
    lab.versions({"wrong": names}, {"wrong": names, "launches": 1})
    assert lab.compare() == COULD_NOT_RUN
    assert "no cell is right in both versions" in capsys.readouterr().err


def test_afresh_measures_again(lab):
    lab.versions({}, {"slower": {SMALL: 1.2}})
    assert lab.compare() == FAIL
    before = lab.gpu.answered
    assert lab.compare() == FAIL
    assert lab.gpu.answered == before
    assert lab.compare("base", "head", "--afresh") == FAIL
    assert lab.gpu.answered > before


@pytest.mark.parametrize("worse", [{"launches": 2}, {"variants": 7}])
def test_exact_metric_that_got_worse_fails(lab, worse):
    lab.versions({}, worse)
    assert lab.compare() == FAIL
    failed = [each for each in lab.found.exact if each.answer is Answer.FAIL]
    assert [each.change for each in failed] == ["worse"]
    assert all(each.answer is Answer.PASS for each in lab.found.timings)


@pytest.mark.parametrize(("worse", "metric"), [("registers", REGISTERS), ("spills", SPILLS)])
def test_machine_code_that_the_clock_judges_is_only_shown(lab, worse, metric):
    lab.versions({}, {worse: 48})
    assert lab.compare() == PASS
    assert [e.subject.metric for e in lab.found.exact if e.change == "worse"] == [metric]


def test_noise_cannot_be_told(lab):
    lab.versions({}, {})
    lab.gpu.noise = lambda subject, number: 1.0
    assert lab.compare() == CANNOT_TELL
    assert lab.found.extension == session.EXTENSION_ROUNDS
    assert not any(each.answer is Answer.FAIL for each in lab.found.timings)


def test_control_that_sees_a_change_cannot_tell(lab):
    """Rounds 1, 2, 5, 6, ... are slow on both sides: a version differs from itself."""
    lab.versions({}, {})
    lab.gpu.pace = lambda subject, number: 1.1 if (number - CHECKS - 1) // 2 % 4 in (1, 2) else 1.0
    assert lab.compare(rounds=12) == CANNOT_TELL
    assert lab.found.families["gpu"].control.failed


def test_same_machine_code_is_found_and_overrules_noise(lab):
    lab.versions({"code": "ret"}, {"code": "ret"})
    lab.gpu.noise = lambda subject, number: 0.01 if subject.metric in HOST else 0.2
    assert lab.compare() == PASS
    assert len(lab.found.identical) == 8
    assert lab.gpu.answered == ALL  # the machine code tells: no second look


def test_slower_with_the_same_machine_code_cannot_tell(lab):
    lab.versions({"code": "ret"}, {"code": "ret", "slower": {SMALL: 1.05}})
    assert lab.compare() == CANNOT_TELL


def test_unknown_architecture_is_noted(lab):
    lab.versions({}, {})
    lab.arch = "sm_999"
    assert lab.compare() == PASS
    assert any("sm_999" in note for note in lab.found.notes)
    assert {each.subject.metric for each in lab.found.exact} == {LAUNCHES.metric}


# --- could not run: never an answer ---------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["compare"],
        ["compare", "base", "head", "other"],
        ["compare", "base", "head", "--nonsense"],
        ["compare", "base", "--grid", "huge"],
        *(
            ["compare", "base", "--rounds", text]
            for text in ("7", "8", "11", "64", "-12", "ten", "12.0", "")
        ),
        *(["compare", "base", "--budget", text] for text in ("0", "-1", "nan", "soon")),
        *(["compare", "base", "--wait", text] for text in ("-1", "nan", "long")),
        *(["compare", "base", option, "missing/x"] for option in ("--json", "--markdown")),
    ],
    ids=" ".join,
)
def test_bad_arguments(lab, capsys, words):
    lab.versions({}, {})
    assert status_of(words) == COULD_NOT_RUN
    error = capsys.readouterr().err
    assert "error: " in error and "Traceback" not in error
    assert lab.gpu.begun == 0


@pytest.mark.parametrize("words", [["no-such-branch"], ["HEAD", "--nonsense"]], ids=" ".join)
def test_status_of_a_real_process(words):
    line = [sys.executable, "-m", "benchmarks", "compare", *words]
    assert subprocess.run(line, cwd=ROOT, capture_output=True).returncode == COULD_NOT_RUN


@pytest.mark.parametrize(
    "name", ["nowhere", "--help", "-x", "", "main^{tree}", "a b", "--output=x"]
)
def test_unknown_version(lab, capsys, name):
    lab.versions({}, {})
    before = sorted(lab.root.rglob("*"))
    words = ["compare", "--no-store", "--", "base", name]
    assert status_of(words) == COULD_NOT_RUN
    assert f"{name!r} is no commit or branch" in capsys.readouterr().err
    new = {p.relative_to(lab.root).parts[:3] for p in set(lab.root.rglob("*")) - set(before)}
    assert new <= {(".asv",), (".asv", "compare"), (".asv", "compare", "sources")}


def test_commit_without_the_package(lab, capsys):
    lab.versions({}, {})
    assert lab.compare("empty", "head") == COULD_NOT_RUN
    assert "could not run: commit 'empty' has no rope_triton/" in capsys.readouterr().err


def test_gpu_that_another_measures(lab, capsys):
    lab.versions({}, {})
    with watch.gpu_lock(UUID, 0):
        assert lab.compare() == COULD_NOT_RUN
    assert f"is being measured by pid {os.getpid()}" in capsys.readouterr().err
    assert lab.compare() == PASS


def test_gpu_that_another_uses(lab, capsys):
    lab.versions({}, {})
    lab.gpu.busy = "GPU is in use by pid 12 (trainer)"
    assert lab.compare() == COULD_NOT_RUN
    assert "could not run: GPU is in use by pid 12 (trainer)" in capsys.readouterr().err
    assert lab.gpu.begun == 0


def test_damaged_state_is_left_alone(lab, capsys):
    lab.versions({}, {})
    assert lab.compare() == PASS
    path = sorted(lab.states()[0].glob("look1.*"))[3]
    path.write_text(path.read_text().replace("timings", "tidings"))
    content = {each: each.read_bytes() for each in lab.states()[0].iterdir() if each.name != "lock"}
    assert lab.compare() == COULD_NOT_RUN
    assert f"{path} is damaged" in capsys.readouterr().err
    now = {each: each.read_bytes() for each in lab.states()[0].iterdir() if each.name != "lock"}
    assert now == content


def test_process_that_dies(lab, capsys):
    lab.versions({}, {})

    def die(number):
        if number == 5:
            raise measure.ProcessError("a process ended with -11:\nlast words")

    lab.gpu.before = die
    assert lab.compare() == COULD_NOT_RUN
    assert "could not run: a process ended with -11:\nlast words" in capsys.readouterr().err
    assert not lab.report.exists()


def test_answer_of_another_gpu(lab, capsys):
    lab.versions({}, {})
    lab.gpu.answer = lambda root, job: {"gpu": "GPU-bbbbbbbb-0000-0000-0000-000000000000"}
    assert lab.compare() == COULD_NOT_RUN
    assert "measured was GPU GPU-bbbbbbbb" in capsys.readouterr().err


def test_time_that_is_up(lab, capsys, monkeypatch):
    """A minute a process, and six minutes: the rest is for the next run."""
    lab.versions({}, {})
    clock = fake_clock(lab, monkeypatch)
    assert lab.compare("base", "head", "--budget", "6") == COULD_NOT_RUN
    assert "the time is up before round 3 of 10 of look1" in capsys.readouterr().err
    assert clock() <= 360
    answered = lab.gpu.answered
    assert lab.compare("base", "head", "--budget", "60") == PASS
    assert (answered, lab.gpu.answered) == (CHECKS + 4, ALL)


def fake_clock(lab: Lab, monkeypatch):
    """Let every process take a minute; the seconds that have gone by."""

    def seconds():
        return 60.0 * lab.gpu.answered

    monkeypatch.setattr(command.time, "monotonic", seconds)
    return seconds


@pytest.mark.parametrize("error", [ZeroDivisionError("x"), MemoryError(), KeyError("y")])
def test_unexpected_exception(lab, capsys, error, monkeypatch):
    def fail(*_):
        raise error

    lab.versions({}, {})
    monkeypatch.setattr(session, "compare", fail)
    assert lab.compare() == COULD_NOT_RUN
    assert "could not run: this is a fault of the suite" in capsys.readouterr().err


def test_results_of_asv_that_are_damaged(lab, capsys):
    lab.versions({}, {})
    assert lab.compare() == PASS
    path = lab.stored()[0]
    path.write_text("{")
    assert lab.compare() == COULD_NOT_RUN
    assert str(path) in capsys.readouterr().err
    assert path.read_text() == "{"


def test_timings_that_are_no_seconds(lab, capsys):
    lab.versions({}, {})
    lab.gpu.pace = lambda subject, number: 0.0
    assert lab.compare() == COULD_NOT_RUN
    assert "seconds must be finite and positive" in capsys.readouterr().err


# --- killed, and started again --------------------------------------------------------------------


def kill_at(number: int):
    def before(begun):
        if begun == number:
            raise Killed

    return before


def kill_at_write(monkeypatch, number: int, after: bool) -> None:
    """Kill the run before or after it writes the state's file ``number``."""
    write, written = state.write_atomically, itertools.count(1)

    def killing(path, data):
        this = next(written) == number
        if this and not after:
            raise Killed
        write(path, data)
        if this:
            raise Killed

    monkeypatch.setattr(state, "write_atomically", killing)


@pytest.fixture
def clean(lab) -> Lab:
    """A lab whose head is slower in one cell; nothing has been measured yet."""
    lab.versions({}, {"slower": {SMALL: 1.05}})
    return lab


def finish(lab: Lab) -> None:
    """Start a killed run again: it is complete, and right."""
    lab.gpu.before = lambda number: None
    assert lab.compare("base", "head", "--no-store") == FAIL
    found = lab.found
    assert found.rounds == ROUNDS and not found.extension and not found.wrong
    assert {each.rounds for each in found.timings} == {ROUNDS}
    slower = {each.subject for each in found.timings if each.answer is Answer.FAIL}
    assert slower == set(both(SMALL))
    with state.State.open(lab.states()[0], manifest_of(lab.states()[0])) as kept:
        numbers = [each.number for each in kept.rounds("look1")]
    assert numbers == list(range(ROUNDS))


def manifest_of(directory: Path) -> dict:
    return json.loads((directory / "manifest.json").read_text())["content"]


@pytest.mark.parametrize("number", range(1, ALL + 1))
def test_killed_in_a_process(clean, number):
    clean.gpu.before = kill_at(number)
    with pytest.raises(Killed):
        clean.compare("base", "head", "--no-store")
    assert clean.gpu.answered == number - 1
    finish(clean)
    # Of what was answered, only the first half of a round is measured again.
    lost = max(number - 1 - CHECKS, 0) % 2
    assert clean.gpu.answered == ALL + lost


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 12, 13, ALL, ALL + 1])
def test_killed_around_a_write(clean, monkeypatch, number, after):
    with monkeypatch.context() as patch:
        kill_at_write(patch, number, after)
        with pytest.raises(Killed):
            clean.compare("base", "head", "--no-store")
    finish(clean)
    written = number - 1 + after  # the manifest, an answer a check, two a round
    half = written > 1 + CHECKS and (written - 1 - CHECKS) % 2
    assert any("before every arm" in reason for reason in clean.found.disturbed) == bool(half)


_CHILD = """
import os, sys
from pathlib import Path
import pytest
from tests import test_compare
lab = test_compare.Lab(Path(sys.argv[1]), pytest.MonkeyPatch())
if sys.argv[2] == "process":
    lab.gpu.before = lambda number: number == int(sys.argv[3]) and os._exit(test_compare.KILLED)
else:
    replace, calls = os.replace, []
    def killing(*paths):
        calls.append(paths)
        len(calls) == int(sys.argv[3]) and os._exit(test_compare.KILLED)
        replace(*paths)
    os.replace = killing
lab.compare("base", "head", "--no-store")
"""


@pytest.mark.parametrize(("where", "number"), [("process", 8), ("write", 1), ("write", 7)])
def test_killed_for_good(clean, where, number):
    """As by SIGKILL: no handler runs, locks and half a file are left behind."""
    line = [sys.executable, "-c", _CHILD, str(clean.root), where, str(number)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == KILLED, done.stderr
    left = [path for path in clean.states()[0].iterdir() if path.name.startswith(".tmp")]
    assert bool(left) == (where == "write")
    finish(clean)
    assert not [path for path in clean.states()[0].iterdir() if path.name.startswith(".tmp")]


def test_complete_run_is_only_judged_again(lab):
    lab.versions({}, {})
    assert lab.compare() == PASS
    first = lab.found
    assert lab.compare() == PASS
    assert lab.gpu.answered == ALL
    assert lab.found.families == first.families


def test_other_rounds_are_another_state(lab):
    """More rounds are what a "cannot tell" asks for: the first ones do not stand in their way."""
    lab.versions({}, {})
    assert lab.compare() == PASS
    (first,) = lab.states()
    content = {path: path.read_bytes() for path in first.iterdir()}
    assert lab.compare(rounds=12) == PASS
    assert lab.found.rounds == 12 and len(lab.states()) == 2
    assert lab.gpu.answered == ALL + CHECKS + 24
    assert {path: path.read_bytes() for path in first.iterdir()} == content


def test_changed_working_tree_is_another_state(lab):
    lab.versions({}, {})
    lab.write(slower={SMALL: 1.05})
    assert lab.compare("base") == FAIL
    lab.write(slower={LARGE: 1.05})
    assert lab.compare("base") == FAIL
    slower = {each.subject for each in lab.found.timings if each.answer is Answer.FAIL}
    assert slower == set(both(LARGE))
    assert len(lab.states()) == 2 and lab.gpu.answered == 2 * ALL


def test_another_machine_is_no_resumption(lab, capsys):
    lab.versions({}, {})
    assert lab.compare() == PASS
    lab.machine["driver"] = "590.0"
    assert lab.compare() == COULD_NOT_RUN
    assert "machine.driver: stored '580.1', present '590.0'" in capsys.readouterr().err


# --- disturbed ------------------------------------------------------------------------------------


def test_disturbed_round_is_repeated_and_reported(lab):
    lab.versions({}, {})
    heat = {"hardware thermal slowdown": 3}
    lab.gpu.events = lambda answered: {"events": heat} if answered == CHECKS + 4 else {}
    assert lab.compare() == PASS
    assert lab.gpu.answered == ALL + 2
    assert lab.found.disturbed == ("look1, round 2: hardware thermal slowdown in 3 of 9 samples",)
    assert lab.found.rounds == ROUNDS


def test_clock_that_drops_is_a_disturbance(lab):
    lab.versions({}, {})
    low = {"sm_mhz": [1500, 1500, 1500]}
    lab.gpu.events = lambda answered: low if answered == CHECKS + 4 else {}
    assert lab.compare() == PASS
    (reason,) = lab.found.disturbed
    assert "SM clock at 1500 MHz under load, 1980 in earlier rounds" in reason


def test_disturbed_again_and_again(lab, capsys):
    lab.versions({}, {})
    lab.gpu.events = lambda answered: {"processes": 2}
    assert lab.compare() == COULD_NOT_RUN
    assert f"round 1 of look1 was disturbed {rounds.ATTEMPTS} times" in capsys.readouterr().err
    assert lab.gpu.answered == CHECKS + 2 * rounds.ATTEMPTS
    lab.gpu.events = lambda answered: {}
    assert lab.compare() == PASS
    assert len(lab.found.disturbed) == rounds.ATTEMPTS


# --- the second look ------------------------------------------------------------------------------


def noisy(lab: Lab, name: str, second: float) -> None:
    """Let a cell be noisy in the first look, with ``second`` as its noise in the second."""

    def noise(subject, number):
        if " ".join(subject.params) != name:
            return 0.01 if subject.metric in HOST else 0.001
        return 0.1 if number <= ALL else second

    lab.gpu.noise = noise


def test_untold_cells_are_measured_again_and_judged_by_that_alone(lab):
    lab.versions({}, {})
    noisy(lab, SMALL, 0.001)
    lab.gpu.pace = lambda subject, number: 1.0 if number <= ALL else 2.0
    assert lab.compare() == PASS
    found, added = lab.found, session.EXTENSION_ROUNDS
    assert (found.rounds, found.extension) == (ROUNDS + added, added)
    for timing in found.timings:
        again = timing.subject in both(SMALL)
        assert timing.rounds == (added if again else ROUNDS)
        assert timing.base == pytest.approx(2e-5 if again else 1e-5, rel=0.02)
    jobs = [job for _, job in lab.gpu.jobs[ALL:]]
    assert len(jobs) == 2 * added
    assert all(job["cells"] == [[128, 64, 1, "float32", "sbhd"]] for job in jobs)
    assert not any(job["host"] for job in jobs)


def test_slowdown_that_only_the_second_look_sees_fails(lab):
    lab.versions({}, {"slower": {SMALL: 1.03}})
    noisy(lab, SMALL, 0.001)
    assert lab.compare() == FAIL
    assert all(lab.timing(subject).change == "slower" for subject in both(SMALL))
    assert lab.found.extension


def test_host_that_cannot_be_told_is_measured_again_without_the_cells(lab):
    lab.versions({}, {})
    lab.gpu.noise = lambda subject, number: (
        0.001 if subject.metric not in HOST else 0.5 if number <= ALL else 0.01
    )
    assert lab.compare() == PASS
    assert all(job["cells"] == [] and job["host"] for _, job in lab.gpu.jobs[ALL:])
    assert len(lab.gpu.jobs) > ALL


def test_no_time_for_a_second_look(lab, monkeypatch):
    lab.versions({}, {})
    noisy(lab, SMALL, 0.001)
    fake_clock(lab, monkeypatch)
    assert lab.compare("base", "head", "--budget", str(ALL + 1)) == CANNOT_TELL
    assert lab.found.extension == 0 and lab.gpu.answered < ALL + 4
    assert any("the time is up" in note for note in lab.found.notes)
    assert lab.compare("base", "head", "--budget", "600") == PASS
    assert lab.gpu.answered == ALL + 2 * session.EXTENSION_ROUNDS


def test_killed_in_the_second_look(lab):
    lab.versions({}, {})
    noisy(lab, SMALL, 0.001)
    lab.gpu.before = kill_at(ALL + 6)
    with pytest.raises(Killed):
        lab.compare()
    lab.gpu.before = lambda number: None
    assert lab.compare() == PASS
    assert lab.found.extension == session.EXTENSION_ROUNDS
    assert lab.gpu.answered == ALL + 2 * session.EXTENSION_ROUNDS + 1


# --- missing on one side --------------------------------------------------------------------------


def test_cell_that_only_the_head_lacks_fails(lab):
    lab.versions({}, {"cannot": [SMALL]})
    assert lab.compare() == FAIL
    assert [text for text in lab.found.wrong if SMALL in text and "it is cannot" in text]
    assert not {each.subject for each in lab.found.timings} & set(both(SMALL))


def test_cell_that_only_the_base_lacks_is_noted(lab):
    lab.versions({"cannot": [SMALL]}, {})
    assert lab.compare() == PASS
    noted = [text for text in lab.found.notes if "not in the base: it is cannot" in text]
    assert len(noted) == 2 and not lab.found.wrong
    assert not {each.subject for each in lab.found.timings} & set(both(SMALL))


def test_cell_that_both_lack_is_noted(lab):
    lab.versions({"cannot": [SMALL]}, {"cannot": [SMALL]})
    assert lab.compare() == PASS
    noted = [text for text in lab.found.notes if "in neither version: it is cannot" in text]
    assert len(noted) == 2 and not lab.found.wrong


def test_head_that_fails_in_one_process_of_many(lab):
    lab.versions({}, {"fails": {SMALL: [7]}})
    assert lab.compare() == FAIL
    text = f"{FORWARD} {SMALL}: failed in 1 of {ROUNDS} processes of the head: lost in the round"
    assert text in lab.found.wrong
    assert {each.rounds for each in lab.found.timings} == {ROUNDS}
    assert len(lab.found.timings) == 10


def test_base_that_fails_in_one_process_of_many(lab):
    lab.versions({"fails": {SMALL: [7]}}, {})
    assert lab.compare() == PASS
    assert any(f"failed in 1 of {ROUNDS} processes of the base" in n for n in lab.found.notes)
    assert not lab.found.wrong


def test_cell_that_neither_can_time_is_noted(lab):
    """Right in both, but the buffers of a timing do not fit."""
    full = {"full": {SMALL: list(range(1, 99))}}
    lab.versions(full, full)
    assert lab.compare() == PASS
    assert len([text for text in lab.found.notes if SMALL in text]) >= 2
    assert not lab.found.wrong


def test_head_that_fails_in_the_second_look(lab):
    lab.versions({}, {"fails": {SMALL: [ROUNDS + 3]}})
    noisy(lab, SMALL, 0.001)
    assert lab.compare() == FAIL
    assert any(SMALL in text and "of the head" in text for text in lab.found.wrong)


# --- the same sources -----------------------------------------------------------------------------


def test_same_sources_are_not_measured(lab, capsys):
    lab.commit("base")
    lab.commit("head")
    assert lab.compare() == PASS
    assert lab.gpu.begun == 0
    assert lab.found.same_sources and not lab.found.timings
    assert "both versions have the same sources" in capsys.readouterr().out


def test_same_sources_are_measured_where_asked(lab):
    lab.commit("base")
    assert lab.compare("base", "base", "--even-if-same") == PASS
    assert lab.gpu.answered == ALL
    assert len(lab.found.timings) == 12 and len(lab.found.identical) == 8
    assert "--even-if-same" in lab.found.reproduce


# --- without a GPU --------------------------------------------------------------------------------


@pytest.mark.parametrize("option", [None, "--exact-only"])
def test_only_what_is_exact(lab, option):
    lab.versions({}, {"slower": {SMALL: 2.0}})
    if option is None:
        lab.machine["gpu"] = "none"
    assert lab.compare("base", "head", *filter(None, [option])) == PASS
    assert lab.gpu.begun == 0
    assert {each.subject.metric for each in lab.found.exact} == {REGISTERS, SPILLS, VARIANTS}
    assert any(
        note.startswith("GPU: ") and "latency" in note and "not measured" in note
        for note in lab.found.notes
    )
    assert not lab.stored()


@pytest.mark.parametrize("worse", [{"spills": 8}, {"variants": 7}])
def test_exact_fails_without_a_gpu(lab, worse):
    lab.versions({}, worse)
    lab.machine["gpu"] = "none"
    assert lab.compare() == FAIL


def test_package_that_does_not_compile(lab, monkeypatch):
    """An exception stands where the head has no value: it is missing, and said why."""

    def facts(root, **subset):
        found = fake_code(root)
        if behaviour_of(root).get("is") == "head":
            found.values[SPILLS, CALL] = RuntimeError("Traceback\nptxas: no such luck")
        return found

    lab.versions({}, {})
    lab.machine["gpu"] = "none"
    monkeypatch.setattr(exact, "codegen_facts", facts)
    assert lab.compare() == FAIL
    assert [e.change for e in lab.found.exact if e.answer is Answer.FAIL] == ["missing"]
    assert "head: 1 values missing: ptxas: no such luck" in lab.found.notes


def test_two_versions_of_the_real_package(tmp_path, monkeypatch, capsys):
    """The compiler and the survey are the real ones, on a part of what they survey."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    survey, digests = exact.codegen_facts, exact.cell_digests
    lab = Lab(tmp_path, monkeypatch).init()
    lab.machine = MACHINE | {"gpu": "none", "machine": "no-gpu"}
    part = {"dtype": ("float16",), "format": ("sbhd",), "hidden_size": (64,)}
    part |= {"direction": ("forward",)}
    monkeypatch.setattr(session, "ARCHITECTURES", ("sm_90",))
    monkeypatch.setattr(exact, "codegen_facts", lambda root, **arch: survey(root, **part | arch))
    monkeypatch.setattr(exact, "cell_digests", digests)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "rope_triton", lab.root / "rope_triton", ignore=ignored)
    lab.git("add", "rope_triton")
    lab.git("commit", "-q", "-m", "base")
    kernels = lab.root / "rope_triton" / "kernels.py"
    kernels.write_text(kernels.read_text() + "\n# A remark changes no machine code.\n")
    assert lab.compare("main") == PASS
    assert not lab.found.same_sources and lab.found.head.sha == ""
    assert len(lab.found.exact) > 10
    assert {each.change for each in lab.found.exact} == {"none"}
    assert "exact: none of" in capsys.readouterr().out


# --- the versions ---------------------------------------------------------------------------------


def test_commit_branch_and_working_tree_are_one_content(lab):
    sha = lab.commit("base")
    sources = lab.scratch / "sources"
    found = [arms.from_commit(name, lab.root, sources) for name in ("main", "base", sha, sha[:8])]
    found.append(arms.from_working_tree(lab.root, sources))
    assert {arm.sha for arm in found} == {sha}
    assert len({(arm.digest, arm.root) for arm in found}) == 1
    assert [p.name for p in sources.iterdir()] == [found[0].root.name]
    assert {p.name for p in found[0].root.iterdir()} == {"rope_triton"}


@pytest.mark.parametrize("change", ["edit", "new file", "staged", "removed"])
def test_changed_working_tree_has_no_commit(lab, change):
    lab.commit("base")
    before = arms.from_working_tree(lab.root, lab.scratch / "sources")
    package = lab.root / "rope_triton"
    if change == "removed":
        (package / "behaviour.json").unlink()
    else:
        (package / ("extra.py" if change == "new file" else "__init__.py")).write_text("x = 1\n")
    if change == "staged":
        lab.git("add", "rope_triton")
    arm = arms.from_working_tree(lab.root, lab.scratch / "sources")
    assert (arm.name, arm.sha) == ("working tree", "")
    assert arm.digest != before.digest and arm.root != before.root


def test_what_is_not_the_package_does_not_count(lab):
    sha = lab.commit("base")
    before = arms.from_working_tree(lab.root, lab.scratch / "sources")
    (lab.root / "README.md").write_text("changed")
    cache = lab.root / "rope_triton" / "__pycache__"
    cache.mkdir()
    (cache / "x.pyc").write_bytes(b"")
    (lab.root / ".gitignore").write_text("__pycache__/\n")
    after = arms.from_working_tree(lab.root, lab.scratch / "sources")
    assert (after.sha, after.digest) == (sha, before.digest)
    assert not (after.root / "rope_triton" / "__pycache__").exists()


def test_working_tree_without_the_package(lab):
    with pytest.raises(arms.ArmError, match="no rope_triton in"):
        arms.from_working_tree(lab.root, lab.scratch / "sources")


def test_branch_with_a_hostile_name(lab):
    """git takes such refs; here they are names and never options."""
    sha = lab.commit("base")
    for ref in ("refs/heads/--help", "refs/heads/-x"):
        lab.git("update-ref", ref, sha)
        name = ref.removeprefix("refs/heads/")
        assert arms.from_commit(name, lab.root, lab.scratch / "sources").sha == sha


@pytest.mark.parametrize("how", ["edit", "new file", "removed"])
def test_unpacked_sources_that_were_changed(lab, capsys, how):
    lab.versions({}, {})
    root = arms.from_commit("base", lab.root, lab.scratch / "sources").root
    path = root / "rope_triton" / ("extra.py" if how == "new file" else "__init__.py")
    if how == "removed":
        path.unlink()
    else:
        path.write_text("x = 1\n")
    assert lab.compare() == COULD_NOT_RUN
    assert f"{root} was changed since it was made" in capsys.readouterr().err
    assert lab.gpu.begun == 0


def test_without_git(lab, monkeypatch, capsys):
    lab.versions({}, {})
    monkeypatch.setenv("PATH", "")
    assert lab.compare() == COULD_NOT_RUN
    assert "git is not on the PATH" in capsys.readouterr().err


# --- order, and what processes are given ----------------------------------------------------------


def test_processes_alternate_and_know_their_round(lab):
    lab.versions({}, {})
    assert lab.compare() == PASS
    names = [behaviour_of(root)["is"] for root, _ in lab.gpu.jobs]
    first = names[CHECKS]
    second = {"base": "head", "head": "base"}[first]
    assert names[CHECKS:] == [first, second, second, first] * (ROUNDS // 2)
    tasks = [job["task"] for _, job in lab.gpu.jobs]
    assert tasks == ["check"] * CHECKS + ["measure"] * (ALL - CHECKS)
    pairs = [lab.gpu.jobs[i : i + 2] for i in range(CHECKS, ALL, 2)]
    assert all(one[1] == other[1] for one, other in pairs)


# --- asv's results --------------------------------------------------------------------------------


def test_samples_land_in_asvs_results(lab):
    lab.versions({}, {})
    assert lab.compare() == PASS
    shas = [lab.git("rev-parse", name) for name in ("base", "head")]
    assert sorted(path.name[:8] for path in lab.stored()) == sorted(sha[:8] for sha in shas)
    calls = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "store", lambda *arguments: calls.append(arguments))
        assert lab.compare() == PASS
    for sha, (_, _, machine, commit, samples, facts) in zip(shas, calls, strict=True):
        assert (commit, machine) == (sha, MACHINE)
        assert len(samples) == 12 and {len(values) for values in samples.values()} == {ROUNDS}
        assert facts == {LAUNCHES: 1}
    timing = lab.timing(both(SMALL)[0])
    medians = [statistics.median(call[4][timing.subject]) for call in calls]
    assert medians == [timing.base, timing.head]


def test_working_tree_is_not_stored(lab, capsys):
    lab.commit("base")
    lab.write(slower={SMALL: 1.05})
    assert lab.compare("base") == FAIL
    assert [path.name[:8] for path in lab.stored()] == [lab.git("rev-parse", "base")[:8]]
    assert "the head is not in asv's results" in capsys.readouterr().err


def test_nothing_is_stored_where_asked(lab):
    lab.versions({}, {})
    assert lab.compare("base", "head", "--no-store") == PASS
    assert not lab.stored()


# --- the reports ----------------------------------------------------------------------------------


def test_reports_are_written_whole(lab, tmp_path):
    lab.versions({}, {})
    path = tmp_path / "report.md"
    assert lab.compare("base", "head", "--markdown", str(path)) == PASS
    assert path.read_text() == _report.markdown(lab.found)
    assert lab.found.reproduce == f"python -m benchmarks compare base head --rounds {ROUNDS}"


def test_progress_goes_beside_the_report(lab, capsys):
    lab.versions({}, {})
    assert lab.compare() == PASS
    output = capsys.readouterr()
    assert f"look1: round 3 of {ROUNDS}" in output.err
    assert "look1" not in output.out


# --- the fresh process, for real ------------------------------------------------------------------

# What the process asks of torch for a job without cells, on a machine that has a GPU but none for
# the host's metrics. The real one takes seconds to import.
FAKE_TORCH = f"""
class cuda:
    is_available = staticmethod(lambda: False)
    current_device = staticmethod(lambda: 0)
    class get_device_properties:
        uuid = "{UUID}"
        def __init__(self, device): pass
"""
JOB = {"task": "check", "cells": []}


@pytest.fixture
def process(tmp_path):
    """Starts a real process on a package that is given as a text; ends it after the test."""
    begun = []

    def start(source: str, torch: str = FAKE_TORCH) -> measure.Process:
        root = tmp_path / "arm"
        (root / "rope_triton").mkdir(parents=True)
        (root / "rope_triton" / "__init__.py").write_text(source)
        (root / "torch.py").write_text(torch)
        begun.append(measure.Process(root, tmp_path / "cache"))
        return begun[-1]

    yield start
    for each in begun:
        each.stop()


def test_process_takes_the_package_from_its_root(process, tmp_path, monkeypatch):
    """Neither from the current directory nor from where the suite is; and its own cache."""
    (tmp_path / "here" / "rope_triton").mkdir(parents=True)
    (tmp_path / "here" / "rope_triton" / "__init__.py").write_text("raise SystemExit('not me')")
    monkeypatch.chdir(tmp_path / "here")
    note = tmp_path / "note"
    started = process(
        "import os, pathlib\n"
        f"pathlib.Path({str(note)!r}).write_text(__file__ + '\\n' + os.environ['TRITON_CACHE_DIR'])"
    )
    started.wait_until_ready()
    answer = started.answer(JOB)
    assert note.read_text().split("\n") == [
        str(tmp_path / "arm" / "rope_triton" / "__init__.py"),
        str(tmp_path / "cache"),
    ]
    assert answer["gpu"] == UUID
    assert answer["timings"] == answer["facts"] == answer["errors"] == []
    reasons = {(metric, reason) for metric, _, reason in answer["unavailable"]}
    assert (LAUNCHES.metric, "no NVIDIA GPU: torch.cuda.is_available() is False") in reasons


def test_process_whose_package_comes_from_elsewhere(process, tmp_path):
    elsewhere = tmp_path / "elsewhere" / "rope_triton"
    elsewhere.mkdir(parents=True)
    (elsewhere / "__init__.py").write_text("")
    started = process(f"__file__ = {str(elsewhere / '__init__.py')!r}")
    with pytest.raises(measure.ProcessError, match=f"it came from {elsewhere.parent}"):
        started.wait_until_ready()


def test_process_that_dies_before_it_is_ready(process):
    started = process("raise RuntimeError('no such kernel')")
    with pytest.raises(measure.ProcessError, match="(?s)before it was ready.*no such kernel"):
        started.wait_until_ready()


def test_process_that_dies_at_work(process):
    dying = FAKE_TORCH.replace("pass", "import os; os.write(2, b'last words'); os._exit(5)")
    started = process("", torch=dying)
    started.wait_until_ready()
    with pytest.raises(measure.ProcessError, match="(?s)ended with 5.*last words"):
        started.answer(JOB)


def test_process_that_takes_too_long(process):
    slow = FAKE_TORCH.replace("pass", "import time; time.sleep(60)")
    started = process("", torch=slow)
    started.wait_until_ready()
    with pytest.raises(measure.ProcessError, match="longer than 1 s"):
        started.answer(JOB, timeout=1.0)


def test_process_that_prints_is_ready_all_the_same(process):
    started = process("print('hello')")
    started.wait_until_ready()
    assert started.answer(JOB)["gpu"] == UUID


def test_process_is_ended(process):
    started = process("import time; time.sleep(60)")
    started.stop()
    assert started._popen.poll() is not None
    started.stop()
