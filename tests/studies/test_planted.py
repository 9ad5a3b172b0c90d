"""Slowdowns of known size, planted: waits are calibrated, and what a dose is gets measured.

On a GPU of the test's own, whose kernels wait as the planted version says.
"""

import json
import math
import time
import types

import numpy as np
import pytest

from benchmarks._engine.compare import exact, measure
from benchmarks._engine.compare.pool import Pool
from benchmarks._engine.system import checkout
from benchmarks._engine.verdict.rules import Key
from benchmarks._studies.reliability import bench, planted, power, reliability_studies
from benchmarks._studies.runner import Place, StudyError
from benchmarks._subjects.rope.cells import grid_cell
from benchmarks._subjects.rope.grid import cells_of
from tests.lab import MACHINE, ROOT, SHA, UUID
from tests.studies import common
from tests.studies.common import answered_by, study

processes = common.processes  # a fixture

GRID = {
    **{"seq_len": (128, 2048), "hidden_size": (64,), "batch": (1,)},
    **{"dtype": ("float32",), "format": ("sbhd", "bshd")},
}
HOST = ["host.Call.track_forward", "host.Call.track_forward_backward"]
SMALL, LARGE = ("128 1 64 float32 sbhd False", "2048 1 64 float32 sbhd True")


class Gpu:
    """A cell takes 2 or 12 us, a call 12 us, and either what it waits besides, with a little noise.

    ``steps``: the seconds of a step by the call, which the study must find. ``dull``: calls that do
    not wait. ``off``: what the host waits for besides what it is asked to, as a factor. ``jobs``:
    how many were answered.
    """

    def __init__(self, scratch):
        version = checkout.Version("HEAD", SHA, "digest", ROOT)
        place = Place(version, MACHINE, "sm_90", UUID, scratch, math.inf)
        self.bench, self.jobs = bench.Bench(place), 0
        self.steps, self.dull, self.off = {}, set(), 1.0
        self.random = np.random.default_rng(0)

    def answer(self, root, job):
        self.jobs += 1
        waits = json.loads((root / "rope_triton" / "waits.json").read_text())
        if job["task"] == "clock":
            seconds = 12e-6 + self.off * waits["host"]
            rows = [[metric, ["sbhd"], [seconds * self.factor()] * 3] for metric in HOST]
            return {"timings": rows}
        assert {suite for suite, _ in job["cells"]} == {"rope"}
        timings = []
        for cell in cells_of(grid_cell, GRID):
            for metric in cell.metrics.values():
                subject = Key(metric, cell.params)
                seconds = self.gpu_seconds(subject, cell, waits["gpu"])
                timings.append([*subject, [seconds * self.factor()]])
        return {"timings": timings}

    def gpu_seconds(self, subject, cell, waits):
        key = planted.key_of(subject)
        steps = (waits[""] + waits.get(key, 0)) / 256
        once = 0.2e-6 if steps else 0
        alone = 2e-6 if cell.values[0] == 128 else 12e-6
        return alone + once + (0 if key in self.dull else steps * self.steps.get(key, 25e-9))

    def factor(self):
        return float(np.exp(0.0005 * self.random.normal()))

    def pools(self, versions):
        job = measure.timing_job(cells_of(grid_cell, GRID), bench.ON_HOST)
        return [self.bench.pool(f"{count} rounds", versions, count, job) for count in (12, 4)]


@pytest.fixture
def gpu(processes, monkeypatch, tmp_path):
    """It has four cells, two of them of 4 MB and less."""
    monkeypatch.setattr(planted, "small_grid", lambda: cells_of(grid_cell, GRID))
    monkeypatch.setattr(power, "small_grid", lambda: cells_of(grid_cell, GRID))
    gpu = Gpu(tmp_path)
    answered_by(monkeypatch, gpu.answer)
    return gpu


@pytest.mark.parametrize("step", [5e-9, 25e-9, 80e-9])
def test_doses_are_as_claimed_whatever_a_step_takes(gpu, step):
    gpu.steps = dict.fromkeys((SMALL, LARGE), step)
    versions = planted.versions(gpu.bench)
    assert list(versions) == ["base", *planted.DOSES]
    pool, verification = gpu.pools(versions)
    for name, dose in planted.DOSES.items():
        found = power.dose(pool, verification, name, "gpu")
        assert found["as_claimed"]
        for size in ("", "_up_to_4_mb", "_above_4_mb"):
            assert found[f"measured{size}"] == pytest.approx(dose.share, rel=0.15)
        assert (found["timings"], found["timings_above_4_mb"]) == (8, 4)
        assert found["seen"] == 8
        host = power.dose(pool, verification, name, "host")
        assert host["as_claimed"]
        assert host["measured_seconds"] == pytest.approx(dose.seconds, rel=0.1)
        assert host["timings"] == 2
        assert host["timings_from_5_percent"] == 2  # 1 us of 12
    assert host["seen"] == 2, "10 us"


