"""What calls compile and launch on a GPU: few kernels, one for each pass, and no copy."""

import pytest
import torch
import triton

import rope_triton
from benchmarks import _subjects
from benchmarks._engine.compare import measure
from benchmarks._engine.measure import graph_nodes
from benchmarks._subjects.rope.cells import grid_cell
from tests import oracle, other_libraries
from tests.gpu.common import all_modes, apply, inputs, model_angles
from tests.oracle import LAYOUTS

pytestmark = pytest.mark.gpu


# --- compilations ---------------------------------------------------------------------------------


def test_compilations_of_flash_attention(monkeypatch):
    """Its grid of lengths and batches has one kernel each way."""
    channels = 160  # no other test has them: its variants would be known
    compiled = {"forward": set(), "backward": set()}

    def listen(direction):
        def listener(**facts):
            compiled[direction].add(facts["metadata"]["hash"])

        monkeypatch.setattr(triton.knobs.compilation, "listener", listener)

    for seq in (128, 256):
        for batch in (4, 32):
            cos, sin = other_libraries.tables(seq, channels, torch.float16, "cuda")
            x = oracle.contiguous((batch, seq, 4, channels), torch.float16, "cuda")
            x.requires_grad_()
            listen("forward")
            out = rope_triton.apply_rotary_emb(x, cos, sin)
            listen("backward")
            out.backward(oracle.random_like(out))
    assert [len(hashes) for hashes in compiled.values()] == [1, 1], compiled


# --- launches -------------------------------------------------------------------------------------


def test_hooks_see_every_launch():
    """As profilers do, also of calls that go straight to a compiled kernel."""
    t, freqs = torch.randn(64, 2, 8, 128, device="cuda"), torch.randn(64, 1, 1, 128, device="cuda")
    hooks, seen, left = triton.knobs.runtime, [], []

    def enter(metadata):
        seen.append(metadata.get()["name"])

    def call():
        rope_triton.apply_rotary_pos_emb(t, freqs)

    call()
    hooks.launch_enter_hook.add(enter)
    hooks.launch_exit_hook.add(left.append)
    try:
        for _ in range(3):
            call()
    finally:
        hooks.launch_enter_hook.remove(enter)
        hooks.launch_exit_hook.remove(left.append)
    call()
    assert seen == ["rope_kernel"] * 3 and len(left) == 3


def gpu_activities(call):
    """Names of the kernels, copies and fills that a call starts on the GPU."""
    call()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        result = call()
        torch.cuda.synchronize()
    del result
    return [event.name for event in profile.events() if event.device_type.name == "CUDA"]


@all_modes
@pytest.mark.parametrize("layout", ["contiguous", "transposed_0_1", "transposed_2_3", "expanded_0"])
def test_one_kernel_and_no_copy(layout, mode):
    t, freqs, _ = inputs(mode, 257, 3, 6, 128)
    t, cotangent = (LAYOUTS[layout](t.shape, mode.dtype, "cuda") for _ in range(2))
    t.requires_grad_()
    out = apply(t, freqs, mode)
    names = gpu_activities(lambda: apply(t, freqs, mode))
    names += gpu_activities(lambda: torch.autograd.grad(out, t, cotangent, retain_graph=True))
    assert len(names) == 2, names
    assert not [name for name in names if name.lower().startswith(("memcpy", "memset"))]


def test_packed_sequences_are_one_launch_without_a_synchronisation():
    tokens, freqs = 2401 * 27, model_angles(8192, 128)
    t = torch.randn(tokens, 8, 128, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    bounds = torch.arange(0, tokens + 1, 27, dtype=torch.int32, device="cuda")
    gradient = torch.randn_like(t)

    def step():
        out = rope_triton.apply_rotary_pos_emb(t, freqs, "thd", cu_seqlens=bounds)
        torch.autograd.grad(out, t, gradient)

    step()  # compiles
    assert gpu_activities(step) == ["rope_kernel"] * 2
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_fused_qkv_is_one_launch_each_way():
    freqs = model_angles(2048, 128)
    qkv = torch.randn(512, 2, 8, 768, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    gradients = [torch.randn(512, 2, 8 * n, 128, device="cuda").bfloat16() for n in (4, 1, 1)]

    def step():
        parts = rope_triton.apply_fused_qkv_rotary_pos_emb(qkv, freqs, freqs, [512, 128, 128])
        torch.autograd.grad(parts, qkv, gradients)

    step()  # compiles
    assert gpu_activities(step) == ["rope_qkv_kernel"] * 2


def test_queries_and_keys_are_one_launch_each_way():
    q, k = (torch.randn(257, 3, n, 128, device="cuda", requires_grad=True) for n in (8, 2))
    gradients = [torch.randn_like(x) for x in (q, k)]
    freqs = model_angles(257, 128)

    def step():
        torch.autograd.grad(rope_triton.apply_qk_rotary_pos_emb(q, k, freqs), (q, k), gradients)

    step()  # compiles
    assert gpu_activities(step) == ["rope_kernel"] * 2


# --- what a comparison knows of them --------------------------------------------------------------


def described(cell, direction):
    (text,) = {
        text
        for metric, _, text in measure._check(_subjects, [cell], exact=False)["nodes"]
        if metric == direction
    }
    return text


@pytest.mark.parametrize("direction", ["rope.Forward.track_latency", "rope.Backward.track_latency"])
def test_nodes_of_a_call_repeat_and_show_what_pytorch_launches(direction, monkeypatch):
    cell = grid_cell(64, 64, 2, "float16", "sbhd")
    one, again = (described(cell, direction) for _ in range(2))
    assert one == again
    assert one.count(" x ") == 1 and "1 x Triton kernel, grid" in one
    apply = rope_triton.apply_rotary_pos_emb

    def with_a_cosine(t, freqs, *args, **options):
        freqs.cos()
        return apply(t, freqs, *args, **options)

    monkeypatch.setattr(rope_triton, "apply_rotary_pos_emb", with_a_cosine)
    other = described(cell, direction)
    if "Forward" in direction:
        assert other != one and "cos" in other and "1 x Triton kernel" in other
    else:
        assert other == one, "the gradient alone is recorded"


def test_nodes_are_as_many_as_launches_and_say_how_much_is_copied():
    x, scratch = torch.randn(64, 64, device="cuda"), torch.empty(2, 1024, device="cuda")

    def call():
        scratch[0].zero_()
        scratch[1].copy_(scratch[0])
        return x.cos()

    stream = torch.cuda.Stream()
    text = graph_nodes.described(call, stream)
    _, _, summary = text.partition(": ")
    counts = [int(part.partition(" x ")[0]) for part in summary.split("; ")]
    assert sum(counts) == graph_nodes.launches(call, stream) == 3
    assert "1 x copy of 4096x" in summary and "cos" in summary
