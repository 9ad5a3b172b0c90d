"""How the kernels become operators that PyTorch's autograd, dispatcher and compiler know."""

from collections.abc import Callable

import torch

from rope_triton.ops.dispatch import has_tangent, is_plain


class Operator:
    """``rope_triton::name``, which changes none of its inputs and returns none of their memory.

    It is made of an ``autograd.Function`` around ``rope_triton::name.kernel``, and that alone is in
    what torch.compile has compiled. Eager calls on plain tensors pass PyTorch's dispatcher by.
    With ``torch.library.custom_op`` or ``torch.library.register_autograd`` several functions in
    Python would run before each launch, also a compiled one.
    """

    def __init__(self, name: str, function: Callable):
        self._function = function
        self._name, self._kernel_name = f"rope_triton::{name}", f"rope_triton::{name}.kernel"
        schema = torch.library.infer_schema(function, mutates_args=())
        for each in (self._name, self._kernel_name):
            torch.library.define(each, schema, tags=torch.Tag.pt2_compliant_tag)
        torch.library.impl(self._kernel_name, "default", function)
        overloads = getattr(torch.ops.rope_triton, name)
        self.overload, self._kernel = overloads.default, overloads.kernel
        self._eager: Callable

    def __call__(self, *args):
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        if is_plain(tensors):
            return self._eager(*args)
        if has_tangent(*tensors):
            raise NotImplementedError(f"{self._name} has no derivative in forward mode")
        return self.overload(*args)

    def register_fake(self, function: Callable) -> Callable:
        return torch.library.register_fake(self._kernel_name, function)

    def register_autograd(self, backward: Callable, setup_context: Callable) -> None:
        """As ``torch.library.register_autograd``; every operator needs it."""

        def differentiable(run: Callable) -> Callable:
            # One that had ``setup_context`` would bind its arguments by their names at every call.
            def forward(ctx, *args):
                output = run(*args)
                setup_context(ctx, args, output)
                return output

            functions = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
            made: type[torch.autograd.Function]
            made = type(self._name, (torch.autograd.Function,), functions)

            def call(*args):
                if torch.is_grad_enabled() and any(map(_requires_grad, args)):
                    return made.apply(*args)
                return run(*args)

            return call

        self._eager = differentiable(self._function)
        torch.library.impl(self._name, "CompositeImplicitAutograd", differentiable(self._kernel))


def _requires_grad(x) -> bool:
    return isinstance(x, torch.Tensor) and x.requires_grad


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
