"""``python -m benchmarks`` for who has little installed, mistypes, or has a full disk."""

import errno
import os
import signal
import subprocess
import sys

import pytest

from benchmarks import __main__ as entry
from benchmarks._engine.system import machine
from benchmarks._engine.system.errors import CouldNotRunError
from benchmarks._site import asv_fixes, figures, run
from tests.lab import COULD_NOT_RUN, PASS, ROOT, status_of

COMMANDS = (
    *(
        "machine",
        "run",
        "figures",
        "compare",
        "release",
        "study",
        "readme",
    ),
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
        (["study", "aa"], ("numpy",), "torch"),
        (["study", "peers"], ("numpy",), "torch"),
        (["study", "training"], ("numpy",), "torch"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else None,
)
def test_a_package_that_is_missing_is_one_line(words, left, missing):
    if words in (["run"], ["study", "peers"]) and figures.git(
        "status", "--porcelain", "--", "rope_triton"
    ):
        words = ["machine"]  # a package that is not committed is refused before
    done = bare(*words, left=left)
    assert done.returncode == COULD_NOT_RUN
    how = f"{missing} is not installed: pip install -c constraints.txt -e '.[bench]'"
    assert done.stderr.splitlines() == [f"could not run: {how}"]


def test_what_is_missing_of_our_own_is_a_fault(monkeypatch, capsys):
    def fault(**_):
        raise ModuleNotFoundError("No module named 'benchmarks._lost'", name="benchmarks._lost")

    monkeypatch.setattr(entry._readme, "run", fault)
    assert entry.main(["readme"]) == COULD_NOT_RUN
    said = capsys.readouterr().err
    assert "Traceback" in said and said.endswith("could not run: this is a fault of the suite\n")


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

KEPT = "; what was measured is kept, the same command resumes"


@pytest.mark.parametrize(
    "error", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT, errno.EIO], ids=os.strerror
)
@pytest.mark.parametrize(
    ("module", "words", "kept"),
    [("_readme", ["readme"], ""), ("_compare", ["compare", "a"], KEPT), ("_run", ["run"], "")],
    ids=["readme", "compare", "run"],
)
def test_an_error_of_the_environment_is_one_line(error, module, words, kept, refusal, monkeypatch):
    def fail(**_):
        raise OSError(error, os.strerror(error), "/a/file")

    monkeypatch.setattr(getattr(entry, module), "run", fail)
    assert refusal(words) == f"{os.strerror(error)}: /a/file{kept}"


def test_a_directory_that_cannot_be_made_is_no_fault_of_the_suite(lab, refusal):
    lab.versions({}, {})
    (lab.root / ".asv").write_text("")
    assert refusal(["compare", "base", "head"]).startswith(f"Not a directory: {lab.root / '.asv'}")


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
    "words",
    [
        *(["nothing"], ["run", "--grid", "huge"], ["figures", "a", "b", "c"], ["machine", "a"]),
        *(["compare"], ["compare", "a", "b", "c"], ["compare", "a", "--wait", "soon"]),
        *(["release", "--budget", "0"], ["study", "all"], ["study", "aa", "--budget", "-1"]),
        *(
            ["study", "peers", "--wait", "nan"],
            ["study", "peers", "--grid", "huge"],
            ["readme", "a"],
        ),
        *(["study"], ["study", "training", "--only", "tiny-24"], ["study", "aa", "--only", "a"]),
        *(["compare", "a", "--markdown", "/dev/null"], ["compare", "a", "--json", "/none/a"]),
        *(["study", "training", "--rounds", f"{n}"] for n in (0, "many")),
    ],
    ids=" ".join,
)
def test_a_mistake_in_the_arguments_is_no_answer(words, capsys):
    """argparse's own status, 2, is an answer of compare."""
    assert status_of(words) == COULD_NOT_RUN
    text = capsys.readouterr().err
    assert "usage: python -m benchmarks" in text and ": error: " in text
    assert "some_seconds" not in text


def test_unknown_grid(monkeypatch, refusal):
    monkeypatch.setenv("ROPE_GRID", "huge")
    assert refusal(["run"]) == "ROPE_GRID must be one of ['full', 'small'], got 'huge'"


def test_the_grid_of_run_is_that_of_its_option(monkeypatch, refusal):
    def refuse():
        raise CouldNotRunError(os.environ["ROPE_GRID"])

    monkeypatch.setenv("ROPE_GRID", "full")
    monkeypatch.setattr(run, "_refuse_dirty_package", refuse)
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
    monkeypatch.setattr(figures, "RESULTS", tmp_path / "none")
    assert refusal(["figures"]) == f"no results of a machine: {tmp_path / 'none'} has none"


def test_figures_name_the_commits_that_are_stored(refusal, monkeypatch, tmp_path):
    for date in range(12):
        path = tmp_path / "gpu" / f"{date:08x}-python.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'{{"date": {date}, "result_columns": [], "results": {{}}}}')
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    text = refusal(["figures", "gpu", "HEAD"])
    assert text.startswith("no result of commit ")
    names = ", ".join(f"{date:08x}" for date in range(11, 1, -1))
    assert text.endswith(f"; stored, from the newest, are {names} and 2 older ones")


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b'{"date": 1}'])
def test_a_damaged_result_is_named_and_the_others_are_shown(text, monkeypatch, tmp_path, capsys):
    whole, damaged = (tmp_path / "gpu" / f"{sha * 8}-python.json" for sha in "ab")
    whole.parent.mkdir()
    whole.write_text('{"date": 1, "result_columns": [], "results": {}}')
    damaged.write_bytes(text)
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    assert entry.main(["figures", "gpu"]) == 0
    shown = capsys.readouterr()
    assert f"left out, as it is damaged: {damaged} (" in shown.err
    assert "machine gpu, commit aaaaaaaa" in shown.err
    assert shown.out == f"{whole} has no figures of speed or machine code\n"


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
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    assert entry.main(["figures", *words]) == 0
    newest = "old-gpu, commit bbbbbbbb" if words else "new-gpu, commit dddddddd"
    assert newest in capsys.readouterr().err


def test_help_of_compare_says_what_counts_by_default(capsys):
    assert status_of(["compare", "--help"]) == PASS
    text = " ".join(capsys.readouterr().out.split())
    assert "default: 15, or 60 with --grid full, or 20 if only the machine code is compared" in text
    assert "for a GPU that another measurement uses; default: 0" in text


def test_help_says_what_statuses_mean(capsys):
    for words in ([], ["run"], ["compare"], ["study"], ["study", "peers"]):
        assert status_of([*words, "--help"]) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert "Exit status: " in text and "3 could not run" in text


def test_environment_that_changes_the_compiler_is_no_fault(lab, monkeypatch, capsys):
    from benchmarks._engine.compare import exact
    from benchmarks._engine.machine_code import fingerprint
    from tests import toy

    def refused(*_, **__):
        fingerprint.compile_all(toy)

    lab.versions({}, {})
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(exact, "compiled", refused)
    assert lab.compare("base", "head", "--exact-only") == COULD_NOT_RUN
    assert "could not run: unset TRITON_INTERPRET" in capsys.readouterr().err


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
