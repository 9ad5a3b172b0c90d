"""Say what became slower since a baseline, and which commits did it: a terminal, an issue. Pure."""

from collections.abc import Iterator, Sequence

from .._verdict.creep import MARGINS, Creep, Rise, Search, cumulative, targets
from .._verdict.rules import Key
from .github_markdown import escaped, folded
from .markdown import markdown
from .states import sentence, states_of
from .text import axes_of, clip, count, label, percent

_ROWS = 10
_FASTER = 1.1  # sum of the shares above which it is no noise
_BODY_BYTES = 65_000  # GitHub takes 65,536 characters


def sentences(found: Creep, commits: Sequence[str]) -> list[str]:
    """What was found, for a terminal: the answer, then what each commit added."""
    judged = cumulative(found.comparison)
    lines = [f"{judged.answer.upper()} since the baseline: {sentence(judged, states_of(judged))}"]
    lines += [
        f"{_commits(rise, commits)}: {_effect(rise)} in {_label(rise.target)}, {_share(rise)}"
        for rise in Search(found, commits).rises()
    ]
    return [*lines, *_caveats(found, commits)]


def title(found: Creep, commits: Sequence[str]) -> str:
    """Of an issue on what failed, in one line; names the commit, if most is of one."""
    base, wanted = found.comparison.base.sha[:10], targets(found.comparison)
    slower = [each.effect for each in found.comparison.timings if each.key in wanted]
    what = f"up to {percent(max(slower), sign='')} slower" if slower else "worse"
    culprits, since = Search(found, commits).rises(), ""
    if culprits and culprits[0].share >= 0.5:
        since = f", most of it from {_commits(culprits[0], commits)}"
    elif culprits:
        since = f", by {count(len(culprits), 'change')} together"
    return f"main is {what} than {base}{since}"


def body(found: Creep, commits: Sequence[str], run_url: str) -> str:
    """The issue on what failed, in GitHub's Markdown, below GitHub's limit.

    Whatever the measuring side wrote is escaped; ``commits`` and ``run_url`` are trusted.
    """
    judged = cumulative(found.comparison)
    base, head = found.comparison.base.sha, found.comparison.head.sha
    said = sentence(judged, states_of(judged))
    margin = f"{100 * MARGINS['gpu']:g} %"
    blocks = [
        f"Main at {head}, compared with the baseline {base}: "
        f"**{escaped(clip(said[0].upper() + said[1:], 1000))}**",
        *_table(found, commits),
        *_caveats(found, commits),
        f"Each of the changes may have passed on its own: together they must stay within {margin} "
        'on the GPU. Fix it, or accept it: "The nightly comparison" in CONTRIBUTING says how. This '
        "text is brought up to date every night, and the issue is closed when main is as fast "
        "again or the baseline moves.",
        folded("The report", markdown(judged, run_url.rpartition("/actions/")[0])),
        f"[Log of the run]({run_url})",
    ]
    text = "\n\n".join(blocks) + "\n"
    if len(text.encode()) > _BODY_BYTES:
        raise ValueError(f"an issue has at most {_BODY_BYTES} bytes, got {len(text.encode())}")
    return text


def _table(found: Creep, commits: Sequence[str]) -> Iterator[str]:
    rises = Search(found, commits).rises()
    if rises:
        lines = ["| change | share of the slowdown | most in | by |", "|:--|--:|:--|--:|"]
        lines += [
            f"| {_commits(rise, commits)} | {_share(rise)} | {escaped(_label(rise.target))} | "
            f"{_effect(rise)} |"
            for rise in rises[:_ROWS]
        ]
        yield "\n".join(lines)
    if len(rises) > _ROWS:
        yield f"and {len(rises) - _ROWS} more"


def _caveats(found: Creep, commits: Sequence[str]) -> Iterator[str]:
    """What the search leaves open."""
    search, wanted = Search(found, commits), targets(found.comparison)
    if found.comparison.wrong:
        yield "Which commit made an output wrong was not searched for."
    if sum(rise.share for rise in search.rises()) > _FASTER:
        yield "The shares exceed 100 % in all: other commits made it faster."
    if wanted and len(commits) > 1:
        yield (
            f"The shares are means over {count(len(wanted), 'measurement')}, by "
            f"{count(len(found.steps), 'comparison')} of commits between."
        )
    skipped = [step.commit for step in found.steps if search.skipped(step)]
    if skipped:
        yield f"Skipped, as they could not be compared surely enough: {_listed(skipped)}."
    if search.next_commit() is not None:
        yield "The time was up before every change was found."


def _listed(commits: Sequence[str]) -> str:
    more = f" and {len(commits) - 10} more" if len(commits) > 10 else ""
    return ", ".join(commit[:10] for commit in commits[:10]) + more


def _commits(rise: Rise, commits: Sequence[str]) -> str:
    last = commits[rise.last][:10]
    if rise.first == rise.last:
        return last
    size, first = rise.last - rise.first + 1, commits[rise.first][:10]
    return f"one or more of the {size} commits {first} to {last}"


def _share(rise: Rise) -> str:
    return f"{100 * rise.share:.0f} %"


def _effect(rise: Rise) -> str:
    return "worse" if rise.effect is None else percent(rise.effect)


def _label(subject: Key) -> str:
    return label(axes_of(subject))
