"""RUNNER.md's commands, run as they are written, with stubs of GitHub, QEMU and the GPU."""

import json
import re
import shutil
import subprocess
import sys
from urllib.parse import parse_qsl

import pytest

from tests.workflows.github import REPO
from tests.workflows.rig import ROOT
from tests.workflows.test_workflow_rules import JOBS, LOADED

GUIDE = (ROOT / ".github" / "RUNNER.md").read_text()
SCRIPTS = re.findall(r"^```sh\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
GROUPS, HOST, NEXT_MACHINE, GUEST = SCRIPTS
LABEL, GPU = "nvidia-h200", "0000:01:00.0"
RESET = f"sys/bus/pci/devices/{GPU}/reset"


def waits(*labels):
    return {"jobs": [{"status": "queued", "labels": [*labels]}]}


GROUP_IDS = {"Default": 1, "gpu-pull-requests": 7, "gpu-main": 8}
DONE = {"status": "completed", "labels": ["ubuntu-24.04"]}
ANSWERS = {
    r"runs/5/jobs": {"jobs": [DONE, *waits(LABEL)["jobs"]]},
    r"runs/6/jobs": waits("ubuntu-24.04"),
    r"/runs\?": {"workflow_runs": []},
    r"generate-jitconfig": {"runner": {"id": 1}, "encoded_jit_config": "JIT"},
    r"runner-groups": {"runner_groups": [{"id": n, "name": x} for x, n in GROUP_IDS.items()]},
    r"repos/": {"id": 42},
}

# Notes its name and arguments, and what it is given on the side: gh a body, QEMU a file.
STAND_IN = r"""
import json, os, pathlib, re, sys
scratch, arguments = pathlib.Path(os.environ["SCRATCH"]), sys.argv[1:]
name, content = pathlib.Path(sys.argv[0]).name, None
if name == "gh" and "--input" in arguments:
    content = sys.stdin.read()
if name.startswith("qemu"):
    content = pathlib.Path(arguments[-1].partition("file=")[2]).read_text()
with open(scratch / "calls", "a") as file:
    file.write(json.dumps([name, arguments, content]) + "\n")
if name == "gh":
    path = next(word for word in arguments if word.startswith(("repos/", "orgs/")))
    answers = json.loads((scratch / "answers.json").read_text())
    answer = json.dumps(next(answers[key] for key in answers if re.search(key, path)))
    import jq
    program = arguments[arguments.index("--jq") + 1] if "--jq" in arguments else "."
    for value in jq.compile(program).input_text(answer):
        print(value if isinstance(value, str) else json.dumps(value))
    sys.exit()
sys.exit(int(os.environ.get(name.partition("-")[0].upper(), 0)))
"""
STAND_INS = (
    *("gh", "driverctl", "modprobe", "nvidia-smi", "qemu-system-x86_64", "runuser"),
    *("sleep", "systemctl"),
)
TOOLS = ("bash", "cat", "date", "env", "grep", "mktemp", "rm", "timeout")


class Machine:
    """A host or a guest that has the commands which the guide names, and no others."""

    def __init__(self, root):
        self.root = root
        (root / "bin").mkdir()
        for name in TOOLS:
            (root / "bin" / name).symlink_to(shutil.which(name))
        for name in STAND_INS:
            program = root / "bin" / name
            program.write_text(f"#!{sys.executable} -E\n{STAND_IN}")
            program.chmod(0o755)
        files = {
            f"sys/bus/pci/devices/{GPU}/reset_method": "flr bus\n",
            RESET: "",
            "sys/firmware/qemu_fw_cfg/by_name/opt/org.rope-triton/jitconfig/raw": "JIT",
            "opt/runner/run.sh": "",
        }
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        self.answer({})

    def answer(self, changes):
        (self.root / "answers.json").write_text(json.dumps(changes | ANSWERS))

    def run(self, script, **variables):
        """Its status. /sys and /opt are the machine's own."""
        text = re.sub(r"(?<=[ \"])/(sys|opt)/", rf"{self.root}/\1/", script)
        environment = {
            "PATH": f"{self.root}/bin",
            "SCRATCH": str(self.root),
            "TMPDIR": str(self.root),
        }
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            env=environment | {"GH_TOKEN": "SECRET"} | variables,
            capture_output=True,
            text=True,
            timeout=30,
        )
        self.output = done.stdout + done.stderr
        return done.returncode

    def calls(self, name):
        """Arguments of each call, and the content that it got besides."""
        path = self.root / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(a, content) for program, a, content in map(json.loads, lines) if program == name]

    def requests(self):
        """What was asked of GitHub, and with which fields."""
        return [_request(*call) for call in self.calls("gh")]


def _request(arguments, body):
    command, *rest = arguments
    assert command == "api"
    method, path, fields = "GET", None, {}
    while rest:
        match rest:
            case ["--method", method, *rest]:
                pass
            case ["-f" | "-F", text, *rest]:
                name, _, value = text.partition("=")
                if name.endswith("[]"):
                    fields.setdefault(name.removesuffix("[]"), []).append(value)
                else:
                    fields[name] = value
            case ["--input" | "--jq", _, *rest]:
                pass
            case [path, *rest]:
                pass
    path, _, query = path.partition("?")
    fields |= dict(parse_qsl(query)) | (json.loads(body) if body else {})
    return f"{method} {path}", fields


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def groups():
    """Runner group -> the workflows whose jobs ask for it."""
    workflows = {}
    for name, loaded in LOADED.items():
        for group in re.findall(r"'group': '([\w-]+)', 'labels'", str(loaded)):
            workflows.setdefault(group, set()).add(name)
    return workflows


