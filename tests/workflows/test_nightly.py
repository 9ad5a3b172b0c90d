"""The nightly comparison from end to end: a history on a toy GPU, the workflow's steps, an issue.

What is played: the GPU (``lab``), GitHub, and pip. Real: git, ``creep`` and its search, the scripts
of the workflow, and the program that checks the artifact and writes the issue.
"""

import json
import shutil
import urllib.parse

import pytest

from benchmarks._report import artifact, creep_issue
from benchmarks._report.creep_issue import MARKER
from benchmarks._system import baseline
from benchmarks._verdict import creep
from tests.git import git
from tests.lab import CANNOT_TELL, COULD_NOT_RUN, FAIL, PASS, SMALL, status_of
from tests.report.artifacts import archive
from tests.workflows.common import (
    NIGHTLY,
    REPO,
    ROOT,
    Runner,
    needs_jq,
    require_every_script_was_run,
    steps,
)

JOBS = NIGHTLY["jobs"]
PAGE = f"https://github.com/{REPO}/actions/runs/3"
BOT = "github-actions[bot]"


class GitHub:
    """Issues, artifacts and runs, as far as the workflow asks for them."""

    def __init__(self):
        self.issues, self.artifacts, self.runs = {}, [], {}

    def answers(self):
        listed = [
            {"number": number, "user": {"login": BOT}, **issue}
            for number, issue in self.issues.items()
        ]
        listed.append({"number": 90, "state": "open", "user": {"login": BOT}, "body": None})
        mine = MARKER.format("1" * 40)
        listed.append({"number": 91, "state": "open", "user": {"login": "someone"}, "body": mine})
        runs = {f"actions/runs/{each}$": {"json": run} for each, run in self.runs.items()}
        return runs | {
            r"artifacts/9/zip": {"file": "artifact"},
            r"runs/1/artifacts\?name=creep-": {"json": {"artifacts": [{"id": 9, "created_at": 1}]}},
            r"actions/artifacts\?name=": {"json": {"artifacts": self.artifacts}},
            r"issues\?state=all": {"json": listed},
        }

    def apply(self, runner):
        """Do what the calls of the runner ask for; what was done."""
        done = []
        for line in runner.read("calls").splitlines():
            name, arguments, _ = json.loads(line)
            if name != "gh" or "--method" not in arguments:
                continue
            method, path = arguments[2:4]
            with open(arguments[arguments.index("--input") + 1]) as file:
                given = json.load(file)
            match [method, *path.removeprefix(f"repos/{REPO}/").split("/")]:
                case ["POST", "issues"]:
                    assert given.keys() == {"title", "body"}
                    self.issues[len(self.issues) + 1] = given | {"state": "open", "comments": []}
                case ["PATCH", "issues", number]:
                    self.issues[int(number)] |= given
                case ["POST", "issues", number, "comments"]:
                    self.issues[int(number)]["comments"].append(given["body"])
                case other:
                    raise AssertionError(other)
            done.append((method, path.rpartition("/")[2]))
        return done


class Nights:
    """A history, and the workflow on it night after night."""

    def __init__(self, lab, scratch):
        self.lab, self.scratch, self.github, self.count = lab, scratch, GitHub(), 0
        self.lab.machine["machine"] = "nvidia-h200"

    def history(self, *behaviours):
        """A commit for each, of which the first is the baseline; their SHAs."""
        package = self.lab.root / "benchmarks"
        ignored = shutil.ignore_patterns("results", "evidence", "__pycache__", "vendor")
        shutil.copytree(ROOT / "benchmarks", package, ignore=ignored)
        (package / "baseline.json").unlink()
        (self.lab.root / "constraints.txt").touch()
        git(self.lab.root, "add", "benchmarks", "constraints.txt")
        git(self.lab.root, "commit", "-q", "-m", "the suite")
        shas = [self.lab.commit(f"c{i}", **{"is": i} | each) for i, each in enumerate(behaviours)]
        self.move(shas[0])
        return shas

    def move(self, commit):
        text = json.dumps({"commit": commit, "reason": "a test"})
        (self.lab.root / baseline.FILE).write_text(text)
        git(self.lab.root, "add", baseline.FILE)
        git(self.lab.root, "commit", "-q", "-m", "the baseline")

    def runner(self, event="schedule", **outputs):
        """A new machine of GitHub's, for a job; outputs: those of the first job."""
        needs_jq()
        self.count += 1
        scratch = self.scratch / f"job-{self.count}"
        scratch.mkdir()
        (scratch / "github.json").write_text(json.dumps(self.github.answers()))
        runner = Runner(self.lab.root, scratch)
        runner.values = {f"needs.plan.outputs.{name}": value for name, value in outputs.items()}
        runner.values |= {
            "github.token": "t",
            "github.event_name == 'schedule'": event == "schedule",
        }
        return runner

    def plan(self, event="schedule"):
        """The first job's runner and its outputs."""
        runner, head = self.runner(event), self.lab.git("rev-parse", "HEAD")
        expected = {"base": baseline.baseline(self.lab.root, head).commit, "head": head}
        runner.values |= {f"steps.baseline.outputs.{name}": expected[name] for name in expected}
        assert runner.run(NIGHTLY, JOBS["plan"]) == 0
        outputs = dict(line.split("=", 1) for line in runner.read("output").splitlines())
        assert outputs.items() >= expected.items()
        return runner, outputs

    def measure(self, outputs, status, document=None, machine="nvidia-h200"):
        """The second job's runner and its status, where ``creep`` answers like this."""
        runner = self.runner(**outputs)
        runner.variables |= {"COMPARE_STATUS": str(status), "PLAYED_MACHINE": machine}
        if document is not None:
            (runner.scratch / "recorded.json").write_text(document)
        return runner, runner.run(NIGHTLY, JOBS["measure"])

    def night(self, red=False):
        """The status of ``creep``, what was asked of GitHub, and the last job's runner.

        red: whether that job is to fail.
        """
        _, outputs = self.plan()
        assert "run" not in outputs
        status = status_of(["creep", "--json", str(self.lab.report)])
        measuring, failed = self.measure(outputs, status, self.lab.report.read_text())
        assert failed == 0
        runner = self.runner(**outputs)
        runner.values["steps.check.outputs.answer == 'cannot tell'"] = status == CANNOT_TELL
        found = measuring.read("temp/comparison.json")
        (runner.scratch / "artifact").write_bytes(archive(found))
        assert (runner.run(NIGHTLY, JOBS["report"]) != 0) == red
        return status, self.github.apply(runner), runner


