"""What Triton's function in C is given, on every architecture, without a GPU.

Triton's launchers differ by what the GPU has: with tensor maps, say, a descriptor becomes another
list of arguments. A call like an earlier one is launched without Triton's runner, and must give
what that gives.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks._subjects.metric_list import ARCHITECTURES

# In a process of its own: in this one kernels may be made for the interpreter.
GIVEN = """
import collections, importlib, sys, types, warnings
import torch, triton
from benchmarks._engine.machine_code.stub_driver import StubDriver
import rope_triton
from rope_triton import transformer
from rope_triton.transformer import attention, products

warnings.simplefilter("error", RuntimeWarning)  # of launches that go through Triton's runner
given = []
driver = StubDriver.activate(sys.argv[1])
module = importlib.import_module(f"triton.backends.{sys.argv[2]}.driver")
if hasattr(module, "compile_module_from_src"):  # Triton 3.6 compiles a function for each kernel
    module.library_dirs = list
    made = types.SimpleNamespace(launch=lambda *arguments: driver.launch(*arguments))
    module.compile_module_from_src = lambda **_: made
module.PyKernelArg = collections.namedtuple("PyKernelArg", ("nested_tuple", "type"))
module.ARG_CONSTEXPR, module.ARG_KERNEL, module.ARG_TUPLE = range(3)
driver.launcher_cls = getattr(module, sys.argv[3])
driver.build_signature_metadata = list
driver.launch = lambda *arguments: given.append(arguments)
driver.fill_tma_descriptor = driver.fill_tma_descriptor_tiled = lambda *about: ("map", about)

# Small tiles compile in less time.
products._SIZES = ((32, 32, 4, 1.0),)
products._PART = 16
small = attention.Tile(32, 32, 4, 1)
attention.tiles = lambda channels, item: attention._Tiles(small, small, small)

angles = torch.zeros(64, 1, 1, 16)
split = [16, 16, 16]
targets = torch.zeros(64, dtype=torch.int64)
CALLS = {
    "rope": (lambda x: rope_triton.apply_rotary_pos_emb(x, angles), (64, 1, 4, 16)),
    "qk": (lambda x: rope_triton.apply_qk_rotary_pos_emb(x, x[:, :, :3], angles), (64, 1, 5, 16)),
    "qkv": (
        lambda x: rope_triton.apply_fused_qkv_rotary_pos_emb(x, angles, angles, split),
        (64, 1, 4, 48),
    ),
    "attention": (lambda x: transformer.causal_attention(x, x, x), (1, 64, 2, 16)),
    "rotary": (
        lambda x: transformer.rotary_attention(x[None], x[:48], angles, 1, 1),
        (64, 64),
    ),
    "linear": (lambda x: transformer.linear(x, x), (64, 64)),
    "cross_entropy": (lambda x: transformer.cross_entropy(x, targets), (64, 64)),
    "norm": (lambda x: transformer.layer_norm(x, x[0], x[0], residual=x), (64, 64)),
    "softmax": (transformer.softmax, (64, 64)),
    "swiglu": (lambda x: transformer.swiglu(x, x), (64, 64)),
}


def plain(value, own):
    \"\"\"Of tensors and addresses only which they are; of Triton's own objects nothing.\"\"\"
    if isinstance(value, torch.Tensor):
        known = value.data_ptr() == own
        return ["tensor", known, list(value.shape), list(value.stride()), str(value.dtype)]
    if isinstance(value, (list, tuple)):
        if value and value[0] == "map":
            (_, (address, *about)) = value
            return ["map", address == own, plain(about, own)]
        return [plain(each, own) for each in value]
    return value if isinstance(value, (bool, int, float, str)) else None


def launched(call, shape):
    \"\"\"What a call and its backward give, and the tensor, at a new address.\"\"\"
    given.clear()
    x = torch.zeros(shape, dtype=torch.float16, requires_grad=True)
    out = call(x)
    outs = out if isinstance(out, tuple) else (out,)
    torch.autograd.grad(outs, x, [torch.ones_like(each) for each in outs])
    return [plain(each, x.data_ptr()) for each in given], x


for name, (call, shape) in CALLS.items():
    by_runner, first = launched(call, shape)
    straight, second = launched(call, shape)
    assert by_runner and first.data_ptr() != second.data_ptr(), name
    assert straight == by_runner, (name, straight, by_runner)
"""


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_second_call_gives_what_tritons_runner_gives(arch, tmp_path):
    """Of every kernel, of tensors at other addresses than those of the first call."""
    backend, launcher = ("nvidia", "CudaLauncher") if arch[:2] == "sm" else ("amd", "HIPLauncher")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", GIVEN, arch, backend, launcher],
        env=environment,
        cwd=Path(__file__).resolve().parents[3],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
