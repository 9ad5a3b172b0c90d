"""Time callables on the GPU: CUDA graphs, cold caches, a warm GPU.

A CUDA graph calls the callable once on each of K separate buffer sets. K is so large that no call
finds its data in L2. It is larger still, up to a thousand, because a small kernel's time moves by
percents with the buffers' place in memory, and many sets average that out. The graph is replayed
for milliseconds between two CUDA events, and the time is divided by the number of calls. Graphs
that are compared take turns, sample by sample, so that their samples pair.

Every sample begins with an L2 full of other data, as other layers of a model leave it. A kernel
that streams past L2 never displaces it, any other kernel does so at once. With an L2 of its own
a call would take up to 2 % less or 5 % more.
"""

import functools
import math
import time
from collections.abc import Callable, Sequence

SAMPLES = 7
SAMPLE_SECONDS = 3e-3
WARM_UP_SECONDS = 2.0
COLD_L2_MULTIPLE = 4
AVERAGED_L2_MULTIPLE, AVERAGED_SETS = 16, 1000
FILLED_L2_MULTIPLE = 2
LAUNCHES, LAUNCHED_BYTES = 1000, 1 << 16


def cold_sets(bytes_moved: int) -> int:
    """How many buffer sets a call of ``bytes_moved`` bytes needs to find a cold L2; at least 2."""
    once = _l2_bytes() / bytes_moved
    averaged = min(AVERAGED_L2_MULTIPLE * once, AVERAGED_SETS)
    return math.ceil(max(2, averaged, COLD_L2_MULTIPLE * once))


def _l2_bytes() -> int:
    import torch

    return torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size


def fill_l2() -> None:
    """Fill L2 with data that nothing else touches, at the ordinary priority.

    They are read: written data would be written back while others are timed.
    """
    _others().sum()


@functools.cache
def _others():
    import torch

    return torch.zeros(FILLED_L2_MULTIPLE * _l2_bytes() // 4, device="cuda")


def warm_up(seconds: float = WARM_UP_SECONDS) -> None:
    """Keep the GPU busy until its clocks have settled; a GPU just used needs less."""
    import torch

    x = torch.randn(16384, 4096, device="cuda", dtype=torch.bfloat16)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(8):
            x[:4096] @ x[:4096]  # draws the most power
            x.clone()  # and this is close to what is measured
        torch.cuda.synchronize()


def launches() -> "Recording":
    """Small kernels of PyTorch's one after the other, 2 ms in all.

    Most of such a kernel's time is its launch. So it shows when the machine changes what every
    launch takes, whatever is measured: beside another GPU that works, it was 0.33 us less.
    """
    import torch

    x = torch.zeros(LAUNCHED_BYTES // 4, device="cuda")
    call = functools.partial(torch.neg, x, out=torch.empty_like(x))
    return Recording([call] * LAUNCHES, torch.cuda.Stream())


def reserve(bytes_needed: int) -> None:
    """Get memory in one piece that what is allocated next is cut from.

    The allocator would ask CUDA for 20 MB at a time, a fifth of what a timing process takes.
    """
    import torch

    torch.empty(bytes_needed, dtype=torch.uint8, device="cuda")


class Recording:
    """A CUDA graph of some calls, and their outputs.

    calls: each makes the same GPU work on its own buffers and returns its output, which the graph
    writes again at every replay. stream: backward passes must be recorded on that of their forward.
    output_bytes: about what the outputs take in memory, 0 if that is not known.
    """

    def __init__(self, calls: Sequence[Callable], stream, output_bytes: int = 0):
        import torch

        # Kept alive: the graph reads what they hold, such as what a forward saved for its backward.
        self.calls = calls
        with torch.cuda.stream(stream):
            calls[0]()  # compiles, and fails where an error can be read
        stream.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream):
            reserve(output_bytes)  # in the graph's own pool
            self.outputs = [call() for call in calls]

    def replay(self) -> None:
        """Make the calls once more, on the current stream."""
        self.graph.replay()

    def time(self, replays: int) -> float:
        """GPU seconds of a call, the mean over the replays."""
        import torch

        fill_l2()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(replays):
            self.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e-3 / (replays * len(self.calls))


def paired_samples(
    recordings: Sequence[Recording], samples: int = SAMPLES, seconds: float = SAMPLE_SECONDS
) -> list[list[float]]:
    """GPU seconds of a call: ``samples`` of each recording, in turns, each ``seconds`` long."""
    replays = []
    for recording in recordings:
        recording.time(1)
        once = recording.time(1) * len(recording.calls)
        replays.append(max(1, math.ceil(seconds / once)))
    rounds = [
        [recording.time(count) for recording, count in zip(recordings, replays, strict=True)]
        for _ in range(samples)
    ]
    return [list(column) for column in zip(*rounds, strict=True)]
