"""``python -m benchmarks`` for who has little installed, mistypes, or has a full disk."""

import errno
import os
import signal
import subprocess
import sys

import pytest

from benchmarks import __main__ as entry
from benchmarks._engine.system.errors import CouldNotRunError
from benchmarks._site import asv_fixes, figures, run
from tests.lab import COULD_NOT_RUN, ROOT, status_of

COMMANDS = ("machine", "run", "figures", "compare", "release", "study", "readme")

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


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS)], ids=" ".join)
def test_help_needs_nothing_installed(words):
    done = bare(*words, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    text = " ".join(done.stdout.split())
    assert "usage: python -m benchmarks" in text and "``" not in text
    if words[:1] in ([], ["run"], ["compare"], ["study"]):
        assert "Exit status: " in text and "3 could not run" in text


@pytest.mark.parametrize(
    ("words", "left", "missing"),
    [
        (["machine"], (), "torch"),
        (["run"], (), "torch"),
        (["compare", "HEAD", "HEAD"], ("numpy", "torch", "triton"), "asv"),
        (["study", "aa"], ("numpy",), "torch"),
        (["study", "peers"], ("numpy", "torch"), "triton"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else None,
)
def test_a_package_that_is_missing_is_one_line(words, left, missing):
    dirty = figures.git("status", "--porcelain", "--", "rope_triton")
    detached = not figures.git("branch", "--list", "main")  # as where a pull request is checked out
    if words == ["run"] and (dirty or detached) or words == ["study", "peers"] and dirty:
        words = ["machine"]  # these are refused before
    done = bare(*words, left=left)
    assert done.returncode == COULD_NOT_RUN
    how = f"{missing} is not installed: pip install -c constraints.txt -e '.[bench]'"
    assert done.stderr.splitlines() == [f"could not run: {how}"]


def test_what_is_missing_of_our_own_is_a_fault(monkeypatch, capsys):
    def fault(**_):
        raise ModuleNotFoundError("No module named 'benchmarks._lost'", name="benchmarks._lost")

    monkeypatch.setattr(entry._readme, "run", fault)
    assert entry.main(["readme"]) == COULD_NOT_RUN
    text = capsys.readouterr().err
    assert "Traceback" in text and text.endswith("could not run: this is a fault of the suite\n")


@pytest.fixture
def refusal(capsys):
    """Of a command, the one line that it ends with."""

    def line(words: list[str]) -> str:
        assert entry.main(words) == COULD_NOT_RUN
        [line] = capsys.readouterr().err.splitlines()
        return line.removeprefix("could not run: ")

    return line


def test_a_stored_verdict_is_shown_by_a_bare_python():
    report = "benchmarks/evidence/reports/pass.json"
    for words, begins in (
        ([], "FAIL: 13 of 96 changed GPU timings slower by"),
        ([report], "PASS: "),
        ([report, "--markdown", "-"], "## ✅ PASS"),
    ):
        line = [sys.executable, "-S", "-m", "benchmarks", "compare", "--show", *words]
        # Where the locale lacks what the report has, it is replaced.
        environment = {
            "LC_ALL": "C",
            "PYTHONCOERCECLOCALE": "0",
            "PYTHONUTF8": str(len(words) // 3),
        }
        done = subprocess.run(
            line, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8"
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(begins)


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 0}'])
def test_what_is_no_report_is_not_shown(text, refusal, tmp_path):
    path = tmp_path / "a.json"
    path.write_text(text)
    assert refusal(["compare", "--show", str(path)]).startswith(
        f"{path} is no report of compare --json: "
    )


# --- with an environment that fails ---------------------------------------------------------------


def test_an_error_of_the_environment_is_one_line_and_says_how_to_go_on(lab, refusal):
    lab.versions({}, {})
    (lab.root / ".asv").write_text("")
    text = refusal(["compare", "base", "head"])
    assert text.startswith(f"Not a directory: {lab.root / '.asv'}")
    assert text.endswith("; what was measured is kept, the same command resumes")


def test_what_ships_is_shown_where_nothing_can_be_written(monkeypatch, capsys):
    def refuse(root):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(asv_fixes, "fill_results", refuse)
    assert entry.main(["figures", "nvidia-h200"]) == 0
    assert "Read-only file system): these are the results that ship" in capsys.readouterr().err


def test_nothing_is_said_to_a_reader_that_has_gone():
    line = [sys.executable, "-m", "benchmarks", "figures", "nvidia-h200"]
    with subprocess.Popen(line, cwd=ROOT, stdout=-1, stderr=-1, encoding="utf-8") as process:
        process.stdout.close()
        assert process.stderr.read().startswith("machine nvidia-h200, commit ")
        assert process.wait() == 128 + signal.SIGPIPE


def test_a_full_disk_under_the_output_is_one_line():
    with open("/dev/full", "w") as full:
        line = [sys.executable, "-m", "benchmarks", "compare", "--show"]
        done = subprocess.run(line, cwd=ROOT, stdout=full, stderr=-1, encoding="utf-8")
    assert done.returncode == COULD_NOT_RUN
    assert done.stderr == "could not run: No space left on device\n"


# --- with a mistake -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        *("nothing", "run --grid huge", "figures a b c", "machine a", "readme a", "study"),
        *("compare", "compare a b c", "compare a --wait soon", "compare a --markdown /dev/null"),
        *("compare a --json /none/a", "release --budget 0", "study all", "study aa --budget -1"),
        *("study aa --only a", "study peers --wait nan", "study peers --grid huge"),
        *(f"study training --{option}" for option in ("only tiny-24", "rounds 0", "rounds many")),
    ],
)
def test_a_mistake_in_the_arguments_is_no_answer(line, capsys):
    """argparse's own status, 2, is an answer of compare."""
    assert status_of(line.split()) == COULD_NOT_RUN
    text = capsys.readouterr().err
    assert "usage: python -m benchmarks" in text and ": error: " in text
    assert "some_seconds" not in text


def test_the_grid_of_run_is_that_of_its_option(monkeypatch, refusal):
    def refuse():
        raise CouldNotRunError(os.environ["ROPE_GRID"])

    monkeypatch.setenv("ROPE_GRID", "huge")
    assert refusal(["run"]) == "ROPE_GRID must be one of ['full', 'small'], got 'huge'"
    monkeypatch.setattr(run, "_refuse_dirty_package", refuse)
    assert refusal(["run", "--grid", "small"]) == "small"


# --- figures --------------------------------------------------------------------------------------


@pytest.fixture
def store(monkeypatch, tmp_path):
    """Stores a result of asv, which has no figures, in place of those that ship."""
    monkeypatch.setattr(figures, "RESULTS", tmp_path)

    def write(machine, commit, date):
        path = tmp_path / machine / f"{commit}-python.json"
        path.parent.mkdir(exist_ok=True)
        path.with_name("machine.json").write_text("{}")
        path.write_text(f'{{"date": {date}, "result_columns": [], "results": {{}}}}')
        return path

    return write


@pytest.mark.parametrize("name", ["deadbeef", "f" * 40, "--help", "HEAD^{tree}"])
def test_figures_of_what_is_no_commit(name, refusal):
    text = refusal(["figures", "nvidia-h200", "--", name])
    beginning = f"{name!r} is no commit of the repository {ROOT}; stored, from the newest, are "
    assert text.startswith(beginning) and "9ce172c9" in text


def test_figures_of_an_unknown_machine(refusal, store):
    assert refusal(["figures"]) == f"no results of a machine: {figures.RESULTS} has none"
    store("gpu", "a" * 8, 1)
    text = refusal(["figures", "nvidia-h100"])
    assert text.startswith("no results of a machine 'nvidia-h100': there are those of gpu")


def test_figures_name_the_commits_that_are_stored(refusal, store):
    for date in range(12):
        store("gpu", f"{date:08x}", date)
    text = refusal(["figures", "gpu", "HEAD"])
    assert text.startswith("no result of commit ")
    names = ", ".join(f"{date:08x}" for date in range(11, 1, -1))
    assert text.endswith(f"; stored, from the newest, are {names} and 2 older ones")


@pytest.mark.parametrize("text", [b"", b"[]", b"\xff", b'{"date": 1}'])
def test_a_damaged_result_is_named_and_the_others_are_shown(text, store, capsys):
    intact, damaged = (store("gpu", letter * 8, 1) for letter in "ab")
    damaged.write_bytes(text)
    assert entry.main(["figures", "gpu"]) == 0
    shown = capsys.readouterr()
    assert f"left out, as it is damaged: {damaged} (" in shown.err
    assert "machine gpu, commit aaaaaaaa" in shown.err
    assert shown.out == f"{intact} has no figures of speed or machine code\n"


@pytest.mark.parametrize("words", [[], ["old-gpu"]], ids=["anywhere", "of a machine"])
def test_figures_are_of_the_newest_result_by_default(words, store, capsys):
    for date, letter in enumerate("acb"):
        store("old-gpu", letter * 8, date)
    store("new-gpu", "d" * 8, 4)
    assert entry.main(["figures", *words]) == 0
    newest = "old-gpu, commit bbbbbbbb" if words else "new-gpu, commit dddddddd"
    assert newest in capsys.readouterr().err
