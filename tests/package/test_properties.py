"""What holds for every rotation, on calls that hypothesis makes up: options, shapes and strides.

The same examples in every run.
"""

import math

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import rope_triton
from tests import oracle
from tests.oracle import LAYOUTS
from tests.package.positions import TABLE, Call

# Few, as each pair of them is compiled for itself where there is a GPU.
CHANNELS = [(8, 8), (12, 6), (24, 16), (7, 2)]

examples = settings(
    max_examples=48,
    deadline=None,
    derandomize=True,
    database=None,
    # No search for a smaller example: all are small, and in the interpreter it takes many minutes.
    phases=[Phase.generate],
    # The fixture is the name of a device, which no example changes.
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@st.composite
def calls(draw, ranks=((1, 0), (2, 0), (2, 1)), first=-5):
    """A call in any combination of options; ``first``: the lowest position that is asked for."""
    tensor_format = draw(st.sampled_from(["sbhd", "bshd", "thd"]))
    rank = draw(st.sampled_from(ranks))
    unit = 1 if rank[0] == 1 else 2 * rank[0]
    if tensor_format == "thd":
        units = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4).filter(any))
    else:
        units = [draw(st.integers(1, 4))] * draw(st.integers(1, 2))
    lengths = [n * unit for n in units]
    start = st.integers(first, TABLE - max(lengths) if first >= 0 else TABLE)
    starts = st.lists(start, min_size=len(units), max_size=len(units))
    channels, width = draw(st.sampled_from(CHANNELS))
    return Call(
        lengths,
        draw(st.none() | starts),
        tensor_format,
        draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16])),
        draw(st.booleans()),
        index=draw(st.sampled_from([torch.int32, torch.int64])),
        rank=rank,
        layout=draw(st.sampled_from(sorted(LAYOUTS))),
        heads=draw(st.integers(1, 3)),
        channels=channels,
        width=width,
        seed=draw(st.integers(0, 1 << 31)),
    )


@examples
@given(calls())
def test_result_and_gradient_are_those_of_the_oracle(device, call):
    """Also for two angles in a pair, and for positions that the table does not have."""
    call.check(device)


@settings(examples, max_examples=8)
@given(calls([(1, 0)], 0), st.integers(0, 12), st.integers(0, 12), st.integers(1, 12))
def test_scores_depend_on_relative_positions_only(device, call, m, n, shift):
    call = call._replace(layout="contiguous")
    module = rope_triton.RotaryPositionEmbedding(call.width, interleaved=call.interleaved)
    freqs = module.to(device)(TABLE)
    query = call.tensor(device)
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
    error = (4 * torch.finfo(call.dtype).eps + 2 * TABLE * 2**-24) * norms
    assert ((scores(m, n) - scores(m + shift, n + shift)).abs() <= error).all()
    if m != n:
        assert ((scores(m, n) - scores(m, m)).abs() > error).any()
