"""``python -m benchmarks`` that is ended by Ctrl-C, a signal or kill -9."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import publishing
from tests.lab import ROOT


def group(leader: int) -> set[int]:
    """The processes of a process group that have not ended."""
    pids = (int(path.name) for path in Path("/proc").glob("[0-9]*"))
    return {pid for pid in pids if running_in(pid) == leader}


def running_in(pid: int) -> int | None:
    """The group of a process, None if it has ended."""
    try:
        stat = Path("/proc", str(pid), "stat").read_text()
    except OSError:
        return None
    state, _, pgrp = stat.rpartition(")")[2].split()[:3]
    return None if state in "ZX" else int(pgrp)


def wait_for(condition, seconds: float = 60.0):
    end = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
    return result


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


GOES_ON = "stopped; the same command resumes"


def test_stopped_while_it_compiles(tmp_path):
    """Two workers at least for each version, and what these start."""
    words = ["compare", "HEAD", "HEAD", "--all", "--exact-only", "--afresh"]

    def compiling(pid, text):
        return "compiling the base" in text and len(group(pid)) >= 3

    line, clone = ["-m", "benchmarks", *words], publishing.cloned(tmp_path / "clone")
    text = interrupted(line, tmp_path, compiling, cwd=clone)
    assert text.splitlines()[-1] == "stopped; the same command without --afresh resumes"
    assert len(text.splitlines()) == 2


NESTED = """
import sys, time
from benchmarks import __main__ as entry
from benchmarks._engine.system import process

INNER = '''
from benchmarks._engine.system import process
process.start("import time; time.sleep(60)").wait()
'''

def measure(**_):
    child = process.start(INNER)
    process.start("import time; time.sleep(60)")
    child.wait()

entry._compare.run = measure
entry.stop_on_signals()
sys.exit(entry.main(["compare", "HEAD"]))
"""


def test_processes_that_measure_end_and_what_they_started(tmp_path):
    text = interrupted(["-c", NESTED], tmp_path, lambda pid, text: len(group(pid)) == 4)
    assert text == f"{GOES_ON}\n"


STARTING = """
import pathlib, sys
from benchmarks import __main__ as entry
from benchmarks._engine.compare import measure

here = pathlib.Path({here!r})
entry._compare.run = lambda **_: measure.Process(
    "benchmarks._subjects", here, here
).wait_until_ready()
entry.stop_on_signals()
sys.exit(entry.main(["compare", "HEAD"]))
"""


def test_nothing_waits_for_a_process_that_was_starting(tmp_path):
    code = STARTING.format(here=str(tmp_path))
    text = interrupted(["-c", code], tmp_path, lambda pid, text: len(group(pid)) == 2)
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
from benchmarks._site import figures, run

here = pathlib.Path({here!r})
run.ASV, run.LOG, figures.RESULTS = [sys.executable, "-c", {asv!r}], here / "log" / "l", here
run.ASV_SECONDS = 1.0
run._refuse_dirty_package = run._require_main = lambda: None
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
    text = interrupted(["-c", code], tmp_path, lambda pid, text: ready.exists(), number)
    assert text.splitlines()[-1] == "stopped"
    assert ended.exists() == (number == signal.SIGINT)  # of asv's own, SIGTERM is none


def test_a_simulation_ends_with_its_processes(tmp_path):
    line = ["-m", "benchmarks", "study", "simulation"]
    text = interrupted(line, tmp_path, lambda pid, text: len(group(pid)) >= 2, signal.SIGTERM)
    assert text.splitlines()[-1] == GOES_ON


ORPHANS = """
import os, pathlib, subprocess, sys, time
os.setpgid(0, 0)
started = [subprocess.Popen(["sleep", "60"], start_new_session=True) for _ in range(2)]
pathlib.Path({ready!r}).write_text(" ".join(map(str, [os.getpid(), *(p.pid for p in started)])))
time.sleep(60)
"""


def test_nothing_that_a_run_started_outlives_kill_9(tmp_path):
    """Though asv starts its benchmarks in groups of their own."""
    ready = tmp_path / "ready"
    code = RUN.format(here=str(tmp_path), asv=ORPHANS.format(ready=str(ready)))
    environment = os.environ | {"HOME": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=environment) as process:
        pids = wait_for(lambda: ready.exists() and [*map(int, ready.read_text().split())])
        process.kill()
    wait_for(lambda: not any(map(running_in, pids)), 10)
