"""Watching the GPU during a round: what makes the round invalid, and when NVML fails."""

import threading
import time

import pytest

from benchmarks._engine.system.gpu_monitor import Watch, WatchError, why_invalid
from tests.engine.system import fake_nvml
from tests.engine.system.fake_nvml import BRAKE, GPU, HW, HW_HEAT, IDLE, POWER_CAP, SW_HEAT, process

nvml = fake_nvml.nvml  # fixture

ABSENT = {"processes": [], "reasons": IDLE, "clocks": [345, 1593]}


def load(**changes):
    return {"processes": [process(1)], "reasons": 0, "clocks": [1980, 3201]} | changes


def watched(nvml, script):
    """The summary over states of the GPU, each held for two samples at least."""
    gpu = nvml.gpus[GPU]
    vars(gpu).update(script[0])
    with Watch(GPU, interval_seconds=0.001) as running:
        for state in script:
            vars(gpu).update(state)
            _until(running, running.summary()["samples"] + 3)
    return running.summary()


def _until(running, samples):
    end = time.monotonic() + 5
    while running.summary()["samples"] < samples:
        assert time.monotonic() < end, "the watch takes no samples"
        time.sleep(0.001)


# --- what makes a round invalid -------------------------------------------------------------------


def test_a_quiet_round(nvml):
    summary = watched(nvml, [ABSENT, load(reasons=POWER_CAP), load(), ABSENT])
    assert summary["sm_mhz"] == [1980, 1980, 1980]  # not those of an idle GPU
    assert summary["memory_mhz"] == [3201] * 3
    assert summary["processes"] == 1
    assert 4 <= summary["under_load"] < summary["samples"]
    assert set(summary["events"]) == {"software power cap"}
    assert why_invalid(summary) == ""
    assert why_invalid(summary, [summary]) == ""


CAUSES = {
    **{HW: "hardware slowdown", SW_HEAT: "software thermal slowdown"},
    **{HW_HEAT: "hardware thermal slowdown", BRAKE: "hardware power brake"},
}


@pytest.mark.parametrize(("bit", "words"), CAUSES.items(), ids=CAUSES.values())
def test_heat_and_hardware_invalidate(nvml, bit, words):
    summary = watched(nvml, [load(), load(reasons=bit | POWER_CAP), load()])
    reason = why_invalid(summary)
    assert reason.startswith(f"{words} in ") and "power cap" not in reason
    assert reason.endswith(f"of {summary['under_load']} samples")


def test_a_second_process_invalidates_however_short(nvml):
    both = load(processes=[process(1), process(2)], reasons=HW_HEAT)
    reason = why_invalid(watched(nvml, [load(), both, load()]))
    assert "2 processes on the GPU at once" in reason and "thermal" in reason


def test_processes_that_cannot_be_seen_are_no_reason_to_see_no_load(nvml):
    summary = watched(nvml, [ABSENT, load(processes=[])])
    assert summary["processes"] == 0 and summary["sm_mhz"] == [1980] * 3
    assert why_invalid(summary) == ""


@pytest.mark.parametrize(
    ("index", "name", "words"), [(0, "sm_mhz", "SM clock"), (1, "memory_mhz", "memory clock")]
)
def test_a_clock_below_the_earlier_rounds_invalidates(nvml, index, name, words):
    usual = watched(nvml, [load()])

    def at(factor):
        clocks = list(load()["clocks"])
        clocks[index] = int(clocks[index] * factor)
        return watched(nvml, [load(clocks=clocks)])

    low, near = at(0.94), at(0.96)
    assert why_invalid(near, [usual] * 3) == ""
    assert why_invalid(low) == ""
    reason = why_invalid(low, [usual, low, usual])
    assert reason.startswith(f"{words} at ") and f"{usual[name][1]:g} in earlier rounds" in reason


def test_a_round_in_which_the_gpu_did_nothing_is_no_round(nvml):
    assert "never seen under load" in why_invalid(watched(nvml, [ABSENT]))


# --- what cannot be read --------------------------------------------------------------------------


def test_what_judges_a_round_must_be_readable(nvml):
    nvml.gpus[GPU].reasons = nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED, "Not Supported")
    with pytest.raises(WatchError, match="Not Supported"), Watch(GPU):
        pass


def test_a_watch_that_went_blind_says_so(nvml):
    with Watch(GPU, interval_seconds=0.001) as running:
        nvml.gpus[GPU].reasons = nvml.NVMLError(15, "GPU is lost")
        with pytest.raises(WatchError, match="stopped answering: GPU is lost"):
            _until(running, 1_000_000)
    with pytest.raises(WatchError, match="GPU is lost"):
        running.summary()


def test_an_error_in_the_block_ends_the_watch_and_comes_through(nvml):
    before = set(threading.enumerate())
    with pytest.raises(KeyError), Watch(GPU) as running:
        assert len(set(threading.enumerate()) - before) == 1
        raise KeyError
    assert not set(threading.enumerate()) - before
    assert running.summary()["samples"] == 0
