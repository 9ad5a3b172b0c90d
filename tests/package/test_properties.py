"""What holds for every rotation, on calls that hypothesis makes up: options, shapes and strides.

The same examples in every run. Both channels of a pair have one angle, as only then is it a
rotation; the comparison with the oracle, which an identity does not pass either, has two.
"""

import math
from typing import NamedTuple

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import rope_triton
from rope_triton.frequencies.angles import by_channel
from tests import oracle
from tests.oracle import LAYOUTS

TABLE = 40
# Few, as each pair of them is compiled for itself where there is a GPU.
CHANNELS = [(8, 8), (12, 6), (24, 16), (7, 2)]

examples = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    database=None,
    # No search for a smaller example: all are small, and in the interpreter it takes many minutes.
    phases=[Phase.generate],
    # The fixture is the name of a device, which no example changes.
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


class Call(NamedTuple):
    """A call of ``apply_rotary_pos_emb``, but its numbers, which follow from the seed."""

    tensor_format: str
    dtype: torch.dtype
    interleaved: bool
    layout: str
    channels: int
    width: int
    heads: int
    lengths: list[int]  # of the whole sequences, of which each rank has a share
    starts: list[int] | None
    index: torch.dtype
    cp_size: int
    cp_rank: int
    seed: int

    @property
    def eps(self) -> float:
        return torch.finfo(self.dtype).eps

    def tensor(self, device: str, layout: str | None = None) -> torch.Tensor:
        """Random numbers, in the call's layout or another one."""
        torch.manual_seed(self.seed)
        build = LAYOUTS[layout or self.layout]
        tail = self.heads, self.channels
        if self.tensor_format == "thd":
            tokens = sum(self.lengths) // self.cp_size
            return build((tokens, 1, *tail), self.dtype, device)[:, 0]
        leading = self.lengths[0] // self.cp_size, len(self.lengths)
        return build((*leading[:: self._order], *tail), self.dtype, device)

    def angles(self, device: str, of_model: bool = True) -> torch.Tensor:
        torch.manual_seed(self.seed)
        if not of_model:
            return oracle.random_angles(TABLE, self.width, device)
        pairs = oracle.random_angles(TABLE, self.width // 2, device)
        return by_channel(pairs, self.interleaved)

    def at(self, freqs: torch.Tensor) -> torch.Tensor:
        """The angles of each token, as the oracle takes them."""
        held = oracle.positions(self.lengths, self.starts, self.cp_size, self.cp_rank)
        held = [oracle.angles_at(freqs, each) for each in held]
        if self.tensor_format == "thd":
            return torch.cat(held)
        return torch.stack(held, 1 if self.tensor_format == "sbhd" else 0)

    def rotate(self, t: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
        starts = self.starts and torch.tensor(self.starts, dtype=self.index, device=t.device)
        bounds = [sum(self.lengths[:i]) for i in range(len(self.lengths) + 1)]
        bounds = torch.tensor(bounds, dtype=self.index, device=t.device)
        return rope_triton.apply_rotary_pos_emb(
            t,
            freqs,
            self.tensor_format,
            starts,
            self.interleaved,
            cu_seqlens=bounds if self.tensor_format == "thd" else None,
            cp_size=self.cp_size,
            cp_rank=self.cp_rank,
        )

    def norms(self, t: torch.Tensor) -> torch.Tensor:
        """Those of the pairs, float64, with the unit at the end: ``[.., width/2, 1]``."""
        pairs = oracle.pairs(t.detach()[..., : self.width].double(), self.interleaved)
        return pairs.norm(dim=-1, keepdim=True)

    def assert_close(self, found: torch.Tensor, expected: torch.Tensor, roundings: int) -> None:
        """Rounding is relative to the size of a pair, not to each of its two channels."""
        norms = self.norms(expected) + torch.finfo(self.dtype).tiny
        found, expected = (
            oracle.pairs(x.detach()[..., : self.width].double(), self.interleaved)
            for x in (found, expected)
        )
        assert ((found - expected).abs() <= 2 * roundings * self.eps * norms).all()

    @property
    def _order(self):
        return 1 if self.tensor_format == "sbhd" else -1


@st.composite
def calls(draw, formats=("sbhd", "bshd", "thd"), ranks=((1, 0), (2, 0), (2, 1)), first=0):
    """A call in any combination of options; ``first``: the lowest position that is asked for."""
    tensor_format = draw(st.sampled_from(formats))
    cp_size, cp_rank = draw(st.sampled_from(ranks))
    unit = 1 if cp_size == 1 else 2 * cp_size
    if tensor_format == "thd":
        units = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4).filter(any))
    else:
        units = [draw(st.integers(1, 4))] * draw(st.integers(1, 2))
    lengths = [n * unit for n in units]
    start = st.integers(first, TABLE - max(lengths) if first >= 0 else TABLE)
    starts = st.lists(start, min_size=len(units), max_size=len(units))
    channels, width = draw(st.sampled_from(CHANNELS))
    return Call(
        tensor_format,
        draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16])),
        draw(st.booleans()),
        draw(st.sampled_from(sorted(LAYOUTS))),
        channels,
        width,
        draw(st.integers(1, 3)),
        lengths,
        draw(st.none() | starts),
        draw(st.sampled_from([torch.int32, torch.int64])),
        cp_size,
        cp_rank,
        draw(st.integers(0, 1 << 31)),
    )


