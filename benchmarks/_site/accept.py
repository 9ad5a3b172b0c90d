"""Results that another job measured -> asv's results, after a look at everything in them.

That job ran code of the main branch, on a machine that may be broken or broken into. What it sends
can show wrong figures; it cannot name a file, run, reach the results of another machine, or make a
later ``asv publish`` fail: asv checks no types, so every place has one here.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from itertools import zip_longest
from pathlib import Path

from .branch import git, lost

MAX_FILES, MAX_BYTES = 100, 4_000_000
_NAME = re.compile(r"([0-9a-f]{8})-[A-Za-z0-9._+-]{1,180}\.json")
_MACHINE = re.compile(r"[a-z0-9][a-z0-9_-]{0,60}")
_METRIC = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+){1,3}")
_VERSION = re.compile(r"\d+\.\d+")
_TEXT = re.compile(r"[\w .,:;+*/@()'=~-]{0,200}", re.ASCII)
_KEYS = {
    *("commit_hash", "env_name", "date", "params", "python", "requirements", "env_vars"),
    *("result_columns", "results", "durations", "version"),
}
_DEPTH = 8  # results -> metric -> column -> cell -> samples, with some to spare
# Of a machine: asv's names and those of benchmarks/_system/machine.py. Of an environment: asv's. No
# others: asv makes directories of all names in any result, and a path has a longest length.
_PARAMS = {
    *("machine", "os", "arch", "cpu", "num_cpu", "ram"),
    *("gpu", "gpu_ram", "cuda", "driver", "torch", "triton"),
    *("python", "numpy", "setuptools"),
}
_LARGEST = 1e15
_NARROWEST = 1e-30  # asv divides by an interval's width, and fails at the infinity of a tiny one
_END_OF_TIME = 4_102_444_800_000  # 2100, in asv's milliseconds


def _is_number(value) -> bool:
    return type(value) in (int, float) and abs(value) < _LARGEST


def _is_value(value) -> bool:
    # NaN is asv's n/a; an infinity or a negative figure is nobody's.
    return (_is_number(value) and value >= 0) or value != value


def _is_bound(value) -> bool:
    """Of a confidence interval, which is infinite where there are few samples."""
    return _is_number(value) or value in (-math.inf, math.inf)


def _is_count(value) -> bool:
    return type(value) is int and 0 < value < _LARGEST


def _is_samples(value) -> bool:
    return isinstance(value, list) and all(map(_is_number, value))


def _is_time(value) -> bool:
    return type(value) is int and 0 < value < _END_OF_TIME


# What is in asv's columns: null, or for each benchmark or each of its cells what is said here.
_OF_A_BENCHMARK: dict[str, Callable[[object], bool]] = {
    **{"started_at": _is_time, "duration": _is_number},
    "profile": lambda value: False,  # nothing here is profiled
}
_OF_A_CELL: dict[str, Callable[[object], bool]] = {
    **{"result": _is_value, "samples": _is_samples},
    **dict.fromkeys(("stats_ci_99_a", "stats_ci_99_b"), _is_bound),
    **dict.fromkeys(("stats_q_25", "stats_q_75"), _is_number),
    **dict.fromkeys(("stats_number", "stats_repeat"), _is_count),
}
_COLUMNS = [
    *("result", "params", "version", "started_at", "duration", "stats_ci_99_a", "stats_ci_99_b"),
    *("stats_q_25", "stats_q_75", "stats_number", "stats_repeat", "samples", "profile"),
]


class RefusedError(ValueError):
    """What came is not what asv writes; the message says where."""


def commits_of(root: Path) -> dict[str, int]:
    """Full hashes of HEAD's history -> asv's dates, in milliseconds."""
    lines = git(root, "log", "--format=%H %at", "HEAD").splitlines()
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
        If anything in it is not as it should be, or is less than ``results`` has of the same
        commit; nothing was written then.
    """
    _require(_MACHINE.fullmatch(machine), f"machine {machine!r}: not a plain name")
    paths = sorted(incoming.iterdir())
    _require(len(paths) <= MAX_FILES, f"{len(paths)} files, at most {MAX_FILES} are taken")
    texts = {path.name: _checked(path, machine, commits) for path in paths}
    _require("machine.json" in texts, "no machine.json")
    for name in texts.keys() - {"machine.json"}:
        stored = results / machine / name
        if stored.exists():
            metrics = lost(json.loads(stored.read_text()), json.loads(texts[name]))
            _require(not metrics, f"{name}: fewer values than are stored of {', '.join(metrics)}")
    (results / machine).mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (results / machine / name).write_text(text)
    return sorted(texts.keys() - {"machine.json"})


