"""Other libraries measured: samples, host time and error, and what has none of them and why."""

import statistics

import pytest
import torch

import rope_triton
from benchmarks import peers
from benchmarks._engine.measure import cell_outcomes, gpu_timer, host_time, inputs, timed_cell
from benchmarks._engine.subject import BACKWARD, FORWARD
from benchmarks._studies import compiling
from benchmarks._studies.peers.providers import INSTALL, PROVIDERS
from benchmarks._subjects import metric_list
from tests.conftest import COMPILED
from tests.engine.measure import samples
from tests.package import plain as plain_package
from tests.peers import libraries
from tests.peers.libraries import DIRECTIONS, FORWARD_ONLY, HALF_ONLY, cell_of

here = libraries.here  # fixture

all_libraries = pytest.mark.parametrize("provider", libraries.FUNCTIONS)


@pytest.fixture
def on_gpu(here, monkeypatch, tmp_path):
    """Measures as on a GPU, but with made-up samples, and where the kernels run."""
    samples.install(monkeypatch, tmp_path / "progress", sets=2)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(inputs, "DEVICE", here)
    if not COMPILED:  # an interpreted kernel takes its time
        plain_package.install(monkeypatch)
    # The compiler looks at the GPU that there is not: compiled calls have tests of their own.
    monkeypatch.setattr(compiling, "alone", lambda function, backend: function)


# --- samples --------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_cells_are_measured(on_gpu, direction):
    wanted = [cell_of(name, format) for name in PROVIDERS for format in ("sbhd", "bshd")]
    outcomes = cell_outcomes.measure_cells(wanted, direction)
    assert list(outcomes) == wanted
    for cell, outcome in outcomes.items():
        if direction == BACKWARD and cell.provider in FORWARD_ONLY:
            reason = f"{cell.provider} has no backward pass"
            assert outcome == cell_outcomes.Outcome(unavailable=reason)
        else:
            roofline = (1e-6,) * 3 if cell.provider.startswith("rope-triton") else ()
            expected = cell_outcomes.Outcome((1e-6,) * 7, (1e-6,) * 7, roofline=roofline)
            assert outcome == expected, cell


def test_the_providers_of_a_point_take_turns_beside_one_copy(on_gpu, monkeypatch):
    """One in place overwrites the inputs of all; one that is missing or wrong is so alone."""
    turns = []

    def samples(recordings, count, *_):
        turns.append((len(recordings), count))
        return [[1e-6 * (place + 1)] * count for place in range(len(recordings))]

    monkeypatch.setattr(gpu_timer, "paired_samples", samples)
    libraries.remove(monkeypatch, "fla")

    def doubled(x, *tables, **options):
        return 2 * libraries.flash_apply_rotary_emb(x, *tables, **options)

    libraries.install(monkeypatch, "flash-attention", doubled)
    names = ("rope-triton", "liger", "fla", "flash-attention", "copy")
    for direction in DIRECTIONS:
        turns.clear()
        outcomes = cell_outcomes.measure_cells([cell_of(name, "bshd") for name in names], direction)
        assert [cell.provider for cell in outcomes] == list(names)
        ours, liger, missing, wrong, copy = outcomes.values()
        assert [outcome.latency for outcome in (ours, liger, copy)] == [
            (seconds,) * 7 for seconds in (1e-6, 3 * 1e-6, 5 * 1e-6)
        ]
        assert {outcome.copy for outcome in (ours, liger, copy)} == {(2e-6,) * 7}
        assert ours.roofline == (6 * 1e-6,) * 3 and not copy.roofline
        assert missing.unavailable and "not close" in wrong.error
        assert turns == [(6, 3), (5, 4), (2, 7)]


