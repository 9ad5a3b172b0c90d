"""What all operators have in common."""

from pathlib import Path

import pytest
import torch
import triton
from torch.autograd import forward_ad

from rope_triton import RotaryPositionEmbedding, transformer
from rope_triton.kernel import launch
from rope_triton.ops.dispatch import is_batch
from rope_triton.transformer import losses, norms
from tests.transformer.common import gradients

NAMES = sorted(set(transformer.__all__) - {"interleaved_rows"})


def call_of(name, device):
    """A small call of a function, and the tensors that it is differentiated in."""
    torch.manual_seed(0)
    x, weight, wide = (torch.randn(n, 16, device=device) for n in (6, 16, 48))
    q, targets = torch.randn(1, 6, 2, 16, device=device), torch.arange(6, device=device)
    freqs = RotaryPositionEmbedding(16, interleaved=True, device=device)(6)
    given = {
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
    return lambda *leaves: getattr(transformer, name)(*leaves, *rest), given


def test_all_launches_are_prepared():
    """Such a launch is on the tensors' device, and goes straight to what is compiled."""
    folder = Path(transformer.__file__).parent
    assert not [path.name for path in folder.glob("*.py") if "kernel[" in path.read_text()]


@pytest.mark.parametrize("name", ["linear", "matmul", "rms_norm", "softmax", "swiglu"])
def test_forward_mode_is_refused(name, device):
    """Its tangents would be lost."""
    x, square = torch.randn(4, device=device), torch.randn(4, 4, device=device)
    others = {"rms_norm": (x,), "softmax": ()}.get(name, (square,))

    def call(given):
        return getattr(transformer, name)(given, *others)

    with pytest.raises(NotImplementedError, match="no derivative in forward mode"):
        torch.func.jvp(call, (square,), (square,))
    with forward_ad.dual_level():
        assert forward_ad.unpack_dual(call(square)).tangent is None
        for gradient in (False, True):
            dual = forward_ad.make_dual(square.clone().requires_grad_(gradient), square)
            with pytest.raises(NotImplementedError, match="no derivative in forward mode"):
                call(dual)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap calls one by one
@pytest.mark.parametrize("name", NAMES)
def test_forward_mode_is_refused_of_a_batch(name, device):
    call, given = call_of(name, device)
    batches, places = [torch.stack((x, -x)) for x in given], tuple(range(len(given)))
    mapped = torch.func.vmap(call)

    def gradient(function):
        return torch.func.grad(lambda *leaves: function(*leaves).sum(), places)

    for function in (mapped, gradient(mapped), torch.func.vmap(gradient(call))):
        with pytest.raises(NotImplementedError, match="no derivative in forward mode"):
            torch.func.jvp(function, (*batches,), (*batches,))
    with pytest.raises(NotImplementedError, match="no derivative in forward mode"):
        torch.func.vmap(lambda *x: torch.func.jvp(call, x, x))(*batches)
    with forward_ad.dual_level():
        assert forward_ad.unpack_dual(mapped(*batches)).tangent is None
        with pytest.raises(NotImplementedError, match="no derivative in forward mode"):
            mapped(*map(forward_ad.make_dual, batches, batches))


@pytest.mark.parametrize("name", NAMES)
def test_gradients_in_a_batch(name, device):
    call, given = call_of(name, device)
    leaves = [x.clone().requires_grad_() for x in given]
    out = call(*leaves)
    batch = torch.randn(2, *out.shape, device=device)
    alone = [torch.autograd.grad(out, leaves, each, retain_graph=True) for each in batch]
    expected = tuple(map(torch.stack, zip(*alone, strict=True)))
    found = torch.autograd.grad(out, leaves, batch, is_grads_batched=True)
    torch.testing.assert_close(found, expected)


def test_gradients_in_a_batch_that_a_compiled_launch_refuses(monkeypatch, device):
    """Triton's launcher raises another error than its interpreter."""

    def planned(*args):
        def launch(*tensors):
            if is_batch(*tensors):
                raise TypeError("Pointer argument must be either uint64 or have data_ptr method")
            prepared(*tensors)

        prepared = as_it_is(*args)
        return launch

    as_it_is = losses.planned
    monkeypatch.setattr(losses, "planned", planned)
    test_gradients_in_a_batch("cross_entropy", device)


@pytest.mark.parametrize("name", NAMES)
def test_a_call_on_gradients_in_a_batch(name, device):
    """As the backward of another function may contain it."""
    call, (given, *others) = call_of(name, device)

    class Other(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad + call(grad, *others).sum()

    x, batch = given.clone().requires_grad_(), torch.stack((given, -given))
    (found,) = torch.autograd.grad(Other.apply(x), x, batch, is_grads_batched=True)
    expected = torch.stack([each + call(each, *others).sum() for each in batch])
    torch.testing.assert_close(found, expected)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap calls one by one
@pytest.mark.parametrize("name", NAMES)
def test_gradients_by_transforms(name, device):
    call, given = call_of(name, device)
    places = tuple(range(len(given)))

    def loss(*leaves):
        return call(*leaves).square().sum()

    def of_batch(*batches):
        return torch.func.vmap(loss)(*batches).sum()

    batches = [torch.stack((x, -x)) for x in given]
    expected = []
    for each in zip(*batches, strict=True):
        leaves = [x.clone().requires_grad_() for x in each]
        expected.append(torch.autograd.grad(loss(*leaves), leaves))
    gradient = torch.func.grad(loss, places)
    torch.testing.assert_close(gradient(*given), expected[0])
    expected = tuple(map(torch.stack, zip(*expected, strict=True)))
    torch.testing.assert_close(torch.func.vmap(gradient)(*batches), expected)
    torch.testing.assert_close(torch.func.grad(of_batch, places)(*batches), expected)

    def few(*leaves):
        return call(*leaves).flatten()[:3]

    jacobian = torch.autograd.functional.jacobian(few, given)
    torch.testing.assert_close(torch.func.jacrev(few, places)(*given), jacobian)
    with pytest.raises(NotImplementedError, match="no derivative in forward mode"):
        torch.func.hessian(loss)(*given)
    torch.testing.assert_close(torch.func.functionalize(call)(*given), call(*given))


def at_an_odd_address(x):
    """The same values after another element of memory, as those of a buffer for many tensors."""
    return torch.cat((x.new_zeros(1), x.flatten()))[1:].view_as(x)


@pytest.mark.parametrize("which", ["gradient", "saved"])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_compiled_for_aligned_tensors_gets_no_others(name, which, device, monkeypatch):
    """A part of a tensor need not begin at a multiple of 16 bytes, from which vectors load."""
    call, given = call_of(name, device)
    prepared, first = launch.Launch.__call__, {}

    def checked(self, *tensors):
        keys = [None if x is None else launch.specialization_key(x) for x in tensors]
        assert first.setdefault(self, keys) == keys
        prepared(self, *tensors)

    monkeypatch.setattr(launch.Launch, "__call__", checked)
    cotangent = torch.randn_like(call(*given))
    later = at_an_odd_address(cotangent)
    assert cotangent.data_ptr() % 16 == 0 < later.data_ptr() % 16
    expected = gradients(call, given, cotangent)
    if which == "gradient":
        found = gradients(call, given, later)
    else:
        with torch.autograd.graph.saved_tensors_hooks(at_an_odd_address, lambda saved: saved):
            found = gradients(call, given, cotangent)
    torch.testing.assert_close(found, expected)
    assert first


@pytest.mark.parametrize("name", NAMES)
def test_saved_tensors_with_other_strides(name, device):
    """Hooks on them may return such."""
    call, given = call_of(name, device)
    cotangent = torch.randn_like(call(*given))
    expected = gradients(call, given, cotangent)

    def apart(saved):
        return torch.stack((saved, saved), -1)[..., 0]

    with torch.autograd.graph.saved_tensors_hooks(torch.Tensor.clone, apart):
        found = gradients(call, given, cotangent)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("unfit", ["meta", "cpu"])
def test_a_device_without_kernels_is_refused(unfit, name, monkeypatch):
    """Before the launch of a kernel, which would read at address 0 or at the host's."""
    compiled = object.__new__(triton.runtime.JITFunction)
    monkeypatch.setattr(launch, "rope_kernel", compiled)  # the interpreter reads the host's
    call, given = call_of(name, unfit)
    with pytest.raises(ValueError, match=f"a tensor is on {unfit}"):
        call(*given)


def test_what_runs_the_kernels_was_decided_at_import(device, monkeypatch):
    """The variable may change later, for kernels of other packages."""

    def found():
        gpu = torch.device(device)
        return launch.resources.__wrapped__(gpu), norms._at_once.__wrapped__(gpu, 4)

    expected = found()
    monkeypatch.setenv("TRITON_INTERPRET", str(int(not triton.knobs.runtime.interpret)))
    assert found() == expected
