"""Where asv begins to look for regressions."""


def begin_where_history_does(conf, repo) -> None:
    """Forget the commits of ``regressions_first_commits`` that a shallow clone does not have.

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
