"""A repository and a runner of its workflows."""

import shutil
import subprocess

import pytest

from tests.git import git
from tests.workflows.common import ROOT, Runner, commit


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A repository of this working tree's files, and a commit on it that changes no code.

    On the branch pull-request there is one more, which changes the package.
    """
    path = tmp_path_factory.mktemp("repository")
    listed = ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, capture_output=True, check=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, path / name)
    git(path, "init", "--quiet", "--initial-branch", "main")
    commit(path, "everything")
    (path / "NOTES.md").write_text("a change\n")
    commit(path, "a change")
    git(path, "checkout", "--quiet", "-b", "pull-request")
    (path / "rope_triton" / "new.py").write_text("")
    commit(path, "a change of the package")
    git(path, "checkout", "--quiet", "main")
    return path


@pytest.fixture
def runner(repository, tmp_path):
    return Runner(repository, tmp_path)
