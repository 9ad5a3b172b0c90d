"""Check the results that another job measured, and add them to asv's.

That job ran code of the main branch, on a machine that may be broken or broken into. What it sends
can show wrong figures of what it measured; it cannot change what is stored, name a file, run, or
make a later ``asv publish`` fail: asv checks no types, so every place has one here. Nor does one
machine's artifact reach the results of another by accident; every job of a run may upload one of
any name.
"""

import json
import math
import re
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from .._system.repository import git_text
from .._system.untrusted import Number, Size, Text, load_json, validated
from .branch import lost

MAX_FILES, MAX_BYTES = 20, 1_000_000  # a run measures 11 commits at most, in 0.4 MB each
_NAME = re.compile(r"([0-9a-f]{8})-[A-Za-z0-9._+-]{1,180}\.json")
_MACHINE = re.compile(r"[a-z0-9][a-z0-9_-]{0,60}")
# A machine has asv's names and those of benchmarks/_system/machine.py, an environment asv's. No
# others: asv makes directories of all names in any result, and a path has a longest length.
_PARAMS = {
    *("machine", "os", "arch", "cpu", "num_cpu", "ram"),
    *("gpu", "gpu_ram", "cuda", "driver", "torch", "triton"),
    *("python", "numpy", "setuptools"),
}
_LARGEST = 1e15
_NARROWEST = 1e-30  # asv divides by an interval's width, and fails at the infinity of a tiny one
_END_OF_TIME = 4_102_444_800_000  # 2100, in asv's milliseconds

