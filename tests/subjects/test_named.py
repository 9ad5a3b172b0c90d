"""Calls whose name says all of it, and those that are drawn at random."""

from collections import Counter
from dataclasses import dataclass

import pytest
import torch

from benchmarks._subjects.rope import named, package_calls
from benchmarks._subjects.rope.forms import BACKWARD, FORWARD
from benchmarks._subjects.rope.models import Model
from benchmarks._subjects.rope.named import CHOSEN, NamedCell, draw, parsed

COMMIT = "0123456789abcdef0123456789abcdef01234567"
DRAWN = [name for seed in range(3) for name in draw(COMMIT, seed, 67)]


@dataclass(frozen=True)
class Call(NamedCell):
    """This package's."""

    suite = "named"
    name: str
    takes: str


def test_a_name_has_all_of_a_call():
    model = Model((32, 8), 128, 64, True, "of192", "perbatch", 2, 4096, "fp16")
    assert named.named(model) == "fp16-32+8x128r64-il-of192-perbatch-2x4096"
    assert parsed("fp16-32+8x128r64-il-of192-perbatch-2x4096") == model
    assert parsed("bf16-1x64-64x1") == Model((1,), 64, 64, batch=64, seq_len=1)
    rank = Model((1,), 64, 64, seq_len=8, parallel="cp", rounding="reach")
    assert parsed("bf16-1x64-cp-reach-2x8") == rank
    for name in (*CHOSEN, *DRAWN):
        assert named.named(parsed(name)) == name
    assert len(set(CHOSEN)) == len(CHOSEN)


@pytest.mark.parametrize(
    "name",
    [
        *("", "bf16-1x64", "bf32-1x64-1x1", "bf16-0x64-1x1", "bf16-1x64-1x0", "bf16-1x64r64-1x1"),
        *("bf16-1x64r96-1x1", "bf16-1x64r31-1x1", "bf16-1x64-of32-1x1", "bf16-1x64-of192-il-1x1"),
        *("bf16-01x64-1x1", "bf16-1+1+1x64-1x1", "bf16-1x64-perhead-1x1", "bf16-1x64-1x1 "),
        *("bf16-1x64-cp-1x3", "bf16-1x64-reach-cp-1x4", "bf16-1x64-once-1x1"),
    ],
)
def test_other_names_are_refused(name):
    with pytest.raises(ValueError, match="no call has the name"):
        parsed(name)


def test_training_and_decoding():
    training = Call("bf16-32+8x128-2x4096", "angles")
    assert training.shapes == ((2, 4096, 32, 128), (2, 4096, 8, 128))
    assert training.of.function == "qk" and training.directions == (FORWARD, BACKWARD)
    assert training.bytes_moved == 2 * 2 * 2 * 4096 * 40 * 128 and set(training.starts) == {0}
    decode = Call("fp32-8x64r32-16x1", "tables")
    assert decode.of.function == "tables" and decode.directions == (FORWARD,)
    assert decode.dtype == "float32" and decode.hidden_size == 32
    assert decode.starts == tuple(range(0, 4096, 256))


def test_packed_tensors_lie_side_by_side_before_values():
    cell = Call("bf16-4+2x8-packed-2x3", "angles")
    x = torch.arange(cell.shape[0])
    assert len(x) == 2 * 3 * (4 + 2 + 2) * 8
    queries, keys = cell.call("cpu").operand(x)
    rows = x.view(2, 3, 8, 8)
    assert torch.equal(queries, rows[:, :, :4]) and torch.equal(keys, rows[:, :, 4:6])
    assert queries.data_ptr() == x.data_ptr() and queries.stride() == rows.stride()
    alone = Call("bf16-4x8-packed-2x3", "angles")
    x = torch.arange(alone.shape[0])
    view = alone.call("cpu").operand(x)
    assert torch.equal(view, x.view(2, 3, 8, 8)[:, :, :4])


@pytest.mark.parametrize("takes", ["angles", "tables"])
@pytest.mark.parametrize(
    "name",
    [
        *("bf16-4+2x16r8-packed-2x3", "fp16-1x16-il-of48-2x3", "fp32-3+1x16-transposed-2x3"),
        *("bf16-2x16-misaligned-3x1", "fp32-2+1x16-sliced-perbatch-2x3"),
        *("bf16-2+1x16-cp-2x4", "fp16-2x16r8-perbatch-cp-2x4"),
        *("fp16-2x16-rtables-2x3", "fp16-2+1x16-reach-2x3"),
    ],
)
def test_every_call_is_right(name, takes, monkeypatch):
    monkeypatch.setattr(
        "benchmarks._subjects.rope.models._CONTEXT", 64
    )  # the interpreter rounds an fma twice
    cell = Call(name, takes)
    call, dtype = cell.call("cpu"), getattr(torch, cell.dtype)
    x, grad = (torch.randn(cell.shape).to(dtype) for _ in range(2))
    leaf = call.leaf(x)
    output = call.forward(leaf)
    package_calls.check(output, x, call, FORWARD)
    with pytest.raises(AssertionError, match="not close"):
        package_calls.check(call.operand(x), x, call, FORWARD)
    if BACKWARD in cell.directions:
        gradient = package_calls.gradient(output, leaf, call.cotangent(grad))
        package_calls.check(gradient, grad, call, BACKWARD)


# --- drawn at random ------------------------------------------------------------------------------


def test_what_is_drawn_follows_from_the_commit_and_the_seed():
    assert draw(COMMIT, 0, 67) == DRAWN[:67] and draw(COMMIT, 0, 5) == DRAWN[:5]
    others = [draw(COMMIT, 1, 67), draw(COMMIT[::-1], 0, 67)]
    assert all(len(set(DRAWN[:67]) & set(other)) < 10 for other in others)
    assert len(set(draw(COMMIT, 0, 300))) == 300


def test_what_is_drawn_is_like_the_calls_of_models_and_varied():
    cells = [Call(name, "angles") for name in DRAWN]
    mib = sorted(cell.bytes_moved / 2**20 for cell in cells)
    assert sum(1 <= each <= 66 for each in mib) > 0.9 * len(mib) and mib[-1] < 70 and mib[0] > 0.01
    seen = Counter(word for cell in cells for word in words(cell))
    least = {
        **{"bf16": 80, "fp16": 10, "fp32": 10, "pair": 80, "alone": 30, "part": 30, "il": 30},
        **{"decode": 40, "training": 80, "perbatch": 8, "of": 8, "packed": 10, "transposed": 5},
        **{"sliced": 2, "misaligned": 1, "one head": 4, "one head with a batch": 2, "odd": 3},
    }
    assert {word for word, count in least.items() if seen[word] < count} == set()


def words(cell):
    model = cell.layer
    one = model.heads == (1,) and cell.step == "training"
    yield from (model.dtype, cell.step, model.layout.rstrip("0123456789"), model.tables)
    yield "pair" if len(model.heads) == 2 else "alone"
    more = {
        **{"part": model.rotated < model.channels, "il": model.interleaved, "one head": one},
        **{"one head with a batch": one and model.batch > 1, "odd": model.seq_len % 16 > 1},
    }
    yield from (word for word, found in more.items() if found)
