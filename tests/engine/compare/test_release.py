"""``python -m benchmarks release`` on histories of versions, see ``lab``."""

import json

import pytest

from benchmarks._engine.compare import command
from benchmarks._engine.compare import release_search as release_command
from benchmarks._engine.system import baseline
from benchmarks._engine.verdict import release
from tests import toy
from tests.lab import (
    CELLS,
    CHECKS,
    COULD_NOT_RUN,
    FAIL,
    HOST,
    LAUNCHES,
    PASS,
    SMALL,
    Killed,
    both,
    status_of,
)

ALL = CHECKS + 2 * command.ROUNDS  # processes of a comparison that needs no second look


@pytest.fixture
def history(lab):
    """Makes a commit for each behaviour, then one of the file that names the first; their SHAs."""

    def make(*behaviours):
        shas = [
            lab.commit(f"c{i}", **{"is": i} | behaviour) for i, behaviour in enumerate(behaviours)
        ]
        (lab.root / "benchmarks").mkdir()
        named = {"commit": shas[0], "reason": "the first"}
        (lab.root / baseline.FILE).write_text(json.dumps(named))
        lab.git("add", "benchmarks")
        lab.git("commit", "-q", "-m", "a baseline")
        return shas

    return make


def slower(share, cell=SMALL):
    return {"slower": {cell: 1 + share}}


def searched(lab, *options):
    """The status, and what was found."""
    status = status_of(["release", "--json", str(lab.report), *options])
    return status, release.from_json(json.loads(lab.report.read_text()))


def culprits(results, shas):
    """What made HEAD slower: (first commit, last commit), by index among all commits."""
    return [
        (culprit.first + 1, culprit.last + 1)
        for culprit in release.Search(results, shas[1:]).culprits()
    ]


def test_nothing_is_searched_where_nothing_is_slower(lab, history, capsys):
    history(*[{}] * 12)
    status, results = searched(lab)
    assert status == PASS and not results.steps and lab.gpu.answered == ALL
    output = capsys.readouterr()
    assert "PASS since the release: " in output.out
    assert "11 commits changed the package since" in output.err and "searching" not in output.err


def test_a_step_is_found_by_halving(lab, history, capsys):
    shas = history(*[{}] * 6, *[slower(0.02)] * 11)
    status, results = searched(lab)
    assert status == FAIL and len(results.steps) == 4
    assert culprits(results, shas) == [(6, 6)]
    assert {*release.targets(results.comparison)} == {*both(SMALL)}
    # On what failed alone, and not on the host.
    jobs = [job for _, job in lab.gpu.jobs[ALL:]]
    assert len(jobs) == 4 * ALL
    assert {json.dumps(job["cells"]) for job in jobs} == {json.dumps([["toy", SMALL.split()]])}
    assert not any(job["starts"] for job in jobs if job["task"] == "measure")
    assert len(lab.gpu.clocked) == command.ROUNDS
    output = capsys.readouterr()
    assert "searching 16 commits on 2 of what failed: 4 comparisons if one commit did" in output.err
    assert f"{shas[6][:10]}: +" in output.out


@pytest.mark.parametrize(
    "fault",
    [{"wrong": [" ".join(cell.params) for cell in CELLS]}, {"cannot": [SMALL]}],
    ids=["wrong", "cannot be measured"],
)
def test_what_cannot_be_compared_is_skipped_and_the_answer_is_a_range(lab, history, fault, capsys):
    good, bad = [{}] * 4, [slower(0.02)] * 4
    shas = history(*good, *[{**slower(0.02), **fault}] * 2, *bad)
    _, results = searched(lab)
    assert culprits(results, shas) == [(4, 6)]
    output = capsys.readouterr()
    for sha in shas[4:6]:
        assert f"{sha[:10]} is skipped" in output.err
    assert f"one or more of the 3 commits {shas[4][:10]} to {shas[6][:10]}: +" in output.out


def test_an_exact_value_and_a_call_on_the_host_have_their_culprits(lab, history):
    calls = {"slower": {HOST[0]: 1.3}}
    shas = history(*[{}] * 3, *[calls] * 4, *[calls | {"launches": 2}] * 3)
    status, results = searched(lab)
    assert status == FAIL and LAUNCHES in release.targets(results.comparison)
    assert {*culprits(results, shas)} == {(3, 3), (7, 7)}
    assert not [job for _, job in lab.gpu.jobs[ALL:] if job["task"] == "measure"]
    called = [[HOST[0], [dtype]] for dtype in sorted(toy.DTYPES)]
    assert all(job["calls"] == called for job in lab.gpu.clocked[command.ROUNDS :])


def test_a_search_that_was_killed_goes_on(lab, history):
    shas = history(*[{}] * 6, *[slower(0.02)] * 11)

    def kill(number):
        if number == 2 * ALL + 5:
            raise Killed

    lab.gpu.before = kill
    with pytest.raises(Killed):
        searched(lab)
    lab.gpu.before = lambda number: None
    _, results = searched(lab)
    assert culprits(results, shas) == [(6, 6)]
    assert lab.gpu.answered == 5 * ALL


def test_time_that_is_up_leaves_ranges(lab, history, capsys):
    shas = history(*[{}] * 6, *[slower(0.02)] * 11)
    clock = release_command.time.monotonic

    class Time:
        @staticmethod
        def monotonic():  # after two comparisons of the search an hour is over
            return clock() + 3600 * (lab.gpu.answered >= 3 * ALL)

    lab.patch.setattr(release_command, "time", Time)
    _, results = searched(lab, "--budget", "30")
    assert culprits(results, shas) == [(5, 8)] and len(results.steps) == 2
    output = capsys.readouterr()
    assert "after 2 commits: the same command goes on from there" in output.err
    assert "The time was up before the search ended." in output.out


def test_without_a_baseline_it_could_not_run(lab, capsys):
    lab.commit("c0")
    assert status_of(["release"]) == COULD_NOT_RUN
    assert "has neither a release, such as v1.0.0, nor" in capsys.readouterr().err
    assert status_of(["release", "--budget", "0"]) == COULD_NOT_RUN


def test_the_package_of_the_baseline_is_not_measured(lab, history):
    history({})
    status, results = searched(lab)
    assert status == PASS and results.comparison.same_sources and lab.gpu.answered == 0
