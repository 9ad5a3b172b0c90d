"""The digest of the files that measure."""

import pytest

from benchmarks._engine.compare import compiled, session
from benchmarks._engine.subject import DEFAULT, load
from benchmarks._engine.system import suite


@pytest.fixture
def files(monkeypatch, tmp_path):
    monkeypatch.setattr(suite, "SUITE", tmp_path)
    (tmp_path / "_peers").mkdir()
    for name in ("timer.py", "_peers/a.py", "_peers/b.py"):
        (tmp_path / name).write_text(name)
    return tmp_path


def test_digest_follows_content_and_names_of_what_matches(files):
    def digest():
        return suite.digest(("timer.py", "_peers/*.py"))

    first = digest()
    (files / "report.py").write_text("measures nothing")
    assert digest() == first
    (files / "_peers/b.py").write_text("another way")
    second = digest()
    (files / "_peers/b.py").rename(files / "_peers/c.py")
    third = digest()
    (files / "_peers/d.py").write_text("")
    more = suite.digest(("timer.py", "_peers/*.py"), [files / "report.py"])
    assert len({first, second, third, digest(), more}) == 5
    with pytest.raises(ValueError, match="no file of .* matches 'gone.py'"):
        suite.digest(("gone.py",))


@pytest.fixture
def asked(monkeypatch):
    """The files that are digested."""
    files = set()

    def digest(patterns, more=()):
        files.update(more, *(suite.SUITE.glob(pattern) for pattern in patterns))
        return "digest"

    monkeypatch.setattr(suite, "digest", digest)
    return files


SUBJECT = load(DEFAULT)


def test_every_file_that_finds_facts_of_machine_code_counts(asked, tmp_path):
    compiled.Store(tmp_path, SUBJECT, "digest", {"torch": "1", "triton": "1"})
    rooms = ("_subjects", "_engine/machine_code")
    assert asked >= {file for room in rooms for file in (suite.SUITE / room).rglob("*.py")}


def test_every_file_that_times_the_first_call_counts(asked):
    assert session.suite_digest(SUBJECT) == "digest"
    names = {file.name for file in asked}
    timing = {"first_call.py", "call_costs.py", "gpu_timer.py", "rotation_calls.py", "measure.py"}
    assert timing <= names
