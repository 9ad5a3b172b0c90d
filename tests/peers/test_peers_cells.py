"""The cells in which other libraries are measured, and what asv tracks of each."""

import pytest
import torch

from benchmarks import peers
from benchmarks._engine.measure import cell_outcomes
from benchmarks._studies.peers.peer_cells import PEER_GRIDS, peer_cell
from benchmarks._studies.peers.providers import ADAPTERS, INSTALL, PROVIDERS
from benchmarks._subjects.rope import grid
from tests.peers import libraries

FULL, SMALL = (grid.cells_of(peer_cell, PEER_GRIDS[name]) for name in ("full", "small"))


# --- the cells ------------------------------------------------------------------------------------


def test_every_provider_says_what_it_computes_and_every_library_a_way_to_be_installed():
    assert all(adapter.about for adapter in ADAPTERS.values())
    assert set(INSTALL) == set(libraries.FUNCTIONS)
    assert all(how.startswith("pip install ") for how in INSTALL.values())
    assert list(PROVIDERS)[-1] == "unsloth"  # which changes torch for what comes after


def test_grids_are_small_and_span_the_sizes():
    assert set(SMALL) < set(FULL) and len(set(FULL)) == len(FULL)
    assert len(FULL) == 16 * len(PROVIDERS) and len(SMALL) == 4 * len(PROVIDERS)
    half = [cell.bytes_moved for cell in FULL if cell.dtype == "bfloat16"]
    assert (min(half), max(half)) == (8 * 2**20, 2**29)


@pytest.mark.parametrize("provider", ["copy", "liger"])
def test_bytes_are_those_of_the_tensor_twice(provider):
    cell = peer_cell(provider, 4096, 128, 64, 4, "bfloat16", "bshd")
    assert cell.bytes_moved == 2 * 4096 * 128 * 64 * 4 * 2
    assert cell.bytes_moved == 2 * torch.empty(cell.shape, dtype=torch.bfloat16).nbytes
    assert cell.positions == 4096


# --- as asv sees them -----------------------------------------------------------------------------


def test_tracks_pick_their_cell():
    cell = SMALL[0]
    params = cell.values
    cache = {cell: cell_outcomes.Outcome(latency=(2e-5, 4e-5), copy=(2e-5, 2e-5))}
    for suite in (peers.Forward(), peers.Backward()):
        suite.setup(cache, *params)
        assert suite.track_latency(cache, *params) == {"samples": [2e-5, 4e-5], "number": 1}
        assert suite.track_copy_ratio(cache, *params)["samples"] == pytest.approx([1.0, 2.0])
        gbps = [cell.bytes_moved / seconds / 1e9 for seconds in (2e-5, 4e-5)]
        assert suite.track_gbps(cache, *params)["samples"] == pytest.approx(gbps)


def test_tracks_pick_their_answer():
    call, error = peers.Call(), peers.Error()
    answers = {("peers.Call.track_forward", ("fla",)): [1e-5]}
    answers["peers.Call.track_forward_backward", ("fla",)] = NotImplementedError("not there")
    answers["peers.Error.track_error", ("forward", "fla", "float16")] = 1.5
    call.track_forward.__func__.setup(answers, "fla")
    assert call.track_forward(answers, "fla") == {"samples": [1e-5], "number": 1}
    with pytest.raises(NotImplementedError, match="not there"):
        call.track_forward_backward.__func__.setup(answers, "fla")
    assert error.track_error(answers, "forward", "fla", "float16") == 1.5
