"""A shell completes ``python -m benchmarks``."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab import ROOT

COMPLETE = """\
eval "$(activate-global-python-argcomplete --dest=-)"
COMP_LINE="$*" COMP_POINT=${#COMP_LINE} COMP_TYPE=9 COMP_WORDS=("$@")
_python_argcomplete_global python
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["r"], ["readme", "release", "run"]),
        (["compare", "main", "--a"], ["--afresh", "--all"]),
        (["run", "--grid", ""], ["full", "small"]),
    ],
    ids=["command", "option", "choice"],
)
def test_bash_completes_commands_options_and_choices(words, completed):
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    line = ["bash", "-c", COMPLETE, "bash", "python", "-m", "benchmarks", *words]
    done = subprocess.run(line, cwd=ROOT, env={"PATH": path}, capture_output=True, text=True)
    assert sorted(done.stdout.split()) == completed, done.stderr
