"""Rules that the text of every workflow keeps, because no run by act shows them.

act knows no permissions, concurrency, environments, approvals, runner groups, time limits of jobs
and no ``cancelled()`` of a job. Nor does it read a file as GitHub does: for that ``.ci/run`` has
two linters. What they refuse is not here: an expression in a script, a checkout that keeps its
credentials. CODEOWNERS is here too: who owns what the workflows run.
"""

import re

import pytest
import yaml

from benchmarks._engine.report import artifact
from tests import conftest
from tests.workflows.rig import ROOT, WORKFLOWS

FILES = sorted(WORKFLOWS.glob("*.yml"))
LOADED = {path.name: yaml.safe_load(path.read_text()) for path in FILES}
JOBS = {
    f"{name}-{job}": content
    for name, loaded in LOADED.items()
    for job, content in loaded["jobs"].items()
}
HOME = "github.repository == 'rope-triton/rope-triton'"
EVERY_JOB = pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)


def test_actions_are_pinned_each_to_one_commit():
    text = "".join(path.read_text() for path in FILES)
    uses = re.findall(r"^ *(?:- )?uses: *(.*)", text, re.MULTILINE)
    pinned = {re.fullmatch(r"(\S+)@([0-9a-f]{40}) # (v\d+\.\d+\.\d+)", use) for use in uses}
    assert uses and None not in pinned, uses
    assert len({match[0] for match in pinned}) == len({match[1] for match in pinned})


@EVERY_JOB
def test_jobs_end_and_keep_no_caches(job):
    assert job["timeout-minutes"] <= 360
    for step in job["steps"]:
        assert not step.get("uses", "").startswith("actions/cache")
        assert "cache" not in step.get("with", {})


def steps(job):
    return [step for step in job["steps"] if "run" in step]


@EVERY_JOB
def test_who_may_say_who_it_is_runs_no_script(job):
    if "id-token" in job.get("permissions", {}):
        assert "environment" in job and not steps(job)


_INSTALLS = re.compile(r"\b(pip3?|uv|npm|apt|apt-get) .*\binstall\b|\b(pipx|npx|uvx) ")
_HASHES = ("--require-hashes", "--only-binary=:all:")


def token_violations(workflow):
    """Where a token reaches more than the step that needs it, or what is installed beside it."""
    violations = ["the workflow's env has a token"] if _has_token(workflow.get("env")) else []
    for name, job in workflow["jobs"].items():
        if _has_token(job.get("env")):
            violations.append(f"{name}: the job's env has a token")
        writes = set(job.get("permissions", {}).values()) - {"read", "none"}
        for step in steps(job):
            lines = step["run"].replace("\\\n", " ").splitlines()
            installs = [line for line in lines if _INSTALLS.search(line)]
            if installs and _has_token(step.get("env")):
                violations.append(f"{name}: installs with a token in its env")
            if writes and not all(option in line for line in installs for option in _HASHES):
                violations.append(f"{name}: may write, and installs without hashes")
    return violations


def _has_token(env):
    return any("TOKEN" in name or "github.token" in str(v) for name, v in (env or {}).items())


@pytest.mark.parametrize("name", LOADED)
def test_a_token_reaches_one_step_and_a_job_that_writes_installs_by_hash(name):
    assert token_violations(LOADED[name]) == []


COMMENTS = {"pull-requests", "statuses"}
WRITES = {
    **{f"gpu.yml-{name}": COMMENTS for name in ("outdate", "wait", "report")},
    **{"machine-code.yml-report": {"pull-requests"}, "history.yml-store": {"contents"}},
    **{f"nightly.yml-{name}": {"issues"} for name in ("report", "silent")},
    **{"newest.yml-report": {"issues"}, "history.yml-deploy": {"pages", "id-token"}},
    **{"release.yml-publish": {"id-token"}, "release.yml-announce": {"contents"}},
}


def test_few_jobs_write_and_none_has_a_secret():
    assert all(loaded["permissions"] == {} for loaded in LOADED.values())
    for name, job in JOBS.items():
        written = {scope for scope, right in job["permissions"].items() if right != "read"}
        assert written == WRITES.get(name, set())
    assert not [path for path in FILES if re.search(r"\bsecrets[.:\[]", path.read_text())]


def test_who_writes_runs_nothing_that_was_installed_and_sees_no_head():
    for name in WRITES:
        uses = [step for step in JOBS[name]["steps"] if "uses" in step]
        assert len([step for step in uses if "checkout@" in step["uses"]]) <= 1
        refs = {step.get("with", {}).get("ref") for step in uses}
        assert refs <= {None, "${{ needs.plan.outputs.head }}"}, "nightly's, which is main's"
        for step in steps(JOBS[name]):  # what reads the artifact has no token
            assert (
                "GH_TOKEN" not in step.get("env", {})
                or "-m benchmarks._engine.report" not in step["run"]
            )


