"""``python -m benchmarks`` for who has little installed, mistypes, or presses Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import __main__ as entry
from benchmarks._system import machine
from tests import publishing
from tests.lab import COULD_NOT_RUN, PASS, ROOT, status_of

COMMANDS = (
    *("machine", "run", "figures", "compare", "creep", "evidence", "sweep", "training", "readme"),
)

# --- with little installed ------------------------------------------------------------------------

BARE = """
import sys

class Missing:
    names = {"torch", "triton", "numpy", "asv", "asv_runner", "pynvml", "matplotlib"} - {LEFT}

    def find_spec(self, name, *_):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
sys.path.insert(0, ".")
from benchmarks import __main__ as entry
sys.exit(entry.main(sys.argv[1:]))
"""


def bare(*words: str, left: tuple[str, ...] = ()) -> subprocess.CompletedProcess:
    """The command in a Python that has nothing installed but what is ``left``."""
    code = BARE.replace("{LEFT}", f"set({left!r})")
    line = [sys.executable, "-I", "-c", code, *words]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize("words", [[], *([each] for each in COMMANDS)], ids=" ".join)
def test_help_needs_nothing_installed(words):
    done = bare(*words, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage: python -m benchmarks" in done.stdout
    assert "``" not in done.stdout


@pytest.mark.parametrize(
    ("words", "left", "missing"),
    [
        (["machine"], (), "torch"),
        (["run"], (), "torch"),
        (["compare", "HEAD", "HEAD"], ("numpy",), "torch"),
        (["compare", "HEAD", "HEAD"], ("numpy", "torch"), "triton"),
        (["compare", "HEAD", "HEAD"], ("numpy", "torch", "triton"), "asv"),
        (["evidence", "aa"], ("numpy",), "torch"),
        (["sweep"], ("numpy",), "torch"),
        (["training"], ("numpy",), "torch"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else None,
)
def test_a_package_that_is_missing_is_one_line(words, left, missing):
    if words in (["run"], ["sweep"]) and entry._git("status", "--porcelain", "--", "rope_triton"):
        words = ["machine"]  # a package that is not committed is refused before
    done = bare(*words, left=left)
    assert done.returncode == COULD_NOT_RUN
    how = f"{missing} is not installed: pip install -c constraints.txt -e '.[bench]'"
    assert done.stderr.splitlines() == [f"could not run: {how}"]


def test_what_is_missing_of_our_own_is_a_fault(monkeypatch):
    def fault(**_):
        raise ModuleNotFoundError("No module named 'benchmarks._lost'", name="benchmarks._lost")

    monkeypatch.setattr(entry._readme, "run", fault)
    with pytest.raises(ModuleNotFoundError, match="_lost"):
        entry.main(["readme"])


# --- with a mistake -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        *(["nothing"], ["run", "--grid", "huge"], ["figures", "a", "b", "c"], ["machine", "a"]),
        *(["compare"], ["compare", "a", "b", "c"], ["compare", "a", "--wait", "soon"]),
        *(["creep", "--budget", "0"], ["evidence", "all"], ["evidence", "aa", "--budget", "-1"]),
        *(["sweep", "--wait", "nan"], ["sweep", "--grid", "huge"], ["readme", "a"]),
        *(["training", "--only", "tiny-24"], ["training", "--providers", "theirs"]),
        *(["training", "--rounds", "0"], ["training", "--rounds", "many"]),
    ],
    ids=" ".join,
)
def test_a_mistake_in_the_arguments_is_no_answer(words, capsys):
    """argparse's own status, 2, is an answer of compare."""
    assert status_of(words) == COULD_NOT_RUN
    text = capsys.readouterr().err
    assert "usage: python -m benchmarks" in text and ": error: " in text
    assert "some_seconds" not in text


@pytest.fixture
def refusal(capsys):
    """Of a command, the one line that it ends with."""

    def line(words: list[str]) -> str:
        assert entry.main(words) == COULD_NOT_RUN
        [line] = capsys.readouterr().err.splitlines()
        return line.removeprefix("could not run: ")

    return line


def test_unknown_grid(monkeypatch, refusal):
    monkeypatch.setenv("ROPE_GRID", "huge")
    assert refusal(["run"]) == "ROPE_GRID must be one of ['full', 'small'], got 'huge'"


def test_the_grid_of_run_is_that_of_its_option(monkeypatch, refusal):
    def refuse():
        raise entry.CouldNotRunError(os.environ["ROPE_GRID"])

    monkeypatch.setenv("ROPE_GRID", "full")
    monkeypatch.setattr(entry, "_refuse_dirty_package", refuse)
    assert refusal(["run"]) == "full"
    assert refusal(["run", "--grid", "small"]) == "small"


