"""The steps of ci.yml, before GitHub runs them: every one that is a script is run."""

import io
import json
import shutil
import tarfile
import zipfile

import pytest

from tests.git import git
from tests.workflows.common import CI, ROOT, Runner, commit, require_every_script_was_run


def test_ci_test(runner):
    assert runner.run(CI, CI["jobs"]["test"]) == 0
    assert "ruff check ." in runner.calls and "ruff format --check ." in runner.calls
    assert "mypy" in runner.calls
    assert "pip install -c constraints.txt -e .[bench,test]" in runner.calls
    assert "python -m pytest -n auto --dist loadfile" in runner.calls
    assert "No problems found." in runner.log  # asv check


def test_ci_oldest(runner):
    assert runner.run(CI, CI["jobs"]["oldest"]) == 0
    constraints = runner.read("temp/oldest.txt")
    for line in ("torch==2.11.0\n", "triton==3.6.0\n", "setuptools==81.0.0\n"):
        assert constraints.count(line.partition("==")[0] + "==") == 1 and line in constraints
    project = (ROOT / "pyproject.toml").read_text()
    assert '"torch>=2.11", "triton>=3.6"' in project, "the oldest supported are other ones now"
    assert "python -m pytest -n auto --dist loadfile" in runner.calls
    install, test = runner.calls[-2:]
    assert install.startswith("pip install -c ") and install.endswith(" transformers==5.23.0")
    assert test == "python -m pytest tests/package/test_integrations.py"


def test_ci_package(runner):
    assert runner.run(CI, CI["jobs"]["package"]) == 0
    assert "all files are there, and the kernel is right" in runner.log
    checked = next(call for call in runner.calls if " twine check " in call)
    assert "--strict" in checked and ".whl " in checked and checked.endswith(".tar.gz")
    assert any(call.startswith("pip install --quiet -c ") for call in runner.calls)


def without_types(members):
    del members["rope_triton/py.typed"]


def without_a_folder(members):
    for name in [each for each in members if each.startswith("rope_triton/kernel/")]:
        del members[name]


def with_the_suite(members):
    members["benchmarks/__init__.py"] = b""


def with_another_angle(members):
    name = "rope_triton/kernel/trigonometry.py"
    members[name] = members[name].replace(b"= 1.5707963705062866", b"= 1.57")


@pytest.fixture(scope="module")
def dist(repository, tmp_path_factory):
    """What the job builds."""
    runner = Runner(repository, tmp_path_factory.mktemp("dist"))
    job = CI["jobs"]["package"]
    assert runner.run(CI, {"steps": job["steps"][:-1]}) == 0
    return runner.scratch / "workspace" / "dist"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without_types, "the installed package lacks rope_triton/py.typed"),
        (without_a_folder, "the installed package lacks rope_triton/kernel/__init__.py"),
        (with_the_suite, "the installed package should not have benchmarks/__init__.py"),
        (with_another_angle, "off the formula"),
    ],
)
def test_ci_package_refuses_another_wheel(runner, dist, change, said):
    (built,) = dist.glob("*.whl")
    with zipfile.ZipFile(built) as wheel:
        members = {name: wheel.read(name) for name in wheel.namelist()}
    change(members)
    (record,) = (name for name in members if name.endswith("RECORD"))
    members[record] = "".join(f"{name},,\n" for name in members).encode()
    changed = runner.scratch / "workspace" / "dist"
    shutil.copytree(dist, changed)
    with zipfile.ZipFile(changed / built.name, "w") as wheel:
        for name, content in members.items():
            wheel.writestr(name, content)
    assert_refused(runner, said)


def test_ci_package_refuses_an_sdist_with_tests(runner, dist):
    changed = runner.scratch / "workspace" / "dist"
    shutil.copytree(dist, changed)
    (sdist,) = changed.glob("*.tar.gz")
    with tarfile.open(sdist, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("rope_triton-0.1.0/tests/test_x.py"), io.BytesIO())
    assert_refused(runner, "the sdist has more than the package")


def assert_refused(runner, said):
    shutil.copytree(ROOT / ".ci", runner.scratch / "workspace" / ".ci")
    for name in ("rope_triton", "constraints.txt"):
        (runner.scratch / "workspace" / name).symlink_to(ROOT / name)
    assert runner.run(CI, {"steps": CI["jobs"]["package"]["steps"][-1:]}) != 0
    assert said in runner.log


def codegen(runner, head):
    """The status of the job; the base branch has gone on since the pull request."""
    runner.values |= {
        "github.event.pull_request.base.ref": "main",
        "github.event.pull_request.head.sha": git(runner.repository, "rev-parse", head),
    }
    return runner.run(CI, CI["jobs"]["codegen"])


def test_ci_codegen(runner):
    assert codegen(runner, "main") == 0
    assert "both versions have the same sources" in runner.read("summary")
    assert "## ✅ PASS" in runner.read("summary")
    upload = CI["jobs"]["codegen"]["steps"][-1]["with"]["path"]
    found = json.loads(runner.read(upload.replace("${{ runner.temp }}", "temp")))
    head = git(runner.repository, "rev-parse", "main")
    assert found["base"]["sha"] == found["head"]["sha"] == found["head"]["name"] == head


def test_ci_codegen_compares_with_the_merge_base_by_the_suite_of_the_base(runner):
    main, head = (git(runner.repository, "rev-parse", name) for name in ("main", "pull-request"))
    runner.variables["COMPARE_STATUS"] = "1"
    git(runner.repository, "checkout", "--quiet", "-b", "later", "main")
    (runner.repository / "LATER.md").write_text("")
    commit(runner.repository, "main goes on")
    git(runner.repository, "checkout", "--quiet", "main")
    git(runner.repository, "merge", "--quiet", "--ff-only", "later")
    try:
        assert codegen(runner, "pull-request") == 1
    finally:
        git(runner.repository, "reset", "--quiet", "--hard", main)
        git(runner.repository, "branch", "--quiet", "-D", "later")
    assert runner.calls[-1].startswith(f"python -m benchmarks compare {main} {head} --exact-only ")
    assert (runner.scratch / "workspace" / "LATER.md").exists()
    assert not (runner.scratch / "workspace" / "rope_triton" / "new.py").exists()


@pytest.mark.parametrize("status", [2, 3])
def test_ci_codegen_passes_on_every_status_but_0(runner, status):
    runner.variables["COMPARE_STATUS"] = str(status)
    assert codegen(runner, "pull-request") == status


def test_ci_workflows(runner):
    assert runner.run(CI, CI["jobs"]["workflows"]) == 0
    assert runner.calls[-2:] == ["actionlint", "zizmor --offline --persona auditor .github"]


def test_every_script_was_run():
    """Comes last."""
    require_every_script_was_run(CI)
