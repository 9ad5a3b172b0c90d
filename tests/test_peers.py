"""Other libraries' rotation: their cells, their calls, what is right, what asv makes of them."""

import gc
import inspect
import statistics

import pytest
import torch

import rope_triton
from benchmarks import _calls, _grid, _host, _host_inputs, _workload, peers
from benchmarks._grid import BACKWARD, FORWARD
from benchmarks._peers import calls, cells, plain
from benchmarks._peers import host as peer_host
from benchmarks._peers.cells import PEER_GRIDS, PeerCell
from benchmarks._peers.providers import INSTALL, PROVIDERS, Unavailable
from tests import libraries, samples
from tests import plain as plain_package
from tests.conftest import COMPILED

FULL, SMALL = (cells.peer_cells(PEER_GRIDS[name]) for name in ("full", "small"))
FORWARD_ONLY = {"vllm", "xformers"}
IN_PLACE = {"liger", "unsloth", "vllm"}
PAIRS = {"liger", "unsloth", "huggingface"}
COMPILED_PEERS = "compile", "compile-angles"
DIRECTIONS = (FORWARD, BACKWARD)
DTYPES = tuple(_grid.ITEM_BYTES)

all_providers = pytest.mark.parametrize("provider", PROVIDERS)
all_libraries = pytest.mark.parametrize("provider", libraries.FUNCTIONS)
all_timed = pytest.mark.parametrize(
    ("provider", "direction"),
    [(name, each) for name in PROVIDERS for each in DIRECTIONS if each == FORWARD]
    + [(name, BACKWARD) for name in PROVIDERS if name not in FORWARD_ONLY],
)
both_formats = pytest.mark.parametrize("format", ["sbhd", "bshd"])


def cell_of(provider, format="bshd", dtype="bfloat16", heads=4, seq_len=5, hidden_size=16, batch=2):
    return PeerCell(provider, seq_len, hidden_size, heads, batch, dtype, format)


def angles(cell, device="cpu"):
    return rope_triton.RotaryPositionEmbedding(cell.hidden_size, device=device)(cell.positions)


def random(cell, device="cpu"):
    return torch.randn(cell.shape, dtype=getattr(torch, cell.dtype)).to(device)


@pytest.fixture
def here(monkeypatch, device):
    """Cells are called where the kernels run, by stand-ins of all libraries."""
    for provider in libraries.FUNCTIONS:
        libraries.install(monkeypatch, provider)
    monkeypatch.setattr(plain._ByCompiler, "backend", "aot_eager")
    monkeypatch.setattr(_workload, "random_tensor", lambda cell: random(cell, device))
    monkeypatch.setattr(_workload, "angles", lambda cell: angles(cell, device))
    return device


def called(cell, direction, device="cpu"):
    """The call, its output, and what that should follow from."""
    call, x = calls.of(cell, angles(cell, device)), random(cell, device)
    given = x.clone()
    (rotate,) = _workload.calls(call, direction, [x])
    return call, rotate(), given


# --- the cells ------------------------------------------------------------------------------------


def test_every_provider_has_an_adapter_and_every_library_a_way_to_be_installed():
    assert list(calls.ADAPTERS) == list(PROVIDERS)
    assert set(INSTALL) == set(libraries.FUNCTIONS)
    assert all(how.startswith("pip install ") for how in INSTALL.values())
    assert list(PROVIDERS)[-1] == "unsloth"  # which changes torch for what comes after


def test_grids_are_small_and_span_the_sizes():
    assert set(SMALL) < set(FULL) and len(set(FULL)) == len(FULL)
    assert len(FULL) == 16 * len(PROVIDERS) and len(SMALL) == 4 * len(PROVIDERS)
    half = [cell.bytes_moved for cell in FULL if cell.dtype == "bfloat16"]
    assert (min(half), max(half)) == (8 * 2**20, 2**29)


@pytest.mark.parametrize("cell", SMALL[:4], ids=str)
def test_bytes_are_those_of_the_tensor_twice(cell):
    given = torch.empty(cell.shape, dtype=getattr(torch, cell.dtype), device="meta")
    assert cell.bytes_moved == 2 * given.nbytes
    assert given.shape[_calls.seq_dim(cell)] == cell.seq_len == cell.positions


