"""How functions become operators that PyTorch's dispatcher, autograd and compiler know."""

import inspect
from collections.abc import Callable, Mapping

import torch
from torch._functorch.autograd_function import WrappedCtx
from torch._library.custom_ops import get_library_allowing_overwrite
from torch.autograd import forward_ad

from rope_triton.kernel.plans import adjoint as adjoint_options
from rope_triton.ops.dispatch import (
    NO_MEMORY,
    as_tuple,
    compiling,
    has_tangent,
    hidden,
    is_batch,
    is_plain,
    linear,
    linear_in_batch,
    transforming,
)


class _Registered:
    """``rope_triton::name``, registered with PyTorch's dispatcher."""

    def __init__(self, name: str, function: Callable, mutates_args: tuple[str, ...] = ()):
        self._function = hidden(function)
        # As custom_op does: a package that is imported again registers its operators again.
        self._library = get_library_allowing_overwrite("rope_triton", name)
        schema = name + torch.library.infer_schema(function, mutates_args=mutates_args)
        self._library.define(schema, tags=torch.Tag.pt2_compliant_tag)
        self._library.impl(name, function, "CompositeExplicitAutograd")
        self.overload = getattr(torch.ops.rope_triton, name).default

    def register_fake(self, function: Callable) -> Callable:
        return torch.library.register_fake(self.overload, function, lib=self._library)

    def register_vmap(self, function: Callable) -> None:
        torch.library.register_vmap(self.overload, function, lib=self._library)


class Operator(_Registered):
    """``rope_triton::name``, which changes none of its inputs and returns none of their memory.

    Calling it is for eager code: plain tensors pass PyTorch's dispatcher by. ``overload`` goes
    through the dispatcher, as a compiled model does. There an operator by
    ``torch.library.custom_op`` takes 8 microseconds more, for several functions in Python that run
    before its own.
    """

    _eager: Callable
    _transformed: Callable

    def __call__(self, *args):
        tensors = _tensors(args)
        if is_plain(tensors):
            try:
                return self._eager(*args)
            except NO_MEMORY:
                if not is_batch(*tensors):
                    raise
        if has_tangent(*tensors):
            self._refuse_tangents()
        if transforming():
            return self._transformed(*args)
        return self.overload(*args)

    def register_autograd(self, backward: Callable, setup_context: Callable) -> None:
        """As ``torch.library.register_autograd``; every operator needs it."""

        def differentiable(run: Callable) -> Callable:
            # One that had ``setup_context`` would bind its arguments by their names at every call.
            def forward(ctx, *args):
                output = run(*args)
                setup_context(ctx, args, output)
                return output

            made = self._autograd_function(forward=forward, backward=backward)

            @hidden
            def call(*args):
                if torch.is_grad_enabled() and any(x.requires_grad for x in _tensors(args)):
                    return made.apply(*args)
                return run(*args)

            return call

        self._eager = differentiable(self._function)
        self._library.impl(self.overload, differentiable(self._below_autograd), "Autograd")

        # torch.func differentiates a function of another form, and no operator.
        def setup_both(ctx, inputs, output):
            setup_context(_SavedForBoth(ctx), inputs, output)

        functions = {"setup_context": setup_both, "jvp": self._refuse_tangents}
        made = self._autograd_function(forward=self.overload, backward=backward, **functions)
        made.generate_vmap_rule = True
        self._transformed = made.apply

    def gradient(self, setup_context: Callable) -> Callable[[Callable], None]:
        """A decorator of the backward, to register both."""
        return lambda backward: self.register_autograd(backward, setup_context)

    def _refuse_tangents(self, *_):
        raise NotImplementedError(f"{self.overload.name()} has no derivative in forward mode")

    def _autograd_function(self, **functions: Callable) -> type[torch.autograd.Function]:
        members = {name: staticmethod(function) for name, function in functions.items()}
        return type(self.overload.name(), (torch.autograd.Function,), members)

    def _below_autograd(self, *args):
        if is_plain(_tensors(args)):
            return self._function(*args)
        with torch._C._AutoDispatchBelowAutograd():  # modes, fake tensors and tracing
            return self.overload(*args)


