"""Work around asv: where results lie, stable names for them, and a history without a fault."""

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

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


def fill_results(root: Path) -> None:
    """Copy what ships, or was restored, to where asv works, but over nothing that is newer.

    asv writes new results beside those that it shows, and rewrites the files that describe the
    machine and the benchmarks: a run would change files of the repository.
    """
    for path in (root / SHIPPED).rglob("*.json"):
        copy = root / RESULTS / path.relative_to(root / SHIPPED)
        if not copy.exists() or copy.stat().st_mtime < path.stat().st_mtime:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)


def name_interpreters_by_version() -> None:
    """Let results of ``asv run -E existing:PATH`` be named by the versions of what they ran on.

    asv names them by the interpreter's path, and would draw a line for each path. Torch and Triton
    are in the name, so that a commit measured again by others does not replace what is stored.
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
        return get_env_name(self.tool_name, self.python, toolchain, self._tagged_env_vars)

    ExistingEnvironment.python, ExistingEnvironment.name = property(python), property(name)


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
    """Write an empty graph where asv writes none, though its front page asks for every one.

    Parameters
    ----------
    site : path
        What ``asv publish`` is writing.
    benchmarks, graphs
        As asv hands them to ``OutputPublisher.publish``.
    """
    directory = site / "graphs" / "summary"
    directory.mkdir(parents=True, exist_ok=True)
    for name in benchmarks:
        if not graphs.get_graph_group(name):
            (directory / f"{name}.json").write_text("[]")


def first_revisions(
    conf, repo, revisions: dict[str, int], branch: str
) -> Callable[[str], int | None]:
    """How ``regressions_first_commits`` is read: a timing's name -> the first revision that counts.

    None where no slowdown does. asv has this in what finds its own regressions, and nowhere else.
    """
    from asv.plugins.regressions import _GraphDataFilter

    filtered, graph = (
        _GraphDataFilter(conf, repo, revisions),
        SimpleNamespace(params={"branch": branch}),
    )
    return lambda name: filtered._get_start_revision(graph, None, name)