def test_environment_names_the_grid(monkeypatch):
    monkeypatch.setenv("ROPE_GRID", "small")
    assert cells.active_peers() == PEER_GRIDS["small"]
    monkeypatch.setenv("ROPE_GRID", "none")
    with pytest.raises(ValueError, match=r"ROPE_GRID must be one of \['full', 'small'\]"):
        cells.active_peers()


# --- the calls and their check --------------------------------------------------------------------


@all_timed
@both_formats
@pytest.mark.parametrize("dtype", DTYPES)
def test_right_output_passes(here, provider, direction, format, dtype):
    call, output, given = called(cell_of(provider, format, dtype), direction, here)
    _calls.check(output, given, call, direction)
    for part, expected in zip(call.split(output), call.split(given), strict=True):
        assert part.shape == expected.shape


@all_providers
@both_formats
def test_odd_forms_pass(here, provider, format):
    cell = cell_of(provider, format, "float32", heads=3, seq_len=7, hidden_size=24, batch=3)
    call, output, given = called(cell, FORWARD, here)
    _calls.check(output, given, call, FORWARD)


@all_timed
@both_formats
def test_mistakes_are_found(here, provider, direction, format):
    call, output, given = called(cell_of(provider, format), direction, here)
    parts = [part.clone() for part in call.split(output)]

    def refused(wrong):
        with pytest.raises(AssertionError):
            whole = tuple(wrong) if isinstance(output, tuple) else wrong[0]
            _calls.check(whole, given, call, direction)

    refused([part.roll(1, dims=_calls.seq_dim(call.cell)) for part in parts])
    refused([part.float() for part in parts])
    if provider != "copy":
        refused(call.split(given))
    for index in range(len(parts)):  # every part is looked at, to its end
        for value in (0.25, float("nan"), float("inf")):
            wrong = [part.clone() for part in parts]
            wrong[index][-1, -1, -1, -1] += value
            refused(wrong)


@pytest.mark.parametrize("provider", sorted(FORWARD_ONLY))
def test_no_backward_is_not_a_failure(here, provider):
    with pytest.raises(Unavailable, match=f"{provider} has no backward pass"):
        called(cell_of(provider), BACKWARD, here)


@pytest.mark.parametrize("provider", ["flash-attention", "fla"])
def test_wide_heads_are_refused(here, provider):
    with pytest.raises(Unavailable, match="up to 256, got 512"):
        calls.of(cell_of(provider, hidden_size=512), None)


@pytest.mark.parametrize("provider", sorted(PAIRS))
def test_queries_and_keys_need_two_heads(here, provider):
    with pytest.raises(Unavailable, match="needs 2 heads or more, got 1"):
        calls.of(cell_of(provider, heads=1), None)


@pytest.mark.parametrize(
    ("cell", "message"),
    [(cell_of("nobody"), "provider must be one of"), (cell_of("copy", "thd"), "format must be")],
)
def test_what_does_not_exist_is_refused(cell, message):
    with pytest.raises(ValueError, match=message):
        calls.of(cell, None)


@pytest.mark.parametrize("provider", sorted(PAIRS))
@both_formats
def test_queries_and_keys_are_the_tensor(here, provider, format):
    """Each byte of the input is given once, so that those counted are those moved."""
    cell = cell_of(provider, format)
    call, x = calls.of(cell, angles(cell, here)), random(cell, here)
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
    call, output, given = called(cell_of("transformer-engine"), FORWARD, here)
    _calls.check(output, given, call, FORWARD)


# --- tolerance ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounding_of_products_is_needed_and_is_enough(dtype):
    """Of many values the formula fails the tolerance of a result that is rounded once."""
    cell = cell_of("pytorch", dtype=dtype, seq_len=64, heads=16, hidden_size=64)
    call, output, given = called(cell, FORWARD)
    _calls.check(output, given, call, FORWARD)
    call.slack = 0.0
    with pytest.raises(AssertionError, match="not close"):
        _calls.check(output, given, call, FORWARD)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("half", [slice(None, 8), slice(8, None)], ids=["first", "second"])
