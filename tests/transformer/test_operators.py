"""What all operators have in common."""

from types import SimpleNamespace

import pytest
import torch
import triton
from torch.autograd import forward_ad
from torch.library import opcheck

from rope_triton import RotaryPositionEmbedding, transformer
from rope_triton.kernel import launch
from rope_triton.ops.dispatch import is_batch
from rope_triton.transformer import losses, norms
from tests.transformer.common import assert_same, gradients

pytestmark = pytest.mark.gpu_or_interpreter

all_functions = pytest.mark.parametrize(
    "name", sorted(set(transformer.__all__) - {"interleaved_rows"})
)


def call_of(name, device):
    """A small call of a function, and the tensors that it is differentiated in."""
    torch.manual_seed(0)
    x, weight, wide = (torch.randn(n, 16, device=device) for n in (6, 16, 48))
    q, targets = torch.randn(1, 6, 2, 16, device=device), torch.arange(6, device=device)
    freqs = RotaryPositionEmbedding(16, interleaved=True, device=device)(6)
    inputs = {
        "causal_attention": (q, q, q),
        "cross_entropy": (x,),
        "layer_norm": (x, x[0], x[1]),
        "rms_norm": (x, x[0]),
        "rotary_attention": (x[None], wide),
        "softmax": (x,),
        "swiglu": (x, x),
    }.get(name, (x, weight))
    rest = {
        "cross_entropy": (targets,),
        "linear_cross_entropy": (targets,),
        "rotary_attention": (freqs, 1, 1),
    }.get(name, ())
    return lambda *leaves: getattr(transformer, name)(*leaves, *rest), inputs


def operator_calls(device):
    """Arguments of each operator, by its name in PyTorch."""

    def leaf(*shape, dtype=torch.float32):
        return torch.randn(shape, device=device, dtype=dtype, requires_grad=True)

    targets = torch.tensor([0, -100, 39, 7, 1], device=device)
    x, weight, row, factor = leaf(5, 12), leaf(40, 12), leaf(12), torch.tensor(0.5, device=device)
    q, slopes = leaf(1, 20, 2, 16), torch.ones(2, device=device)
    logits, lse = leaf(5, 40).detach(), torch.randn(5, device=device)
    return {
        "swiglu": (x, leaf(5, 12)),
        "softmax": (x,),
        "norm": (x, row, leaf(12), 1e-2, True, torch.float32),
        "add_norm": (x, leaf(5, 12), row, leaf(12), 1e-2, True, torch.float32),
        "linear": (x, weight, leaf(40), True),
        "matmul": (leaf(1, 5, 12), torch.randn(1, 12, 7, device=device)),
        "cross_entropy": (leaf(5, 40), targets, -100, True),
        "cross_entropy_backward": (logits, targets, lse, factor, -100),
        "linear_cross_entropy": (x, weight, targets, -100, True, True, True),
        "scaled": (lse, factor, torch.float16),
        "causal_attention": (q, leaf(1, 20, 1, 16), leaf(1, 20, 1, 16), slopes, 0.25),
        "rotary_attention": (leaf(1, 20, 12), leaf(64, 12), leaf(20, 8, 2).detach(), 2, 1),
    }


@pytest.mark.parametrize("name", operator_calls("cpu"))
def test_opcheck(name, device):
    operator = getattr(torch.ops.rope_triton, name).default
    opcheck(operator, operator_calls(device)[name])


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@all_functions
def test_compiled_without_a_graph_break(name, dynamic, device):
    torch.compiler.reset()
    call, inputs = call_of(name, device)
    cotangent = torch.randn_like(call(*inputs))
    # Inductor computes other sines for the table of rotary_attention.
    eager = dynamic or device == "cpu" or name == "rotary_attention"
    backend = "aot_eager" if eager else "inductor"
    compiled = torch.compile(call, fullgraph=True, backend=backend, dynamic=dynamic)
    assert_same(*(gradients(f, inputs, cotangent) for f in (call, compiled)))


def test_the_second_derivative_of_a_norm_is_refused(device):
    x, weight = torch.randn(3, 20, device=device, requires_grad=True), torch.ones(20, device=device)
    y = transformer.rms_norm(x, weight)
    (dx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="norm_backward"):
        dx.sum().backward()


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap calls one by one
@all_functions
def test_forward_mode_is_refused(name, device):
    """Its tangents would be lost: of a call, of a batch, and of their gradients."""
    call, inputs = call_of(name, device)
    batches, places = [torch.stack((x, -x)) for x in inputs], tuple(range(len(inputs)))
    mapped, refused = torch.func.vmap(call), {"match": "no derivative in forward mode"}

    def gradient(function):
        return torch.func.grad(lambda *leaves: function(*leaves).sum(), places)

    calls = [(call, inputs), (mapped, batches)]
    gradients = [(gradient(mapped), batches), (torch.func.vmap(gradient(call)), batches)]
    for function, tensors in (*calls, *gradients):
        with pytest.raises(NotImplementedError, **refused):
            torch.func.jvp(function, (*tensors,), (*tensors,))
    with pytest.raises(NotImplementedError, **refused):
        torch.func.vmap(lambda *x: torch.func.jvp(call, x, x))(*batches)
    with forward_ad.dual_level():
        for function, tensors in calls:
            assert forward_ad.unpack_dual(function(*tensors)).tangent is None
            for learned in (False, True):
                first = forward_ad.make_dual(tensors[0].clone().requires_grad_(learned), tensors[0])
                with pytest.raises(NotImplementedError, **refused):
                    function(first, *tensors[1:])