def _checked(path: Path, machine: str, commits: Mapping[str, int]) -> str:
    """What to write: read as data and written anew, so nothing but data gets through."""
    name = _NAME.fullmatch(path.name)
    _require(name or path.name == "machine.json", f"{path.name!r}: not a name of asv's results")
    _require(path.is_file() and not path.is_symlink(), f"{path.name}: not a plain file")
    size = path.stat().st_size
    _require(size <= MAX_BYTES, f"{path.name}: {size} bytes, at most {MAX_BYTES} are taken")
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"{path.name}: no JSON: {error}"[:200]) from None
    _require(isinstance(content, dict), f"{path.name}: not an object")
    if name:
        content |= {"durations": {}}  # of no use to a page, and its names are no plain texts
    _require_plain(content, path.name, _DEPTH)
    if name:
        _require_result(content, path.name, machine, commits)
    else:
        _require(content.get("machine") == machine, f"machine.json: is not of {machine}")
        _require(content.get("version") == 1, "machine.json: version 1 is taken")
        fields = [value for key, value in content.items() if key != "version"]
        _require(all(isinstance(value, str) for value in fields), "machine.json: only texts")
    return json.dumps(content, separators=(",", ":"))


def _require_result(content: dict, name: str, machine: str, commits: Mapping[str, int]) -> None:
    _require(content.keys() == _KEYS, f"{name}: the keys are not those of asv")
    _require(content["version"] == 2, f"{name}: version 2 is taken")
    commit, params, results = content["commit_hash"], content["params"], content["results"]
    _require(isinstance(commit, str) and commit in commits, f"{name}: no commit of this branch")
    _require(name.startswith(f"{commit[:8]}-"), f"{name}: of another commit")
    _require(type(content["date"]) is int, f"{name}: date is no whole number")
    _require(content["date"] == commits[commit], f"{name}: date is not the commit's")
    for key in ("python", "env_name"):
        _require(isinstance(content[key], str), f"{name}: {key} is no text")
    _require_texts(params, f"{name}: params")
    unknown = ", ".join(sorted(params.keys() - _PARAMS))
    _require(not unknown, f"{name}: params has unknown names: {unknown}")
    _require(params.get("machine") == machine, f"{name}: is not of {machine}")
    pythons = {content["python"], params.get("python", content["python"])}
    # The path of an interpreter would start a line of its own.
    same = len(pythons) == 1 and all(_VERSION.fullmatch(str(each)) for each in pythons)
    _require(same, f"{name}: python must be a version, got {pythons}")
    _require_texts(content["requirements"], f"{name}: requirements")
    _require(content["env_vars"] == {}, f"{name}: env_vars: asv.conf.json sets none")
    _require(content["result_columns"] == _COLUMNS, f"{name}: result_columns are not asv's")
    _require(isinstance(results, dict), f"{name}: results is no object")
    for metric, row in results.items():
        where = f"{name}: {metric[:60]}"
        _require(_METRIC.fullmatch(metric), f"{where}: not a benchmark's name")
        _require(isinstance(row, list) and 3 <= len(row) <= len(_COLUMNS), f"{where}: no row")
        _require_row(dict(zip_longest(_COLUMNS, row)), where)


def _require_texts(content, where: str) -> None:
    _require(isinstance(content, dict), f"{where} is no object")
    texts = (value is None or isinstance(value, str) for value in content.values())
    _require(all(texts), f"{where} are texts")


def _require_row(row: dict, where: str) -> None:
    params = row["params"]
    _require(isinstance(params, list), f"{where}: parameters are lists")
    lists = all(isinstance(axis, list) and axis for axis in params)
    _require(lists, f"{where}: parameters are lists of texts")
    _require(all(isinstance(text, str) for axis in params for text in axis), f"{where}: texts")
    _require(isinstance(row["version"], str), f"{where}: no version")
    for column, good in _OF_A_BENCHMARK.items():
        value = row[column]
        _require(value is None or good(value), f"{where}: {column} is not what asv writes")
    size = math.prod(map(len, params))
    for column, good in _OF_A_CELL.items():
        values = row[column]
        if values is None:  # of all cells
            continue
        each = isinstance(values, list) and len(values) == size
        _require(each, f"{where}: {column} has {size} values, each cell's")
        fine = all(value is None or good(value) for value in values)
        _require(fine, f"{where}: a value of {column} is no number, or out of range")
    ends = zip(row["stats_ci_99_a"] or [], row["stats_ci_99_b"] or [], strict=False)
    widths = (b - a for a, b in ends if a is not None and b is not None)
    _require(not any(0 < abs(width) < _NARROWEST for width in widths), f"{where}: no interval")


def _require_plain(value, where: str, depth: int) -> None:
    """No text that a page or a terminal could take for more than text, and no deep nesting."""
    _require(depth > 0, f"{where}: nested too deep")
    if isinstance(value, dict):
        _require(all(map(_TEXT.fullmatch, value)), f"{where}: a key has odd characters")
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in inner:
        _require_plain(item, where, depth - 1)
    if isinstance(value, str):
        _require(_TEXT.fullmatch(value), f"{where}: a text has odd characters")


def _require(condition, message: str) -> None:
    if not condition:
        raise RefusedError(message)
