"""The record of the GPU tests: which package and tests ran, on which GPU, and how many passed.

``python -m pytest -m gpu`` writes it where there is a GPU. ``python3 -m tests.gpu.record --check``
says whether it is of the package and the tests that are here; it needs nothing installed.
"""

import ast
import hashlib
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from benchmarks._engine.system.repository import digest, files_on_disk

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "benchmarks" / "evidence" / "gpu-tests.json"
TESTED = ("rope_triton", "tests")
"""What the record has digests of: results of other content say nothing of this one."""

OUTCOMES = "passed", "failed", "error", "skipped", "rerun"
"""What is counted; a test that passed in its second run is among the passed and the rerun ones."""

_MARK = re.compile(r"^(pytestmark|@).*mark\.gpu", re.MULTILINE)

COMMAND = "python -m pytest -m gpu -n auto --dist worksteal"


def gpu_tests(root: Path = ROOT) -> set[Path]:
    """The modules of tests that a GPU runs: those marked ``gpu`` or ``gpu_or_interpreter``."""
    paths = (root / "tests").rglob("test_*.py")
    return {path for path in paths if _MARK.search(path.read_text(encoding="utf-8"))}


def with_imports(paths: Iterable[Path], root: Path = ROOT) -> set[Path]:
    """Python files of ``tests`` with the conftests beside and above them, and what they import."""
    reached, waiting = set[Path](), set(paths)
    while waiting:
        path = waiting.pop()
        reached.add(path)
        conftests = {folder / "conftest.py" for folder in path.relative_to(root).parents}
        waiting |= {
            root / name for name in conftests | _imported(path) if (root / name).is_file()
        } - reached
    return reached


def _imported(path: Path) -> set[Path]:
    """Where the modules would lie that a file imports from ``tests`` when it is loaded."""
    names = set[str]()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    tests = [name.split(".") for name in names if name.startswith("tests")]
    return {Path(*parts).with_suffix(".py") for parts in tests}


def digests(root: Path = ROOT) -> dict[str, str]:
    """A digest of the package, and one of the GPU tests and what they import."""
    tests = {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in with_imports(gpu_tests(root), root)
    }
    return {"rope_triton": digest(files_on_disk(root / "rope_triton")), "tests": digest(tests)}


def runs_all(config) -> bool:
    """Whether a run of pytest selects all GPU tests of this package, and nothing else.

    A process of pytest-xdist has run only some of them, and ends before the run does.
    """
    if hasattr(config, "workerinput"):
        return False
    options = config.option
    narrowed = options.keyword or getattr(options, "lf", False) or options.deselect
    by_testpaths = config.args_source is config.ArgsSource.TESTPATHS
    return options.markexpr == "gpu" and by_testpaths and not narrowed


def write(
    machine: dict[str, str], counts: dict[str, int], path: Path = RECORD, root: Path = ROOT
) -> None:
    """Store the counts of a run on a machine, beside other GPUs' records of the same files."""
    now = digests(root)
    records = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    stored = {name: run for name, run in records.items() if now.items() <= run.items()}
    stored[machine["machine"]] = {
        **{key: machine[key] for key in ("gpu", "driver", "torch", "triton")},
        **now,
        **{outcome: counts.get(outcome, 0) for outcome in OUTCOMES},
    }
    text = json.dumps(stored, indent=1, sort_keys=True)
    path.write_text(f"{text}\n", encoding="utf-8")


def why_stale(path: Path = RECORD, root: Path = ROOT) -> str:
    """Why no record says that all GPU tests passed with the files that are here; "" if one does."""
    now = digests(root)
    reasons = []
    for run in json.loads(path.read_text(encoding="utf-8")).values():
        changed = [name for name in TESTED if run[name] != now[name]]
        if changed:
            reasons.append(f"{' and '.join(changed)} changed since they ran on {run['gpu']}")
        elif run["failed"] or run["error"] or not run["passed"]:
            reasons.append(f"{run['failed'] + run['error']} failed on {run['gpu']}")
        else:
            return ""
    return "; ".join(reasons) or "no run is recorded"


def main(arguments: list[str]) -> int:
    if arguments != ["--check"]:
        print("usage: python3 -m tests.gpu.record --check", file=sys.stderr)
        return 2
    reason = why_stale()
    if reason:
        print(f"the GPU tests must run again: {reason}. On a machine with an NVIDIA GPU: {COMMAND}")
    return int(bool(reason))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
