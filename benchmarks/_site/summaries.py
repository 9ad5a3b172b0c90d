"""The small graphs of asv's front page, for benchmarks that nobody has measured yet."""

from pathlib import Path


def blank(site: Path, benchmarks, graphs) -> None:
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
