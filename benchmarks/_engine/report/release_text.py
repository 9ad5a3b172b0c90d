"""Say what became slower since a release, and which commits did it: a terminal, an issue. Pure."""

from collections.abc import Iterator, Sequence

from ..verdict.release import Culprit, Search, SinceRelease, cumulative, targets
from ..verdict.rules import RULES
from .github_markdown import escaped, folded
from .markdown import markdown
from .states import sentence, states_of
from .text import clip, count, label, percent

_ROWS = 10


def sentences(results: SinceRelease, commits: Sequence[str]) -> list[str]:
    """The result for a terminal: the answer, then what each commit added."""
    judged = cumulative(results.comparison)
    lines = [f"{judged.answer.upper()} since the release: {sentence(judged, states_of(judged))}"]
    lines += [
        f"{_commits(culprit, commits)}: {_effect(culprit)} in {label(culprit.key)}"
        for culprit in Search(results, commits).culprits()
    ]
    return [*lines, *_caveats(results, commits)]


def title(results: SinceRelease, commits: Sequence[str]) -> str:
    """Of an issue on what failed, in one line; names the commit if it is one."""
    base, keys = results.comparison.base.sha[:10], targets(results.comparison)
    slower = [timing.effect for timing in results.comparison.timings if timing.key in keys]
    what = f"up to {percent(max(slower), sign='')} slower" if slower else "worse"
    culprits = Search(results, commits).culprits()
    since = f", due to {count(len(culprits), 'change')}" if culprits else ""
    if len(culprits) == 1:
        since = f", due to {_commits(culprits[0], commits)}"
    return f"main is {what} than {base}{since}"


def body(results: SinceRelease, commits: Sequence[str], run_url: str) -> str:
    """The issue on what failed, in GitHub's Markdown, below its limit of 65,536 characters.

    Whatever the measuring side wrote is escaped; ``commits`` and ``run_url`` are trusted.
    """
    judged = cumulative(results.comparison)
    base, head = results.comparison.base.sha, results.comparison.head.sha
    reasons = sentence(judged, states_of(judged))
    blocks = [
        f"Main at {head}, compared with the release or baseline {base}: "
        f"**{escaped(clip(reasons[0].upper() + reasons[1:], 1000))}**",
        *_table(results, commits),
        *_caveats(results, commits),
        "Each of the changes may have passed on its own. Together they must stay within "
        f"{100 * RULES['gpu'].margin:g} % on the GPU. Fix it, or accept it: "
        '"The nightly comparison" in CONTRIBUTING says how. This text is updated every night. The '
        "issue is closed when main is as fast again, or when the baseline moves.",
        folded("The report", markdown(judged, run_url.rpartition("/actions/")[0])),
        f"[Log of the run]({run_url})",
    ]
    return "\n\n".join(blocks) + "\n"


def _table(results: SinceRelease, commits: Sequence[str]) -> Iterator[str]:
    culprits = Search(results, commits).culprits()
    if culprits:
        lines = ["| change | slower in | by |", "|:--|:--|--:|"]
        lines += [
            f"| {_commits(culprit, commits)} | {escaped(label(culprit.key))} | {_effect(culprit)} |"
            for culprit in culprits[:_ROWS]
        ]
        yield "\n".join(lines)
    if len(culprits) > _ROWS:
        yield f"and {len(culprits) - _ROWS} more"


def _caveats(results: SinceRelease, commits: Sequence[str]) -> Iterator[str]:
    """What the search leaves open."""
    search = Search(results, commits)
    if results.comparison.wrong:
        yield "Which commit made an output wrong was not searched for."
    skipped = [step.commit for step in results.steps if search.skipped(step)]
    if skipped:
        more = f" and {len(skipped) - 10} more" if len(skipped) > 10 else ""
        names = ", ".join(commit[:10] for commit in skipped[:10])
        yield f"Skipped, as they could not be compared or were too noisy: {names}{more}."
    if search.next_commit() is not None:
        yield "The time was up before the search ended."


def _commits(culprit: Culprit, commits: Sequence[str]) -> str:
    last = commits[culprit.last][:10]
    if culprit.first == culprit.last:
        return last
    size, first = culprit.last - culprit.first + 1, commits[culprit.first][:10]
    return f"one or more of the {size} commits {first} to {last}"


def _effect(culprit: Culprit) -> str:
    return "worse" if culprit.effect is None else percent(culprit.effect)