@pytest.mark.parametrize("name", ["deadbeef", "f" * 40, "--help", "HEAD^{tree}"])
def test_figures_of_what_is_no_commit(name, refusal):
    text = refusal(["figures", "nvidia-h200", "--", name])
    said = f"{name!r} is no commit of the repository {ROOT}; stored, from the newest, are "
    assert text.startswith(said) and "9ce172c9" in text


def test_figures_of_an_unknown_machine(refusal):
    text = refusal(["figures", "nvidia-h100"])
    assert text.startswith("no results of a machine 'nvidia-h100': there are those of ")
    assert "nvidia-h200" in text


def test_figures_of_nothing(refusal, monkeypatch, tmp_path):
    monkeypatch.setattr(entry, "RESULTS", tmp_path / "none")
    assert refusal(["figures"]) == f"no results of a machine: {tmp_path / 'none'} has none"


def test_figures_name_the_commits_that_are_stored(refusal, monkeypatch, tmp_path):
    for date in range(12):
        path = tmp_path / "gpu" / f"{date:08x}-python.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'{{"date": {date}}}')
    monkeypatch.setattr(entry, "RESULTS", tmp_path)
    text = refusal(["figures", "gpu", "HEAD"])
    assert text.startswith("no result of commit ")
    names = ", ".join(f"{date:08x}" for date in range(11, 1, -1))
    assert text.endswith(f"; stored, from the newest, are {names} and 2 older ones")


@pytest.mark.parametrize("words", [[], ["old-gpu"]], ids=["anywhere", "of a machine"])
def test_figures_are_of_the_newest_result_by_default(words, monkeypatch, tmp_path, capsys):
    for name, commit, date in [
        *(("old-gpu", "aaaaaaaa", 1), ("old-gpu", "bbbbbbbb", 3)),
        *(("old-gpu", "cccccccc", 2), ("new-gpu", "dddddddd", 4)),
    ]:
        path = tmp_path / name / f"{commit}-python.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'{{"date": {date}, "result_columns": [], "results": {{}}}}')
        path.with_name("machine.json").write_text("{}")
    monkeypatch.setattr(entry, "RESULTS", tmp_path)
    assert entry.main(["figures", *words]) == 0
    newest = "old-gpu, commit bbbbbbbb" if words else "new-gpu, commit dddddddd"
    assert newest in capsys.readouterr().err


def test_help_of_compare_says_what_counts_by_default(capsys):
    assert status_of(["compare", "--help"]) == PASS
    text = " ".join(capsys.readouterr().out.split())
    assert "default: 15, or 60 with --grid full, or 20 if only the machine code is compared" in text
    assert "for a GPU that another measurement uses; default: 0" in text


def test_help_says_what_statuses_mean(capsys):
    for words in ([], ["run"], ["compare"], ["sweep"]):
        assert status_of([*words, "--help"]) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert "Exit status: " in text and "3 could not run" in text


def test_environment_that_changes_the_compiler_is_no_fault(lab, monkeypatch, capsys):
    from benchmarks._compare import exact
    from benchmarks._machine_code import fingerprint

    def refused(*_, **__):
        fingerprint.compile_all([])

    lab.versions({}, {})
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(exact, "codegen_facts", refused)
    assert lab.compare("base", "head", "--exact-only") == COULD_NOT_RUN
    assert "could not run: unset TRITON_INTERPRET" in capsys.readouterr().err


# --- with Ctrl-C ----------------------------------------------------------------------------------


