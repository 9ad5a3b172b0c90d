"""One way to compile a function for what is measured."""

import types
from collections.abc import Callable


def alone(shared: Callable, backend: str | None) -> Callable:
    """The function by torch.compile, for the first shapes it is called with; as it is for None.

    torch keeps what it compiled by the function's code object, looks through all of it at every
    call, and goes back to plain PyTorch after eight: the result has a code object of its own. If it
    does not compile as a whole, that is an error, never a slower figure.
    """
    import torch

    if backend is None:
        return shared
    own = types.FunctionType(
        shared.__code__.replace(), shared.__globals__, shared.__name__, None, shared.__closure__
    )
    return torch.compile(own, dynamic=False, fullgraph=True, backend=backend)
