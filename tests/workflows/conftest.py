"""A repository, and GitHub with a fork of it."""

import shutil
import subprocess

import pytest

from tests.git import commit, git
from tests.workflows.rig import ROOT, Rig

# Every job checks all files out, and reads none of these but one.
UNREAD = ("benchmarks/evidence/", ".github/images/", "tests/")
READ = "tests/smoke.py"


@pytest.fixture(scope="session")
def repository(tmp_path_factory):
    """This working tree's files as a commit, and one more on it that changes no code."""
    path = tmp_path_factory.mktemp("repository")
    listed = ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, capture_output=True, check=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file() and (name == READ or not name.startswith(UNREAD)):
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, path / name)
    git(path, "init", "--quiet", "--initial-branch", "main")
    commit(path, "everything")
    (path / "NOTES.md").write_text("a change\n")
    commit(path, "a change")
    return path


@pytest.fixture
def rig(repository, tmp_path):
    return Rig(tmp_path, repository)