def gradient(call, t, freqs, cotangent):
    leaf = t.detach().requires_grad_()
    return torch.autograd.grad(call.rotate(leaf, freqs), leaf, cotangent)[0]


@settings(examples, max_examples=16)
@given(calls(first=-5))
def test_result_and_gradient_are_those_of_the_oracle(device, call):
    """Also for two angles in a pair, and for positions that the table does not have."""
    t, freqs = call.tensor(device), call.angles(device, of_model=False)
    leaf, wide = t.detach().requires_grad_(), t.double().requires_grad_()
    out, expected = (
        call.rotate(leaf, freqs),
        oracle.rotate_by(wide, call.at(freqs), call.interleaved),
    )
    cotangent = call.tensor(device)
    (grad,) = torch.autograd.grad(out, leaf, cotangent)
    (expected_grad,) = torch.autograd.grad(expected, wide, cotangent.double())
    torch.testing.assert_close(out, expected.to(call.dtype))
    torch.testing.assert_close(grad, expected_grad.to(call.dtype))


@examples
@given(calls())
def test_norms_of_pairs_are_kept_and_the_other_channels(device, call):
    t = call.tensor(device)
    out = call.rotate(t, call.angles(device))
    norms = call.norms(t)
    error = (call.norms(out) - norms).abs()
    assert (error <= 2 * call.eps * (norms + torch.finfo(call.dtype).tiny)).all()
    assert torch.equal(out[..., call.width :], t[..., call.width :])


@examples
@given(calls())
def test_the_gradient_undoes_the_rotation(device, call):
    t, freqs = call.tensor(device), call.angles(device)
    out = call.rotate(t, freqs)
    call.assert_close(gradient(call, t, freqs, out), t, roundings=2)
    call.assert_close(call.rotate(gradient(call, t, freqs, t), freqs), t, roundings=2)


@examples
@given(calls(ranks=[(1, 0)]), st.integers(0, 12), st.integers(0, 12), st.integers(1, 12))
def test_scores_depend_on_relative_positions_only(device, call, m, n, shift):
    module = rope_triton.RotaryPositionEmbedding(call.width, interleaved=call.interleaved)
    freqs = module.to(device)(TABLE)
    query = call.tensor(device, "contiguous")
    key = oracle.random_like(query)

    def scores(m, n):
        starts = [[first] * len(call.lengths) for first in (m, n)]
        turned = [
            call._replace(starts=start).rotate(x, freqs)[..., : call.width].double()
            for x, start in zip((query, key), starts, strict=True)
        ]
        return (turned[0] * turned[1]).sum(-1)

    norms = math.prod(x.double().norm(dim=-1) for x in (query, key))
    # Angles are rounded too: the largest, TABLE, by half a unit of its last place.
    error = (4 * call.eps + 2 * TABLE * 2**-24) * norms
    assert ((scores(m, n) - scores(m + shift, n + shift)).abs() <= error).all()


@settings(examples, max_examples=6)
@given(calls(formats=["bshd"]))
def test_formats_are_equal(device, call):
    t, freqs = call.tensor(device), call.angles(device)
    cotangent = call.tensor(device, "contiguous")

    def both(tensor_format, there, back):
        moved = call._replace(tensor_format=tensor_format)
        results = (
            moved.rotate(there(t), freqs),
            gradient(moved, there(t), freqs, there(cotangent)),
        )
        return [back(x) for x in results]

    bshd = both("bshd", lambda x: x, lambda x: x)
    sbhd = both("sbhd", lambda x: x.transpose(0, 1), lambda x: x.transpose(0, 1))
    thd = both("thd", lambda x: x.flatten(0, 1), lambda x: x.view(t.shape))
    torch.testing.assert_close(sbhd, bshd)
    torch.testing.assert_close(thd, bshd)


@examples
@given(calls(), st.sampled_from([0.0, -1.0, 3.0]))
def test_rotation_is_linear(device, call, factor):
    x, freqs = call.tensor(device), call.angles(device)
    y = oracle.random_like(x)
    left = call.rotate((x.double() + factor * y.double()).to(call.dtype), freqs)
    parts = [call.rotate(part, freqs).double() for part in (x, y)]
    right = parts[0] + factor * parts[1]
    error = 4 * call.eps * (1 + call.norms(x) + abs(factor) * call.norms(y))
    pairs = oracle.pairs((left.double() - right)[..., : call.width], call.interleaved)
    assert (pairs.abs() <= error).all()
    # Powers of 2 are not rounded.
    torch.testing.assert_close(call.rotate(x * -2, freqs), parts[0].to(call.dtype) * -2)


