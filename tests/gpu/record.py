"""The record of the GPU tests: which package and tests ran, on which GPU, and how many passed.

``python -m pytest -m gpu`` writes it where there is a GPU. ``python3 -m tests.gpu.record --check``
says whether it is of the package and the tests that are here; it needs nothing installed.
"""

import json
import sys
from pathlib import Path

from benchmarks._system.repository import digest, lying_files

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "benchmarks" / "evidence" / "gpu-tests.json"
TESTED = ("rope_triton", "tests/gpu")
"""Folders whose content the record names: results of other content say nothing of this one."""

COMMAND = "python -m pytest -m gpu -n auto --dist worksteal"


def digests(root: Path = ROOT) -> dict[str, str]:
    """A digest of the files of each tested folder."""
    return {each: digest(lying_files(root / each)) for each in TESTED}


def runs_all(config) -> bool:
    """Whether a run of pytest selects all GPU tests of this package, and nothing else."""
    options = config.option
    narrowed = options.keyword or getattr(options, "lf", False) or options.deselect
    by_testpaths = config.args_source is config.ArgsSource.TESTPATHS
    return options.markexpr == "gpu" and by_testpaths and not narrowed


def write(machine: dict[str, str], counts: dict[str, int], path: Path = RECORD) -> None:
    """Store the counts of a run on a machine; records of other GPUs stay."""
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    stored[machine["machine"]] = {
        **{key: machine[key] for key in ("gpu", "driver", "torch", "triton")},
        **digests(),
        **{outcome: counts.get(outcome, 0) for outcome in ("passed", "failed", "error", "skipped")},
    }
    text = json.dumps(stored, indent=1, sort_keys=True)
    path.write_text(f"{text}\n", encoding="utf-8")


def why_stale(path: Path = RECORD, root: Path = ROOT) -> str:
    """Why no record says that all GPU tests passed with the files that are here; "" if one does."""
    now = digests(root)
    reasons = []
    for each in json.loads(path.read_text(encoding="utf-8")).values():
        changed = [folder for folder in TESTED if each[folder] != now[folder]]
        if changed:
            reasons.append(f"{' and '.join(changed)} changed since they ran on {each['gpu']}")
        elif each["failed"] or each["error"] or not each["passed"]:
            reasons.append(f"{each['failed'] + each['error']} failed on {each['gpu']}")
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
