"""Turns of providers in a process: the tiny network on a CPU, and a clock of the test's own."""

import gc
import itertools

import pytest
import torch

from benchmarks import training_step
from benchmarks._studies import pages
from benchmarks._studies.training import measuring, results
from benchmarks._studies.training.functions import OURS, PROVIDERS
from benchmarks._studies.training.sizes import (
    ATTENTION,
    CAUSAL,
    CAUSAL_FORWARD,
    PARTS,
    PRODUCTS,
    SIZES,
    STEP,
    TINY,
)

EAGER = ("none-eager", "eager", "ours-eager")
COUNTED = {"launches": 77, "sdpa": "flash"}


@pytest.fixture
def clock(monkeypatch):
    """Answers 1, 2, 3, ... seconds to each timing of more than a call; nothing is called."""
    seconds = itertools.count(1.0)
    monkeypatch.setattr(measuring, "DEVICE", "cpu")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(
        measuring, "_seconds", lambda call, count: 1e-3 if count == 1 else next(seconds)
    )
    monkeypatch.setattr(measuring, "_peak_bytes", lambda call: 4096)
    monkeypatch.setattr(measuring, "_profiled", lambda call: COUNTED)
    monkeypatch.setattr(measuring, "_recorded", lambda call: call)
    # The kernel takes seconds in the interpreter, and tests of the network call it.
    for name in ("ours-eager", "ours"):
        changed = PROVIDERS[name]._replace(functions=PROVIDERS["eager"].functions)
        monkeypatch.setitem(PROVIDERS, name, changed)


def replace(monkeypatch, name, **functions):
    made = PROVIDERS[name].functions()._replace(**functions)
    monkeypatch.setitem(PROVIDERS, name, PROVIDERS[name]._replace(functions=lambda: made))


def test_providers_take_turns_in_alternating_order(clock):
    noted = []
    rows = measuring.measured(TINY, EAGER, note=noted.append)
    assert list(rows) == list(EAGER)
    parts = STEP, ATTENTION  # kernels alone are of other providers
    seconds = {part: [rows[name]["parts"][part]["seconds"] for name in EAGER] for part in parts}
    assert seconds[STEP] == [[1, 9, 13], [2, 8, 14], [3, 7, 15]]
    assert seconds[ATTENTION] == [[4, 12, 16], [5, 11, 17], [6, 10, 18]]
    for name in EAGER:
        assert set(rows[name]["parts"]) == set(parts)
        for part in parts:
            assert rows[name]["parts"][part] | {"seconds": 0} == {
                **{"seconds": 0, "peak_bytes": 4096},
                **COUNTED,
            }
    assert noted[:4] == [*EAGER, EAGER[0]] and set(noted) == set(EAGER)


@pytest.mark.parametrize(
    ("part", "wrong"),
    [
        (PRODUCTS, {"linear": lambda x, weight: 1.1 * torch.nn.functional.linear(x, weight)}),
        (CAUSAL, {"attention": lambda q, k, v: v + 0 * (q + k)}),
        (CAUSAL_FORWARD, {"attention": lambda q, k, v: v + 0 * (q + k)}),
    ],
)
def test_kernels_alone_are_measured_if_they_are_right(clock, monkeypatch, part, wrong):
    alone = PROVIDERS["none-eager"]._replace(kernels=True)
    monkeypatch.setitem(PROVIDERS, "none-eager", alone)
    shared = SIZES["tiny"]._replace(kv_heads=4)
    monkeypatch.setitem(SIZES, "tiny", shared)
    row = measuring.measured(TINY, ["none-eager"], turns=1)["none-eager"]
    assert tuple(row["parts"]) == PARTS
    replace(monkeypatch, "none-eager", **wrong)
    row = measuring.measured(TINY, ["none-eager"], (part,), turns=1)["none-eager"]
    assert "output differs from float32's" in row["error"]


def full(*_):
    raise torch.cuda.OutOfMemoryError("20 GiB")


@pytest.mark.parametrize("when", ["at once", "in a turn"])
def test_out_of_memory_costs_the_provider_alone(clock, monkeypatch, when):
    if when == "at once":
        replace(monkeypatch, "eager", attention=full)
    if when == "in a turn":
        answered = measuring._seconds
        monkeypatch.setattr(
            measuring,
            "_seconds",
            lambda call, count: full() if (now := answered(call, count)) == 8 else now,
        )
    rows = measuring.measured(TINY, EAGER)
    assert rows["eager"] == {"unavailable": "does not fit in the GPU's memory: 20 GiB"}
    for name in rows.keys() - {"eager"}:
        assert len(rows[name]["parts"][STEP]["seconds"]) == measuring.TURNS
    assert gc.get_freeze_count() == 0  # another point's memory is found again


def test_a_profiler_without_rights_costs_the_counts_alone(clock, monkeypatch):
    def refused(call):
        raise RuntimeError("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES")

    monkeypatch.setattr(measuring, "_profiled", refused)
    rounds = [measuring.measured(TINY, EAGER[:1])]
    (step, _) = results.figures(TINY, "NVIDIA H200", rounds)
    assert (step.status, step.seconds, step.launches, step.sdpa) == ("measured", 3, None, "")
    assert step.why == "RuntimeError: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"


