"""What a comparison measured, in asv's results format, for ``asv compare`` and ``asv publish``.

The values go under an environment of their own, so that samples pooled over fresh processes never
mix with, or replace, those of ``asv run``. asv's own classes read, write and make the statistics.
"""

import itertools
import json
import math
import os
import platform
import re
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from .._system.files import write_atomically
from .._system.repository import git
from .._verdict.rules import Subject

SAMPLING = "compare"
"""Value of asv's parameter "sampling", which gives these results a line of their own."""

_REDISCOVER = "run: asv run --bench just-discover -E existing:python3"
_LEFT_ALONE = "it was left alone: move it away to store these results"

# What values depend on: with another one of these, they go into another file.
_SOFTWARE = ("torch", "triton", "driver")


class StoreError(RuntimeError):
    """Results that do not fit what asv has; nothing was written."""


def store(
    results: str | os.PathLike,
    repository: str | os.PathLike,
    machine: Mapping[str, str],
    commit: str,
    samples: Mapping[Subject, Sequence[float]],
    exact: Mapping[Subject, float] | None = None,
) -> Path:
    """Add one commit's values to asv's results, in place of older ones of the same subjects.

    Parameters
    ----------
    results : path
        asv's results directory; its benchmarks.json says which benchmarks there are.
    repository : path
        A clone that has the commit.
    machine : mapping
        asv's machine record, with torch and triton.
    commit : str
        The full hash.
    samples : mapping of subject -> sequence of float
        One value a fresh process, in the benchmark's unit.
    exact : mapping of subject -> float
        Values without a spread.

    Returns
    -------
    Path of the file, ``<machine>/<commit8>-compare-py...json``.

    Raises
    ------
    StoreError
        If a subject is not in benchmarks.json, a value is not finite, the commit is unknown, or the
        file that is there is damaged or of something else.
    """
    from asv.results import Results, get_filename

    results, exact = Path(results), exact or {}
    columns = _columns(_discovered(results), samples, exact)
    python, environment = _environment(machine)
    params = {key: value for key, value in machine.items() if key != "version"}
    params |= {"python": python, "sampling": SAMPLING}
    date = _date(Path(repository), commit)
    record = Results(params, {}, commit, date, python, environment, {})
    name = get_filename(params["machine"], commit, environment)
    path = results / name
    if path.exists():
        _check_same(path, (params["machine"], commit, environment))
        record.load_data(str(results))
    for benchmark, values in columns:
        _add(record, benchmark, values, path)
    with tempfile.TemporaryDirectory() as scratch:
        record.save(scratch)
        written = Path(scratch, name).read_bytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    _describe_machine(path.parent / "machine.json", machine)
    write_atomically(path, written)
    return path


def _columns(benchmarks: dict, samples: Mapping, exact: Mapping) -> list[tuple[dict, dict]]:
    """(asv's benchmark, its texts of the parameters -> samples or value), checked."""
    values = {subject: list(pooled) for subject, pooled in samples.items()}
    both = sorted(tuple(subject) for subject in values.keys() & exact.keys())
    if both:
        raise StoreError(f"samples and an exact value were given for {both[0]}")
    columns: dict[str, dict[tuple[str, ...], list[float] | float]] = defaultdict(dict)
    for (metric, params), value in {**values, **exact}.items():
        numbers = value if isinstance(value, list) else [value]
        if not numbers or not all(_is_finite(number) for number in numbers):
            raise StoreError(f"{metric} {params}: finite numbers are needed, got {value}")
        if metric not in benchmarks:
            raise StoreError(f"benchmarks.json knows no {metric}; {_REDISCOVER}")
        columns[metric][_asv_texts(benchmarks[metric], params)] = value
    return [(benchmarks[metric], values) for metric, values in columns.items()]


def _is_finite(number) -> bool:
    return isinstance(number, (int, float)) and math.isfinite(number)


def _asv_texts(benchmark: dict, params: Sequence[str]) -> tuple[str, ...]:
    """Parameters as asv writes them: repr, so that texts have quotes."""
    if len(params) != len(benchmark["params"]):
        expected = ", ".join(benchmark["param_names"])
        raise StoreError(f"{benchmark['name']} takes ({expected}), got {tuple(params)}")
    texts = []
    for name, known, value in zip(
        benchmark["param_names"], benchmark["params"], params, strict=True
    ):
        found = [text for text in known if value in (text, text.strip("'"))]
        if not found:
            raise StoreError(
                f"{benchmark['name']} has no {name} {value!r} in benchmarks.json, which has "
                f"{', '.join(known)}; {_REDISCOVER}"
            )
        texts.append(found[0])
    return tuple(texts)


