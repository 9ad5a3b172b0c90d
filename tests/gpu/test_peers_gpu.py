"""Every provider that is installed here, measured on a GPU in one small cell of each format."""

import statistics

import pytest
import torch

from benchmarks._engine.measure import call_costs, cell_outcomes
from benchmarks._engine.subject import BACKWARD, FORWARD, Eager
from benchmarks._studies.peers.experiments import GRIDS
from benchmarks._studies.peers.peer_cells import peer_cell
from benchmarks._studies.peers.providers import INSTALL, MODEL_CALLS, PROVIDERS

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("progress")]

# A library may be n/a here; these are always there.
BUILT_IN = [name for name in PROVIDERS if name not in INSTALL]
DIRECTIONS = (FORWARD, BACKWARD)
# One at a time, with a life of their own: an import may change what comes after.
all_providers = pytest.mark.parametrize("provider", PROVIDERS)
all_directions = pytest.mark.parametrize("direction", DIRECTIONS)


def skip_if_absent(provider: str, reason: str) -> None:
    if reason and provider in INSTALL:
        pytest.skip(reason)


@pytest.mark.alone
@all_directions
@all_providers
def test_it_is_right_and_has_a_speed(provider, direction, unwarmed):
    dtypes = ("bfloat16", "float16", "float32")  # the last is not every library's
    formats = ("sbhd", "bshd")
    cells = [peer_cell(provider, 256, 128, 64, 4, d, f) for d in dtypes for f in formats]
    for cell, outcome in cell_outcomes.measure_cells(cells, direction).items():
        assert not outcome.error, (cell, outcome.error)
        skip_if_absent(provider, outcome.unavailable)
        assert not outcome.unavailable, (cell, outcome.unavailable)
        ratio = statistics.median(outcome.latency) / statistics.median(outcome.copy)
        assert 0.3 < ratio < 60, (cell, ratio)


@pytest.mark.alone
@pytest.mark.parametrize("provider", MODEL_CALLS)
def test_the_calls_of_models_are_right(provider, unwarmed):
    timings = GRIDS["small"]["models"].of([provider]).timings
    for direction in DIRECTIONS:
        cells = [timing.cell for timing in timings if timing.direction == direction]
        for cell, outcome in cell_outcomes.measure_cells(cells, direction).items():
            assert not outcome.error, (cell, outcome.error)
            if getattr(cell, "model", "") == "llama-3-8b":  # which every library can rotate
                skip_if_absent(provider, outcome.unavailable)
                assert outcome.latency, (cell, outcome.unavailable)


@pytest.mark.alone
@all_directions
def test_copy_is_as_fast_as_the_copy_that_it_is_measured_by(direction):
    cell = peer_cell("copy", 1024, 128, 64, 4, "bfloat16", "sbhd")
    (outcome,) = cell_outcomes.measure_cells([cell], direction).values()
    ratio = statistics.median(outcome.latency) / statistics.median(outcome.copy)
    assert ratio == pytest.approx(1.0, abs=0.05)


@pytest.mark.alone
@all_directions
def test_company_does_not_matter(direction):
    providers = ("rope-triton", "rope-triton-tables", "copy", "seed")
    cells = [peer_cell(name, 1024, 128, 64, 1, "bfloat16", "bshd") for name in providers]
    together = cell_outcomes.measure_cells(cells, direction)
    alone = cell_outcomes.measure_cells(cells, direction, together=False)
    assert len({outcome.copy for outcome in together.values()}) == 1
    for cell in cells:
        # As multiples of a copy's time beside it: the clock may have changed in between.
        in_company, by_itself = (
            statistics.median(outcomes[cell].latency) / statistics.median(outcomes[cell].copy)
            for outcomes in (together, alone)
        )
        assert in_company == pytest.approx(by_itself, rel=0.03), cell


@pytest.mark.alone
@all_providers
def test_every_call_has_a_host_time_and_a_small_error(provider):
    small = peer_cell(provider, 16, 64, 64, 1, "bfloat16", "bshd")
    larger = peer_cell(provider, 2048, 128, 2, 1, "bfloat16", "bshd")
    asked = {("seconds", direction): Eager("seconds", small, direction) for direction in DIRECTIONS}
    if provider != "copy":  # it rounds nothing
        asked |= {
            ("error", direction): Eager("error", larger, direction) for direction in DIRECTIONS
        }
    for key, answer in call_costs.answers("peers", asked).items():
        if isinstance(answer, NotImplementedError):
            skip_if_absent(provider, str(answer))
        assert not isinstance(answer, Exception), (key, answer)
        if key[0] == "error":
            assert 0.99 < answer < 3, (key, answer)
        else:
            assert all(1e-6 < seconds < 5e-3 for seconds in answer), (key, answer)


@pytest.mark.parametrize("provider", BUILT_IN)
def test_many_forms_are_measured_in_one_process(provider, unwarmed):
    """More than torch.compile takes of one function."""
    cells = [peer_cell(provider, 256 * n, 64, 8, 1, "float16", "bshd") for n in range(1, 13)]
    outcomes = cell_outcomes.measure_cells(cells, BACKWARD)
    assert not any(outcome.error or outcome.unavailable for outcome in outcomes.values())
    torch.cuda.synchronize()
