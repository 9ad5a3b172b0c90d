"""What a call does on the host is counted exactly, and the same in every process."""

import functools
import json
import os
import subprocess
import sys
import threading
import time

import pytest
import torch

from benchmarks._engine.machine_code import host_cost
from benchmarks._engine.machine_code.stub_driver import StubDriver
from tests.lab import ROOT

DRIVER = StubDriver("sm_90")
X = torch.zeros(4)


def cost(source: str) -> host_cost.HostCost:
    """Of a function ``f`` that this source defines."""
    names = {"torch": torch, "x": X, "time": time, "lock": threading.Lock(), "cache": {}}
    exec(compile(source, "<package>", "exec"), names)
    return host_cost.of_call(DRIVER, names["f"])


BASE = "def f():\n  y = x\n  if y is None:\n    raise ValueError('none')\n  return y.add(1)"
BASE_COST = cost(BASE)


@pytest.mark.parametrize(
    "same",
    [
        BASE.replace("  y =", "  # Why.\n  y ="),
        BASE.replace("y", "renamed"),
        BASE.replace("ValueError('none')", "TypeError('other', 7)"),
        "def unused(): pass\n" + BASE,
    ],
    ids=["comment", "local variable", "what is not executed", "another function"],
)
def test_what_executes_the_same_has_the_same_digest(same):
    assert cost(same) == BASE_COST


@pytest.mark.parametrize(
    ("more", "calls", "operators"),
    [
        ("y.shape", 0, 0),
        ("isinstance(y, (int, float))", 1, 0),
        ("time.sleep(1e-9)", 1, 0),
        ("with lock: pass", 1, 0),
        ("y.clone()", 1, 2),
        ("y.sum().item()", 2, 4),
        ("torch.autograd.forward_ad._current_level", 0, 0),
    ],
)
def test_what_is_executed_besides_is_counted(more, calls, operators):
    head = cost(BASE.replace("  return", f"  {more}\n  return"))
    assert head.digest != BASE_COST.digest and head.bytecodes > BASE_COST.bytecodes
    assert head.c_calls >= BASE_COST.c_calls + calls
    assert head.operators >= BASE_COST.operators + operators
    assert (head.operators > BASE_COST.operators) == bool(operators)
    assert head.nominal_ns > BASE_COST.nominal_ns


def test_another_constant_or_attribute_is_other_work():
    assert cost(BASE.replace("add(1)", "add(2)")).digest != BASE_COST.digest
    assert cost(BASE.replace("add(1)", "sub(1)")).digest != BASE_COST.digest


def test_first_calls_and_garbage_do_not_count():
    source = "def f():\n  if 'y' not in cache:\n    cache['y'] = x.clone()\n  return cache['y']"
    assert cost(source).operators == 0


# All public functions, each once, in a process that compiles: which of them does a call reach, and
# what does each cost.
ALL = """
import json
import sys
from benchmarks._engine.machine_code import host_cost, uncompiled
from benchmarks._engine.subject import load
from benchmarks._subjects.rope import grid
from benchmarks._subjects.transformer import modules

subject = load("benchmarks._subjects")
uncompiled.skip_work()
driver = uncompiled.counting_driver("sm_90")
one_of_each, rope = {}, grid.listed_calls()
for (suite, (name, direction)), call in subject.host_calls().items():
    kind = name if name not in rope else name.partition("-")[0]
    kind = f"modules {name.partition('-')[0]}" if name in modules.listed_calls() else kind
    one_of_each.setdefault((kind, direction), call)
reached = set()

def note(frame, event, argument):
    if event == "call" and "rope_triton" in frame.f_code.co_filename:
        reached.add(frame.f_code)

costs = []
for key, call in one_of_each.items():
    step = host_cost.step(call)
    sys.setprofile(note)
    step()
    sys.setprofile(None)
    if key[0] in ("angles", "tables", "qk", "modules swiglu"):
        costs.append((key, host_cost.of_call(driver, step)))

import importlib, inspect, rope_triton
from rope_triton import transformer
public = {getattr(module, name) for module in (rope_triton, transformer) for name in module.__all__}
for library in ("transformers", "flash_attention", "vllm", "megatron"):
    module = importlib.import_module(f"rope_triton.integrations.{library}")
    public |= {getattr(module, n) for n in getattr(module, "__all__", ()) if n[0].islower()}
missed = []
for one in public:
    function = inspect.unwrap(one.forward if inspect.isclass(one) else one)
    if inspect.isfunction(function) and function.__code__ not in reached:
        missed.append(f"{function.__module__}.{function.__qualname__}")
print(json.dumps([sorted(missed), costs]))
"""


@functools.cache
def of_all(seed: str) -> tuple[list[str], list]:
    """What no call reaches, and the costs of some calls, in a process with this hash seed."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": seed}
    command = [sys.executable, "-c", ALL]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_every_public_function_is_reached():
    missed, _ = of_all("1")
    assert missed == ["rope_triton.integrations.transformers.patch"], "it patches what others have"


def test_every_process_counts_the_same():
    (_, first), (_, second) = of_all("1"), of_all("2")
    assert first == second and len(first) >= 4


def test_the_import_is_counted(tmp_path, monkeypatch):
    package = tmp_path / "counted"
    package.mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    (package / "__init__.py").write_text("value = 1\n")
    little = host_cost.of_import("counted")
    (package / "__init__.py").write_text("value = sum(range(9))\nvalues = [i for i in (1, 2, 3)]\n")
    more = host_cost.of_import("counted")
    assert more.bytecodes > little.bytecodes and more.c_calls > little.c_calls
    assert host_cost.of_import("counted") == more
