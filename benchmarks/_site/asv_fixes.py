"""Work around faults of asv: results cut off or lost, unstable names, errors in a history."""

import contextlib
import functools
import hashlib
import itertools
import json
import math
import shutil
from pathlib import Path

from .._engine.system import gpu_monitor, machine
from .._engine.system.errors import CouldNotRunError
from .._engine.system.files import write_atomically
from .._engine.system.progress import missing

_VERSION = "import sys; print('{}.{}'.format(*sys.version_info))"
_TOOLCHAIN = """
from importlib import metadata
for name in ("torch", "triton"):
    try:
        print(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        pass
"""


SHIPPED = Path("benchmarks") / "results"
RESULTS = Path(".asv") / "results"
"""``results_dir`` of ``asv.conf.json``."""


_COPIED = Path(".asv") / "copied.json"
"""The digest of each file that :func:`fill_results` copied."""


def fill_results(root: Path) -> None:
    """Copy what ships, or was restored, to where asv works, but over no measurement made here.

    asv writes new results beside those that it shows, and rewrites the files that describe the
    machine and the benchmarks: a run would change files of the repository. These two are copied
    when they are newer.
    """
    noted = root / _COPIED
    before = json.loads(noted.read_bytes()) if noted.exists() else {}
    copied = dict(before)
    for path in (root / SHIPPED).rglob("*.json"):
        name = str(path.relative_to(root / SHIPPED))
        copy, there = root / RESULTS / name, _digest(path)
        if copy.exists():
            described = path.name in ("machine.json", "benchmarks.json")
            newer = copy.stat().st_mtime < path.stat().st_mtime
            if not (newer if described else _digest(copy) == before.get(name) != there):
                continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(copy, path.read_bytes())
        shutil.copystat(path, copy)
        copied[name] = there
    if copied != before:
        write_atomically(noted, json.dumps(copied, indent=1).encode())


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@functools.cache
def keep_results() -> None:
    """Let asv write files atomically, and leave damaged results out.

    asv truncates a result before it writes it anew, and a kill or a full disk then loses all that
    it held. Of a damaged one, or with an infinite value, ``asv publish`` would end, or never end.
    """
    from asv import util
    from asv.results import Results

    def write_json(path, data, api_version=None, compact=False):
        path, version = Path(path), {} if api_version is None else {"version": api_version}
        indent, data = None if compact else 4, data | version if version else data
        text = json.dumps(data, indent=indent, sort_keys=not compact)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Not on the disk at once: asv writes thousands of graphs.
            write_atomically(path, text.encode(), durable=False)
        except OSError as error:
            raise util.UserError(f"{path} cannot be written: {error.strerror}") from None

    util.write_json, load = write_json, Results.load.__func__

    def load_complete(cls, /, path, machine_name=None):
        try:
            results = load(cls, path, machine_name)
            values = itertools.chain.from_iterable(filter(None, results._results.values()))
            if math.inf in map(abs, filter(None, values)):
                raise ValueError("a value is infinite")
            return results
        except (ValueError, TypeError, AttributeError, OSError) as error:
            raise util.UserError(
                f"{path} is left out, as it is damaged ({error}): delete it, and measure it again"
            ) from None

    Results.load = classmethod(load_complete)


@functools.cache
def name_this_machine() -> None:
    """Let asv file results under this machine's GPU where no ``--machine`` is given.

    asv takes the only entry of ``~/.asv-machine.json``, whatever it is, and the host's name where
    there are several.
    """
    from asv.machine import Machine
    from asv.util import UserError

    @functools.cache
    def name() -> str:
        try:
            record = machine.asv_record()
        except (CouldNotRunError, ModuleNotFoundError) as error:
            raise UserError(missing(error) or str(error)) from None
        machine.save_record(record)
        return record["machine"]

    Machine.get_unique_machine_name = staticmethod(name)


@functools.cache
def refuse_to_find_nothing() -> None:
    """Let ``asv find`` end where nothing is measured: it would name a commit all the same.

    What is n/a is to asv a value that is as large as any other.
    """
    from asv.commands import find
    from asv.util import UserError

    measure, measured = find.run_benchmarks, list[float]()

    def measure_or_refuse(benchmarks, env, results, **options):
        if env.tool_name == "existing":
            raise UserError(
                "an existing environment has one version of the package, whatever the commit: "
                "nothing can be found by it"
            )
        done = measure(benchmarks, env, results=results, **options)
        (name,) = benchmarks
        values = [
            None if value is None or value != value else value
            for value in done.get_result_value(name, benchmarks[name]["params"])
        ]
        measured.extend(value for value in values if value is not None)
        if not measured:
            raise UserError(
                f"no value of {name} at {done.commit_hash[:8]}, all failed or are n/a: begin at a "
                "commit that has it, on a machine that can measure it"
            )
        done.get_result_value = lambda *_: values
        return done

    find.run_benchmarks = measure_or_refuse


@functools.cache
def name_interpreters_by_version() -> None:
    """Let results of ``asv run -E existing:PATH`` be named by the versions of what they ran on.

    asv names them by the interpreter's path, and would draw a line for every path. Torch, Triton
    and which GPU it is are in the name, so that a commit measured again by others does not replace
    what is stored.
    """
    from asv.environment import ExistingEnvironment, get_env_name
    from asv.util import check_output

    @functools.cache
    def python(self) -> str:
        return check_output([self._executable, "-c", _VERSION]).strip()

    @functools.cache
    def name(self) -> str:
        lines = check_output([self._executable, "-c", _TOOLCHAIN]).splitlines()
        toolchain = dict(line.split() for line in lines)
        with contextlib.suppress(CouldNotRunError):  # no GPU
            toolchain["gpu"] = machine.gpu_id(gpu_monitor.gpu_uuid())
        return get_env_name(self.tool_name, self.python, toolchain, self._tagged_env_vars)

    ExistingEnvironment.python, ExistingEnvironment.name = property(python), property(name)


def ask_git_once(repo) -> None:
    """Keep which commits lie between two: asv asks at thousands of steps, a minute for 3,500."""
    repo.get_hashes_from_range = functools.cache(repo.get_hashes_from_range)


def forget_missing_commits(conf, repo) -> None:
    """Drop commits of ``regressions_first_commits`` that a shallow clone does not have.

    asv would end with an error. Nothing that is left is of before such a commit.
    """
    from asv.console import log
    from asv.repo import NoSuchNameError

    for pattern, commit in list(conf.regressions_first_commits.items()):
        if commit is None:  # no regressions at all
            continue
        try:
            repo.get_hash_from_name(commit)
        except NoSuchNameError:
            log.warning(
                f"{commit}, after which regressions of {pattern} count, is not in this clone"
            )
            del conf.regressions_first_commits[pattern]


def write_empty_summaries(site: Path, benchmarks, graphs) -> None:
    """Write an empty graph where asv writes none, though its front page asks for every one."""
    directory = site / "graphs" / "summary"
    directory.mkdir(parents=True, exist_ok=True)
    for name in benchmarks:
        if not graphs.get_graph_group(name):
            (directory / f"{name}.json").write_text("[]", encoding="utf-8")
