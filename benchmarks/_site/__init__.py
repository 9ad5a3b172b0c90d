"""asv plugin: ``asv publish`` also writes ``overview.html``, which asv's own pages link to.

asv takes a plugin's pages from the subclasses of a class of its own. The class is made only when
asv calls :func:`setup`: an environment that measures has no asv, and discovery imports this too.
"""

publishers: list[type] = []
"""What :func:`setup` made: asv finds a subclass only while something refers to it."""


def setup() -> None:
    """Called by asv when it loads the plugin."""
    from asv.publishing import OutputPublisher

    from . import overview, page

    class Overview(OutputPublisher):
        name = "overview"
        button_label = "Overview"
        description = "Bandwidth, distance from a copy, machine code and the last changes"
        order = 3  # after asv's own three

        @classmethod
        def publish(cls, conf, repo, benchmarks, graphs, revisions):
            data = overview.overview(conf, repo, benchmarks, graphs, revisions)
            page.write(conf.html_dir, conf.project, data)

    publishers.append(Overview)