def _add(record, benchmark: dict, values: dict, path: Path) -> None:
    """Let asv add a benchmark's values, over the smallest grid that holds old and new ones."""
    from asv.runner import BenchmarkResult

    values = _stored(record, benchmark, path) | values
    used = [{key[axis] for key in values} for axis in range(len(benchmark["params"]))]
    params = [
        [text for text in known if text in texts]
        + sorted(texts - set(known))  # measured before benchmarks.json lost them
        for known, texts in zip(benchmark["params"], used, strict=True)
    ]
    # NaN, which asv shows as n/a: None would be a failure.
    cells = [values.get(key, math.nan) for key in itertools.product(*params)]
    pooled = [cell if isinstance(cell, list) else None for cell in cells]
    result = BenchmarkResult(
        result=[statistics.median(cell) if isinstance(cell, list) else cell for cell in cells],
        samples=pooled,
        number=[None if samples is None else 1 for samples in pooled],
        errcode=0,
        stderr="",
        profile=None,
    )
    record.add_result(benchmark | {"params": params}, result, record_samples=True)


def _stored(record, benchmark: dict, path: Path) -> dict:
    """What is stored of a benchmark: key -> samples or value; nothing of another version."""
    name = benchmark["name"]
    if name not in record.get_all_result_keys():
        return {}
    if record.benchmark_version.get(name) != benchmark["version"]:
        return {}
    params = record.get_result_params(name)
    keys = list(itertools.product(*params))
    lengths = {len(column) for column in (record._results[name], record._samples[name]) if column}
    if len(params) != len(benchmark["params"]) or not lengths <= {len(keys)}:
        raise StoreError(f"{path}: the values of {name} do not fit its parameters; {_LEFT_ALONE}")
    values = record.get_result_value(name, params)
    samples = record.get_result_samples(name, params)
    stored = {key: v if s is None else s for key, v, s in zip(keys, values, samples, strict=True)}
    return {
        key: value
        for key, value in stored.items()
        if isinstance(value, list) or (value is not None and value == value)
    }


def _discovered(results: Path) -> dict[str, dict]:
    from asv import util
    from asv.benchmarks import Benchmarks

    path = Benchmarks.get_benchmark_file_path(str(results))
    try:
        benchmarks = util.load_json(path, api_version=Benchmarks.api_version)
    except (util.UserError, OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path} cannot be read: {error}; {_REDISCOVER}") from error
    return {name: entry for name, entry in benchmarks.items() if isinstance(entry, dict)}


def _environment(machine: Mapping[str, str]) -> tuple[str, str]:
    """(Python's version, the name of the environment)."""
    missing = {"machine", "torch", "triton"} - set(machine)
    if missing:
        raise StoreError(f"the machine record lacks {', '.join(sorted(missing))}: {dict(machine)}")
    if not re.fullmatch(r"[\w.-]*\w[\w.-]*", machine["machine"]):
        raise StoreError(f"the machine's name must be a directory's, got {machine['machine']!r}")
    python = ".".join(platform.python_version_tuple()[:2])
    versions = [f"{name}{machine[name]}" for name in _SOFTWARE if name in machine]
    return python, re.sub(r"[^\w.+-]", "_", "-".join([f"compare-py{python}", *versions]))


def _date(repository: Path, commit: str) -> int:
    """Milliseconds, of the author's date: the one that ``asv run`` stores."""
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise StoreError(f"results are filed under a commit's full hash, got {commit!r}")
    date = git(repository, "show", "-s", "--format=%at", f"{commit}^{{commit}}")
    if date is None:
        raise StoreError(f"{repository} has no commit {commit}")
    return int(date) * 1000


def _check_same(path: Path, expected: tuple[str, str, str]) -> None:
    """Raise StoreError unless the file is of this machine, commit and environment."""
    from asv.results import Results
    from asv.util import UserError

    try:
        old = Results.load(str(path))
        found = (old.params.get("machine"), old.commit_hash, old.env_name)
    except (UserError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"{path} cannot be read: {error}; {_LEFT_ALONE}") from error
    if found != expected:
        raise StoreError(f"{path} holds {found}, not {expected}; {_LEFT_ALONE}")


def _describe_machine(path: Path, machine: Mapping[str, str]) -> None:
    """Write the record without which asv passes a machine's results over, unless it is there."""
    from asv.machine import Machine

    if not path.exists():
        record = dict(machine) | {"version": Machine.api_version}
        write_atomically(path, json.dumps(record, indent=4, sort_keys=True).encode())