def group(leader: int) -> set[int]:
    """The processes of a process group that have not ended."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, pgrp = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue  # it has ended meanwhile
        if int(pgrp) == leader and state not in "ZX":
            found.add(int(stat.parent.name))
    return found


def wait_for(condition, seconds: float = 60.0):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
    return found


def interrupted(line: list[str], tmp_path: Path, when, number=signal.SIGINT, cwd=ROOT) -> str:
    """Start a command, send its process group a signal ``when(pid, stderr)``; what it printed.

    It must end with the status of the signal and leave no process.
    """
    log = tmp_path / "stderr"
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, *line],
            cwd=cwd,
            env=environment | {"HOME": str(tmp_path)},
            stdout=stderr,
            stderr=stderr,
            start_new_session=True,
            # A shell lets what it starts in the background ignore Ctrl-C.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
    try:
        wait_for(lambda: process.poll() is not None or when(process.pid, log.read_text()))
        assert process.poll() is None, log.read_text()
        os.killpg(process.pid, number)
        assert process.wait(30) == 128 + number, log.read_text()
        wait_for(lambda: not group(process.pid), 10)
    finally:
        if group(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    text = log.read_text()
    assert "Traceback" not in text and "Error" not in text
    return text


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    return publishing.cloned(tmp_path_factory.mktemp("clone") / "clone")


GOES_ON = "stopped; the same command resumes"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_while_it_compiles(number, clone, tmp_path):
    """Two workers at least for each version, and what these start."""
    words = ["compare", "HEAD", "HEAD", "--even-if-same", "--exact-only"]

    def compiling(pid, said):
        return "compiling the base" in said and len(group(pid)) >= 3

    line = ["-m", "benchmarks", *words]
    text = interrupted(line, tmp_path, compiling, number, cwd=clone)
    assert text.splitlines()[-1] == GOES_ON
    assert len(text.splitlines()) == 2


def test_stopped_before_anything_is_compiled(clone, tmp_path):
    words = ["compare", "HEAD", "HEAD", "--even-if-same", "--afresh"]
    line = ["-m", "benchmarks", *words]
    text = interrupted(line, tmp_path, lambda pid, said: len(group(pid)) == 2, cwd=clone)
    assert text == "stopped; the same command without --afresh resumes\n"


NESTED = """
import sys, time
from benchmarks import __main__ as entry
from benchmarks._system import process

INNER = '''
from benchmarks._system import process
process.start("import time; time.sleep(60)").wait()
'''

def measure(**_):
    child = process.start(INNER)
    process.start("import time; time.sleep(60)")
    child.wait()

entry.{command}.run = measure
entry.stop_on_signals()
sys.exit(entry.main({words!r}))
"""


@pytest.mark.parametrize(
    ("command", "words", "said"),
    [
        ("_compare", ["compare", "HEAD"], GOES_ON),
        ("_sweep", ["sweep"], GOES_ON),
        ("_readme", ["readme"], "stopped"),
    ],
)
def test_processes_that_measure_end_and_what_they_started(command, words, said, tmp_path):
    code = NESTED.format(command=command, words=words)
    text = interrupted(["-c", code], tmp_path, lambda pid, said: len(group(pid)) == 4)
    assert text == f"{said}\n"


STARTING = """
import pathlib, sys
from benchmarks import __main__ as entry
from benchmarks._compare import measure

here = pathlib.Path({here!r})
entry._compare.run = lambda **_: measure.Process(here, here).wait_until_ready()
entry.stop_on_signals()
sys.exit(entry.main(["compare", "HEAD"]))
"""


def test_nothing_waits_for_a_process_that_was_starting(tmp_path):
    code = STARTING.format(here=str(tmp_path))
    text = interrupted(["-c", code], tmp_path, lambda pid, said: len(group(pid)) == 2)
    assert text == f"{GOES_ON}\n"


ASV = """
import pathlib, time
try:
    pathlib.Path({ready!r}).touch()
    time.sleep(60)
except KeyboardInterrupt:
    pathlib.Path({ended!r}).touch()
    raise
"""
RUN = """
import os, pathlib, sys
from benchmarks import __main__ as entry

here = pathlib.Path({here!r})
entry.ASV, entry.LOG, entry.RESULTS = [sys.executable, "-c", {asv!r}], here / "log" / "l", here
entry.ASV_SECONDS = 1.0
entry._refuse_dirty_package = entry._require_main = lambda: None
entry.machine.machine_record = lambda: dict.fromkeys(("machine", "torch", "triton"), "x") | {{
    "gpu": "none"
}}
entry.machine.save_record = lambda record: None
entry.stop_on_signals()
sys.exit(entry.main(["run"]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asv_ends_itself_and_its_own_when_a_run_is_stopped(number, tmp_path):
    ready, ended = tmp_path / "ready", tmp_path / "ended"
    asv = ASV.format(ready=str(ready), ended=str(ended))
    code = RUN.format(here=str(tmp_path), asv=asv)
    text = interrupted(["-c", code], tmp_path, lambda pid, said: ready.exists(), number)
    assert text.splitlines()[-1] == "stopped"
    assert ended.exists() == (number == signal.SIGINT)  # of asv's own, SIGTERM is none


def test_a_machine_is_described_by_a_process_that_prints_nothing_more(monkeypatch):
    """The caller has looked for torch, triton and asv before it starts one."""
    started = []
    monkeypatch.setattr(machine.process, "start", lambda *_, **__: started.append(1))
    monkeypatch.setattr(
        machine.importlib.util, "find_spec", lambda name: None if name == "asv" else name
    )
    with pytest.raises(ModuleNotFoundError, match="asv") as error:
        machine.probe()
    assert error.value.name == "asv" and not started
