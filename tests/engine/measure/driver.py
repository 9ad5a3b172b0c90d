"""A CUDA driver that lists the nodes of a made-up graph, whose handle is 77."""

import ctypes
from typing import NamedTuple


class Node(NamedTuple):
    """A node: ``kind`` as CUgraphNodeType, and the words of its parameters.

    ``library``: whether a kernel is one of CUDA's libraries, which have no function but a kernel.
    """

    kind: int
    name: str = ""
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (128, 1, 1)
    shared: int = 0
    size: tuple[int, ...] = (0, 1, 1)
    library: bool = False


FIRST = 1000  # the handle of the first node; of its function or kernel, as much more again


class Driver:
    """``fails``: the function that does, by its name; ``lacks``: those that it does not have."""

    def __init__(self, nodes, fails="", lacks=()):
        self.nodes, self.fails, self.lacks = nodes, fails, lacks

    def __getattr__(self, name):
        if name in self.lacks or not name.startswith("cu"):
            raise AttributeError(name)

        def function(*arguments):
            getattr(Driver, f"_{name}")(self, *arguments)
            return 700 * (self.fails == name)

        return function

    def _node(self, handle, first=FIRST) -> Node:
        return self.nodes[handle.value - first]

    def _cuGraphGetNodes(self, graph, nodes, count):
        assert graph.value == 77
        count._obj.value = len(self.nodes)
        if nodes is not None:
            nodes[:] = [FIRST + index for index in range(len(self.nodes))]

    def _cuGraphNodeGetType(self, node, kind):
        kind._obj.value = self._node(node).kind

    def _cuGraphKernelNodeGetParams_v2(self, node, into):
        given = self._node(node)
        function, kernel = 0, 2 * FIRST + node.value - FIRST
        if not given.library:
            function, kernel = kernel, function
        # As in cuda.h, CUDA 12 and 13: the function at 0, sizes from 8 on, the kernel at 56.
        numbers = (*given.grid, *given.block, given.shared)
        words = function.to_bytes(8, "little") + b"".join(n.to_bytes(4, "little") for n in numbers)
        words = words.ljust(56, b"\0") + kernel.to_bytes(8, "little")
        _fill(into, words.ljust(72, b"\0"))

    def _cuFuncGetName(self, name, function):
        assert not self._node(function, 2 * FIRST).library
        name._obj.value = self._node(function, 2 * FIRST).name.encode()

    def _cuKernelGetName(self, name, kernel):
        assert self._node(kernel, 2 * FIRST).library
        name._obj.value = self._node(kernel, 2 * FIRST).name.encode()

    def _cuGraphMemcpyNodeGetParams(self, node, into):
        size = b"".join(n.to_bytes(8, "little") for n in self._node(node).size)
        _fill(into, size.rjust(200, b"\1"))

    def _cuGraphMemsetNodeGetParams(self, node, into):
        element, width, height = self._node(node).size
        words = element.to_bytes(4, "little") + b"".join(
            n.to_bytes(8, "little") for n in (width, height)
        )
        _fill(into, words.rjust(40, b"\1"))


def _fill(into, words: bytes) -> None:
    assert ctypes.sizeof(into._obj) == len(words)
    ctypes.memmove(ctypes.addressof(into._obj), words, len(words))
