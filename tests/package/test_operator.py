"""What PyTorch does with the operators beside calling them: compile, export, transform, fake."""

from functools import partial

import pytest
import torch
from torch.library import opcheck

import rope_triton
from rope_triton.integrations import flash_attention
from tests import oracle
from tests.package.calls import CALLS, by_tables, parts, random, tables

SEQ, BATCH, HEADS, CHANNELS = 4, 2, 3, 16

every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
backends = pytest.mark.parametrize("backend", ["eager", "aot_eager"])
in_place = partial(by_tables, inplace=True)


@pytest.fixture
def t(device):
    return oracle.contiguous((SEQ, BATCH, HEADS, CHANNELS), torch.float32, device)


@pytest.fixture
def freqs(device):
    return oracle.random_angles(12, CHANNELS - 4, device)


@pytest.fixture
def apply(freqs):
    return lambda t, **options: rope_triton.apply_rotary_pos_emb(t, freqs, **options)


@pytest.fixture(autouse=True)
def _not_compiled_before():
    """The number of compilations of one function is limited."""
    torch.compiler.reset()


def split(qkv, freqs):
    return rope_triton.apply_fused_qkv_rotary_pos_emb(qkv, freqs, freqs, [32, 16, 16])


def test_opcheck(t, freqs, device):
    operators, starts = torch.ops.rope_triton, torch.tensor([1, 2], device=device)
    tokens, bounds = torch.randn(8, HEADS, CHANNELS, device=device), starts.new_tensor([0, 3, 8])
    rotate, leaf = operators.rotate.default, t.clone().requires_grad_()
    opcheck(rotate, (leaf, freqs, None, None, None, "sbhd", False, 1, 0, "once", False))
    opcheck(rotate, (t, freqs, None, starts, None, "sbhd", True, 2, 1, "each", True))
    others = freqs, None, starts, bounds, "thd", True, 1, 0, "tables", True
    opcheck(rotate, (tokens.requires_grad_(), *others))
    others = *tables(device), None, None, "bshd", False, 1, 0, "once", False
    opcheck(operators.rotate_.default, (random(device), *others))
    opcheck(operators.rotate_.default, (random(device).requires_grad_() * 1, *others))
    qkv = torch.randn(SEQ, BATCH, HEADS, 64, device=device, requires_grad=True)
    others = freqs, freqs, None, "sbhd", False, 1, 0, 32, 16, 16
    opcheck(operators.split_qkv.default, (qkv, *others))
    leaves = [part.detach().requires_grad_() for part in split(qkv, freqs)]
    opcheck(operators.join_qkv.default, (*leaves, *others))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@every_call
def test_compile_without_a_graph_break(call, dynamic, device):
    def model(x):
        return sum((part * 3).square().sum() for part in parts(call(x * 2)))

    x = random(device).requires_grad_()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    results, expected = ((f(x), torch.autograd.grad(f(x), x)) for f in (compiled, model))
    torch.testing.assert_close(results, expected)


@backends
@pytest.mark.parametrize("is_part", [False, True], ids=["whole", "part"])
def test_compile_of_a_change_in_place(is_part, backend, device):
    def model(x):
        copy = x * 2
        before = copy.view(copy.shape)
        turned = in_place(copy[:, 1:] if is_part else copy)
        of_input = in_place(x)
        return of_input, copy.square() + before * turned[:, :1] + x.pow(3)

    def results(f):
        x = leaf * 1
        of_input, loss = f(x)
        assert of_input.data_ptr() == x.data_ptr()
        return of_input, loss, *torch.autograd.grad((loss * of_input + x).sum(), leaf)

    leaf = random(device).requires_grad_()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    torch.testing.assert_close(results(compiled), results(model))


def test_compiled_packed_heads_are_the_memory_that_was_changed(device):
    """AOTAutograd returns a copy of what a custom autograd.Function made of an input."""

    def call(x):
        return flash_attention.apply_rotary_emb_kv_(x, *tables(device))

    leaf = random(device).requires_grad_()
    x = torch.stack([leaf, leaf], 2)
    expected = call(x.detach().clone())
    out = torch.compile(call, fullgraph=True, backend="aot_eager")(x)
    assert out.data_ptr() == x.data_ptr()
    torch.testing.assert_close(out.detach(), expected)


