"""What git says of commits, and that a change of what they run on is never a pass."""

import pytest

from benchmarks._engine.system import repository
from benchmarks._engine.system.repository import GitError
from tests.lab import CANNOT_TELL, COULD_NOT_RUN, FAIL, PASS, SMALL

PROJECT = '[project]\nname = "x"\ndependencies = ["torch>=2.11", "Triton>=3.6"]\n'
PINS = "# dependencies\ntorch==2.13.0\ntriton==3.7.1  # newest\n# test\npytest==9.2.0\n"


def commit(lab, tag, project=PROJECT, pins=PINS, **behaviour):
    for name, text in (("pyproject.toml", project), ("constraints.txt", pins)):
        (lab.root / name).write_text(text)
    lab.git("add", "pyproject.toml", "constraints.txt")
    return lab.commit(tag, **behaviour)


def test_requirements_are_the_dependencies_and_their_pins(lab):
    required = repository.requirements(lab.root, commit(lab, "base"))
    assert required == {
        "torch": "torch>=2.11 (pinned to 2.13.0)",
        "triton": "Triton>=3.6 (pinned to 3.7.1)",
    }
    assert repository.requirements(lab.root, "empty") == {}


@pytest.mark.parametrize(
    ("project", "pins", "changed"),
    [
        (PROJECT.replace('"torch>=2.11"', '"numpy"'), PINS, ["numpy", "torch"]),
        (PROJECT, PINS.replace("3.7.1", "3.8.0"), ["triton"]),
        (PROJECT.replace('"x"', '"y"'), PINS.replace("9.2.0", "9.3.0") + "\n# more\n", []),
    ],
)
def test_requirement_changes(lab, project, pins, changed):
    base = repository.requirements(lab.root, commit(lab, "base"))
    head = repository.requirements(lab.root, commit(lab, "head", project, pins))
    changes = repository.requirement_changes(base, head)
    assert [sentence.partition(":")[0] for sentence in changes] == changed
    assert all("this change was not measured" in sentence for sentence in changes)


@pytest.mark.parametrize("file", ["project", "pins"])
def test_a_file_that_is_too_long_is_not_parsed(lab, file):
    sha = commit(lab, "head", **{file: "#" * (repository.MAX_BYTES + 1)})
    with pytest.raises(ValueError, match="a file of 20001 bytes, at most 20000 are read"):
        repository.requirements(lab.root, sha)


@pytest.mark.parametrize("slower", [None, SMALL])
@pytest.mark.parametrize("sources", ["the same sources", "other sources"])
def test_a_change_of_what_it_runs_on_is_no_pass(lab, capsys, sources, slower):
    same = sources == "the same sources"
    commit(lab, "base")
    head = {} if same else {"is": "head"} | ({"slower": {slower: 1.05}} if slower else {})
    commit(lab, "head", pins=PINS.replace("3.7.1", "3.8.0"), **head)
    expected = FAIL if slower and not same else CANNOT_TELL
    assert lab.compare() == expected
    (sentence,) = lab.unmeasured
    assert "pinned to 3.7.1" in sentence and "pinned to 3.8.0" in sentence
    assert lab.found.same_sources == same
    assert "not measured: triton" in capsys.readouterr().out


def test_the_working_tree_has_requirements_too(lab):
    commit(lab, "base")
    assert lab.compare("base") == PASS
    (lab.root / "constraints.txt").write_text(PINS.replace("2.13.0", "2.14.0"))
    assert lab.compare("base") == CANNOT_TELL


@pytest.mark.parametrize(
    "project",
    ["[project", "project = 1\n", *(f"[project]\ndependencies = {x}" for x in ("3", "['']"))],
)
def test_requirements_that_cannot_be_read(lab, capsys, project):
    commit(lab, "base")
    commit(lab, "head", project=project, **{"is": "head"})
    assert lab.compare() == COULD_NOT_RUN
    assert "what 'head' asks to run on cannot be read" in capsys.readouterr().err


def test_the_files_of_any_folder(lab):
    """Of a commit and of the disk, with nothing but Python: for a record of what was tested."""
    lab.commit("base")
    tests = lab.root / "tests"
    (tests / "gpu").mkdir(parents=True)
    (tests / "gpu" / "test_é.py").write_text("x = 1\n")
    (tests / "README.md").write_text("words")
    lab.git("add", "tests")
    lab.git("commit", "-q", "-m", "tests")
    (tests / "__pycache__").mkdir()
    (tests / "__pycache__" / "x.pyc").write_bytes(b"")
    files = repository.committed_files(lab.root, "main", "tests")
    assert list(files) == ["gpu/test_é.py"] and repository.files_on_disk(tests) == files
    (tests / "gpu" / "test_é.py").write_text("x = 2\n")
    now = repository.files_on_disk(tests)
    assert repository.digest(now) != repository.digest(files)
    for name in ("empty", "nothing", "--help", "0" * 40, "x\nmain"):
        with pytest.raises(GitError, match="no commit or branch|has no rope_triton/"):
            repository.committed_files(lab.root, name)


@pytest.mark.parametrize(
    ("origin", "page"),
    [
        ("https://github.com/owner/name.git", "https://github.com/owner/name"),
        ("https://user:secret@github.com/owner/na.me", "https://github.com/owner/na.me"),
        ("git@github.com:owner/name.git", "https://github.com/owner/name"),
        ("ssh://git@github.com/owner/name", "https://github.com/owner/name"),
        ("/a/directory", ""),
        ("https://example.org/github.com/owner/name", ""),
        ("https://github.com/owner/name)](x", ""),
    ],
)
def test_page_of_the_repository(lab, monkeypatch, origin, page):
    for name in ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY"):
        monkeypatch.delenv(name, raising=False)
    assert repository.page(lab.root) == ""
    lab.git("remote", "add", "origin", origin)
    assert repository.page(lab.root) == page
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://github.example")
    monkeypatch.setenv("GITHUB_REPOSITORY", "a/b")
    assert repository.page(lab.root) == "https://github.example/a/b"
