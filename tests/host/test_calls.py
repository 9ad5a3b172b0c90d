"""The host time of a call; without a GPU."""

import pytest
import torch

from benchmarks import _host, _host_inputs

from .common import apply_plain, implement

CALLS = [
    (m, f) for m in (_host.CALL_FORWARD, _host.CALL_FORWARD_BACKWARD) for f in _host_inputs.FORMATS
]
all_calls = pytest.mark.parametrize(("metric", "format"), CALLS)


@all_calls
def test_time_in_the_call_path_is_seen(on_cpu, clock, metric, format, monkeypatch):
    def apply(t, freqs, tensor_format):
        assert t.requires_grad == (metric == _host.CALL_FORWARD_BACKWARD)
        assert tensor_format == format
        clock.seconds += 20e-6
        return apply_plain(t, freqs, tensor_format)

    implement(monkeypatch, apply)
    assert _host.call_seconds(metric, format) == pytest.approx([20e-6] * _host._BLOCKS)


@pytest.mark.parametrize("format", _host_inputs.FORMATS)
def test_time_in_the_backward_is_seen(on_cpu, clock, format, monkeypatch):
    def apply(t, *args, **options):
        output = apply_plain(t, *args, **options)
        if output.requires_grad:
            output.register_hook(lambda _: setattr(clock, "seconds", clock.seconds + 20e-6))
        return output

    implement(monkeypatch, apply)
    assert _host.call_seconds(_host.CALL_FORWARD, format) == [0.0] * _host._BLOCKS
    both = _host.call_seconds(_host.CALL_FORWARD_BACKWARD, format)
    assert both == pytest.approx([20e-6] * _host._BLOCKS)


@all_calls
def test_wrong_result_has_no_speed(on_cpu, clock, metric, format, monkeypatch):
    implement(monkeypatch, lambda t, freqs, **options: apply_plain(t, -freqs, **options))
    with pytest.raises(AssertionError, match="not close"):
        _host.call_seconds(metric, format)


def test_blocks_begin_with_an_empty_queue_and_without_garbage_collection(clock, monkeypatch):
    import gc

    events = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: events.append("wait"))
    _host._host_seconds(lambda: events.append(gc.isenabled()), _host._BLOCKS)
    assert events == [True] * 2 + ["wait", *[False] * 3] * 2 + ["wait"]
    assert gc.isenabled()