@pytest.fixture
def nights(lab, tmp_path_factory):
    return Nights(lab, tmp_path_factory.mktemp("nights"))


def slower(share):
    return {"slower": {SMALL: 1 + share}}


def test_a_single_step_opens_one_issue_that_names_the_commit(nights):
    shas = nights.history(*[{}] * 5, *[slower(0.02)] * 5)
    status, asked, runner = nights.night()
    assert status == FAIL and asked == [("POST", "issues")]
    issue = nights.github.issues[1]
    assert issue["body"].startswith(MARKER.format(shas[0]) + "\n")
    assert issue["title"].endswith(f"slower than {shas[0][:10]}, most of it from {shas[5][:10]}")
    (row,) = (line for line in issue["body"].splitlines() if line.startswith(f"| {shas[5][:10]} "))
    assert "128 × 64, batch 1, float32, sbhd" in row and not any(
        f"| {sha[:10]} " in issue["body"] for sha in shas if sha != shas[5]
    )
    assert f"[Log of the run](https://github.com/{REPO}/actions/runs/1)" in issue["body"]
    assert "<details><summary>The report</summary>" in issue["body"]
    assert runner.read("output") == "answer=fail\n"
    # A night later, one more commit: the same issue.
    nights.lab.commit("later", **slower(0.02) | {"is": "later"})
    status, asked, _ = nights.night()
    assert status == FAIL and asked == [("PATCH", "1")] and len(nights.github.issues) == 1
    head = nights.lab.git("rev-parse", "HEAD")
    assert f"Main at {head}" in nights.github.issues[1]["body"]


def test_a_ramp_opens_an_issue_that_names_its_commits(nights):
    shas = nights.history(*[slower(1.004**i - 1) for i in range(8)], slower(1.004**7 - 1))
    status, asked, _ = nights.night()
    assert status == FAIL and asked == [("POST", "issues")]
    issue = nights.github.issues[1]
    assert issue["title"].endswith(", by 7 changes together")
    named = {sha for sha in shas if f"| {sha[:10]} " in issue["body"]}
    assert named == {*shas[1:8]}
    # Accepted: the baseline moves, and the issue is closed.
    nights.move(shas[-1])
    status, asked, runner = nights.night()
    assert status == PASS and asked == [("PATCH", "1"), ("POST", "comments")]
    assert nights.github.issues[1]["state"] == "closed"
    assert nights.github.issues[1]["comments"][0].startswith(f"The baseline is {shas[-1]} now.")
    assert runner.read("output") == "answer=pass\n"


def test_a_history_in_which_nothing_changes_opens_none(nights, monkeypatch):
    shas = nights.history(*[{}] * 10)
    # A pass of the lab's few cells is none of the suite's: it is refused, and the run is red.
    status, asked, runner = nights.night(red=True)
    assert status == PASS and asked == [] and not nights.github.issues
    assert "a pass lacks GPU times" in runner.log
    # It is accepted where the lab's cells are the suite's.
    found = creep.from_json(json.loads(nights.lab.report.read_text()))
    times = {name: family.timings for name, family in found.comparison.families.items()}
    timed = {"start": frozenset()}
    timed |= {name: frozenset(each.subject for each in times[name]) for name in times}
    exact = {"all": frozenset(each.subject for each in found.comparison.exact)}
    monkeypatch.setattr(artifact, "timed_subjects", lambda: timed)
    monkeypatch.setattr(artifact, "exact_subjects", lambda arch: exact)
    head = nights.lab.git("rev-parse", "HEAD")
    request = artifact.Request(shas[0], head, head, PAGE, "nvidia-h200")
    content = archive(nights.lab.report.read_text())
    read, commits = creep_issue.read_artifact(content, request, nights.lab.root)
    assert (read, commits) == (found, shas[1:]) and not read.steps
    assert list(creep_issue.calls(read, commits, [], PAGE)) == []


