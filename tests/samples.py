"""Made-up samples where a GPU would be timed, for tests that measure cells without one."""

import contextlib

import torch

from benchmarks import _clock


class Recording:
    """Calls everything once, where a GPU would record a graph, and again where it is replayed."""

    def __init__(self, calls, stream):
        self.calls, self.outputs = calls, [call() for call in calls]

    def time(self, replays):
        for _ in range(replays):
            self.outputs = [call() for call in self.calls]
        return 1e-6


def install(patch, progress, sets: int) -> None:
    """Let cells be measured on so many sets of buffers, as long as the patch lasts.

    ``progress``: the file that the measuring reports to.
    """

    def samples(recordings, *_):
        return [[recording.time(2)] * 3 for recording in recordings]

    patch.setenv("ROPE_PROGRESS", str(progress))
    patch.setattr(torch.cuda, "is_available", lambda: True)
    patch.setattr(torch.cuda, "synchronize", lambda: None)
    patch.setattr(torch.cuda, "Stream", object)
    patch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    patch.setattr(torch.cuda, "mem_get_info", lambda: (2**40, 2**40))
    patch.setattr(_clock, "warm_up", lambda *_: None)
    patch.setattr(_clock, "cold_sets", lambda bytes_moved: sets)
    patch.setattr(_clock, "Recording", Recording)
    patch.setattr(_clock, "paired_samples", samples)