@pytest.mark.parametrize("is_part", [False, True], ids=["whole", "part"])
def test_dynamo_alone_leaves_gradients_of_a_change_in_place_to_autograd(is_part, device):
    """A second derivative and a batch of gradients, which AOTAutograd does not have."""

    def model(x):
        out = x * 1
        in_place(out[:, :, :2] if is_part else out)
        return out

    def results(f):
        out = f(x)
        (first,) = torch.autograd.grad(out.pow(3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        (batched,) = torch.autograd.grad(f(x), x, weights, is_grads_batched=True)
        return out, second, batched

    x = random(device).requires_grad_()
    weights = torch.stack([random(device) for _ in range(3)])
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(results(compiled), results(model))


@backends
def test_compile_without_gradients_changes_inputs(backend, device):
    """A parameter, whose change is not recorded, and one tensor of a batch."""

    def model(x):
        with torch.no_grad():
            in_place(x)
        return x * 1

    x = torch.nn.Parameter(random(device))
    expected, before = in_place(x.detach().clone()), x._version
    torch.compile(model, fullgraph=True, backend=backend)(x).sum().backward()
    torch.testing.assert_close(x.detach(), expected)
    assert (x.grad == 1).all() and x._version > before
    batch = torch.stack([expected, 2 * expected], 2)
    turned = torch.stack([in_place(part.clone()) for part in batch.unbind(2)], 1)
    mapped = torch.func.vmap(in_place, in_dims=2, out_dims=1)
    compiled = torch.compile(mapped, fullgraph=True, backend=backend)
    torch.testing.assert_close(compiled(batch), turned)


def test_compile_refuses_what_an_eager_call_refuses(t, freqs, device):
    compiled = torch.compile(rope_triton.apply_rotary_pos_emb, backend="aot_eager")
    with pytest.raises(Exception, match="freqs covers 2 positions"):
        compiled(t, freqs[:2])
    for model in (in_place, lambda x: in_place((x * 1).unbind(0)[0][None])):
        for backend in ("eager", "aot_eager"):
            with pytest.raises(Exception, match="leaf|returns multiple views"):
                torch.compile(model, fullgraph=True, backend=backend)(
                    random(device).requires_grad_()
                )


# Frames that Dynamo gives up run eagerly, and it then looks at each function that they call.
TRANSFORMED = {
    "vmap(compile)": lambda f, x: torch.func.vmap(torch.compile(f, backend="aot_eager"))(x[None]),
    "compile(jvp)": lambda f, x: torch.compile(
        lambda x: torch.func.jvp(f, (x,), (2 * x,)), backend="eager"
    )(x),
    "grad(compile)": lambda f, x: torch.func.grad(
        torch.compile(lambda x: f(x).square().sum(), backend="aot_eager")
    )(x),
}


@pytest.mark.parametrize("transformed", TRANSFORMED.values(), ids=TRANSFORMED)
def test_compile_beside_transforms(transformed, t, apply, monkeypatch):
    result = transformed(apply, t)
    monkeypatch.setattr(torch, "compile", lambda f, **_: f)
    torch.testing.assert_close(result, transformed(apply, t))


@every_call
def test_compiled_autograd(call, device):
    """Of an eager forward: the backward is one graph of the operators."""
    x = random(device).requires_grad_()
    outs = parts(call(x))
    (expected,) = torch.autograd.grad(outs, x, list(map(torch.sin, outs)), retain_graph=True)
    graphs = []

    def backend(graph, inputs):
        graphs.append([str(node.target) for node in graph.graph.nodes])
        return graph

    with torch._dynamo.compiled_autograd._enable(torch.compile(backend=backend, fullgraph=True)):
        torch.autograd.backward(outs, list(map(torch.sin, outs)))
    torch.testing.assert_close(x.grad, expected)
    assert any("rope_triton" in target for target in graphs[0]) and len(graphs) == 1


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@every_call
def test_jit_trace(call, device):
    """The trace holds the operator, which rotates other values and has a gradient."""
    traced = torch.jit.trace(call, (random(device),), check_trace=False)
    assert any(node.kind().startswith("rope_triton::") for node in traced.graph.nodes())
    x = random(device).requires_grad_()
    results = []
    for f in (traced, call):
        outs = parts(f(x))
        results.append((*outs, *torch.autograd.grad(outs, x, outs)))
    torch.testing.assert_close(*results)


@every_call
def test_vmap_and_functionalize(call, device):
    """vmap of what gives several tensors is refused."""
    for dim in (0, 1) if call is CALLS["in_place"] else (0, 1, 4):
        batch = torch.stack([random(device) for _ in range(3)], dim)
        vmap = torch.func.vmap(call, in_dims=dim, out_dims=1)
        if call.__name__ in ("both_by_angles", "both_by_tables", "joined"):
            with pytest.raises(NotImplementedError, match=r"torch\.func are not supported"):
                vmap(batch)
        else:
            expected = torch.stack(list(map(call, batch.unbind(dim))), 1)
            torch.testing.assert_close(vmap(batch), expected)
    x = random(device)
    torch.testing.assert_close(torch.func.functionalize(call)(x), call(x))


class Other(torch.autograd.Function):
    """A function whose gradient is ``change`` of the one that it gets."""

    @staticmethod
    def forward(ctx, x, change):
        ctx.change = change
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return ctx.change(grad), None


@pytest.mark.parametrize("within", [False, True], ids=["call", "call in a backward"])
@every_call
def test_gradients_in_a_batch(call, within, device):
    """Differentiable again, in the gradients of the batch."""
    x = random(device).requires_grad_()
    outs = parts(call(x))
    if within:

        def change(grad):
            return grad + sum(out.square().sum() for out in parts(call(grad)))

        outs = (Other.apply(x, change),)
    batches = [torch.randn(3, *out.shape, device=device, requires_grad=True) for out in outs]
    together = {"is_grads_batched": True, "retain_graph": True}
    (result,) = torch.autograd.grad(outs, x, batches, **together)
    (again,) = torch.autograd.grad(outs, x, batches, **together, create_graph=True)
    alone = [
        torch.autograd.grad(outs, x, grads, create_graph=True)[0]
        for grads in zip(*batches, strict=True)
    ]
    expected = torch.stack(alone)
    torch.testing.assert_close((result, again), (expected, expected))
    second = [torch.autograd.grad(y.square().sum(), batches) for y in (again, expected)]
    torch.testing.assert_close(*second)


def test_batches_of_angles_are_refused(t, freqs):
    out = Other.apply(
        freqs.requires_grad_(), lambda grad: rope_triton.apply_rotary_pos_emb(t, grad)
    )
    with pytest.raises(NotImplementedError, match="a batch of gradients can only be rotated"):
        torch.autograd.grad(out, freqs, freqs[None].detach(), is_grads_batched=True)
    over_both = torch.func.vmap(rope_triton.apply_rotary_pos_emb)
    with pytest.raises(NotImplementedError, match="over the rotated tensor only"):
        over_both(torch.stack([t, t]), torch.stack([freqs, freqs]).detach())


def test_gradients_by_transforms(t, apply):
    small = t[:2, :1, :1]
    jacobian = torch.autograd.functional.jacobian(apply, small)
    torch.testing.assert_close(torch.func.jacrev(apply)(small), jacobian)
    torch.testing.assert_close(torch.func.jacfwd(apply)(small), jacobian)
    out, tangent = torch.func.jvp(apply, (t,), (3 * t,))
    torch.testing.assert_close(tangent, 3 * out)
    hessian = torch.func.hessian(lambda x: apply(x).square().sum() / 2)(small)
    jacobian = jacobian.flatten(0, 3).flatten(1)
    torch.testing.assert_close(hessian.flatten(0, 3).flatten(1), jacobian.T @ jacobian)