def test_a_comparison_that_cannot_tell_is_red_and_leaves_the_issue(nights):
    nights.history(*[{}] * 3, *[slower(0.02)] * 3)
    nights.night()
    before = json.dumps(nights.github.issues)
    nights.lab.commit("noisy", **slower(0.02) | {"is": "noisy"})
    nights.lab.gpu.noise = lambda subject, number: 1.0
    status, asked, runner = nights.night(red=True)
    assert status == CANNOT_TELL and asked == []
    assert json.dumps(nights.github.issues) == before
    assert "the comparison cannot tell" in runner.log


@pytest.mark.parametrize(
    ("changed", "again"),
    [
        ({}, False),
        ({"event": "workflow_dispatch"}, True),
        ({"head_sha": "5" * 40}, True),  # a name that another commit's run gave
        ({"expired": True}, True),
        ({"conclusion": "failure"}, True),
        ({"path": ".github/workflows/ci.yml"}, True),
        ({"head_branch": "another"}, True),
        ({"run_event": "pull_request"}, True),
    ],
    ids=lambda value: next(iter(value), "the same") if isinstance(value, dict) else "",
)
def test_what_was_measured_is_not_measured_again(nights, changed, again):
    nights.history({}, {})
    head = nights.lab.git("rev-parse", "HEAD")
    run = {"id": 3, "head_sha": changed.get("head_sha", head)}
    expired = changed.get("expired", False)
    nights.github.artifacts = [{"id": 8, "expired": expired, "workflow_run": run}]
    run = {"path": ".github/workflows/nightly.yml", "conclusion": "success", "html_url": PAGE}
    run |= {"head_branch": "main", "event": changed.get("run_event", "schedule")}
    nights.github.runs[3] = run | {k: changed[k] for k in run if k in changed and k != "event"}
    runner, outputs = nights.plan(changed.get("event", "schedule"))
    assert outputs.get("run") == (None if again else PAGE)
    said = f"Nothing changed since {PAGE}: not measured again." in runner.read("summary")
    assert said == (not again)
    asked = [call for call in runner.calls if call.startswith("gh ")]
    assert all(f"creep-{outputs['base']}-{head} " in call for call in asked[:1])
    assert bool(asked) == ("event" not in changed)


def test_jobs_wait_for_what_they_need():
    assert JOBS["plan"]["if"] == "github.ref == 'refs/heads/main'"
    assert JOBS["plan"]["outputs"]["measured"] == "${{ steps.measured.outputs.run }}"
    assert JOBS["measure"]["if"] == "needs.plan.outputs.measured == ''"
    assert JOBS["report"]["needs"] == ["plan", "measure"] and "if" not in JOBS["report"]


def test_only_the_report_may_write_and_only_issues():
    assert NIGHTLY["permissions"] == {}
    writes = {
        name: [scope for scope, right in job["permissions"].items() if right != "read"]
        for name, job in JOBS.items()
    }
    assert writes == {"plan": [], "measure": [], "report": ["issues"]}
    # `on` is a truth value to YAML 1.1.
    assert NIGHTLY[True].keys() == {"schedule", "workflow_dispatch"}
    for step in steps(JOBS["report"]):
        reads = "artifact.zip" in step["run"] and "head -c" not in step["run"]
        assert not (reads and "env" in step)


def test_another_gpu_measures_nothing(nights):
    nights.history({}, {})
    _, outputs = nights.plan()
    runner, failed = nights.measure(outputs, PASS, machine="nvidia-h200-nvl")
    assert failed and not any("creep" in call for call in runner.calls)


def test_a_comparison_that_could_not_run_is_no_answer(nights):
    nights.history({}, {})
    _, outputs = nights.plan()
    assert nights.measure(outputs, COULD_NOT_RUN)[1]


def test_the_workflow_knows_the_marker_the_limit_and_the_gpu():
    script = "".join(step["run"] for step in steps(JOBS["report"]))
    assert f'startswith("{MARKER.partition("{}")[0]}")' in NIGHTLY["env"]["ISSUES"]
    assert f"head -c {artifact.MAX_ARCHIVE_BYTES + 1} " in script
    assert " --gpu nvidia-h200 " in script and "nvidia-h200" in artifact.ARCHITECTURES
    assert urllib.parse.quote(BOT, safe="-") in script
    assert JOBS["measure"]["steps"][-1]["with"]["name"] == (
        "creep-${{ needs.plan.outputs.base }}-${{ needs.plan.outputs.head }}"
    )


def test_every_script_was_run():
    """Comes last."""
    require_every_script_was_run(NIGHTLY)
