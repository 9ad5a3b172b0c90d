"""Results that another job measured -> asv's results, after a look at everything in them.

That job ran code of the main branch, on a machine that may be broken or broken into. What it sends
can show wrong figures; it cannot name a file, run, or reach the results of another machine.
"""

import json
import re
from pathlib import Path

from .branch import git, lost

MAX_FILES, MAX_BYTES = 100, 4_000_000
_NAME = re.compile(r"([0-9a-f]{8})-[A-Za-z0-9._+-]{1,180}\.json")
_MACHINE = re.compile(r"[a-z0-9][a-z0-9_-]{0,60}")
_METRIC = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+){1,3}")
_TEXT = re.compile(r"[\w .,:;+*/@()'=~-]{0,200}", re.ASCII)
_KEYS = {
    *("commit_hash", "env_name", "date", "params", "python", "requirements", "env_vars"),
    *("result_columns", "results", "durations", "version"),
}
_DEPTH = 8  # results -> metric -> column -> cell -> samples, with some to spare


class RefusedError(ValueError):
    """What came is not what asv writes; the message says where."""


def commits_of(root: Path) -> set[str]:
    """Full hashes of HEAD's history."""
    return set(git(root, "rev-list", "HEAD").split())


def accept(incoming: Path, machine: str, results: Path, commits: set[str]) -> list[str]:
    """Check one machine's results, and add them to asv's only if all are good.

    Parameters
    ----------
    incoming : path
        A directory of asv's result files and the machine.json, without others.
    machine : str
        The machine it should be of.
    results : path
        asv's results directory.
    commits : set of str
        The commits that may have results.

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


def _checked(path: Path, machine: str, commits: set[str]) -> str:
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


def _require_result(content: dict, name: str, machine: str, commits: set[str]) -> None:
    _require(content.keys() == _KEYS, f"{name}: the keys are not those of asv")
    _require(content["version"] == 2, f"{name}: version 2 is taken")
    commit, params, results = content["commit_hash"], content["params"], content["results"]
    _require(isinstance(commit, str) and commit in commits, f"{name}: no commit of this branch")
    _require(name.startswith(f"{commit[:8]}-"), f"{name}: of another commit")
    _require(isinstance(params, dict), f"{name}: params is no object")
    _require(params.get("machine") == machine, f"{name}: is not of {machine}")
    texts = (value is None or isinstance(value, str) for value in params.values())
    _require(all(texts), f"{name}: params are texts")
    _require(type(content["date"]) is int, f"{name}: date is no whole number")
    columns = content["result_columns"]
    _require(isinstance(columns, list) and columns[:1] == ["result"], f"{name}: result_columns")
    _require(isinstance(results, dict), f"{name}: results is no object")
    for metric, row in results.items():
        where = f"{name}: {metric[:60]}"
        _require(_METRIC.fullmatch(metric), f"{where}: not a benchmark's name")
        _require(isinstance(row, list) and 2 <= len(row) <= len(columns), f"{where}: no row")
        _require_values(row, where)


def _require_values(row: list, where: str) -> None:
    values, params = row[:2]
    _require(isinstance(params, list), f"{where}: parameters are lists")
    lists = all(isinstance(axis, list) and axis for axis in params)
    _require(lists, f"{where}: parameters are lists of texts")
    _require(all(isinstance(text, str) for axis in params for text in axis), f"{where}: texts")
    if values is None:  # the whole benchmark failed
        return
    size = 1
    for axis in params:
        size *= len(axis)
    _require(isinstance(values, list) and len(values) == size, f"{where}: {size} values, each cell")
    numbers = all(value is None or type(value) in (int, float) for value in values)
    _require(numbers, f"{where}: a value is no number")
    # NaN is asv's n/a; an infinity or a negative figure is nobody's.
    bounds = all(value is None or value != value or 0 <= value < 1e15 for value in values)
    _require(bounds, f"{where}: a value is out of range")


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