def test_no_more_than_the_slack_is_let_through(dtype, half):
    call, output, given = called(cell_of("pytorch", dtype=dtype), FORWARD)
    eps = torch.finfo(output.dtype).eps
    assert eps / 2 < call.slack < 0.51 * eps
    given.zero_()[..., half] = 1  # so that every pair has the length 1
    exact = call.forward(given).float()  # nothing is added to a product
    _calls.check((exact + 0.9 * call.slack).to(output.dtype), given, call, FORWARD)
    with pytest.raises(AssertionError, match="not close"):
        _calls.check((exact + 8 * call.slack).to(output.dtype), given, call, FORWARD)


def test_slack_grows_with_each_pair_not_with_the_largest():
    call, output, given = called(cell_of("pytorch"), FORWARD)
    given[:, 0] *= 1e-3
    moved = call.forward(given)
    _calls.check(moved, given, call, FORWARD)
    moved[:, 0] += call.slack
    with pytest.raises(AssertionError, match="not close"):
        _calls.check(moved, given, call, FORWARD)


def test_only_those_that_round_more_have_slack(here):
    made = {name: calls.of(cell_of(name), angles(cell_of(name), here)).slack for name in PROVIDERS}
    loose = {name for name, slack in made.items() if slack}
    assert loose == {"pytorch", "compile", "vllm", "xformers", *PAIRS}


# --- isolation ------------------------------------------------------------------------------------


def tensors(value):
    """Every tensor that a call holds."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from tensors(each)


def held(call):
    return [each for value in vars(call).values() for each in tensors(value)]


def memory(tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@both_formats
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_providers_leave_each_others_tensors_alone(here, format, direction):
    """All are made by the same angles, and all that any holds is the same after all were called."""
    names = [name for name in PROVIDERS if direction == FORWARD or name not in FORWARD_ONLY]
    freqs = angles(cell_of("copy"), here)
    made = {name: calls.of(cell_of(name, format), freqs) for name in names}
    inputs = {name: random(cell_of(name, format), here) for name in names}
    before = {name: [each.clone() for each in held(call)] for name, call in made.items()}
    given = {name: x.clone() for name, x in inputs.items()}
    own = {name: {memory(t) for t in held(call)} - {memory(freqs)} for name, call in made.items()}
    assert sum(map(len, own.values())) == len(set.union(*own.values()))
    for name in names:
        (rotate,) = _workload.calls(made[name], direction, [inputs[name]])
        output = made[name].split(rotate())
        reached = set().union(*own.values(), {memory(freqs)})
        assert not reached & {memory(part) for part in output}
        for other in names[names.index(name) + 1 :]:
            assert torch.equal(inputs[other], given[other]), (name, other)
    for name in names:
        if name != "xformers":  # whose cache is there to be written
            assert all(map(torch.equal, held(made[name]), before[name])), name
        assert torch.equal(inputs[name], given[name]) or made[name].in_place, name


@pytest.mark.parametrize("provider", sorted(IN_PLACE))
@both_formats
def test_what_is_overwritten_is_said_to_be(here, provider, format):
    cell = cell_of(provider, format)
    call, x = calls.of(cell, angles(cell, here)), random(cell, here)
    given = x.clone()
    call.forward(call.operand(x))
    assert call.in_place
    overwritten = format == "bshd" or provider == "vllm"
    assert torch.equal(x, given) != overwritten


@pytest.mark.parametrize("provider", COMPILED_PEERS)
def test_each_compiled_call_is_compiled_for_itself(here, monkeypatch, provider):
    """Also after as many as torch would compile of one function before it gives up."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(inputs)
        return graph.forward

    monkeypatch.setattr(plain._ByCompiler, "backend", staticmethod(backend))
    limit = torch._dynamo.config.recompile_limit
    for seq_len in range(2, limit + 5):
        call, output, given = called(cell_of(provider, seq_len=seq_len), FORWARD, here)
        _calls.check(output, given, call, FORWARD)
        assert len(graphs) == seq_len - 1
        call.forward(given)
        assert len(graphs) == seq_len - 1


# --- samples --------------------------------------------------------------------------------------


