"""Old results are thinned and the oldest go, and asv reads what is left."""

import json
import shutil

import pytest

from benchmarks._site import __main__ as entry
from benchmarks._site import branch
from benchmarks._system.arguments import COULD_NOT_RUN
from tests.site.test_history import GPU, RESULTS, ROOT, records


@pytest.fixture
def machine(tmp_path):
    """Four commits of real results, a day apart."""
    source = ROOT / RESULTS / GPU
    directory = tmp_path / GPU
    directory.mkdir()
    shutil.copy(source / "machine.json", directory)
    text = records(source)[0].read_text()
    for day in range(4):
        content = json.loads(text) | {"commit_hash": f"{day}" * 40, "date": day}
        (directory / f"{str(day) * 8}-e.json").write_text(json.dumps(content))
    return directory


def test_old_results_keep_their_values_and_the_oldest_go(machine):
    before = {path.name: path.read_bytes() for path in machine.glob("*-*.json")}
    said = branch.thin(machine.parent, statistics=1, kept=3)
    assert len(said) == 3 and branch.thin(machine.parent, statistics=1, kept=3) == []
    after = {path.name: path.read_bytes() for path in machine.glob("*-*.json")}
    assert sorted(after) == [f"{str(day) * 8}-e.json" for day in (1, 2, 3)]
    assert after["33333333-e.json"] == before["33333333-e.json"]
    assert len(after["22222222-e.json"]) < len(before["22222222-e.json"]) / 5


def test_asv_reads_what_is_left(machine):
    from asv.results import Results

    name = "00000000-e.json"
    full = Results.load(str(machine / name), machine_name=GPU)
    branch.thin(machine.parent, statistics=0)
    left = Results.load(str(machine / name), machine_name=GPU)
    metric = "rope.Forward.track_latency"
    params = full.get_result_params(metric)
    expected = full.get_result_value(metric, params)
    assert left.get_result_value(metric, params) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("words", [[], ["measure"], ["hold", GPU], ["store", "origin", "more"]])
def test_a_mistake_in_the_arguments_is_no_answer(words):
    with pytest.raises(SystemExit) as stop:
        entry.main(words)
    assert stop.value.code == COULD_NOT_RUN