def test_each_group_is_for_the_workflows_that_ask_for_it_and_no_others(machine):
    assert machine.run(GROUPS) == 0, machine.output
    made = [fields for request, fields in machine.requests() if request.startswith("POST")]
    at = f"{REPO}/.github/workflows/{{}}@refs/heads/main"
    assert {group.pop("name"): set(group.pop("selected_workflows")) for group in made} == {
        group: {at.format(name) for name in names} for group, names in groups().items()
    }
    for group in made:
        assert group == {
            "visibility": "selected",
            "selected_repository_ids": [42],
            "allows_public_repositories": True,
            "restricted_to_workflows": True,
        }


def test_the_hosts_driver_never_gets_a_gpu_that_can_be_reset(machine):
    assert machine.run(HOST) == 0, machine.output
    assert machine.calls("driverctl") == [(["set-override", GPU, "vfio-pci"], None)]
    (machine.root / f"sys/bus/pci/devices/{GPU}/reset_method").write_text("pm\n")
    assert machine.run(HOST) != 0


@pytest.mark.parametrize(
    ("workflow", "status", "group", "end"),
    [
        *[("gpu.yml", "queued", 7, "0"), ("history.yml", "in_progress", 8, "1")],
        *[("bisect.yml", "queued", 8, "0"), ("nightly.yml", "queued", 8, "0")],
    ],
)
def test_a_job_that_waits_gets_a_machine_of_its_group(machine, workflow, status, group, end):
    """Which ends with a status; the GPU is reset whatever it is."""
    machine.answer({rf"{workflow}/runs\?status={status}": {"workflow_runs": [{"id": 5}]}})
    assert machine.run(NEXT_MACHINE, QEMU=end) == 0, machine.output
    assert ("the machine ended with status" in machine.output) == (end != "0")
    (fields,) = (fields for request, fields in machine.requests() if "jitconfig" in request)
    assert fields.pop("name").startswith(f"{LABEL}-")
    assert fields == {"runner_group_id": str(group), "labels": [LABEL]}
    ((arguments, content),) = machine.calls("qemu-system-x86_64")
    assert content == "JIT\n" and "-snapshot" in arguments
    assert f"vfio-pci,host={GPU}" in arguments and "SECRET" not in str(arguments)
    assert (machine.root / RESET).read_text() == "1\n"
    assert not list(machine.root.glob("tmp.*")), "the configuration stays on the host's disk"


def test_no_machine_starts_while_no_job_waits_for_this_gpu(machine):
    machine.answer({r"gpu.yml/runs\?status=queued": {"workflow_runs": [{"id": 6}]}})
    assert machine.run(NEXT_MACHINE) == 0, machine.output
    assert len(machine.requests()) == 9 and not machine.calls("qemu-system-x86_64")


def test_the_labels_are_those_that_jobs_ask_for():
    measured = LOADED["history.yml"]["jobs"]["measure"]["strategy"]["matrix"]["include"]
    runners = [job["runs-on"] for job in JOBS.values()] + [row["runner"] for row in measured]
    labels = [runner["labels"] for runner in runners if isinstance(runner, dict)]
    assert {*labels} == {LABEL, "${{ inputs.machine }}"}


@pytest.mark.parametrize("status", ["0", "1"])
def test_a_guest_sets_its_clocks_then_runs_one_job_as_another_user_and_ends(machine, status):
    assert machine.run(GUEST, RUNUSER=status) == int(status), machine.output
    lines = [json.loads(line) for line in (machine.root / "calls").read_text().splitlines()]
    names = [name for name, *_ in lines]
    assert names.index("nvidia-smi") < names.index("runuser") and names[-1] == "systemctl"
    ((arguments, _),) = machine.calls("runuser")
    assert arguments[:3] == ["-u", "runner", "--"]
    assert arguments[-3:] == ["./run.sh", "--jitconfig", "JIT"]
    assert machine.calls("systemctl")[-1] == (["poweroff"], None)


def test_a_machine_without_a_job_is_switched_off_before_its_time(machine):
    (machine.root / "opt/runner/_diag").mkdir()
    idle = machine.root / "bin" / "runuser"  # as run.sh does, while no job comes
    idle.write_text('#!/bin/bash\nuntil grep -q poweroff "$SCRATCH/calls"; do :; done\n')
    assert machine.run(GUEST) == 0, machine.output
    assert machine.calls("sleep") == [(["300"], None)]
    assert machine.calls("systemctl")[0] == (["poweroff"], None)


def test_no_command_holds_what_could_register_another_runner():
    text = "".join(SCRIPTS)
    for word in ("registration-token", "remove-token", "config.sh", "--token", "GH_TOKEN"):
        assert word not in text
