"""Programs that steps call and that would fetch, measure, or test: ``programs.py NAME ARGUMENTS``.

Each call is noted in RIG/calls. What the test gave as ``played`` comes first: a regular expression
of the whole call, and its status with a text to print, or a document for the file after ``--json``.
Without an entry, Python is the real one, and nothing else does anything.
"""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

RIG = Path(os.environ["RIG"])
IN_VENV = ("python", "pip", "ruff", "mypy", "actionlint", "zizmor")


def venv(directory):
    """With programs that are stand-ins too."""
    (directory / "bin").mkdir(parents=True, exist_ok=True)
    for name in IN_VENV:
        shutil.copy(RIG / "bin" / "python3", directory / "bin" / name)


def pip(words):
    """Wheels are unpacked where Python finds them; a file of constraints must be there."""
    for wheel in (word for word in words if word.endswith(".whl")):
        zipfile.ZipFile(wheel).extractall(RIG / "installed")
    files = [file for word, file in itertools.pairwise(words) if word == "-c"]
    return int(not all(map(os.path.exists, files)))


def measure(machine):
    """The newest stored result of the machine, of this commit."""
    stored, made = Path("benchmarks/results", machine), Path(".asv/results", machine)
    last = max(stored.glob("*-*.json"), key=lambda path: json.loads(path.read_text())["date"])
    line = ["git", "log", "-1", "--format=%H %at"]
    commit, date = subprocess.check_output(line, text=True).split()
    result = json.loads(last.read_text()) | {"commit_hash": commit, "date": int(date) * 1000}
    made.mkdir(parents=True)
    (made / f"{commit[:8]}-{last.name.partition('-')[2]}").write_text(json.dumps(result))
    shutil.copy(stored / "machine.json", made)
    return 0


def publish():
    Path(".asv/html").mkdir(parents=True)
    nightly = Path(".asv/nightly.json")
    Path(".asv/html/index.html").write_text(nightly.read_text() if nightly.exists() else "")
    return 0


def act(name, words):
    call = " ".join([name, *words])
    for pattern, (status, output) in json.loads((RIG / "played.json").read_text()).items():
        if re.search(pattern, call):
            if isinstance(output, dict):
                Path(words[words.index("--json") + 1]).write_text(json.dumps(output))
            elif output:
                print(output)
            return status
    match [name, *words]:
        case ["python3", "-m", "venv", directory]:
            return venv(Path(directory))
        case ["pip", *_]:
            return pip(words)
        case ["python", "-m", "benchmarks", "machine"]:
            print("machine ", os.environ["MACHINE"])
            return 0
        case ["python", "-m", "benchmarks._site", "measure", machine, *_]:
            return measure(machine)
        case ["python", "-m", "benchmarks._site", "hold", _, *held]:
            return subprocess.run(held).returncode
        case ["python", "-m", "asv", "publish", *_]:
            return publish()
        case ["python", "-m", "asv" | "pytest" | "twine", *_] | [
            "python",
            _,
            "benchmarks._site",
            "api",
            _,
        ]:
            return 0
        case ["python" | "python3", *_]:
            path = {"PYTHONPATH": str(RIG / "installed")} if (RIG / "installed").exists() else {}
            return subprocess.run([sys.executable, *words], env=os.environ | path).returncode
    return 0


if __name__ == "__main__":
    name, words = Path(sys.argv[1]).name, sys.argv[2:]
    with open(RIG / "calls", "a") as file:
        file.write(" ".join([name, *words]) + "\n")
    sys.exit(act(name, words))
