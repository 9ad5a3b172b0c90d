"""Whole workflows, run by act on this machine: events, jobs, needs, matrices, conditions, outputs.

Real besides: git, bash, and gh with its own jq. Stand-ins: the actions, GitHub's REST API, and what
would fetch, measure, or run the tests again (``programs``). What act cannot show is listed in
test_workflow_rules.py, which reads it in the text.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.git import git
from tests.workflows import actions
from tests.workflows.github import REPO, TOKEN, GitHub

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"
PROGRAMS = Path(__file__).with_name("programs.py")
OWNER, MAIN = REPO.partition("/")[0], "refs/heads/main"
_OF_GITHUB = ("GITHUB_", "GH_", "RUNNER_", "ACTIONS_", "PIP_")
_USES = re.compile(r"uses: *(\S+@\w+)")
LABELS = ("ubuntu-24.04", "nvidia-h200")


def repository_of(owner):
    """As events have it."""
    named = {"full_name": f"{owner}/rope-triton", "name": "rope-triton", "owner": {"login": owner}}
    return named | {"default_branch": "main", "fork": owner != OWNER}


class Rig:
    """GitHub with a repository, and a runner for every job."""

    def __init__(self, root: Path, source: Path):
        self.root, self.repository = root, root / "github" / REPO
        self.played, self.log = {}, ""
        for name in ("bin", "home", "here", "artifacts"):
            (root / name).mkdir()
        git(root, "clone", "--quiet", "--bare", "--shared", source, self.repository)
        git(self.repository, "config", "uploadpack.allowAnySHA1InWant", "true")
        path = f"{root}/bin:{os.environ['PATH']}"
        outside = {name: v for name, v in os.environ.items() if not name.startswith(_OF_GITHUB)}
        self.env = outside | {"HOME": str(root / "home"), "PATH": path, "RIG": str(root)}
        (root / "home" / ".gitconfig").write_text(
            f'[url "file://{root}/github/"]\n\tinsteadOf = https://github.com/\n'
            "[safe]\n\tdirectory = *\n[user]\n\tname = t\n\temail = t@example.org\n"
        )
        self.github = GitHub(self.repository, root / "artifacts")
        actions.write(root / "actions")
        run = f'exec {sys.executable} -S {PROGRAMS} "$0" "$@"'
        gh = f'http_proxy={self.github.address} GH_HOST=github.localhost exec {program("gh")} "$@"'
        programs = {"python3": run, "gh": gh, "sleep": "exit 0", "bash": BASH}
        for name, code in ON_RUNNERS.items():
            if not shutil.which(name):
                programs[name] = f'exec {sys.executable} -c "${name.upper()}" "$@"'
                self.env[name.upper()] = code
        programs["node"] = "echo /none"  # act asks it where it is; no action here needs it
        for name, line in programs.items():
            (root / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
            (root / "bin" / name).chmod(0o755)
        here = root / "here"
        git(here, "init", "--quiet", "--initial-branch", "main")
        git(here, "remote", "add", "origin", f"https://github.com/{REPO}")
        (here / ".git/objects/info/alternates").write_text(f"{self.repository}/objects\n")

    def run(self, workflow, event, content=None, run=1, attempt=1, owner=OWNER, ref=MAIN, job=None):
        """Results of the jobs by their names; one that was skipped has none."""
        here, copy = self.root / "here", self.root / f"{workflow}.yml"
        git(here, "update-ref", MAIN, git(self.repository, "rev-parse", ref))
        text = (WORKFLOWS / copy.name).read_text()
        # act does not know `queue` of a concurrency group, and has no such groups.
        copy.write_text(re.sub(r"^ +queue: max.*\n", "", text, flags=re.MULTILINE))
        payload = {"repository": repository_of(owner), "deleted": False, "ref": ref} | (
            content or {}
        )
        (self.root / "event.json").write_text(json.dumps(payload))
        self.play()
        (self.root / "output").unlink(missing_ok=True)
        env = {
            **{"RIG": self.root, "GITHUB_RUN_ID": run, "GITHUB_RUN_ATTEMPT": attempt},
            "GITHUB_REPOSITORY": f"{owner}/rope-triton",
        }
        used = {use: use.partition("@")[0].partition("/")[2] for use in _USES.findall(text)}
        options = [
            *(f"--env={name}={value}" for name, value in env.items()),
            *(f"--platform={label}=-self-hosted" for label in LABELS),
            *(f"--local-repository={use}={self.root}/actions/{used[use]}" for use in used),
            *(f"--eventpath={self.root}/event.json", f"--workflows={copy}"),
            *(f"--secret=GITHUB_TOKEN={TOKEN}", "--defaultbranch=main", "--json"),
            *("--no-skip-checkout", "--use-new-action-cache", "--action-offline-mode"),
            *("--no-cache-server", *([f"--job={job}"] if job else [])),
        ]
        done = subprocess.run(
            [program("act"), event, *options],
            **{"cwd": here, "env": self.env, "capture_output": True, "text": True, "timeout": 300},
        )
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        failures = [line["msg"] for line in lines if line.get("stepResult") == "failure"]
        self.log = "\n".join([self.read("output"), *failures])
        print(self.log, done.stderr, sep="\n")
        results = {}
        for line in lines:  # act calls every job of a matrix by the result of all
            if "jobResult" in line or line.get("stepResult") == "failure":
                name = line["job"].partition("/")[2].strip()
                name = re.sub(r"-\d+$", "", name) if line.get("matrix") else name
                results[name] = results.get(name) or line.get("stepResult", "success")
        return results

    def play(self):
        """Let the stand-ins know what is played."""
        (self.root / "played.json").write_text(json.dumps(self.played))

    def read(self, name):
        path = self.root / name
        return path.read_text() if path.exists() else ""

    @property
    def calls(self):
        return self.read("calls").splitlines()

    def artifact(self, name, run, files, **of):
        """Store an artifact of an earlier run of main, or of what else is said of the run."""
        directory = self.root / f"artifacts/{run}/{run}-{name}"
        directory.mkdir(parents=True)
        for file, text in files.items():
            (directory / file).write_text(text)
        self.github.runs[run] = (
            {"head_branch": "main", "repository_id": 2} | {"head_repository_id": 2} | of
        )

    def commit(self, branch, files, parent=MAIN, message="a change"):
        """Commit on a branch, or another ref, and its SHA."""
        tree = self.root / "tree"
        shutil.rmtree(tree, ignore_errors=True)
        git(self.root, "clone", "--quiet", "--shared", "--no-checkout", self.repository, tree)
        git(tree, "checkout", "--quiet", "--detach", git(self.repository, "rev-parse", parent))
        for name, text in files.items():
            (tree / name).write_text(text)
        git(tree, "add", "--all")
        git(tree, "commit", "--quiet", "--allow-empty", "--message", message)
        git(tree, "push", "--quiet", "--force", "origin", f"HEAD:{branch}")
        return git(tree, "rev-parse", "HEAD")

    def pull_request(self, files, action="opened", fork=True, **more):
        """Of a commit beside main's newest one: its base and head, and the event."""
        base, main = git(self.repository, "rev-parse", f"{MAIN}~1", MAIN).split()
        head = self.commit("refs/pull/7/head", files, parent=base)
        git(self.repository, "update-ref", "refs/pull/7/merge", head)
        side = {"ref": "a&b=c", "sha": head, "user": {"login": "someone"}}
        side["repo"] = repository_of("someone") if fork else None  # which was deleted
        made = {"number": 7, "state": "open", "head": side, "base": {"ref": "main", "sha": main}}
        made["base"]["repo"] = repository_of(OWNER)
        self.github.pulls[7] = made
        event = {"action": action, "number": 7, "pull_request": made}
        return base, head, event | more