@examples
@given(calls(ranks=[(1, 0)]), st.data())
def test_a_part_of_a_sequence_is_one_that_starts_later(device, call, data):
    length = max(call.lengths)
    begin = data.draw(st.integers(0, length - 1))
    end = data.draw(st.integers(begin + 1, length))
    whole = call._replace(tensor_format="bshd", lengths=[length] * len(call.lengths))
    t, freqs = whole.tensor(device), whole.angles(device)
    starts = [begin + start for start in call.starts or [0] * len(call.lengths)]
    part = whole._replace(lengths=[end - begin] * len(starts), starts=starts)
    part = part._replace(tensor_format=call.tensor_format)
    cut = t[:, begin:end]
    if call.tensor_format == "sbhd":
        found = part.rotate(cut.transpose(0, 1), freqs).transpose(0, 1)
    elif call.tensor_format == "thd":
        found = part.rotate(cut.flatten(0, 1), freqs).view(cut.shape)
    else:
        found = part.rotate(cut, freqs)
    torch.testing.assert_close(found, whole.rotate(t, freqs)[:, begin:end])


@examples
@given(calls(ranks=[(1, 0)]), st.sampled_from([2, 3]))
def test_ranks_together_have_the_whole(device, call, cp_size):
    lengths = [2 * cp_size * min(length, 2) for length in call.lengths]
    starts = call.starts and [min(start, TABLE - max(lengths)) for start in call.starts]
    call = call._replace(lengths=lengths, starts=starts)
    t, freqs = call.tensor(device), call.angles(device)
    whole = call.rotate(t, freqs)
    for rank in range(cp_size):
        held = oracle.positions(lengths, None, cp_size, rank)
        if call.tensor_format == "thd":
            begins = [sum(lengths[:i]) for i in range(len(lengths))]
            rows = [b + i for b, each in zip(begins, held, strict=True) for i in each]
            mine = (torch.tensor(rows, device=device),)
        else:
            mine = torch.tensor(held[0], device=device)
            mine = (mine,) if call.tensor_format == "sbhd" else (slice(None), mine)
        found = call._replace(cp_size=cp_size, cp_rank=rank).rotate(t[mine], freqs)
        torch.testing.assert_close(found, whole[mine])


@examples
@given(calls(formats=["thd"]))
def test_packed_sequences_know_nothing_of_each_other(device, call):
    t, freqs = call.tensor(device), call.angles(device)
    out = call.rotate(t, freqs)
    sizes = [length // call.cp_size for length in call.lengths]
    for i, (one, found) in enumerate(zip(t.split(sizes), out.split(sizes), strict=True)):
        if one.numel():
            alone = call._replace(
                tensor_format="sbhd",
                lengths=call.lengths[i : i + 1],
                starts=call.starts and call.starts[i : i + 1],
            )
            torch.testing.assert_close(found, alone.rotate(one[:, None], freqs)[:, 0])


@examples
@given(calls(formats=["bshd", "thd"], ranks=[(1, 0)]), st.booleans())
def test_tables_turn_as_their_angles_do(device, call, inplace):
    t = call.tensor(device, "contiguous")
    freqs = call.angles(device)
    angles = oracle.pairs(freqs[:, 0, 0], call.interleaved)[..., 0].double()
    starts = call.starts and torch.tensor(call.starts, dtype=call.index, device=device)
    bounds = torch.tensor([0, *call.lengths], device=device).cumsum(0)
    found = rope_triton.apply_rotary_emb(
        t.clone(),
        angles.cos().float(),
        angles.sin().float(),
        call.interleaved,
        inplace,
        0 if starts is None else starts,
        bounds if call.tensor_format == "thd" else None,
    )
    torch.testing.assert_close(found, call.rotate(t, freqs))


@settings(examples, max_examples=6)
@given(
    calls(formats=["sbhd", "bshd"]),
    st.tuples(*[st.integers(1, 2)] * 2),
    st.sampled_from(["contiguous", "transposed_0_1", "packed_amid_nan"]),
)
def test_fused_qkv_is_splitting_and_rotating(device, call, counts, layout):
    counts = [*counts, 1]
    call = call._replace(heads=1)
    wide = call._replace(channels=sum(counts) * call.channels, layout=layout)
    qkv = wide.tensor(device).requires_grad_()
    tables = [call._replace(seed=seed).angles(device) for seed in range(2)]
    starts = call.starts and torch.tensor(call.starts, dtype=call.index, device=device)
    sizes = [count * call.channels for count in counts]
    options = call.tensor_format, starts, call.interleaved, None, call.cp_size, call.cp_rank
    fused = rope_triton.apply_fused_qkv_rotary_pos_emb(qkv, *tables, sizes, *options)
    q, k, v = (part.unflatten(3, (-1, call.channels)).flatten(2, 3) for part in qkv.split(sizes, 3))
    single = call.rotate(q, tables[0]), call.rotate(k, tables[1]), v
    torch.testing.assert_close(fused, single)
    cotangents = [oracle.random_like(part) for part in fused]
    grads = [torch.autograd.grad(parts, qkv, cotangents)[0] for parts in (fused, single)]
    torch.testing.assert_close(*grads)
