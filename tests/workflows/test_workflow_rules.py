"""Rules that the text of every workflow keeps: pinned actions, no secrets, few permissions.

And who owns what the workflows run.
"""

import re

import pytest
import yaml

from tests.workflows.common import CI, GPU, MACHINE_CODE, PULL_REQUESTS, ROOT, WORKFLOWS, steps

FILES = sorted(WORKFLOWS.glob("*.yml"))
LOADED = {path.name: yaml.safe_load(path.read_text()) for path in FILES}
JOBS = {
    f"{name}-{job}": content
    for name, loaded in LOADED.items()
    for job, content in loaded["jobs"].items()
}
EVERY_JOB = pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)


def test_actions_are_pinned_each_to_one_commit():
    text = "".join(path.read_text() for path in FILES)
    uses = re.findall(r"^ *(?:- )?uses: *(.*)", text, re.MULTILINE)
    pinned = {re.fullmatch(r"(\S+)@([0-9a-f]{40}) # (v\d+\.\d+\.\d+)", use) for use in uses}
    assert uses and None not in pinned, uses
    assert len({match[0] for match in pinned}) == len({match[1] for match in pinned})


@EVERY_JOB
def test_jobs_end_and_keep_no_credentials_or_caches(job):
    assert job["timeout-minutes"] <= 360
    for step in job["steps"]:
        assert not step.get("uses", "").startswith("actions/cache")
        assert "cache" not in step.get("with", {})
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


@EVERY_JOB
def test_no_expression_is_pasted_into_a_script(job):
    assert not [step["run"] for step in steps(job) if "${{" in step["run"]]


@EVERY_JOB
def test_who_may_say_who_it_is_runs_no_script_and_has_an_environment(job):
    if "id-token" in job.get("permissions", {}):
        assert "environment" in job and not steps(job)


_INSTALLS = re.compile(r"\b(pip3?|uv|npm|apt|apt-get) .*\binstall\b|\b(pipx|npx|uvx) ")
_HASHES = ("--require-hashes", "--only-binary=:all:")


def token_violations(workflow):
    """Where a token reaches more than the step that needs it, or what is installed beside it."""
    found = ["the workflow's env has a token"] if _has_token(workflow.get("env")) else []
    for name, job in workflow["jobs"].items():
        if _has_token(job.get("env")):
            found.append(f"{name}: the job's env has a token")
        writes = set(job.get("permissions", {}).values()) - {"read", "none"}
        for step in steps(job):
            lines = step["run"].replace("\\\n", " ").splitlines()
            installs = [line for line in lines if _INSTALLS.search(line)]
            if installs and _has_token(step.get("env")):
                found.append(f"{name}: installs with a token in its env")
            if writes and not all(option in line for line in installs for option in _HASHES):
                found.append(f"{name}: may write, and installs without hashes")
    return found


def _has_token(env):
    return any("TOKEN" in name or "github.token" in str(v) for name, v in (env or {}).items())


@pytest.mark.parametrize("name", LOADED)
def test_a_token_reaches_one_step_and_a_job_that_writes_installs_by_hash(name):
    assert token_violations(LOADED[name]) == []


WRITES = {"permissions": {"contents": "read", "statuses": "write"}}
TOKEN = {"env": {"GH_TOKEN": "${{ github.token }}"}}
INSTALL = {"run": "python3 -m venv .venv\n.venv/bin/pip install -c constraints.txt numpy"}
HASHED = {"run": "pip install --only-binary=:all: \\\n    --require-hashes -r numpy.txt"}


@pytest.mark.parametrize(
    ("job", "violation"),
    [
        (TOKEN | {"steps": []}, "j: the job's env has a token"),
        ({"steps": [INSTALL | TOKEN]}, "j: installs with a token in its env"),
        (WRITES | {"steps": [INSTALL]}, "j: may write, and installs without hashes"),
        (WRITES | {"steps": [{"run": "pipx run x"}]}, "j: may write, and installs without hashes"),
        (WRITES | {"steps": [HASHED, {"run": "gh auth setup-git"} | TOKEN]}, None),
        ({"steps": [INSTALL]}, None),
    ],
)
def test_a_token_beyond_its_step_is_seen(job, violation):
    assert token_violations({"jobs": {"j": job}}) == ([violation] if violation else [])
    assert token_violations(TOKEN | {"jobs": {}}) == ["the workflow's env has a token"]


MAY_WRITE = {
    "ci.yml": set(),
    "gpu.yml": {"pull-requests", "statuses"},
    "machine-code.yml": {"pull-requests"},
}


@pytest.mark.parametrize("name", PULL_REQUESTS)
def test_pull_requests_get_no_secret_and_few_jobs_write(name):
    workflow = PULL_REQUESTS[name]
    assert "secrets" not in (WORKFLOWS / name).read_text().replace("no secret", "")
    assert workflow["permissions"] == {}
    for key, job in workflow["jobs"].items():
        writes = {scope for scope, right in job["permissions"].items() if right != "read"}
        may = MAY_WRITE[name] if key in ("outdate", "wait", "report") else set()
        assert writes == may
        if may and key != "report":  # then there is no code but the workflow's own
            assert not any("uses" in step for step in job["steps"])


def test_only_the_job_on_the_gpu_sees_the_head_and_only_after_an_approval():
    jobs = GPU["jobs"]
    assert jobs["plan"]["environment"] == "gpu"
    assert jobs["measure"]["needs"] == "plan" and "if" not in jobs["measure"]
    assert jobs["wait"]["needs"] == "plan"
    # At once after a push, and in no queue: only the GPU has one.
    assert jobs["outdate"]["if"] == "github.event.action == 'synchronize'"
    assert "needs" not in jobs["outdate"] and "environment" not in jobs["outdate"]
    assert [name for name, job in jobs.items() if "concurrency" in job] == ["measure"]
    for name in jobs.keys() - {"measure"}:
        refs = [step["with"].get("ref") for step in jobs[name]["steps"] if "uses" in step]
        assert refs == [None] * len(refs)
    # `on` is a truth value to YAML 1.1.
    assert GPU[True].keys() == {"pull_request_target"}
    assert not CI[True].keys() & {"pull_request_target", "workflow_run"}


def test_no_job_that_comments_on_machine_code_sees_the_head():
    assert MACHINE_CODE[True] == {
        "workflow_run": {"workflows": [CI["name"]], "types": ["completed"]}
    }
    uses = [
        step for job in MACHINE_CODE["jobs"].values() for step in job["steps"] if "uses" in step
    ]
    (checkout,) = uses
    assert checkout["uses"].startswith("actions/checkout@")
    assert checkout["with"] == {"persist-credentials": False}


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


def test_an_owner_is_found_as_github_finds_one():
    assert owned("benchmarks/_report/github_markdown.py") and owned("asv.conf.json")
    assert not owned("README.md") and not owned("benchmarks.py")
