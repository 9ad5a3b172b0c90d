"""The data of the overview: from asv's graphs, the sweep that ships, and the nightly comparison."""

import json
import math
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from asv.graph import Graph, GraphSet

from benchmarks._engine.system.journal import JournalError
from benchmarks._site import nightly, overview, page, peers_page
from benchmarks._studies.peers.experiments import GRIDS
from benchmarks._studies.runner import StudyError
from tests import publishing
from tests.git import git

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
GPU = "nvidia-h200"
DAY = 24 * 60 * 60 * 1000


NAMES = ("NOTES \u2028 .md", "rope_triton/kernel.py", "MORE \f .md")
"""Files, one a commit, and the commits' subjects."""


@pytest.fixture(scope="module")
def data(site):
    return publishing.overview_data(site)


def test_every_machine_and_every_commit_that_was_measured_is_there(data):
    shown = {
        (line["machine"], data["commits"][str(revision)]["hash"][:8])
        for line in [*data["speed"], *data["codegen"]]
        for revision in line["all"]
    }
    stored = {
        (path.parent.name, path.name[:8])
        for path in RESULTS.glob("*/*-*.json")
        if re.search(r'"(rope|codegen\.Codegen)\.', path.read_text())
    }
    assert shown == stored


def stored(data, machine, revision):
    """Benchmark -> asv's row, of a commit on a machine."""
    commit = data["commits"][str(revision)]["hash"]
    (path,) = (RESULTS / machine).glob(f"{commit[:8]}-*.json")
    return json.loads(path.read_text())["results"]


@pytest.mark.parametrize("suite", ["rope", "paths"])
def test_a_value_is_the_one_that_was_measured(data, suite):
    (line,) = data["speed"]
    rows = stored(data, GPU, line["revision"])
    values, grid = {
        "rope": (line["values"], data["grid"]),
        "paths": (line["paths"]["values"], data["paths_grid"]["Backward"]),
    }[suite]
    shown = values["Backward"]["gbps"]
    assert shown == [float(f"{value:.4g}") for value in rows[f"{suite}.Backward.track_gbps"][0]]
    assert len(shown) == math.prod(map(len, grid["values"])) > 50
    assert line["measured"] == max(row[3] for row in rows.values() if len(row) > 3)


def test_a_change_is_the_median_against_the_measured_commit_before(data):
    (line,) = data["speed"]
    before, after = line["all"][-2:]
    latencies = (stored(data, GPU, r)["rope.Forward.track_latency"][0] for r in (before, after))
    changes = [new / old - 1 for old, new in zip(*latencies, strict=True)]
    assert line["changes"]["forward"][str(after)] == {
        **{"before": before, "cells": len(changes)},
        "median": pytest.approx(statistics.median(changes), abs=1e-3),
    }


def test_the_machine_code_is_that_of_the_newest_two_commits(data, index):
    line, name = data["codegen"][0], "codegen.Codegen.track_instructions"
    benchmark = index["benchmarks"][name]
    call = {**overview.CODEGEN_CALL, "target": "sm_90"}
    at = 0
    for parameter, values in zip(benchmark["param_names"], benchmark["params"], strict=True):
        at = at * len(values) + [value.strip("'") for value in values].index(call[parameter])
    for revision, counts in zip(line["all"][:-3:-1], line["counts"]["instructions"], strict=True):
        assert counts["sm_90"] == stored(data, line["machine"], revision)[name][0][at]


@pytest.fixture
def of_graphs(repository, monkeypatch):
    """The overview's data, from benchmark -> revision, 0 to 2 -> values."""
    monkeypatch.chdir(repository)
    commits = git(repository, "log", "--format=%H", "--reverse").split()
    repo = SimpleNamespace(
        get_branch_name=lambda branch: branch,
        _run_git=lambda words: git(repository, *words),
    )
    conf = SimpleNamespace(
        **{"branches": ["main"], "results_dir": ".asv/results"},
        **{"show_commit_url": "https://example.org/", "project_url": "https://example.org"},
    )

    def data(points):
        graphs = GraphSet()
        for name, values in points.items():
            for revision, cells in values.items():
                graph = graphs.get_graph(name, {"machine": "a", "gpu": "A GPU", "branch": "main"})
                graph.add_data_point(revision, cells)
        revisions = {commit: revision for revision, commit in enumerate(commits)}
        return overview.overview(conf, repo, {}, graphs, revisions)

    return data


def test_a_commit_whose_run_was_cut_off_is_not_the_one_shown(of_graphs):
    """The grid shows the newest with both directions, and so do the other calls."""
    ratios = {
        "rope.Forward.track_copy_ratio": {0: [1.0], 1: [2.0], 2: [4.0]},
        "rope.Backward.track_copy_ratio": {0: [1.0], 1: [2.0]},
        "paths.Forward.track_copy_ratio": {0: [None, 2.0]},
    }
    data = of_graphs(ratios)
    (line,) = data["speed"]
    assert line["all"] == [0, 1, 2] and (line["revision"], line["paths"]["revision"]) == (1, 0)
    assert line["values"]["Forward"]["copy_ratio"] == [2.0]
    assert line["paths"]["values"]["Forward"]["copy_ratio"] == [None, 2.0]
    assert line["trend"] == {"Forward": [1.0, 0.5, 0.25], "Backward": [1.0, 0.5, None]}
    assert (line["measured"], line["waiting"]) == (None, 0)
    assert [commit["subject"] for commit in data["commits"].values()] == [*NAMES]
    del ratios["paths.Forward.track_copy_ratio"]
    (line,) = of_graphs(ratios)["speed"]
    assert line["paths"] is None and line["changes"]["forward"] == {}


