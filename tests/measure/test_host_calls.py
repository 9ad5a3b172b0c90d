"""The host time of a call; without a GPU."""

import gc
import itertools

import pytest
import torch

import rope_triton
from benchmarks._measure import host, host_time
from benchmarks._measure.host_time import EagerCall
from benchmarks._subject import BACKWARD, FORWARD
from benchmarks._subjects import metrics
from benchmarks._system import process
from tests.measure.common import change, implement
from tests.package import plain

KEYS = metrics.host_keys(*metrics.CALLS)
all_calls = pytest.mark.parametrize("key", KEYS, ids=lambda key: f"{key[0]}-{key[1][0]}")


def times(*key):
    return host._answers([key])[key]


@all_calls
def test_time_in_the_call_path_is_seen(on_cpu, clock, key, monkeypatch):
    outputs = []

    def slow(output):
        outputs.append(output)
        clock.seconds += 20e-6
        return output

    change(monkeypatch, slow)
    assert times(*key) == pytest.approx([20e-6] * host_time.BLOCKS)
    assert {each.requires_grad for each in outputs} == {key[0].endswith("backward")}


@pytest.mark.parametrize("format", metrics.FORMATS)
def test_time_in_the_backward_is_seen(on_cpu, clock, format, monkeypatch):
    def apply(t, freqs, tensor_format):
        assert tensor_format == format
        output = plain.apply_rotary_pos_emb(t, freqs, tensor_format)
        if output.requires_grad:
            output.register_hook(lambda _: setattr(clock, "seconds", clock.seconds + 20e-6))
        return output

    implement(monkeypatch, apply)
    assert times(metrics.CALL_FORWARD, (format,)) == [0.0] * host_time.BLOCKS
    both = times(metrics.CALL_FORWARD_BACKWARD, (format,))
    assert both == pytest.approx([20e-6] * host_time.BLOCKS)


@all_calls
def test_wrong_result_has_no_speed(on_cpu, clock, key, monkeypatch):
    change(monkeypatch, lambda output: -output)
    wrong = times(*key)
    assert isinstance(wrong, RuntimeError) and "AssertionError" in str(wrong)
    assert "not close" in str(wrong)


def test_blocks_are_in_turns_and_find_an_empty_queue_and_no_garbage_collection(clock, monkeypatch):
    events = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: events.append("wait"))

    def noted(name):
        return lambda: events.append((name, gc.isenabled()))

    sizes = {"a": 3, "b": 2}
    host_time.times({name: EagerCall(noted(name), size) for name, size in sizes.items()})
    a, b = (["wait", *[(name, False)] * size, "wait"] for name, size in sizes.items())
    assert events == (a + b) * 2
    assert gc.isenabled()


def test_a_call_that_fails_in_its_second_block_is_its_own_failure(clock, monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    calls = itertools.count()

    def failing():
        if next(calls) == 4:
            raise ValueError("the fifth call")

    found = host_time.times({"good": EagerCall(lambda: None, 3), "bad": EagerCall(failing, 3)})
    assert found["good"] == [0.0, 0.0]
    assert "the fifth call" in str(found["bad"])


def test_calls_that_a_fault_leaves_unclocked_are_answered_by_a_fresh_process(on_cpu, monkeypatch):
    def lost():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def fatal():
        monkeypatch.setattr(torch.cuda, "synchronize", lost)
        lost()

    made = {"first": lambda: None, "fatal": fatal, "last": lambda: None}
    measures = {"call": lambda name: EagerCall(made[name], 1), "fact": lambda: 1}
    monkeypatch.setattr(process, "call", lambda _, rest, *more: dict.fromkeys(rest, "elsewhere"))
    keys = [("fact", ()), *(("call", (name,)) for name in made)]
    found = host._answers(keys, measures)
    assert list(found) == keys
    assert "illegal memory access" in str(found.pop(("call", ("fatal",))))
    assert list(found.values()) == [1, "elsewhere", "elsewhere"]


def test_the_blocks_of_a_call_follow_from_its_direction(on_cpu, monkeypatch):
    monkeypatch.setattr(host_time, "WARM_CALLS", 1)
    references = [(metric, ()) for metric in host.REFERENCE_CALLS.values()]
    for metric, params in KEYS + references:
        direction = BACKWARD if metric.endswith("backward") else FORWARD
        call = host._MEASURES[metric](*params)
        assert call.block_calls == host_time.BLOCK_CALLS[direction], metric


# --- the reference call ---------------------------------------------------------------------------


def test_all_calls_are_clocked_beside_reference_calls(on_cpu, clock):
    found, beside = host.all_call_samples()
    assert list(found) == KEYS and {metric for metric, _ in KEYS} == beside.keys()
    for (metric, _), samples in found.items():
        assert len(samples) == len(beside[metric]) == host_time.BLOCKS
    forward, backward = (
        [beside[f"host.{path}Call.{track}"] for path in ("", "Path")]
        for track in ("track_forward", "track_forward_backward")
    )
    assert forward[0] is forward[1] is not backward[0] is backward[1]


def test_no_version_of_the_package_changes_a_reference_call(on_cpu, clock, monkeypatch):
    def refused(*_, **__):
        raise AssertionError("the package's")

    for name in plain.FUNCTIONS:
        monkeypatch.setattr(rope_triton, name, refused)
    for metric in host.REFERENCE_CALLS.values():
        assert times(metric, ()) == [0.0] * host_time.BLOCKS


@pytest.mark.parametrize("error", [ValueError, torch.cuda.OutOfMemoryError])
def test_a_reference_call_that_fails_is_an_error(on_cpu, clock, monkeypatch, error):
    def broken():
        raise error("PyTorch is broken")

    monkeypatch.setitem(host._MEASURES, host.REFERENCE_CALLS["forward"], broken)
    with pytest.raises(RuntimeError, match="PyTorch is broken"):
        host.all_call_samples()


def test_without_a_gpu_there_is_no_reference_call(monkeypatch, progress):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found, beside = host.all_call_samples()
    assert beside == {}
    assert all(isinstance(answer, NotImplementedError) for answer in found.values())
