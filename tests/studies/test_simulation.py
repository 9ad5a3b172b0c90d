"""The simulated verdict: figures that ship follow from its outcomes, and these from the code."""

import json

import numpy as np
import pytest

from benchmarks._engine.compare.pool import Pool
from benchmarks._studies.reliability import noise, reliability_studies, simulation
from tests.studies import common
from tests.studies.common import study

processes = common.processes  # a fixture

SHIPPED = reliability_studies.EVIDENCE
DOCUMENT = json.loads((SHIPPED / "simulation.json").read_text())
RUN = DOCUMENT["models"]
AGAIN = 2  # replicates of each task
UNCLEAR = {"rare", "three", "host 9"}  # noise under which many comparisons cannot tell
ALIKE = [model for model in simulation.MODELS if model not in DOCUMENT["unlike"]]


@pytest.fixture(scope="module")
def pool():
    stored = json.loads((SHIPPED / "aa.json").read_text())
    return Pool.from_json(stored["pool"])


def test_everything_was_simulated_as_often_as_it_says():
    assert list(RUN) == list(DOCUMENT["noise"]) == simulation.MODELS
    for model in simulation.MODELS:
        for name, scenario in simulation.SCENARIOS.items():
            (count,) = {len(RUN[model][name][key]) for key in ("first", "both", "failed")}
            assert count == scenario.replicates
        assert RUN[model]["figures"] == pytest.approx(simulation.figures(RUN[model]))


# A part of what is stored: one that needs a second look, one that fails, one by the pool.
PARTS = [("bursts", "plus 1"), ("states", "same"), ("head 10", "same"), ("pool", "eight changed")]


@pytest.mark.parametrize(("model", "scenario"), [*PARTS, ("normal", "mde"), ("t3", "host plus 5")])
def test_outcomes_are_those_of_the_code(pool, model, scenario):
    again = simulation.outcomes(pool, model, scenario, AGAIN)
    for key in ("first", "both", "failed"):
        assert again[key] == RUN[model][scenario][key][:AGAIN]


@pytest.mark.parametrize("model", ALIKE)
def test_a_version_is_told_from_itself_as_seldom_as_the_readme_says(model):
    found = RUN[model]["figures"]
    assert max(found["fails"], found["Python alone, fails"]) <= 0.01
    assert (max(found["cannot tell"], found["Python alone, cannot tell"]) > 0.1) == (
        model in UNCLEAR
    )
    assert found["intervals hold the truth"] >= 0.93


@pytest.mark.parametrize("model", simulation.MODELS)
def test_slowdowns_pass_as_seldom_as_the_readme_says(model):
    found = RUN[model]["figures"]
    assert found["+1 % passes"] <= 0.07
    assert found["one changed, +1 % passes"] <= (0.11 if model in UNCLEAR else 0.05)
    assert found["eight changed, +1 % pass"] == 0
    assert found["+5 % fails"] >= 0.98


@pytest.mark.parametrize("model", noise.MODELS)
def test_models_are_alike_but_for_those_that_say_so(model):
    generator = np.random.default_rng(0)
    of_head = noise.drawn_order(generator, 2000)
    processes = noise.MODELS[model].draw(generator, of_head, np.full(20, 5e-6))
    base, head = noise.by_version(processes, of_head)
    assert base.shape == head.shape == (2000, 20)
    slower = 0 if model in ALIKE else 0.004
    assert (head - base).mean() == pytest.approx(slower, abs=0.0015)


def test_a_simulation_is_stored_by_model(
    processes,
    monkeypatch,
    tmp_path,
    capsys,
):
    models = ["normal", "t3"]
    monkeypatch.setattr(simulation, "MODELS", models)
    scenarios = {name: each._replace(replicates=1) for name, each in simulation.SCENARIOS.items()}
    monkeypatch.setattr(simulation, "SCENARIOS", scenarios)
    processes.others[simulation.outcomes] = lambda *_: RUN["normal"]["plus 5"]
    (tmp_path / "aa.json").write_text((SHIPPED / "aa.json").read_text())
    monkeypatch.setattr(reliability_studies, "EVIDENCE", tmp_path)
    assert study("simulation", "--ship") == 0
    assert "simulation: t3, 0 s; about 0 s left" in capsys.readouterr().err
    written = json.loads((tmp_path / "simulation.json").read_text())
    assert written["command"] == "python -m benchmarks study simulation"
    assert list(written["models"]) == models
    processes.others.clear()
    assert study("simulation") == 0, "all of it is stored"
