"""Made-up samples where a GPU would be timed, for tests that measure cells without one."""

import contextlib
from types import SimpleNamespace

import torch

from benchmarks._engine.measure import gpu_timer, graph_nodes, roofline
from rope_triton.frequencies import embedding


class Recording:
    """Calls everything once, where a GPU would record a graph.

    A replay calls it again, and writes the results to where the first ones are.
    """

    capturing = False

    def __init__(self, calls, stream, output_bytes):
        self._calls = calls
        self.outputs = self._called()

    def replay(self):
        for output, result in zip(self.outputs, self._called(), strict=True):
            parts = [x if isinstance(x, tuple) else (x,) for x in (output, result)]
            for old, new in zip(*parts, strict=True):
                old.copy_(new)

    def time(self, replays):
        for _ in range(replays):
            self.replay()
        return 1e-6

    def _called(self):
        Recording.capturing = True
        try:
            return [call() for call in self._calls]
        finally:
            Recording.capturing = False


def install(patch, progress, sets: int) -> None:
    """Let cells be measured on so many sets of buffers, as long as the patch lasts.

    ``progress``: the file that the measuring reports to.
    """

    def samples(recordings, count, *_):
        return [[recording.time(2)] * count for recording in recordings]

    patch.setenv("ROPE_PROGRESS", str(progress))
    patch.setattr(torch.cuda, "is_available", lambda: True)
    patch.setattr(embedding, "_usual_device", torch.get_default_device)
    patch.setattr(torch.cuda, "synchronize", lambda: None)
    patch.setattr(torch.cuda, "empty_cache", lambda: None)
    patch.setattr(torch.cuda, "Stream", object)
    patch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    patch.setattr(torch.cuda, "mem_get_info", lambda: (2**40, 2**40))
    patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: Recording.capturing)
    patch.setattr(gpu_timer, "warm_up", lambda *_: None)
    patch.setattr(gpu_timer, "launches", lambda: SimpleNamespace(time=lambda replays: 2.3e-6))
    patch.setattr(gpu_timer, "cold_sets", lambda bytes_moved: sets)
    patch.setattr(gpu_timer, "reserve", lambda bytes_needed: None)
    patch.setattr(gpu_timer, "Recording", Recording)
    patch.setattr(gpu_timer, "paired_samples", samples)
    patch.setattr(roofline, "copied", lambda x, table, out: out.copy_(x))
    patch.setattr(graph_nodes, "described", lambda call, stream: "1 x kernel")