# Keeps what a step prints, of which act may lose the end, and the summary, which it throws away.
BASH = """\
/bin/bash "$@" > "$RIG/printed.$$" 2>&1
status=$?
cat "$RIG/printed.$$"
cat "$RIG/printed.$$" >> "$RIG/output"
rm "$RIG/printed.$$"
if [ -s "$GITHUB_STEP_SUMMARY" ]; then cat "$GITHUB_STEP_SUMMARY" >> "$RIG/summary.md"; fi
exit $status"""


# What GitHub's hosted runners have besides, where this machine does not.
ON_RUNNERS = {
    "jq": """\
import json, sys, jq
_, program, *words = sys.argv[1:]  # jq -n PROGRAM --arg NAME VALUE ...
named = dict(zip(words[1::3], words[2::3], strict=True))
print(json.dumps(jq.compile(program, args={"ARGS": {"named": named}}).input_value(None).first()))
""",
    "unzip": """\
import sys, zipfile
_, archive, member = sys.argv[1:]  # unzip -p ARCHIVE MEMBER
sys.stdout.buffer.write(zipfile.ZipFile(archive).read(member))
""",
}


def program(name):
    """Beside the Python that runs the tests, or on the PATH.

    Raises
    ------
    FileNotFoundError
        If it is nowhere, with the command that installs it.
    """
    beside = Path(sys.executable).parent / name
    path = beside if beside.exists() else shutil.which(name)
    if not path:
        raise FileNotFoundError(f"no {name}: pip install -c constraints.txt -e '.[test]'")
    return str(path)