@all_functions
def test_gradients_in_a_batch(name, device):
    call, inputs = call_of(name, device)
    leaves = [x.clone().requires_grad_() for x in inputs]
    out = call(*leaves)
    batch = torch.randn(2, *out.shape, device=device)
    alone = [torch.autograd.grad(out, leaves, entry, retain_graph=True) for entry in batch]
    expected = tuple(map(torch.stack, zip(*alone, strict=True)))
    actual = torch.autograd.grad(out, leaves, batch, is_grads_batched=True)
    torch.testing.assert_close(actual, expected)


def test_gradients_in_a_batch_that_a_compiled_launch_refuses(monkeypatch, device):
    """Triton's launcher raises another error than its interpreter."""

    def planned(*args):
        def on(*tensors):
            if is_batch(*tensors):
                raise TypeError("Pointer argument must be either uint64 or have data_ptr method")
            as_it_is(*args).on(*tensors)

        return SimpleNamespace(on=on)

    as_it_is = losses.planned
    monkeypatch.setattr(losses, "planned", planned)
    test_gradients_in_a_batch("cross_entropy", device)


@all_functions
def test_a_call_on_gradients_in_a_batch(name, device):
    """As the backward of another function may contain it."""
    call, (first, *others) = call_of(name, device)

    class Other(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad + call(grad, *others).sum()

    x, batch = first.clone().requires_grad_(), torch.stack((first, -first))
    (actual,) = torch.autograd.grad(Other.apply(x), x, batch, is_grads_batched=True)
    expected = torch.stack([entry + call(entry, *others).sum() for entry in batch])
    torch.testing.assert_close(actual, expected)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap calls one by one
@all_functions
def test_gradients_by_transforms(name, device):
    call, inputs = call_of(name, device)
    places = tuple(range(len(inputs)))

    def loss(*leaves):
        return call(*leaves).square().sum()

    def of_batch(*batches):
        return torch.func.vmap(loss)(*batches).sum()

    batches = [torch.stack((x, -x)) for x in inputs]
    expected = []
    for entry in zip(*batches, strict=True):
        leaves = [x.clone().requires_grad_() for x in entry]
        expected.append(torch.autograd.grad(loss(*leaves), leaves))
    gradient = torch.func.grad(loss, places)
    torch.testing.assert_close(gradient(*inputs), expected[0])
    expected = tuple(map(torch.stack, zip(*expected, strict=True)))
    torch.testing.assert_close(torch.func.vmap(gradient)(*batches), expected)
    torch.testing.assert_close(torch.func.grad(of_batch, places)(*batches), expected)

    def few(*leaves):
        return call(*leaves).flatten()[:3]

    jacobian = torch.autograd.functional.jacobian(few, inputs)
    torch.testing.assert_close(torch.func.jacrev(few, places)(*inputs), jacobian)
    with pytest.raises(NotImplementedError, match="no derivative in forward mode"):
        torch.func.hessian(loss)(*inputs)
    torch.testing.assert_close(torch.func.functionalize(call)(*inputs), call(*inputs))


def at_an_odd_address(x):
    """The same values after another element of memory, as those of a buffer for many tensors."""
    return torch.cat((x.new_zeros(1), x.flatten()))[1:].view_as(x)


@pytest.mark.parametrize("which", ["gradient", "saved"])
@all_functions
def test_what_is_compiled_for_aligned_tensors_gets_no_others(name, which, device, monkeypatch):
    """A part of a tensor need not begin at a multiple of 16 bytes, from which vectors load."""
    call, inputs = call_of(name, device)
    on, first = launch.Launch.on, {}

    def checked(self, *tensors):
        keys = [None if x is None else launch.specialization_key(x) for x in tensors]
        assert first.setdefault(self, keys) == keys
        on(self, *tensors)

    monkeypatch.setattr(launch.Launch, "on", checked)
    cotangent = torch.randn_like(call(*inputs))
    later = at_an_odd_address(cotangent)
    assert cotangent.data_ptr() % 16 == 0 < later.data_ptr() % 16
    expected = gradients(call, inputs, cotangent)
    if which == "gradient":
        actual = gradients(call, inputs, later)
    else:
        with torch.autograd.graph.saved_tensors_hooks(at_an_odd_address, lambda saved: saved):
            actual = gradients(call, inputs, cotangent)
    torch.testing.assert_close(actual, expected)
    assert first


@all_functions
def test_saved_tensors_with_other_strides(name, device):
    """Hooks on them may return such."""
    call, inputs = call_of(name, device)
    cotangent = torch.randn_like(call(*inputs))
    expected = gradients(call, inputs, cotangent)

    def apart(saved):
        return torch.stack((saved, saved), -1)[..., 0]

    with torch.autograd.graph.saved_tensors_hooks(torch.Tensor.clone, apart):
        actual = gradients(call, inputs, cotangent)
    torch.testing.assert_close(actual, expected)


@all_functions
@pytest.mark.parametrize("unfit", ["meta", "cpu"])
def test_a_device_without_kernels_is_refused(unfit, name, monkeypatch):
    """Before the launch of a kernel, which would read at address 0 or at the host's."""
    compiled = object.__new__(triton.runtime.JITFunction)
    monkeypatch.setattr(launch, "rope_kernel", compiled)  # the interpreter reads the host's
    call, inputs = call_of(name, unfit)
    with pytest.raises(ValueError, match=f"a tensor is on {unfit}"):
        call(*inputs)


def test_what_runs_the_kernels_was_decided_at_import(device, monkeypatch):
    """The variable may change later, for kernels of other packages."""

    def actual():
        gpu = torch.device(device)
        return launch.resources.__wrapped__(gpu), norms._at_once.__wrapped__(gpu, 4)

    expected = actual()
    monkeypatch.setenv("TRITON_INTERPRET", str(int(not triton.knobs.runtime.interpret)))
    assert actual() == expected
