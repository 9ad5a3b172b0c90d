"""A Triton driver that compiles for any architecture without a GPU, and launches nothing.

Triton asks a driver object for the architecture. With this one a kernel that is launched on CPU
tensors is compiled for that architecture, and its launch is only noted.
"""

import dataclasses
from typing import NamedTuple

_RESOURCES = {
    # Shared memory of one program: Triton refuses a kernel that needs more. CUDA C++ programming
    # guide, "Technical specifications per compute capability"; on AMD, a compute unit's LDS.
    # Multiprocessors: of a T4, A100, A10, L4, H100 and H200 (SXM), B200, RTX 5090, MI300X.
    "sm_75": (64 * 1024, 40),
    "sm_80": (163 * 1024, 108),
    "sm_86": (99 * 1024, 72),
    "sm_89": (99 * 1024, 58),
    "sm_90": (227 * 1024, 132),
    "sm_100": (227 * 1024, 148),
    "sm_120": (99 * 1024, 170),
    "gfx942": (64 * 1024, 304),
}
# Between a launch's grid and the kernel's arguments Triton passes the stream, the function, packed
# and launch metadata, and the hooks to call before and after.
_TRITONS_OWN = 6


class Launch(NamedTuple):
    """A launch of a compiled kernel.

    ``numbers`` are the kernel's arguments, None in place of a tensor or another object: sizes and
    strides, say, without the addresses, which differ from run to run.
    """

    kernel: "_Launcher"
    grid: tuple[int, int, int]
    numbers: tuple


class StubDriver:
    """The driver that Triton asks, for an architecture that this machine need not have."""

    def __init__(self, arch: str):
        import torch
        from triton.backends.compiler import GPUTarget

        nvidia = arch.startswith("sm_")
        self._target = (
            GPUTarget("cuda", int(arch[3:]), 32) if nvidia else GPUTarget("hip", arch, 64)
        )
        self._torch_device = torch.device("cpu")
        self._resources = dict(
            zip(("max_shared_mem", "multiprocessor_count"), _RESOURCES[arch], strict=True)
        )
        self.utils = self
        self.launches: list[Launch] = []

    @classmethod
    def activate(cls, arch: str) -> "StubDriver":
        import triton

        driver = cls(arch)
        triton.runtime.driver.set_active(driver)
        return driver

    def get_current_target(self):
        return self._target

    def get_active_torch_device(self):
        return self._torch_device

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_properties(self, device: int) -> dict[str, int]:
        return self._resources

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple:
        module, function, registers, spills, max_threads = object(), object(), 0, 0, 1024
        return module, function, registers, spills, max_threads

    def launcher_cls(self, src, metadata) -> "_Launcher":
        return _Launcher(src, metadata, self.launches)

    def get_benchmarker(self):
        raise RuntimeError("an autotuned kernel cannot choose its configuration without a GPU")


class _Launcher:
    """A compiled kernel whose launches are only noted; ``source`` is Triton's ``ASTSource``."""

    def __init__(self, source, metadata, launches: list):
        self.source, self.metadata = source, metadata
        self._launches = launches

    def __call__(self, *arguments) -> None:
        self.launch(*arguments)

    def launch(self, grid_x: int, grid_y: int, grid_z: int, *rest) -> None:
        """As the function in C of Triton's launchers, which the package calls itself."""
        arguments = rest[_TRITONS_OWN:]
        self._launches.append(Launch(self, (grid_x, grid_y, grid_z), _numbers(arguments)))


def _numbers(arguments) -> tuple:
    """The numbers among a kernel's arguments, also those in tuples and in tensor descriptors.

    None is no argument: Triton compiles it away.
    """
    return tuple(_number(argument) for argument in arguments if argument is not None)


def _number(argument):
    if isinstance(argument, (bool, int, float)):
        return argument
    if dataclasses.is_dataclass(argument):  # a tensor descriptor: a tensor, its shape and strides
        fields = dataclasses.fields(argument)
        return _numbers(getattr(argument, field.name) for field in fields)
    return _numbers(argument) if isinstance(argument, (list, tuple)) else None
