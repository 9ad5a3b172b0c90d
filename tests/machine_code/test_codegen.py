"""The asv benchmarks of the machine code: what asv finds, and what it gets."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import codegen
from benchmarks._cells import subjects

BENCHMARKS = Path(codegen.__file__).parent
TRACKS = ("registers", "spilled_bytes", "stack_bytes", "shared_bytes", "instructions")
NAMES = {
    *(f"codegen.Codegen.track_{name}" for name in (*TRACKS, "narrow_share")),
    "codegen.Variants.track_variants",
}

DISCOVER = """
import json, sys
from asv_runner._aux import update_sys_path
from asv_runner.discovery import disc_benchmarks
update_sys_path(sys.argv[1])
found = [
    {"name": b.name, "version": b.version, "type": b.type, "unit": b.unit, "params": b.params,
     "timeouts": [b.timeout, b.setup_cache_timeout], "cache": b.setup_cache_key,
     "ok": b.check(sys.argv[1])}
    for b in disc_benchmarks(sys.argv[1], ignore_import_errors=True)
]
heavy = sorted({"torch", "triton", "rope_triton"} & set(sys.modules))
print(json.dumps({"found": found, "heavy": heavy}))
"""


def run(script: str, *arguments: str) -> str:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def found():
    pytest.importorskip("asv_runner")
    discovered = json.loads(run(DISCOVER, str(BENCHMARKS)).splitlines()[-1])["found"]
    hidden = ("codegen.", "fingerprint.", "disassembly.")
    return [benchmark for benchmark in discovered if benchmark["name"].startswith(hidden)]


def test_asv_finds_these_benchmarks_and_no_others(found):
    assert sorted(benchmark["name"] for benchmark in found) == sorted(NAMES)
    assert all(benchmark["ok"] for benchmark in found)


def test_asv_finds_everything_stated(found):
    for benchmark in found:
        assert benchmark["type"] == "track"
        assert benchmark["unit"] != "unit", benchmark["name"]
        version = "1" if "Variants" in benchmark["name"] else "2"
        assert benchmark["version"] == version, "an asv hash would miss the helpers"
        assert benchmark["timeouts"] == [60, 900]
    caches = {benchmark["cache"] for benchmark in found}
    assert len(caches) == 2, "one for each class"


def test_import_is_light():
    script = """
import sys
from benchmarks import codegen
print({"torch", "triton", "rope_triton"} & set(sys.modules))
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=BENCHMARKS.parent
    )
    assert done.stdout.strip() == "set()"


def one_call(monkeypatch, suite, shape=()):
    call = ("sm_80", "bfloat16", "bshd", "backward", *shape)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(suite, "params", [[value] for value in call])
    return call


def test_codegen_of_one_call(monkeypatch):
    call, suite = one_call(monkeypatch, codegen.Codegen, (64, "large")), codegen.Codegen()
    cache = pickle.loads(pickle.dumps(suite.setup_cache()))
    suite.setup(cache, *call)
    for name in TRACKS:
        value = getattr(suite, f"track_{name}")(cache, *call)
        assert value == getattr(cache[call], name)
        assert type(value) is int
    assert 0 <= suite.track_narrow_share(cache, *call) <= 1
    assert suite.track_instructions(cache, *call) > 0


def test_variants_of_one_sweep(monkeypatch):
    call, suite = one_call(monkeypatch, codegen.Variants), codegen.Variants()
    cache = pickle.loads(pickle.dumps(suite.setup_cache()))
    suite.setup(cache, *call)
    assert 1 <= suite.track_variants(cache, *call) <= 12 * 6


@pytest.mark.parametrize("suite", [codegen.Codegen, codegen.Variants])
@pytest.mark.parametrize("error", [NotImplementedError("no thd yet"), RuntimeError("ptxas died")])
def test_missing_answer_is_raised_by_setup(suite, error):
    call = tuple(values[0] for values in suite.params)
    cache = pickle.loads(pickle.dumps({call: error}))
    with pytest.raises(type(error), match=str(error)):
        suite().setup(cache, *call)


def test_every_architecture_has_every_call():
    assert codegen.Codegen.params[0] == subjects.ARCHITECTURES
    assert [len(values) for values in codegen.Codegen.params] == [8, 3, 2, 2, 3, 2]
    assert [len(values) for values in codegen.Variants.params] == [8, 3, 2, 2]