@pytest.fixture
def on_gpu(here, monkeypatch, tmp_path):
    """Measures as on a GPU, but with made-up samples, and where the kernels run."""
    samples.install(monkeypatch, tmp_path / "progress", sets=2)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(_host_inputs, "DEVICE", here)
    monkeypatch.setattr(gc, "collect", lambda: 0)  # a quarter of a second for each tiny call
    if not COMPILED:  # an interpreted kernel takes its time
        plain_package.install(monkeypatch)
    # The compiler looks at the GPU that there is not: compiled calls have tests of their own.
    monkeypatch.setattr(plain._ByCompiler, "_compile", lambda call, function: function)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_cells_are_measured(on_gpu, direction):
    wanted = [cell_of(name, format) for name in PROVIDERS for format in ("sbhd", "bshd")]
    outcomes = _workload.measure_cells(wanted, direction)
    assert list(outcomes) == wanted
    for cell, outcome in outcomes.items():
        if direction == BACKWARD and cell.provider in FORWARD_ONLY:
            reason = f"{cell.provider} has no backward pass"
            assert outcome == _workload.Outcome(unavailable=reason)
        else:
            assert outcome == _workload.Outcome((1e-6,) * 3, (1e-6,) * 3), cell


@all_libraries
def test_a_missing_library_says_how_to_install_it(on_gpu, provider, monkeypatch):
    libraries.remove(monkeypatch, provider)
    for direction in DIRECTIONS:
        (outcome,) = _workload.measure_cells([cell_of(provider)], direction).values()
        assert outcome.unavailable.startswith(f"{provider} is not there: ")
        assert outcome.unavailable.endswith(INSTALL[provider])
        assert not outcome.error and not outcome.latency


@pytest.mark.parametrize("name", ["apply_rotary_pos_emb", "apply_rotary_emb"])
def test_what_our_commit_lacks_is_no_matter_of_installing(on_gpu, name, monkeypatch):
    monkeypatch.delattr(rope_triton, name)
    provider = {"apply_rotary_pos_emb": "rope-triton", "apply_rotary_emb": "rope-triton-tables"}
    (outcome,) = _workload.measure_cells([cell_of(provider[name])], FORWARD).values()
    assert (
        outcome.unavailable == f"this commit cannot: cannot import name '{name}' from 'rope_triton'"
    )


def spoiled(function):
    """As the function, but for the last channel of the last thing that it gives back or writes."""

    def call(*args, **options):
        output = function(*args, **options)
        last = output[-1] if isinstance(output, tuple) else output
        last = args[1] if last is None else last
        last.data[..., -1] += 1
        return output

    call.__signature__ = inspect.signature(function)
    return call


@all_libraries
def test_a_wrong_result_has_no_speed(on_gpu, provider, monkeypatch):
    libraries.install(monkeypatch, provider, spoiled(libraries.FUNCTIONS[provider][2]))
    (outcome,) = _workload.measure_cells([cell_of(provider)], FORWARD).values()
    assert not outcome.latency and not outcome.unavailable
    assert "AssertionError: Tensor-likes are not close!" in outcome.error


def test_a_wrong_backward_has_no_speed(on_gpu, monkeypatch):
    def forward_only(x, cos, sin, **_):
        return libraries.flash_apply_rotary_emb(x, cos, sin).detach() + 0 * x

    libraries.install(monkeypatch, "flash-attention", forward_only)
    cell = cell_of("flash-attention")
    assert _workload.measure_cells([cell], FORWARD)[cell].latency
    assert "not close" in _workload.measure_cells([cell], BACKWARD)[cell].error


