"""How the kernels become operators that PyTorch's dispatcher, autograd and compiler know."""

from collections.abc import Callable

import torch


class Operator:
    """``rope_triton::name``, which changes none of its inputs and returns none of their memory.

    As ``torch.library.custom_op``, but without its checks of that at every call, 10 microseconds.
    """

    def __init__(self, name: str, function: Callable):
        self._name = f"rope_triton::{name}"
        schema = torch.library.infer_schema(function, mutates_args=())
        torch.library.define(self._name, schema, tags=torch.Tag.pt2_compliant_tag)
        torch.library.impl(self._name, "default", function)
        self.overload = getattr(torch.ops.rope_triton, name).default

    def __call__(self, *args):
        return self.overload(*args)

    def register_fake(self, function: Callable) -> Callable:
        return torch.library.register_fake(self._name, function)

    def register_autograd(self, backward: Callable, setup_context: Callable) -> None:
        torch.library.register_autograd(self._name, backward, setup_context=setup_context)


def operator(name: str) -> Callable[[Callable], Operator]:
    """A decorator that makes an :class:`Operator` of a function with annotations."""
    return lambda function: Operator(name, function)


def gradient_operator(name: str) -> Callable[[Callable], Operator]:
    """The same of a function that computes gradients and has none itself."""

    def decorated(function: Callable) -> Operator:
        made = Operator(name, function)
        made.register_autograd(_refuse, lambda ctx, inputs, output: setattr(ctx, "name", name))
        return made

    return decorated


def _refuse(ctx, *_):
    raise NotImplementedError(f"rope_triton::{ctx.name} has no gradient: differentiable once")