class LinearOperator(Operator):
    """``rope_triton::name`` of ``(*tensors, *tables, *options)``, linear in the tensors.

    The adjoint is the operator itself with its last argument, ``transposed``, negated, unless
    ``adjoint`` is set to another. Tables get no gradient.

    run: of ``(*tensors, tables, options)``: few arguments, because each takes time, twice as much
    in the backward, whose thread runs on a cold core. ``apply`` is the same with a gradient.
    tensors, tables: their names, with their types where these are not tensors. options: a
    NamedTuple, whose fields are arguments but for the last, ``last``. shapes: of ``(tensors,
    options)``, those of the results; by default, of the tensors.
    """

    def __init__(
        self,
        name: str,
        run: Callable,
        tensors: tuple[str, ...],
        tables: Mapping[str, object],
        options: Callable,
        shapes: Callable | None = None,
        *,
        results: int = 0,
        last: bool = False,
    ):
        self.run = run
        self.adjoint: LinearOperator = self
        n, end, results = len(tensors), len(tensors) + len(tables), results or len(tensors)
        types = {**dict.fromkeys(tensors, torch.Tensor), **tables, **options.__annotations__}
        *parameters, _ = (
            inspect.Parameter(key, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind)
            for key, kind in types.items()
        )
        result = torch.Tensor if results == 1 else tuple[(torch.Tensor,) * results]  # type: ignore[misc]

        def function(*args):
            return run(*args[:n], args[n:end], options(*args[end:], last))

        def fake(*args):
            sizes = shapes(args[:n], options(*args[end:], last)) if shapes else None
            made = [args[0].new_empty(size) for size in sizes or (t.shape for t in args[:n])]
            return made[0] if results == 1 else tuple(made)

        def save(ctx, inputs, output):
            ctx.save_for_backward(*inputs[n:end])
            ctx.options = inputs[end:]

        def backward(ctx, *grads):
            options = ctx.options
            if self.adjoint is self:
                options = *options[:-1], not options[-1]
            out = linear(self.adjoint.overload, grads, *ctx.saved_tensors, *options)
            return *as_tuple(out), *[None] * (end - n + len(options))

        signature = inspect.Signature(parameters, return_annotation=result)
        function.__signature__ = signature  # type: ignore[attr-defined]
        super().__init__(name, function)
        self.register_fake(fake)
        self.register_autograd(backward, setup_context=save)
        self.function = self._linear_function(name)
        self.apply = self.function.apply

    def _linear_function(self, name: str) -> type[torch.autograd.Function]:
        run = self.run

        def forward(ctx, *args):
            *_, tables, options = args
            ctx.save_for_backward(*tables)
            ctx.options = adjoint_options(options)
            return run(*args)

        def backward(ctx, *grads):
            tables, options, adjoint = ctx.saved_tensors, ctx.options, self.adjoint
            if compiling():  # compiled autograd
                out = adjoint.overload(*grads, *tables, *options[:-1])
            else:
                call = adjoint.apply if torch.is_grad_enabled() else adjoint.run
                try:
                    if forward_ad._current_level < 0:  # saves a function call, 0.5 microseconds
                        out = call(*grads, tables, options)
                    else:
                        out = linear(call, grads, tables, options)
                except NO_MEMORY:
                    out = linear_in_batch(adjoint.overload, grads, *tables, *options[:-1])
            return *as_tuple(out), None, None

        functions = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        return type(name.title().replace("_", ""), (torch.autograd.Function,), functions)


class InPlaceOperator(_Registered):
    """``rope_triton::name``, which takes the arguments of ``like`` and changes the first of them.

    It is for torch.compile, which makes a copy only of memory that something else reads.
    """

    def __init__(self, name: str, function: Callable, like: Operator):
        signature = inspect.signature(like._function).replace(return_annotation=None)
        function.__signature__ = signature  # type: ignore[attr-defined]
        changed = next(iter(signature.parameters))
        super().__init__(name, function, mutates_args=(changed,))
        self.register_fake(lambda *_: None)

    def register_autograd(self, record: Callable) -> None:
        """``record(*args)`` makes a change that autograd must record."""

        @hidden
        def call(t, *others):
            if t.requires_grad and torch.is_grad_enabled():
                record(t, *others)
                return
            self.below_autograd(t, *others)
            if not t.is_inference():
                torch.autograd.graph.increment_version(t)

        self._library.impl(self.overload, call, "Autograd")

    def below_autograd(self, *args, recorded: bool = False) -> None:
        if is_plain(_tensors(args)):
            self._function(*args)
            return
        # AOTAutograd takes a change without gradients for one that autograd does not record.
        mode = torch.set_grad_enabled(recorded or torch.is_grad_enabled())
        with mode, torch._C._AutoDispatchBelowAutograd():
            self.overload(*args)


class _SavedForBoth(WrappedCtx):
    """A context that saves for forward mode too: else vmap fails before it calls ``jvp``."""

    def save_for_backward(self, *tensors):
        self._pt_inner_ctx.save_for_backward(*tensors)
        self._pt_inner_ctx.save_for_forward(*tensors)


def _tensors(args: tuple) -> list[torch.Tensor]:
    return [arg for arg in args if isinstance(arg, torch.Tensor)]


def operator(
    name: str, like: int | tuple[int, ...] | None = None
) -> Callable[[Callable], Operator]:
    """A decorator that makes an :class:`Operator` of a function with annotations.

    ``like``: the argument whose shape and dtype the result has, or a tuple of such for as many
    results. Without it the operator needs ``register_fake``.
    """

    def decorated(function: Callable) -> Operator:
        made = Operator(name, function)
        if isinstance(like, int):
            made.register_fake(lambda *args: contiguous_like(args[like]))
        elif like is not None:
            made.register_fake(lambda *args: tuple(contiguous_like(args[i]) for i in like))
        return made

    return decorated


def contiguous_like(x: torch.Tensor) -> torch.Tensor:
    """A new contiguous tensor of the shape, dtype and device of ``x``."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def gradient_operator(name: str, like: int | tuple[int, ...] | None = None) -> Callable:
    """:func:`operator` for a function that computes gradients and has none itself."""

    def decorated(function: Callable) -> Operator:
        made = operator(name, like)(function)

        @made.gradient(lambda ctx, inputs, output: None)
        def _(ctx, *_):
            raise NotImplementedError(f"rope_triton::{name} has no gradient: differentiable once")

        return made

    return decorated
