"""The roofline on a GPU: it is a bound only if it copies as fast as the GPU's own copy."""

import statistics

import pytest
import torch

from benchmarks._engine.measure import gpu_timer, roofline

pytestmark = [pytest.mark.gpu, pytest.mark.alone]
MIB = 1 << 20


def seconds(mib: float, bytes_read: int) -> tuple[float, float]:
    """Of a copy, and of one that reads a table, on tensors of so many MiB with a cold cache."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        sets = gpu_timer.cold_sets(int(2 * mib * MIB))
        inputs = [
            torch.randn(int(mib * MIB) // 2, device="cuda").to(torch.bfloat16) for _ in range(sets)
        ]
        table, outputs = roofline.table_of(bytes_read, "cuda"), [x.clone() for x in inputs]
    pairs = zip(inputs, outputs, strict=True)
    reading = [lambda x=x, out=out: roofline.copied(x, table, out) for x, out in pairs]
    recordings = [
        gpu_timer.Recording(calls, stream) for calls in ([x.clone for x in inputs], reading)
    ]
    copy, both = map(statistics.median, gpu_timer.paired_samples(recordings))
    return copy, both


@pytest.mark.parametrize(
    ("mib", "most"), [(0.5, 1.1), (2, 1.1), (8, 1.05), (64, 1.05), (256, 1.05)]
)
def test_with_nothing_to_read_it_is_as_fast_as_a_copy(mib, most):
    gpu_timer.warm_up(0.5)
    copy, both = seconds(mib, 16)
    assert both < most * copy, f"{both / copy:.3f} of a copy's time"


@pytest.mark.parametrize("mib", [8, 64])
def test_what_it_reads_takes_time(mib):
    """As many bytes again as the tensor has: half as many more are moved, in L2 or from memory."""
    gpu_timer.warm_up(0.5)
    _, little = seconds(mib, 16)
    _, much = seconds(mib, int(mib * MIB))
    assert 1.02 < much / little < 1.7, much / little