def test_a_dose_that_is_not_as_claimed_says_so(gpu):
    versions = planted.versions(gpu.bench)
    # After the calibration a step takes longer, in small cells alone; and so does the host.
    small = [c for c in cells_of(grid_cell, GRID) if c.values[0] == 128]
    subjects = [Key(m, c.params) for c in small for m in c.metrics.values()]
    gpu.steps = {planted.key_of(subject): 40e-9 for subject in subjects}
    gpu.off = 1.4
    pool, verification = gpu.pools(versions)
    doses = [power.dose(pool, verification, name, "gpu") for name in planted.DOSES]
    host = [power.dose(pool, verification, name, "host") for name in planted.DOSES]
    for found in doses:
        assert not found["as_claimed"]
        assert found["measured_above_4_mb"] == pytest.approx(found["planted"], rel=0.15)
        assert found["measured_up_to_4_mb"] > 1.25 * found["planted"]
    assert not any(found["as_claimed"] for found in host)
    text = "\n".join(power.Power(gpu.bench).lines({}, [{"doses": doses, "host": host}]))
    assert text.count("NOT AS CLAIMED within 25%") == 6
    assert "1%: detected in 8 of 8 timings" in text and "3 us of Python: detected in" in text


def test_another_run_finds_the_same_versions_from_what_is_kept(gpu):
    versions = planted.versions(gpu.bench)
    assert gpu.jobs == 1 + 4 * planted.CALIBRATION_ROUNDS
    assert planted.versions(gpu.bench) == versions
    assert gpu.jobs == 1 + 4 * planted.CALIBRATION_ROUNDS


def test_a_cell_whose_wait_does_not_show_is_no_evidence(gpu):
    gpu.dull = {SMALL}
    with pytest.raises(StudyError, match=f"{SMALL}: it takes hardly longer if"):
        planted.versions(gpu.bench)


def test_the_versions_differ_in_their_waits_alone(gpu):
    found = planted.versions(gpu.bench)
    files = {
        name: {
            str(path.relative_to(version.root)): path.read_bytes()
            for path in version.root.rglob("*.*")
        }
        for name, version in found.items()
    }
    for name in planted.DOSES:
        assert files[name].keys() == files["base"].keys()
        differ = [path for path in files["base"] if files["base"][path] != files[name][path]]
        assert differ == ["rope_triton/waits.json"]


# --- the patch ------------------------------------------------------------------------------------


@pytest.mark.mutants
def test_waiting_is_in_the_machine_code(tmp_path, monkeypatch):
    """ptxas drops a loop that does nothing: the kernel must have more than before it."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    gpu = types.SimpleNamespace(base=checkout.from_working_tree(ROOT, tmp_path), sources=tmp_path)
    wanted = ("sm_90", "float16", "sbhd", "forward", 64, "small")
    asked = [one for one in bench.SUBJECT.compilations("sm_90") if one.params == wanted]
    before, after = (
        value
        for root in (gpu.base.root, planted.plant("slow", gpu, {}).root)
        for key, value in exact.compiled(
            *(bench.SUBJECT, root, "sm_90", (), asked), enumerations=()
        ).values.items()
        if key.metric == "codegen.Codegen.track_instructions"
    )
    assert after >= before + 10


def test_calls_on_the_host_wait_as_told(gpu):
    root = planted.plant("slow", gpu.bench, {SMALL: 7}, seconds=0.05).root
    waits = json.loads((root / "rope_triton" / "waits.json").read_text())
    assert waits == {"gpu": {"": planted._BASE_WAIT, SMALL: 7}, "host": 0.05}
    names: dict = {"__file__": str(root / "rope_triton" / "host_wait.py")}
    exec((root / "rope_triton" / "host_wait.py").read_text(), names)

    def public():
        return "result"

    def other():
        return "result"

    public.__module__, other.__module__ = "rope_triton.api", "rope_triton.scalings"
    package = {"public": public, "other": other, "__version__": "1"}
    names["plant"](package)
    assert package["other"] is other and package["__version__"] == "1"
    start = time.perf_counter()
    assert package["public"]() == "result"
    assert time.perf_counter() - start >= 0.05
    init = (root / "rope_triton" / "__init__.py").read_text()
    assert init.rstrip().endswith("host_wait.plant(globals())")


# --- the file -------------------------------------------------------------------------------------


def test_the_file_is_made_of_what_was_measured(gpu, processes, monkeypatch, capsys):
    monkeypatch.setattr(checkout, "from_commit", lambda *_: gpu.bench.base)
    assert study("power") == 0
    document = json.loads((processes.output / "power.json").read_text())
    pool, verification = (Pool.from_json(document[key]) for key in ("pool", "verification"))
    assert len(pool.seconds["base"]) == bench.ROUNDS
    assert len(verification.seconds["base"]) == power.VERIFICATION_ROUNDS
    for row, host, name in zip(document["doses"], document["host"], planted.DOSES, strict=True):
        assert row == power.dose(pool, verification, name, "gpu") and row["as_claimed"]
        assert host == power.dose(pool, verification, name, "host") and host["as_claimed"]
    assert "10 us of Python: detected in 2 of 2 calls" in capsys.readouterr().out
    jobs = gpu.jobs
    assert study("power") == 0 and gpu.jobs == jobs, "it is there"


def test_shipped_doses_were_seen_and_say_whether_they_are_as_claimed():
    document = json.loads((reliability_studies.EVIDENCE / "power.json").read_text())
    pool, verification = (Pool.from_json(document[key]) for key in ("pool", "verification"))
    for row, host, name in zip(document["doses"], document["host"], planted.DOSES, strict=True):
        assert row == power.dose(pool, verification, name, "gpu")
        assert host == power.dose(pool, verification, name, "host")
    two, five = document["doses"][1:]
    assert two["seen_above_4_mb"] >= 0.95 * two["timings_above_4_mb"] > 0
    assert five["seen"] >= 0.95 * five["timings"] > 0