def test_a_commit_that_was_measured_twice_has_the_mean_as_on_asvs_pages():
    graph = Graph("name", {})
    for values in ([1.0, 2.0], [2.0, None]):
        graph.add_data_point(3, values)
    ((revision, shown, _),) = graph.get_data()
    assert overview.values_of(graph.data_points, revision) == shown == [1.5, 2.0]


def test_every_call_is_described(data):
    grid = data["paths_grid"]["Forward"]
    assert list(overview.CALLS) == grid["values"][grid["names"].index("path")]


def test_a_hostile_subject_stays_text():
    hostile = "</script><script>alert(1)</script> /*STYLE*/ <!--"
    text = page.render("<b>name</b>", {"commits": {1: {"subject": hostile}}})
    (carried,) = re.findall(r'id="data">(.*?)</script>', text)
    assert json.loads(carried)["commits"]["1"]["subject"] == hostile
    assert "alert(1)</script>" not in text and "<b>name" not in text


# --- the nightly comparison and the ages ----------------------------------------------------------


@pytest.fixture
def repository(tmp_path):
    """Three commits, of which the second changes the package; the first was measured."""
    git(tmp_path, "init", "-q", "-b", "main")
    for name in NAMES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-q", "-m", name)
    return tmp_path


def answer(repository, **changes):
    newest, _, first = git(repository, "log", "--format=%H").split()
    content = {
        **{"answer": "pass", "base": first, "head": first, "machine": GPU},
        **{"measured": "1970-01-02T00:00:00Z", "report": "https://github.com/a/b/actions/runs/1"},
    }
    (repository / nightly.FILE).parent.mkdir(exist_ok=True)
    (repository / nightly.FILE).write_text(json.dumps(content | changes))
    return newest


def test_the_last_answer_has_its_age_and_what_came_since(repository):
    assert nightly.last(repository, "main") is None
    newest = answer(repository)
    last = nightly.last(repository, "main")
    assert last["answer"] == "pass" and (last["measured"], last["waiting"]) == (DAY, 1)
    answer(repository, head=newest)
    assert nightly.last(repository, "main")["waiting"] == 0
    answer(repository, head="c" * 40)  # not in this clone
    assert nightly.last(repository, "main")["waiting"] is None


@pytest.mark.parametrize(
    "changes", [{"answer": "perhaps"}, {"report": "javascript:alert(1)"}, {"head": "main"}]
)
def test_a_damaged_answer_is_refused(repository, changes):
    answer(repository, **changes)
    with pytest.raises(ValueError, match=r"nightly.json\."):
        nightly.last(repository, "main")


def test_a_machine_says_how_many_commits_it_has_not_measured(site, data):
    (line,) = data["speed"]
    newest = data["commits"][str(line["all"][-1])]["hash"]
    changed = ("--first-parent", f"{newest}..main", "--", "rope_triton", ":!rope_triton/*.md")
    assert line["waiting"] == len(git(site.parents[1], "rev-list", *changed).split())
    assert time.time() - data["built"] / 1000 < 3600 and data["nightly"] is None


# --- other libraries ------------------------------------------------------------------------------


def test_of_what_ships_every_library_has_a_line_or_a_reason():
    data = peers_page.peers(peers_page.EVIDENCE)
    header = json.loads(peers_page.EVIDENCE.read_text().partition("\n")[0])
    machine, commit, command = data["source"]
    assert header["machine"]["gpu"] in machine and header["commit"][:8] in commit
    assert command.endswith("throughput") and command.startswith("python -m benchmarks ")
    assert list(data["providers"]) == list(GRIDS["full"]["throughput"].figures[0].providers)
    for batch in data["batches"]:
        reasons = {gap["provider"] for gap in batch["without"] if gap["count"] == gap["of"]}
        assert reasons.isdisjoint(batch["gbps"])
        assert reasons | set(batch["gbps"]) == set(data["providers"])


def test_what_was_not_measured_has_no_speed_and_a_reason(tmp_path):
    lines = peers_page.EVIDENCE.read_text().splitlines(keepends=True)
    left = [line for line in lines if '"cell":["compile",256,' not in line]
    (tmp_path / "some").write_text("".join(left))
    for batch in peers_page.peers(tmp_path / "some")["batches"]:
        assert batch["gbps"]["compile"][0] is None and batch["gbps"]["fla"][0]
        (gap,) = (gap for gap in batch["without"] if gap["provider"] == "compile")
        assert (gap["status"], gap["count"], gap["of"]) == ("not measured", 1, 30)


def test_a_damaged_file_is_refused(tmp_path):
    with pytest.raises(OSError, match="none"):
        peers_page.peers(tmp_path / "none")
    text = peers_page.EVIDENCE.read_bytes()
    (tmp_path / "damaged").write_bytes(text[:-20])
    with pytest.raises(JournalError):
        peers_page.peers(tmp_path / "damaged")
    (tmp_path / "empty").write_bytes(text.partition(b"\n")[0] + b"\n")
    with pytest.raises(StudyError, match="has no rows"):
        peers_page.peers(tmp_path / "empty")


def test_it_needs_nothing_that_a_publishing_machine_lacks():
    blocked = ("torch", "triton", "matplotlib", "pynvml")
    script = f"import sys\nsys.modules.update(dict.fromkeys({blocked}))\n"
    script += (
        "from benchmarks._site import peers_page\nprint(len(peers_page.peers(peers_page.EVIDENCE)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) > 0
