"""On a GPU: what a row becomes depends on its values, its angles and the direction alone.

Each form of a call is compared bit by bit with one plain call, in which every row of every head is
a position of its own: contiguous, of one sequence and one head. The gradient is compared with that
call by the angles negated.
"""

import pytest
import torch

import rope_triton
from benchmarks import _subjects
from benchmarks._engine.subject import BACKWARD, FORWARD
from benchmarks._subjects.calls import gradient
from benchmarks._subjects.rope import angles

pytestmark = [pytest.mark.gpu, pytest.mark.public]

CELLS = [cell for cell in _subjects.checked() if cell.suite in ("surface", "model_calls")]


def plainly(rows, given, call, direction):
    """Rows ``[n, channels]``, rotated by the angles ``[n, pairs]`` of each, in one plain call."""
    given = -given if direction == BACKWARD else given
    options = {"interleaved": call.interleaved, "rounding": call.rounding}
    if call.cell.call_name.with_angles:
        freqs = angles.by_channel(given[:, None, None], call.interleaved)
        turned = rope_triton.apply_rotary_pos_emb(rows[:, None, None], freqs, **options)
    else:
        cos, sin = (
            table(given.double()).to(call._table_dtype()) for table in (torch.cos, torch.sin)
        )
        turned = rope_triton.apply_rotary_emb(rows[None, :, None], cos, sin, **options)
    return turned.reshape(rows.shape)


def different(cell) -> dict[str, int]:
    """By direction, the elements that have other bits than in the plain call."""
    call = cell.call("cuda")
    x, grad = (torch.randn(cell.shape, device="cuda").to(getattr(torch, cell.dtype)) for _ in "xg")
    before, leaf = (x.clone(), grad.clone()), call.leaf(x)
    output = call.forward(leaf)
    found = {}
    if BACKWARD in cell.directions:
        result = gradient(output, leaf, call.cotangent(grad))
        found[BACKWARD] = _different(result, before[1], call, BACKWARD)
    if call.in_place:  # that of a leaf is a copy, in memory of another order
        output = call.forward(call.operand(x))
    return found | {FORWARD: _different(output, before[0], call, FORWARD)}


def _different(output, x, call, direction) -> int:
    count = 0
    parts = call.split(output), call.parts(x, direction), call.rotated
    for found, part, rotated in zip(*parts, strict=True):
        expected = part
        if rotated:
            given = call.token_angles().expand(*part.shape[:-1], -1).flatten(0, -2)
            expected = plainly(part.flatten(0, -2).contiguous(), given, call, direction)
        count += int((bits(found) != bits(expected.reshape(part.shape))).sum())
    return count


def bits(x):
    return x.contiguous().view(torch.int32 if x.dtype == torch.float32 else torch.int16)


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_row_has_the_same_bits_in_every_call(cell):
    torch.manual_seed(0)
    counts = different(cell)
    assert not any(counts.values()), counts


def test_compiled_calls_have_the_same_bits():
    q = torch.randn(64, 2, 8, 128, device="cuda", dtype=torch.bfloat16)
    freqs = angles.by_channel(angles.exact(0, 64, 128).float(), False).cuda()
    eager = rope_triton.apply_rotary_pos_emb(q, freqs)
    compiled = torch.compile(rope_triton.apply_rotary_pos_emb, fullgraph=True)(q, freqs)
    assert torch.equal(bits(eager), bits(compiled))