def test_after_a_fault_in_company_each_is_measured_alone(on_gpu, monkeypatch):
    def lost(*_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def samples(recordings, *_):
        monkeypatch.setattr(torch.cuda, "synchronize", lost)
        lost()

    def fresh(cells, direction):
        return {cell: cell_outcomes.Outcome((1.0,), (1.0,)) for cell in cells}

    monkeypatch.setattr(gpu_timer, "paired_samples", samples)
    monkeypatch.setattr(cell_outcomes, "_measure_in_fresh_process", fresh)
    cells, finished = [cell_of(name) for name in ("copy", "liger", "fla")], []
    outcomes = cell_outcomes.measure_cells(cells, FORWARD, lambda *pair: finished.append(pair))
    assert outcomes == fresh(cells, FORWARD) and finished == list(outcomes.items())


def test_cells_that_have_no_room_beside_each_other_are_alone(on_gpu, monkeypatch):
    cells = [cell_of(name) for name in ("copy", "liger", "fla")]
    assert cell_outcomes._points(cells) == {cells[0]: cells}
    needed = timed_cell.needed_bytes(cells[0], 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (4 * needed, 4 * needed))
    assert cell_outcomes._points(cells) == {cells[0]: cells[:2]}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (3 * needed, 3 * needed))
    assert cell_outcomes._points(cells) == {}
    other = [cell_of(name, format) for name in ("copy", "fla") for format in ("sbhd", "bshd")]
    assert cell_outcomes._points(other) == {}


@all_libraries
def test_a_missing_library_says_how_to_install_it(on_gpu, provider, monkeypatch):
    libraries.remove(monkeypatch, provider)
    for direction in DIRECTIONS:
        (outcome,) = cell_outcomes.measure_cells([cell_of(provider)], direction).values()
        assert outcome.unavailable.startswith(f"{provider} is not there: ")
        assert outcome.unavailable.endswith(INSTALL[provider])
        assert not outcome.error and not outcome.latency


@pytest.mark.parametrize("name", ["apply_rotary_pos_emb", "apply_rotary_emb"])
def test_what_our_commit_lacks_is_no_matter_of_installing(on_gpu, name, monkeypatch):
    monkeypatch.delattr(rope_triton, name)
    provider = {"apply_rotary_pos_emb": "rope-triton", "apply_rotary_emb": "rope-triton-tables"}
    (outcome,) = cell_outcomes.measure_cells([cell_of(provider[name])], FORWARD).values()
    assert outcome.unavailable == f"this commit cannot: rope_triton has no {name}"


# --- host time and error --------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(host_time, "WARM_CALLS", 1)
    monkeypatch.setattr(host_time, "BLOCKS", 3)
    monkeypatch.setattr(host_time, "BLOCK_CALLS", {FORWARD: 2, BACKWARD: 2})
    monkeypatch.setattr(metric_list, "CALL_SEQ_LEN", 3)
    monkeypatch.setattr(peers, "HEADS", 2)
    monkeypatch.setattr(peers, "_ERROR_SHAPE", (64, 32, 2, 1))


def test_every_call_has_a_host_time(on_gpu, quick):
    answers = peers.Call().setup_cache()
    assert len(answers) == 2 * len(PROVIDERS)
    for (metric, (provider,)), answer in answers.items():
        if metric.endswith("_backward") and provider in FORWARD_ONLY:
            assert isinstance(answer, NotImplementedError)
            assert str(answer) == f"{provider} has no backward pass"
        else:
            assert len(answer) == host_time.BLOCKS, (provider, answer)
            assert all(0 < seconds < 1 for seconds in answer)


def test_error_shows_what_rounding_costs(on_gpu, quick):
    answers = peers.Error().setup_cache()
    assert len(answers) == 2 * 3 * (len(PROVIDERS) - 1)
    values = {}
    for (metric, (direction, provider, dtype)), answer in answers.items():
        assert metric == "peers.Error.track_error"
        no_backward = direction == BACKWARD and provider in FORWARD_ONLY
        if no_backward or (dtype == "float32" and provider in HALF_ONLY):
            assert isinstance(answer, NotImplementedError)
        else:
            values[provider, direction, dtype] = answer
    for dtype in ("float16", "bfloat16"):
        for direction in DIRECTIONS:
            once = values["rope-triton", direction, dtype]
            tables = values["rope-triton-tables", direction, dtype]
            every = values["pytorch", direction, dtype]
            assert once == pytest.approx(1.0, abs=1e-2)
            if dtype == "float16" or COMPILED:  # Triton's interpreter cuts bfloat16 off
                assert values["seed", direction, dtype] == pytest.approx(1.0, abs=1e-2)
            assert 1.05 < tables < every < 3
        assert values["flashinfer", FORWARD, dtype] == pytest.approx(1.0, abs=1e-2)
    assert values["xformers", FORWARD, "bfloat16"] == pytest.approx(1.0, abs=1e-2)
    assert statistics.median(values.values()) < 3
