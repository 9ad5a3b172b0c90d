"""asv plugin: results that git ignores, under stable names, an overview, no external requests.

asv finds a plugin's pages among the subclasses of its own class. The subclass is made only when
asv calls :func:`setup`: an environment that measures has no asv, and discovery imports this too.
"""

publishers: list[type] = []
"""What :func:`setup` made: asv finds a subclass only while something refers to it."""


def setup() -> None:
    """Called by asv when it loads the plugin."""
    from pathlib import Path

    from asv.publishing import OutputPublisher

    from . import asv_fixes, asv_pages, overview, page, peers_page

    asv_fixes.fill_results(Path.cwd())  # asv has gone to its asv.conf.json
    asv_fixes.name_interpreters_by_version()
    asv_fixes.name_this_machine()
    asv_fixes.keep_results()
    asv_fixes.refuse_to_find_nothing()

    class Overview(OutputPublisher):
        name = "overview"
        button_label = "Overview"
        description = "Is main slower; bandwidth, other libraries, machine code, last changes"
        order = -1  # before asv's own, which are handed the same repo

        @classmethod
        def publish(cls, conf, repo, benchmarks, graphs, revisions):
            asv_fixes.ask_git_once(repo)
            asv_fixes.forget_missing_commits(conf, repo)
            data = overview.overview(conf, repo, benchmarks, graphs, revisions)
            data["peers"] = peers_page.peers(peers_page.EVIDENCE)
            site = Path(conf.html_dir)
            asv_pages.adapt(site, benchmarks, graphs)
            page.write(site, conf.project, data)
            asv_fixes.write_empty_summaries(site, benchmarks, graphs)

    publishers.append(Overview)