def test_a_library_that_breaks_is_an_error(on_gpu, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("CUDA error: no kernel image")

    libraries.install(monkeypatch, "fla", broken)
    (outcome,) = _workload.measure_cells([cell_of("fla")], FORWARD).values()
    assert "RuntimeError: CUDA error: no kernel image" in outcome.error


# --- host time and error --------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(_host, "_WARM_CALLS", 1)
    monkeypatch.setattr(_host, "_BLOCK_CALLS", 2)
    monkeypatch.setattr(_host_inputs, "CALL_SEQ_LEN", 3)
    monkeypatch.setattr(peer_host, "HEADS", 2)
    monkeypatch.setattr(peer_host, "_ERROR_SHAPE", (64, 32, 2, 1))


def test_every_call_has_a_host_time(on_gpu, quick):
    answers = peer_host.call_samples()
    assert len(answers) == 2 * len(PROVIDERS)
    for (metric, (provider,)), answer in answers.items():
        if metric == peer_host.CALL_FORWARD_BACKWARD and provider in FORWARD_ONLY:
            assert isinstance(answer, NotImplementedError)
            assert str(answer) == f"{provider} has no backward pass"
        else:
            assert len(answer) == peer_host._BLOCKS, (provider, answer)
            assert all(0 < seconds < 1 for seconds in answer)


def test_host_time_of_a_wrong_call_is_an_error(on_gpu, quick, monkeypatch):
    libraries.install(monkeypatch, "liger", spoiled(libraries.liger_rotary_pos_emb))
    monkeypatch.setattr(peer_host, "PROVIDERS", {"liger": "", "fla": ""})
    answers = peer_host.call_samples()
    wrong = answers[peer_host.CALL_FORWARD, ("liger",)]
    assert isinstance(wrong, RuntimeError) and "not close" in str(wrong)
    assert len(answers[peer_host.CALL_FORWARD, ("fla",)]) == peer_host._BLOCKS


def test_error_shows_what_rounding_costs(on_gpu, quick):
    answers = peer_host.error_facts()
    assert len(answers) == 2 * 3 * (len(PROVIDERS) - 1)
    values = {}
    for (metric, (direction, provider, dtype)), answer in answers.items():
        assert metric == peer_host.ERROR
        if direction == BACKWARD and provider in FORWARD_ONLY:
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
    assert values["xformers", FORWARD, "bfloat16"] == pytest.approx(1.0, abs=1e-2)
    assert statistics.median(values.values()) < 3


def test_the_measures_reach_a_fresh_process():
    import pickle

    assert pickle.loads(pickle.dumps(peer_host.MEASURES)).keys() == peer_host.MEASURES.keys()


def test_without_a_gpu_everything_is_unavailable_for_one_reason(monkeypatch, tmp_path):
    monkeypatch.setenv("ROPE_PROGRESS", str(tmp_path / "progress"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    answers = peer_host.call_samples() | peer_host.error_facts()
    assert {str(answer) for answer in answers.values()} == {
        "no NVIDIA GPU: torch.cuda.is_available() is False"
    }


# --- as asv sees it -------------------------------------------------------------------------------


def test_tracks_pick_their_cell():
    cell = SMALL[0]
    params = tuple(vars(cell).values())
    cache = {cell: _workload.Outcome(latency=(2e-5, 4e-5), copy=(2e-5, 2e-5))}
    for suite in (peers.Forward(), peers.Backward()):
        suite.setup(cache, *params)
        assert suite.track_latency(cache, *params) == {"samples": [2e-5, 4e-5], "number": 1}
        assert suite.track_copy_ratio(cache, *params)["samples"] == pytest.approx([1.0, 2.0])
        gbps = [cell.bytes_moved / seconds / 1e9 for seconds in (2e-5, 4e-5)]
        assert suite.track_gbps(cache, *params)["samples"] == pytest.approx(gbps)


def test_tracks_pick_their_answer():
    call, error = peers.Call(), peers.Error()
    answers = {(peer_host.CALL_FORWARD, ("fla",)): [1e-5]}
    answers[peer_host.CALL_FORWARD_BACKWARD, ("fla",)] = NotImplementedError("not there")
    answers[peer_host.ERROR, ("forward", "fla", "float16")] = 1.5
    call.track_forward.__func__.setup(answers, "fla")
    assert call.track_forward(answers, "fla") == {"samples": [1e-5], "number": 1}
    with pytest.raises(NotImplementedError, match="not there"):
        call.track_forward_backward.__func__.setup(answers, "fla")
    assert error.track_error(answers, "forward", "fla", "float16") == 1.5


@pytest.mark.skipif(not COMPILED, reason="the seed's kernel compiles on a GPU alone")
def test_the_seeds_kernel_is_one_launch(here):
    cell = cell_of("seed", "sbhd", "float16")
    call, x = calls.of(cell, angles(cell, here)), random(cell, here)
    assert _host._launches(lambda: lambda: call.forward(x)) == 1
