"""Calls of other libraries' rotation: what is right, how near, and what each call may touch."""

import sys

import pytest
import torch

from benchmarks._engine.subject import BACKWARD, FORWARD, Unavailable
from benchmarks._studies.peers import plain
from benchmarks._studies.peers.providers import PROVIDERS
from benchmarks._subjects.rope import names
from tests.peers import libraries
from tests.peers.libraries import FORWARD_ONLY, HALF_ONLY, called, cell_of

here = libraries.here  # fixture

IN_PLACE = {"liger", "unsloth", "vllm"}
PAIRS = {"liger", "unsloth", "huggingface", "flashinfer"}
COMPILED_PEERS = "compile", "compile-angles"
DTYPES = tuple(names.ITEM_BYTES)
all_timed = pytest.mark.parametrize(
    ("provider", "direction"),
    [(name, FORWARD) for name in PROVIDERS]
    + [(name, BACKWARD) for name in PROVIDERS if name not in FORWARD_ONLY],
)
both_formats = pytest.mark.parametrize("format", ["sbhd", "bshd"])


# --- the calls and their check --------------------------------------------------------------------


ODD = dict(dtype="float32", heads=3, seq_len=7, hidden_size=24, batch=3)


@all_timed
@both_formats
@pytest.mark.parametrize("form", [*({"dtype": dtype} for dtype in DTYPES), ODD], ids=str)
def test_right_output_passes(here, provider, direction, format, form):
    cell = cell_of(provider, format, **form)
    if provider in HALF_ONLY and cell.dtype == "float32":
        with pytest.raises(Unavailable):
            cell.call("cpu")
        return
    call, rotate, _, before = called(cell, direction, here)
    call.check(output := rotate(), before, direction)
    for part, expected in zip(call.split(output), call.parts(before, direction), strict=True):
        assert part.shape == expected.shape


@all_timed
@both_formats
def test_mistakes_are_found(here, provider, direction, format):
    call, rotate, _, before = called(cell_of(provider, format), direction, here)
    output = rotate()
    parts = [part.clone() for part in call.split(output)]

    def refused(wrong):
        with pytest.raises(AssertionError):
            result = tuple(wrong) if isinstance(output, tuple) else wrong[0]
            call.check(result, before, direction)

    refused([part.roll(1, dims=max(call.cell.call_name.format.find("s"), 0)) for part in parts])
    refused([part.float() for part in parts])
    if provider != "copy":
        refused(call.parts(before, direction))
    for index in range(len(parts)):  # every part is looked at, to its end
        for value in (0.25, float("nan"), float("inf")):
            wrong = [part.clone() for part in parts]
            wrong[index][-1, -1, -1, -1] += value
            refused(wrong)


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        *(
            (cell_of(name, hidden_size=512), "up to 256 channels, got 512")
            for name in ("flash-attention", "fla")
        ),
        (cell_of("quack", hidden_size=520), "up to 512 channels, got 520"),
        (cell_of("quack", hidden_size=20), "multiples of 8 .* got 20"),
        (cell_of("flashinfer", hidden_size=48), "multiples of 32 channels, got 48"),
        (cell_of("flashinfer", dtype="float32"), "float16 and bfloat16, got float32"),
        *((cell_of(name, heads=1), "takes queries and keys, not one") for name in sorted(PAIRS)),
    ],
)
def test_what_cannot_be_called_is_refused(cell, message):
    with pytest.raises(Unavailable, match=message):
        cell.call("cpu")


def test_there_is_no_cell_of_another_provider_or_format():
    for cell, message in (
        (("nobody",), "provider must be one of"),
        (("copy", "thd"), "format must"),
    ):
        with pytest.raises(ValueError, match=message):
            cell_of(*cell)


@pytest.mark.parametrize("provider", sorted(PAIRS))
@both_formats
def test_queries_and_keys_are_the_tensor(here, provider, format):
    """Each byte of the input is given once, so that those counted are those moved."""
    cell = cell_of(provider, format)
    call, x = cell.call(here), torch.empty(cell.shape, dtype=getattr(torch, cell.dtype))
    q, k = call.operand(x)
    assert q.shape == k.shape and q.is_contiguous() and k.is_contiguous()
    assert q.data_ptr() == x.data_ptr() and k.data_ptr() == x.data_ptr() + x.nbytes // 2