def test_each_event_is_one_that_is_meant():
    # `on` is a truth value to YAML 1.1.
    events = {name: set(loaded[True]) for name, loaded in LOADED.items()}
    assert events == {
        **{"ci.yml": {"pull_request", "push", "merge_group"}, "gpu.yml": {"pull_request_target"}},
        **{"machine-code.yml": {"workflow_run"}, "bisect.yml": {"workflow_dispatch"}},
        **{"history.yml": {"push", "schedule", "workflow_dispatch"}, "release.yml": {"push"}},
        **{f"{name}.yml": {"schedule", "workflow_dispatch"} for name in ("newest", "nightly")},
    }
    assert LOADED["release.yml"][True] == {"push": {"tags": ["v*"]}}
    assert LOADED["machine-code.yml"][True]["workflow_run"]["workflows"] == [
        LOADED["ci.yml"]["name"]
    ]


@pytest.mark.parametrize("name", [name for name in LOADED if name != "ci.yml"])
def test_a_fork_runs_no_workflow_of_its_own(name):
    for job in LOADED[name]["jobs"].values():
        condition = job.get("if", "")
        if "needs" not in job:
            assert condition.startswith(HOME) and "||" not in condition
        elif "always()" in condition or "cancelled()" in condition:
            assert re.search(r"&& (contains\(.*|\()?needs\.", condition)


def test_only_an_approved_job_on_the_gpu_sees_the_head():
    jobs = LOADED["gpu.yml"]["jobs"]
    assert jobs["plan"]["environment"] == "gpu" and "if" not in jobs["plan"]
    assert jobs["measure"]["needs"] == jobs["wait"]["needs"] == "plan"
    assert "if" not in jobs["measure"] and "environment" not in jobs["outdate"]
    heads = [name for name, job in JOBS.items() if "pull_request.head.sha" in str(_refs(job))]
    assert heads == ["gpu.yml-measure"]
    assert JOBS["release.yml-publish"]["environment"]["name"] == "pypi"
    assert not [step for step in JOBS["release.yml-publish"]["steps"] if "checkout" in step["uses"]]


def _refs(job):
    return [step.get("with", {}).get("ref") for step in job["steps"] if "uses" in step]


def test_what_waits_is_not_dropped():
    """GitHub keeps one that waits for a group, the newest, unless it may queue."""
    for holder in (*LOADED.values(), *JOBS.values()):
        group = holder.get("concurrency", {"queue": "max"})
        assert group.get("queue") == "max" or group["cancel-in-progress"] is not False
    assert not any("concurrency" in job for job in LOADED["gpu.yml"]["jobs"].values())
    assert "github.sha" in LOADED["ci.yml"]["concurrency"]["group"]


def test_main_is_the_only_branch_that_a_gpu_measures():
    groups = {name: str(job["runs-on"]) for name, job in JOBS.items()}
    on_main = {name.partition("-")[0] for name, text in groups.items() if "gpu-main" in text}
    assert on_main == {"bisect.yml", "nightly.yml"}  # and history.yml, by its matrix
    for name in (*on_main, "history.yml"):
        first = next(iter(LOADED[name]["jobs"].values()))
        assert "github.ref == 'refs/heads/main'" in first["if"]


def test_limits_of_time_and_size():
    limits = [step.get("timeout-minutes", 0) for step in JOBS["gpu.yml-measure"]["steps"]]
    assert JOBS["gpu.yml-measure"]["timeout-minutes"] - sum(limits) >= 15
    (wait,) = steps(JOBS["gpu.yml-wait"])
    assert "poll < 60" in wait["run"] and "sleep 60" in wait["run"]  # of 1,000 calls an hour
    text = "".join(path.read_text() for path in FILES)
    assert set(re.findall(r"head -c (\d+)", text)) == {str(artifact.MAX_ARCHIVE_BYTES + 1)}
    assert set(re.findall(r"--gpu (\S+)", text)) == {*artifact.GPUS}


def test_this_branchs_tests_are_put_to_the_heads_package():
    (step,) = (step for step in JOBS["gpu.yml-measure"]["steps"] if step.get("id") == "public")
    assert step["env"] == {conftest.PACKAGE: "../head"} and step["working-directory"] == "suite"


def owned(path):
    """Whether CODEOWNERS names somebody for the file: the last line that fits it decides."""
    lines = (WORKFLOWS.parent / "CODEOWNERS").read_text().splitlines()
    rules = [line.split() for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"/[\w./-]+", pattern) for pattern, *_ in rules), "the test reads no *"
    owners = []
    for pattern, *named in rules:
        if f"/{path}" == pattern or (pattern.endswith("/") and f"/{path}".startswith(pattern)):
            owners = named
    return bool(owners)


def test_what_runs_with_a_token_or_judges_has_an_owner():
    rooms = (ROOT / "benchmarks", ROOT / "tests")  # main's tests are put to every head
    paths = [path for room in rooms for path in room.rglob("*") if path.is_file()]
    paths += [ROOT / name for name in ("asv.conf.json", "constraints.txt", "pyproject.toml")]
    paths += [ROOT / ".ci" / "run", *WORKFLOWS.iterdir()]
    assert [path for path in paths if not owned(path.relative_to(ROOT))] == []
    assert not owned("README.md")