def wrong_sine(angles, dtype):
    return PROVIDERS["eager"].functions().tables(-angles, dtype)


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        ({"tables": wrong_sine}, r"attention\.\w+ differs from float32's by"),
        ({"rope": lambda q, k, tables: (q, k)}, r"attention\.\w+ differs from float32's by"),
        ({"norm": lambda x, weight: x * weight}, r"layer\.\w+ differs from float32's by"),
        ({"activation": lambda gate, up: gate * up}, r"layer\.\w+ differs from float32's by"),
        ({"loss": lambda logits, targets: logits.float().sum()}, "loss differs from float32's by"),
        ({"loss": lambda logits, targets: logits.sum() * float("nan")}, "loss differs .* by nan"),
    ],
    ids=["sign", "no rotation", "norm", "activation", "loss", "NaN"],
)
def test_what_computes_something_else_has_no_speed(clock, monkeypatch, functions, message):
    replace(monkeypatch, "ours-eager", **functions)
    rows = measuring.measured(TINY, ["ours-eager"], turns=1)
    error = rows["ours-eager"]["error"]
    assert list(rows["ours-eager"]) == ["error"]
    with pytest.raises(AssertionError, match=f"ours-eager: {message}"):
        raise AssertionError(pages.last_line(error))


def test_a_fault_of_the_gpu_ends_the_process(clock, monkeypatch):
    def lost():
        raise RuntimeError("illegal address")

    replace(monkeypatch, "eager", attention=lambda *_: lost())
    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    noted = []
    with pytest.raises(RuntimeError, match="illegal address"):
        measuring.measured(TINY, EAGER, note=noted.append)
    assert noted[-1] == "eager"


@pytest.mark.parametrize(
    ("kernels", "backend"),
    [
        (["cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma", "nvjet_tst_128"], "cuDNN"),
        (["void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits>", "gemm"], "flash"),
        (["fmha_cutlassF_bf16_aligned_64x64_rf_sm80", "gemm"], "memory-efficient"),
        (["cudnn_sdpa", "pytorch_flash::flash_bwd_dot_do_o"], "cuDNN and flash"),
        (["softmax_warp_forward", "gemm"], "math"),
        (["norm_forward_kernel", "cunn_SoftMaxForward", "cudnn_sdpa"], "cuDNN"),
        (["norm_forward_kernel", "forward_kernel", "dkv_kernel"], "this package"),
        (["gemm", "norm_forward_kernel"], ""),
    ],
)
def test_backend_of_attention_is_read_from_the_kernels(kernels, backend):
    events = [{"cat": "kernel", "name": name} for name in kernels]
    events += [{"cat": "gpu_memset", "name": "Memset"}, {"cat": "gpu_memcpy", "name": "Memcpy"}]
    others = [{"cat": "cuda_runtime", "name": "cudaLaunchKernel"}, {"ph": "M", "name": "flash_fwd"}]
    found = measuring.summary(events + others)
    assert found == {"launches": len(kernels) + 2, "sdpa": backend}
    assert "saw no kernel" in measuring.summary(others)["unprofiled"]


# --- what asv tracks ------------------------------------------------------------------------------


@pytest.fixture
def tracked(clock, monkeypatch):
    """The answers for the tiny network, none of it compiled."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(training_step.POINTS, "tiny", TINY)
    for name in ("none", "ours"):
        monkeypatch.setitem(PROVIDERS, name, PROVIDERS[name]._replace(backend=None))
    return lambda: training_step.answers_of(ATTENTION, ["tiny"])


def test_answers_for_asv(tracked, monkeypatch):
    replace(monkeypatch, "ours", norm=full, linear=full)
    found = tracked()
    assert list(found) == [("tiny", name) for name in OURS]
    eager, rotated = found["tiny", "none-eager"], found["tiny", "ours-eager"]
    assert len(eager.seconds) == training_step.TURNS and eager.peak_bytes == 4096
    assert eager.rope_shares == () and eager.launches == 77
    pairs = zip(rotated.seconds, eager.seconds, strict=True)
    assert rotated.rope_shares == tuple(a / b - 1 for a, b in pairs)
    assert isinstance(found["tiny", "ours"], NotImplementedError)


def test_a_failure_is_one_for_asv(tracked, monkeypatch):
    replace(monkeypatch, "ours-eager", rope=lambda q, k, tables: (q, k))
    error = tracked()["tiny", "ours-eager"]
    assert type(error) is RuntimeError and "AssertionError" in str(error)


def test_without_a_gpu_nothing_is_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("ROPE_PROGRESS", str(tmp_path / "progress"))
    found = training_step.answers_of(STEP, ["410M-2048"])
    assert [type(answer) for answer in found.values()] == [NotImplementedError] * len(OURS)
    assert "training_step, step: n/a, no NVIDIA GPU" in (tmp_path / "progress").read_text()


def test_a_model_that_does_not_fit_at_all_is_not_available_to_asv(tracked, monkeypatch):
    monkeypatch.setattr(measuring, "random_weights", full)
    assert [type(answer) for answer in tracked().values()] == [NotImplementedError] * len(OURS)
