"""Versions of the package: what a commit, a branch or the working tree is taken for."""

import os
import shutil
from dataclasses import replace

import pytest

from benchmarks._engine.system import checkout, repository
from benchmarks._engine.system.repository import GitError
from tests.git import git
from tests.lab import COULD_NOT_RUN, SHA


def test_commit_branch_and_working_tree_are_one_content(lab):
    sha = lab.commit("base")
    sources = lab.scratch / "sources"
    versions = [
        checkout.from_commit(name, lab.root, sources) for name in ("main", "base", sha, sha[:8])
    ]
    versions.append(checkout.from_working_tree(lab.root, sources))
    assert {version.sha for version in versions} == {sha}
    assert len({(version.digest, version.root) for version in versions}) == 1
    assert [p.name for p in sources.iterdir()] == [versions[0].root.name]
    assert {p.name for p in versions[0].root.iterdir()} == {"rope_triton"}


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
    version = checkout.from_working_tree(lab.root, lab.scratch / "sources")
    assert (version.name, version.sha) == ("working tree", "")
    assert version.digest != before.digest and version.root != before.root


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


def attributes(lines, file=None):
    def change(package):
        (package.parent / ".gitattributes").write_text(lines)
        if file:
            (package / file).write_text("slow = 1\n")

    return change


def submodule(package):
    git(package.parent, "update-index", "--add", "--cacheinfo", f"160000,{SHA},rope_triton/other")


def cached(package):
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "x.pyc").write_bytes(b"")


SAME, DIFFERS, LINK, CACHE = "same", "differs", "has no ordinary file", "has a file that Python"
CHANGES = {
    "nothing": (lambda package: None, SAME),
    "an executable": (lambda package: (package / "__init__.py").chmod(0o755), SAME),
    "a hidden file": (attributes("rope_triton/slow.py export-ignore", "slow.py"), DIFFERS),
    "an attribute that hides a folder": (attributes("rope_triton/ops export-ignore"), SAME),
    "lines that end otherwise": (attributes("* text eol=crlf"), SAME),
    "words that git fills in": (attributes("* ident export-subst"), SAME),
    "a filter": (attributes("*.py filter=other text=auto"), SAME),
    "documentation": (lambda package: (package / "ops" / "x.md").write_text("x"), SAME),
    "a file called .md": (lambda package: (package / ".md").write_text("x"), SAME),
    "a file that is no Python": (lambda package: (package / "x.json").write_text(""), DIFFERS),
    "a new name": (lambda package: (package / "ops" / "a.py").rename(package / "a.py"), DIFFERS),
    "a cache": (cached, CACHE),
    "a link to a folder": (lambda package: (package / "x").symlink_to("../tests"), LINK),
    "a link to a file": (lambda package: (package / "x").symlink_to("__init__.py"), LINK),
    "a link out of the clone": (lambda package: (package / "x").symlink_to("/etc/passwd"), LINK),
    "a submodule": (submodule, LINK),
}


@pytest.mark.parametrize(("change", "expected"), CHANGES.values(), ids=CHANGES)
def test_what_git_has_is_what_is_measured(lab, change, expected):
    """No attribute, mode, link or cache makes a version another one than git has."""
    package, sources = lab.root / "rope_triton", lab.scratch / "sources"
    (package / "ops").mkdir(parents=True)
    (package / "ops" / "a.py").write_text("# $Id$ $Format:%H$\nx = 1\n")
    base = checkout.from_commit(lab.commit("base"), lab.root, sources)
    change(package)
    if change is not submodule:
        lab.git("add", "--all", "--force", ":!.asv")
    lab.git("commit", "-q", "--allow-empty", "-m", "head")

    def of_git():
        """As the trusted side has it, which writes nothing."""
        return repository.digest(repository.committed_files(lab.root, "HEAD"))

    if expected in (LINK, CACHE):
        for read in (of_git, lambda: checkout.from_commit("HEAD", lab.root, sources)):
            with pytest.raises(GitError, match=expected):
                read()
        return
    head = checkout.from_commit("HEAD", lab.root, sources)
    assert checkout.from_working_tree(lab.root, sources) == replace(head, name="working tree")
    assert of_git() == head.digest
    assert (SAME if base.digest == head.digest else DIFFERS) == expected
    assert checkout.differs("ops", base, head) == (change is CHANGES["a new name"][0])


def test_a_tree_cannot_name_a_place_elsewhere(lab):
    lab.commit("base")
    blob = lab.git("rev-parse", "HEAD:rope_triton/__init__.py")
    tree = b"100644 ..\0" + bytes.fromhex(blob)
    for name in (b"up", b"rope_triton"):
        made = repository.git(
            *(lab.root, "hash-object", "-t", "tree", "--literally", "-w", "--stdin"), stdin=tree
        )
        tree = b"40000 %s\0" % name + bytes.fromhex(made.decode())
    made = repository.git(lab.root, "hash-object", "-t", "tree", "-w", "--stdin", stdin=tree)
    commit = lab.git("commit-tree", made.decode().strip(), "-m", "x")
    with pytest.raises(GitError, match=r"has no ordinary file: 'rope_triton/up/\.\.'"):
        checkout.from_commit(commit, lab.root, lab.scratch / "sources")


@pytest.mark.parametrize("setting", ["core.autocrlf=true", "core.eol=crlf"])
def test_settings_of_git_change_no_version(lab, setting):
    sha = lab.commit("base")
    lab.git("config", *setting.split("="))
    sources = lab.scratch / "sources"
    of_commit = checkout.from_commit("base", lab.root, sources)
    assert checkout.from_working_tree(lab.root, sources) == replace(of_commit, name="working tree")
    assert of_commit.sha == sha and list(sources.iterdir()) == [of_commit.root]


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
    version = checkout.from_commit(sha, lab.root, lab.scratch / "sources")
    assert list((lab.scratch / "sources").iterdir()) == [version.root]


def test_unpacked_sources_that_were_changed(lab, capsys):
    lab.versions({}, {})
    root = checkout.from_commit("base", lab.root, lab.scratch / "sources").root
    (root / "rope_triton" / "extra.py").write_text("x = 1\n")
    assert lab.compare() == COULD_NOT_RUN
    assert f"{root} was changed since it was made" in capsys.readouterr().err
    assert lab.gpu.begun == 0


def test_without_git(lab, monkeypatch, capsys):
    lab.versions({}, {})
    monkeypatch.setenv("PATH", "")
    assert lab.compare() == COULD_NOT_RUN
    assert capsys.readouterr().err == "could not run: git is not on the PATH\n"


def test_the_reason_of_git_is_told(lab, monkeypatch, capsys, tmp_path):
    lab.versions({}, {})
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert lab.compare() == COULD_NOT_RUN
    (line,) = capsys.readouterr().err.splitlines()
    assert "detected dubious ownership" in line and "git config --global" in line


def test_a_commit_that_a_shallow_clone_lacks(lab, tmp_path):
    lab.versions({}, {})
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{lab.root}", "shallow")
    missing = lab.git("rev-parse", "base")
    with pytest.raises(GitError, match=f"{missing}.* shallow clone: `git fetch --unshallow`"):
        repository.commit_of(tmp_path / "shallow", missing)
    with pytest.raises(GitError, match=rf"'nothing' is no commit or branch of {lab.root}$"):
        repository.commit_of(lab.root, "nothing")
