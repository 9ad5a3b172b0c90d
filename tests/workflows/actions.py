"""What the pinned actions do to files, for steps that act runs: ``actions.py NAME INPUTS``.

They keep what surprises in the real ones. download-artifact makes no directory for an artifact that
is alone, also where a pattern was asked for. Artifacts stay when a run is run again, and
deploy-pages refuses two of one name. checkout refuses a fork's code in pull_request_target
and workflow_run, and fetches one commit unless told otherwise.
"""

import fnmatch
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

REPO = "rope-triton/rope-triton"
INPUTS = {
    "checkout": [
        *("repository", "ref", "path", "fetch-depth", "persist-credentials"),
        "allow-unsafe-pr-checkout",
    ],
    "setup-python": ["python-version"],
    "upload-artifact": ["name", "path", "if-no-files-found", "retention-days", "overwrite"],
    "download-artifact": ["name", "pattern", "path", "merge-multiple"],
    "upload-pages-artifact": ["name", "path"],
    "deploy-pages": ["artifact_name"],
    "gh-action-pypi-publish": [],
}


def write(root: Path) -> None:
    """A composite action for each, which calls this file."""
    for name, inputs in INPUTS.items():
        values = ", ".join(f"\"{key}\": ${{{{ toJSON(inputs['{key}']) }}}}" for key in inputs)
        run = f'{sys.executable} -S {__file__} {name} "$INPUTS"'
        step = {"shell": "bash", "env": {"INPUTS": f"{{{values}}}"}, "run": run}
        made = {"name": name, "description": name, "inputs": {}, "runs": {"using": "composite"}}
        made["inputs"] = {key: {"description": key, "default": ""} for key in inputs}
        made["runs"]["steps"] = [step]
        (root / name).mkdir(parents=True)
        (root / name / "action.yml").write_text(json.dumps(made))


def fail(text):
    sys.exit(f"::error::{text}")


def in_workspace(path) -> Path:
    return Path(os.environ["GITHUB_WORKSPACE"], path)


def checkout(repository=REPO, ref="", path=".", **options):
    event = os.environ["GITHUB_EVENT_NAME"]
    payload = json.loads(Path(os.environ["GITHUB_EVENT_PATH"]).read_text())
    run, change = payload.get("workflow_run", {}), payload.get("pull_request", {})
    heads = {run.get("head_sha"), change.get("head", {}).get("sha")} - {None}
    theirs = (repository != REPO or ref in heads) and event in (
        "pull_request_target",
        "workflow_run",
    )
    if theirs and options.get("allow-unsafe-pr-checkout") != "true":
        fail(f"Refusing to check out fork pull request code from a '{event}' workflow.")
    assert options["persist-credentials"] == "false"
    to, origin = in_workspace(path), f"https://github.com/{repository}"

    def git(*words):
        subprocess.run(["git", "-C", to, *words], check=True)

    to.mkdir(parents=True, exist_ok=True)
    git("init", "-q")
    # What is in the repository on this disk need not be copied.
    objects = Path(os.environ["RIG"], "github", REPO, "objects")
    (to / ".git/objects/info/alternates").write_text(f"{objects}\n")
    git("remote", "add", "origin", origin)
    target, commit = os.environ["GITHUB_REF"], os.environ["GITHUB_SHA"]
    asked = ref or (target if target.startswith("refs/pull/") else commit)
    if options.get("fetch-depth") == "0":
        git("fetch", "-q", "--tags", "origin", asked, "+refs/heads/*:refs/remotes/origin/*")
    else:
        git("fetch", "-q", "--depth=1", "origin", asked)
    branch = ["-B", target.removeprefix("refs/heads/")] if asked == commit else ["--detach"]
    git("checkout", "-q", *branch, "FETCH_HEAD")


def artifacts(name="*"):
    """Those of the run: name -> directories, the oldest first."""
    run, artifacts = Path(os.environ["RIG"], "artifacts", os.environ["GITHUB_RUN_ID"]), {}
    for path in sorted(run.glob("*-*"), key=lambda path: int(path.name.partition("-")[0])):
        called = path.name.partition("-")[2]
        if fnmatch.fnmatch(called, name):
            artifacts.setdefault(called, []).append(path)
    return artifacts


def upload_artifact(name, path, overwrite="", **options):
    path, stored = in_workspace(path), Path(os.environ["RIG"], "artifacts")
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    files = [file for file in files if not file.name.startswith(".")]
    if not files:
        if options.get("if-no-files-found") == "error":
            fail(f"No files were found with the provided path: {path}")
        return
    if overwrite == "true":
        for old in artifacts(name).get(name, []):
            shutil.rmtree(old)
    number = 1 + len(list(stored.glob("numbers/*")))
    into = stored / os.environ["GITHUB_RUN_ID"] / f"{number}-{name}"
    for directory in (stored / "numbers" / str(number), into):
        directory.mkdir(parents=True)
    for file in files:
        to = into / (file.name if file is path else file.relative_to(path))
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, to)


def upload_pages_artifact(path, name="github-pages"):
    upload_artifact(name, path)


def download_artifact(path, name=None, pattern="*", **options):
    matching = artifacts(name or pattern)
    if name and not matching:
        fail(f"Artifact '{name}' not found")
    alone = name or len(matching) == 1 or options.get("merge-multiple") == "true"
    for called, (*_, newest) in matching.items():
        to = in_workspace(path) if alone else in_workspace(path) / called
        shutil.copytree(newest, to, dirs_exist_ok=True)


def deploy_pages(artifact_name="github-pages"):
    matching = artifacts(artifact_name).get(artifact_name, [])
    if len(matching) != 1:
        fail(f'{len(matching)} artifacts named "{artifact_name}" were found for this workflow run')
    shutil.copytree(matching[0], Path(os.environ["RIG"], "pages"), dirs_exist_ok=True)
    with open(os.environ["GITHUB_OUTPUT"], "a") as file:
        file.write("page_url=https://rope-triton.github.io/rope-triton/\n")


def gh_action_pypi_publish():
    shutil.copytree(in_workspace("dist"), Path(os.environ["RIG"], "pypi"))


def setup_python(**options):
    pass


if __name__ == "__main__":
    name, text = sys.argv[1:]
    inputs = {key: value for key, value in json.loads(text).items() if value != ""}
    globals()[name.replace("-", "_")](**inputs)