def test_transformer_engine_is_found_where_it_once_was(here, monkeypatch):
    libraries.remove(monkeypatch, "transformer-engine")
    old = "transformer_engine.pytorch.attention"
    monkeypatch.setitem(
        libraries.FUNCTIONS,
        "transformer-engine",
        (old, "apply_rotary_pos_emb", libraries.te_apply_rotary_pos_emb),
    )
    libraries.install(monkeypatch, "transformer-engine")
    call, rotate, _, before = called(cell_of("transformer-engine"), FORWARD, here)
    call.check(rotate(), before, FORWARD)


def test_a_library_of_another_version_is_not_there(here, monkeypatch):
    libraries.put(monkeypatch, "fla.modules.rotary")
    with pytest.raises(
        Unavailable, match="fla is not there: cannot import name 'rotary_embedding'"
    ):
        cell_of("fla").call(here)


def test_flash_attention_is_found_without_its_cuda_kernels(tmp_path, monkeypatch):
    layers = tmp_path / "flash_attn" / "layers"
    layers.mkdir(parents=True)
    (tmp_path / "flash_attn" / "__init__.py").write_text("import flash_attn_2_cuda\n")
    (layers / "rotary.py").write_text("def apply_rotary_emb(*_, **__): return 'found'\n")
    libraries.remove(monkeypatch, "flash-attention")
    monkeypatch.delitem(sys.modules, "flash_attn")
    monkeypatch.syspath_prepend(tmp_path)
    assert cell_of("flash-attention").call("cpu").forward(torch.ones(1, 1, 1, 1)) == "found"
    for name in [name for name in sys.modules if name.startswith("flash_attn")]:
        del sys.modules[name]


# --- tolerance ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("half", [slice(None, 16), slice(16, None)], ids=["first", "second"])
def test_no_more_than_the_slack_is_let_through(dtype, half):
    call, rotate, _, before = called(cell_of("pytorch", dtype=dtype), FORWARD)
    output = rotate()
    eps = torch.finfo(output.dtype).eps
    assert eps / 2 < call.slack < 0.51 * eps
    operand = call.operand(before.zero_())
    operand[..., half] = 1  # so that every pair has the length 1
    exact = call.forward(operand).float()  # nothing is added to a product
    call.check((exact + 0.9 * call.slack).to(output.dtype), before, FORWARD)
    with pytest.raises(AssertionError, match="not close"):
        call.check((exact + 8 * call.slack).to(output.dtype), before, FORWARD)


def test_only_those_that_round_more_have_slack(here):
    made = {name: cell_of(name).call(here).slack for name in PROVIDERS}
    loose = {name for name, slack in made.items() if slack}
    assert loose == {"pytorch", "compile", "vllm", "xformers", *PAIRS} - {"flashinfer"}


# --- isolation ------------------------------------------------------------------------------------


@pytest.mark.parametrize("provider", sorted(IN_PLACE))
@both_formats
def test_what_is_overwritten_is_said_to_be(here, provider, format):
    call, rotate, x, before = called(cell_of(provider, format), FORWARD, here)
    rotate()
    assert call.in_place
    overwritten = format == "bshd" or provider == "vllm"
    assert torch.equal(x, before) != overwritten


@pytest.mark.parametrize("provider", COMPILED_PEERS)
def test_each_compiled_call_is_compiled_for_itself(here, monkeypatch, provider):
    """Also after as many as torch would compile of one function before it gives up."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(inputs)
        return graph.forward

    monkeypatch.setattr(plain.Compiled, "backend", staticmethod(backend))
    limit = torch._dynamo.config.recompile_limit
    for seq_len in range(2, limit + 5):
        call, rotate, _, before = called(cell_of(provider, seq_len=seq_len), FORWARD, here)
        call.check(rotate(), before, FORWARD)
        assert len(graphs) == seq_len - 1
        call.forward(call.operand(before))
        assert len(graphs) == seq_len - 1
