"""Versions of the package: what a commit, a branch or the working tree is taken for."""

import os
import shutil
from pathlib import Path

import pytest

from benchmarks._system import checkout
from tests.lab import COULD_NOT_RUN

ROOT = Path(__file__).resolve().parents[2]


def test_commit_branch_and_working_tree_are_one_content(lab):
    sha = lab.commit("base")
    sources = lab.scratch / "sources"
    found = [
        checkout.from_commit(name, lab.root, sources) for name in ("main", "base", sha, sha[:8])
    ]
    found.append(checkout.from_working_tree(lab.root, sources))
    assert {arm.sha for arm in found} == {sha}
    assert len({(arm.digest, arm.root) for arm in found}) == 1
    assert [p.name for p in sources.iterdir()] == [found[0].root.name]
    assert {p.name for p in found[0].root.iterdir()} == {"rope_triton"}


@pytest.mark.parametrize("change", ["edit", "new file", "staged", "removed"])
def test_changed_working_tree_has_no_commit(lab, change):
    lab.commit("base")
    before = checkout.from_working_tree(lab.root, lab.scratch / "sources")
    package = lab.root / "rope_triton"
    if change == "removed":
        (package / "behaviour.json").unlink()
    else:
        (package / ("extra.py" if change == "new file" else "__init__.py")).write_text("x = 1\n")
    if change == "staged":
        lab.git("add", "rope_triton")
    arm = checkout.from_working_tree(lab.root, lab.scratch / "sources")
    assert (arm.name, arm.sha) == ("working tree", "")
    assert arm.digest != before.digest and arm.root != before.root


def test_what_is_not_the_package_does_not_count(lab):
    sha = lab.commit("base")
    before = checkout.from_working_tree(lab.root, lab.scratch / "sources")
    (lab.root / "README.md").write_text("changed")
    cache = lab.root / "rope_triton" / "__pycache__"
    cache.mkdir()
    (cache / "x.pyc").write_bytes(b"")
    (lab.root / ".gitignore").write_text("__pycache__/\n")
    after = checkout.from_working_tree(lab.root, lab.scratch / "sources")
    assert (after.sha, after.digest) == (sha, before.digest)
    assert not (after.root / "rope_triton" / "__pycache__").exists()


def test_working_tree_without_the_package(lab):
    with pytest.raises(checkout.ArmError, match="no rope_triton in"):
        checkout.from_working_tree(lab.root, lab.scratch / "sources")


def test_branch_with_a_hostile_name(lab):
    """git takes such refs; here they are names and never options."""
    sha = lab.commit("base")
    for ref in ("refs/heads/--help", "refs/heads/-x"):
        lab.git("update-ref", ref, sha)
        name = ref.removeprefix("refs/heads/")
        assert checkout.from_commit(name, lab.root, lab.scratch / "sources").sha == sha


def test_two_processes_may_unpack_one_version_at_once(lab, monkeypatch):
    sha, rename = lab.commit("base"), os.rename

    def late(made, root):
        shutil.copytree(made, root)  # by the other process
        rename(made, root)

    monkeypatch.setattr(os, "rename", late)
    arm = checkout.from_commit(sha, lab.root, lab.scratch / "sources")
    assert list((lab.scratch / "sources").iterdir()) == [arm.root]


@pytest.mark.parametrize("how", ["edit", "new file", "removed"])
def test_unpacked_sources_that_were_changed(lab, capsys, how):
    lab.versions({}, {})
    root = checkout.from_commit("base", lab.root, lab.scratch / "sources").root
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


def test_digest_is_of_the_sources(tmp_path):
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "rope_triton", tmp_path / "rope_triton", ignore=ignored)
    (tmp_path / "rope_triton" / "__pycache__").mkdir()
    (tmp_path / "rope_triton" / "__pycache__" / "ops.pyc").write_bytes(b"compiled")
    same = checkout.digest(ROOT)
    (tmp_path / "rope_triton" / "more.md").write_text("documentation")
    assert checkout.digest(tmp_path) == same
    (tmp_path / "rope_triton" / "table.json").write_text("{}")
    assert checkout.digest(tmp_path) != same
    (tmp_path / "rope_triton" / "table.json").unlink()
    with (tmp_path / "rope_triton" / "checks.py").open("a") as file:
        file.write("\n")
    assert checkout.digest(tmp_path) != same
    with pytest.raises(ModuleNotFoundError, match="no rope_triton in"):
        checkout.digest(tmp_path / "elsewhere")
