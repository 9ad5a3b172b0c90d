"""The roofline: a copy that reads as many bytes of angles or tables as a call needs."""

import pytest
import torch

import rope_triton
from benchmarks._engine.measure import cell_outcomes, gpu_timer, inputs, roofline, timed_cell
from benchmarks._studies.peers.peer_cells import peer_cell, peer_model_cell
from benchmarks._subjects.rope.cells import grid_cell, model_cell, named_cell, path_cell
from tests.cells import sized_cell
from tests.engine.measure import samples
from tests.package import plain
from tests.peers import libraries

here = libraries.here  # fixture
copied = roofline.copied  # which the made-up samples replace


# --- what a call reads ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        # float32 angles, one for each channel; however many sequences and heads share them.
        (grid_cell(37, 64, 2, "bfloat16", "sbhd"), 37 * 64 * 4),
        (sized_cell("bf16-8+2x64r32-2x37", "angles"), 37 * 32 * 4),
        # A cosine and a sine for two channels.
        (sized_cell("bf16-8+2x64r32-2x37", "tables"), 37 * 32 * 2),
        (sized_cell("fp32-8x64-2x37", "tables"), 37 * 64 * 4),
        (sized_cell("bf16-8x64-perbatch-3x37", "angles"), 3 * 37 * 64 * 4),
        (path_cell("tables", 1, "float32"), 8 * 128 * 4),
        (path_cell("qkv", 1, "float32"), 10 * 128 * 4),
        # 64 tokens at positions of their own, or all at the first.
        (model_cell("llama-3-8b", "decode", "angles"), 64 * 128 * 4),
        (model_cell("qwen-2-vl-7b", "decode", "angles"), 64 * 128 * 4),
        # Sequences of 16 tokens that begin at 0, 8, 16 and 24; others all begin at 0.
        (named_cell("angles-bshd-bf16-64x128-starts", 1), (24 + 16) * 128 * 4),
        (named_cell("tables-bshd-bf16-8x64-t32", 4), 1024 * 64 * 4),
        (named_cell("attention-bhsd-fp32-8x64-pereach", 4), 4 * 512 * 8 * 64 * 4),
        (named_cell("angles-bshd-bf16-8x64-cp", 4), 1024 * 64 * 4),
    ],
    ids=str,
)
def test_bytes_that_a_call_reads_besides_the_tensor(cell, expected):
    call = cell.call("cpu")
    assert call.bytes_read() == expected


def test_positions_count_once():
    cell = path_cell("thd", 1, "bfloat16")  # of sequences at the same positions, the longest
    assert cell.distinct_positions == max(cell.lengths)
    parallel = named_cell("angles-bshd-bf16-8x64-cp", 4)
    assert parallel.spans == {(512, 1536)} and parallel.positions == 2048


def test_calls_of_other_libraries_do_not_say(here):
    for cell in (
        peer_cell("flash-attention", 5, 32, 4, 2, "bfloat16", "bshd"),
        peer_model_cell("quack", "phi-2", "decode"),
    ):
        assert cell.call(here).bytes_read() == 0


# --- the kernel -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("elements", "bytes_read"), [(2 * 1024 + 6, 100), (64, 40_000)])
def test_it_copies_and_leaves_the_table_as_it_is(dtype, elements, bytes_read):
    x = torch.randn(2, elements // 2).to(dtype)
    out, table = torch.empty_like(x), roofline.table_of(bytes_read, "cpu")
    assert 0 <= table.nbytes - bytes_read < 64
    assert roofline.copied(x, table, out) is out
    assert torch.equal(out, x) and not table.any()


def test_every_word_of_the_table_is_read():
    """Each that is 1, as none is where it is timed, is written again."""
    x = torch.randn(3 * 1024 + 8).to(torch.float16)
    table = roofline.table_of(4 * 784, "cpu").fill_(1)
    roofline.copied(x, table, torch.empty_like(x))
    assert (table == 2).all()


# --- beside a call --------------------------------------------------------------------------------


@pytest.fixture
def timed(monkeypatch, tmp_path):
    """Recordings on the CPU; each sample names what was timed, in their turns."""
    turns = []

    def paired(recordings, count, seconds):
        turns.append((len(recordings), count, seconds))
        return [[float(index)] * count for index, _ in enumerate(recordings)]

    samples.install(monkeypatch, tmp_path / "progress", sets=2)
    monkeypatch.setattr(gpu_timer, "paired_samples", paired)
    monkeypatch.setattr(inputs, "DEVICE", "cpu")
    monkeypatch.setattr(rope_triton, "apply_rotary_pos_emb", plain.apply_rotary_pos_emb)
    return turns


@pytest.fixture
def made(timed, monkeypatch):
    """The recordings, in the order in which they are made."""
    made, recording = [], gpu_timer.Recording

    def recorded(*arguments):
        made.append(recording(*arguments))
        return made[-1]

    monkeypatch.setattr(gpu_timer, "Recording", recorded)
    return made


def test_a_few_samples_are_taken_in_turns_with_the_first_of_the_call(timed):
    cell = grid_cell(5, 64, 2, "bfloat16", "bshd")
    (outcome,) = cell_outcomes.measure_cells([cell], "backward").values()
    assert timed == [(3, 3, 3e-3), (2, 4, 3e-3)]
    assert (outcome.latency, outcome.copy, outcome.roofline) == ((0.0,) * 7, (1.0,) * 7, (2.0,) * 3)


def test_a_comparison_times_no_roofline(timed):
    cell = grid_cell(5, 64, 2, "bfloat16", "bshd")
    alone = timed_cell.TimedCell(cell, ("forward", "backward"))
    alone.sample(2, 1e-3)
    assert alone.checked() == [[0.0] * 2, [1.0] * 2] and timed == [(2, 2, 1e-3)]


def test_of_a_view_it_copies_as_many_bytes_as_the_call_moves(made, monkeypatch):
    monkeypatch.setattr(roofline, "copied", copied)
    cell = sized_cell("bf16-2x16-packed-1x3", "tables")
    timed = timed_cell.TimedCell(cell, ("forward",), copies=True)
    for out, x in zip(made[-1].outputs, timed._inputs, strict=True):
        assert 2 * out.nbytes == cell.bytes_moved < 2 * x.nbytes
        assert torch.equal(out, x[: len(out)])


@pytest.mark.parametrize("path", ["tables-inplace", "then-read"])
def test_it_writes_to_the_memory_of_the_copies_and_reads_the_inputs(made, path, monkeypatch):
    written = []

    def copied(x, table, out):
        written.append((x.clone(), out))
        return out

    monkeypatch.setattr(roofline, "copied", copied)
    monkeypatch.setattr(rope_triton, "apply_rotary_emb", plain.FUNCTIONS["apply_rotary_emb"])
    cell = path_cell(path, 1 / 16, "bfloat16")
    call = timed_cell.TimedCell(cell, ("forward",), copies=True)
    _, copies, rooflines = made
    assert call.checked() and len(written) == len(copies.outputs) == len(rooflines.outputs) == 2
    for (x, out), copy in zip(written, copies.outputs, strict=True):
        first = copy[0] if isinstance(copy, tuple) else copy
        assert out is first and x.shape == first.shape