# Nothing that a page or a terminal could take for more than text.
_Plain = Annotated[str, Text(r"(?a:[\w .,:;+*/@()'=~-]*)", 200)]
_Metric = Annotated[str, Text(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+){1,3}", 200)]
_Texts = dict[_Plain, _Plain | None]
_Finite = Annotated[float, Number(-_LARGEST, _LARGEST)]
# NaN is asv's n/a; no figure is infinite or negative.
_Value = Annotated[float, Number(0, _LARGEST, nan=True)]
# A confidence interval is infinite where there are few samples.
_Bound = Annotated[float, Number(-_LARGEST, _LARGEST, infinite=True)]
_Count = Annotated[int, Number(1, _LARGEST)]
_CELLS = Size(0, 100_000)


class _Result(TypedDict):
    """asv's result file, except its rows."""

    commit_hash: _Plain
    env_name: _Plain
    date: int
    params: _Texts
    # The path of an interpreter would start a line of its own on the site.
    python: Annotated[str, Text(r"[0-9]+\.[0-9]+", 20)]
    requirements: _Texts
    env_vars: Annotated[dict[str, str], Size(0, 0)]  # asv.conf.json sets none
    result_columns: list[_Plain]
    durations: Annotated[dict[str, float], Size(0, 0)]
    version: Literal[2]


class _Row(TypedDict):
    """asv's columns of a benchmark: of all of it, or a value for each cell."""

    result: Annotated[list[_Value | None], _CELLS] | None
    params: list[Annotated[list[_Plain], Size(1)]]
    version: _Plain
    started_at: Annotated[int, Number(1, _END_OF_TIME)] | None
    duration: _Finite | None
    stats_ci_99_a: Annotated[list[_Bound | None], _CELLS] | None
    stats_ci_99_b: Annotated[list[_Bound | None], _CELLS] | None
    stats_q_25: Annotated[list[_Finite | None], _CELLS] | None
    stats_q_75: Annotated[list[_Finite | None], _CELLS] | None
    stats_number: Annotated[list[_Count | None], _CELLS] | None
    stats_repeat: Annotated[list[_Count | None], _CELLS] | None
    samples: Annotated[list[list[_Finite] | None], _CELLS] | None
    profile: Literal[None]  # nothing here is profiled


_COLUMNS = list(_Row.__annotations__)
_OF_ALL = {"params", "version", "started_at", "duration", "profile"}


class RefusedError(ValueError):
    """What came is not what asv writes; the message says where."""


def commits_of(root: Path) -> dict[str, int]:
    """Full hashes of HEAD's history -> asv's dates, in milliseconds."""
    lines = git_text(root, "log", "--format=%H %at", "HEAD").splitlines()
    return {commit: int(time) * 1000 for commit, time in (line.split() for line in lines)}


def accept(incoming: Path, machine: str, results: Path, commits: Mapping[str, int]) -> list[str]:
    """Check one machine's results, and add them to asv's only if all are good.

    Parameters
    ----------
    incoming : path
        A directory of asv's result files and the machine.json, without others.
    machine : str
        The machine it should be of.
    results : path
        asv's results directory.
    commits : mapping of str to int
        The commits that may have results, with their dates.

    Returns
    -------
    Names of the files that were added or replaced.

    Raises
    ------
    RefusedError
        If anything in it is not as it should be, lacks or changes a value that ``results`` has, or
        would be drawn together with another result; nothing was written then.
    """
    _require(_MACHINE.fullmatch(machine), f"machine {machine!r}: not a plain name")
    paths = sorted(incoming.iterdir())
    _require(len(paths) <= MAX_FILES, f"{len(paths)} files, at most {MAX_FILES} are taken")
    contents = {path.name: _checked(path, machine, commits) for path in paths}
    _require("machine.json" in contents, "no machine.json")
    names = sorted(contents.keys() - {"machine.json"})
    directory = results / machine
    for name in names:
        of_commit = directory.glob(f"{name[:8]}-*.json")
        known = {path.name: json.loads(path.read_bytes()) for path in of_commit}
        if name in known:
            metrics = ", ".join(lost(known[name], contents[name]))
            _require(not metrics, f"{name}: values that are stored are others or gone: {metrics}")
        for other, content in (known | contents).items():
            # asv draws the mean of two results of a commit with the same parameters.
            twice = other[:8] == name[:8] and content.get("params") == contents[name]["params"]
            _require(other == name or not twice, f"{name}: {other} has the same params")
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        # Written anew, so nothing but data gets through.
        (directory / name).write_text(json.dumps(content, separators=(",", ":")), encoding="utf-8")
    return names


def _checked(path: Path, machine: str, commits: Mapping[str, int]) -> dict:
    """The content of a file, read as data."""
    name = path.name
    is_result = _NAME.fullmatch(name)
    _require(is_result or name == "machine.json", f"{name!r}: not a name of asv's results")
    _require(path.is_file() and not path.is_symlink(), f"{name}: not a plain file")
    size = path.stat().st_size
    _require(size <= MAX_BYTES, f"{name}: {size} bytes, at most {MAX_BYTES} are taken")
    try:
        content = load_json(path.read_bytes(), nan=True)
        _require(isinstance(content, dict), "not an object")
        if not is_result:
            validated(Literal[1], content.get("version"), "version")
            record = {key: value for key, value in content.items() if key != "version"}
            _require_params(validated(dict[_Plain, _Plain], record, "record"), machine)
            return content
        content["durations"] = {}  # of no use to a page, and its names are no plain texts
        _require_result(content, machine, commits)
        known_as = f"{content['commit_hash'][:8]}-{content['env_name']}.json"
        _require(name == known_as, f"asv calls it {known_as}")
        return content
    except ValueError as error:
        raise RefusedError(f"{name}: {error}") from None


def _require_result(content: dict, machine: str, commits: Mapping[str, int]) -> None:
    rows: Any = content.get("results")
    _require(isinstance(rows, dict), "results is no object")
    rest = {key: value for key, value in content.items() if key != "results"}
    result = validated(_Result, rest, "result")
    commit, params = result["commit_hash"], result["params"]
    _require(commit in commits, f"{commit} is no commit of this branch")
    _require(result["date"] == commits[commit], "date is not the commit's")
    _require_params(params, machine)
    python = params.get("python", result["python"])
    _require(python == result["python"], f"params has another python: {python}")
    _require(result["result_columns"] == _COLUMNS, "result_columns are not asv's")
    for metric, row in rows.items():
        validated(_Metric, metric, "a benchmark's name")
        fits = isinstance(row, list) and 3 <= len(row) <= len(_COLUMNS)
        _require(fits, f"{metric}: no row")
        _require_row(validated(_Row, dict(zip_longest(_COLUMNS, row)), metric), metric)


def _require_params(params: Mapping[str, str | None], machine: str) -> None:
    unknown = ", ".join(sorted(params.keys() - _PARAMS))
    _require(not unknown, f"has unknown names of parameters: {unknown}")
    _require(params.get("machine") == machine, f"is not of {machine}")


def _require_row(row: dict, where: str) -> None:
    size = math.prod(map(len, row["params"]))
    for column in row.keys() - _OF_ALL:
        each = row[column] is None or len(row[column]) == size
        _require(each, f"{where}: {column} has another number of values than cells, {size}")
    ends = zip(row["stats_ci_99_a"] or [], row["stats_ci_99_b"] or [], strict=False)
    widths = (b - a for a, b in ends if a is not None and b is not None)
    _require(not any(0 < abs(width) < _NARROWEST for width in widths), f"{where}: no interval")


def _require(condition, message: str) -> None:
    if not condition:
        raise RefusedError(message)
