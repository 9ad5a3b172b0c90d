"""What the tests of several operators share."""

import torch


def gradients(function, inputs, *cotangents, **options):
    """The outputs, and the gradients of the inputs; None may be among these."""
    leaves = [None if x is None else x.detach().requires_grad_() for x in inputs]
    outputs = function(*leaves, **options)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    wanted = [leaf for leaf in leaves if leaf is not None]
    return [*(x.detach() for x in outputs), *torch.autograd.grad(outputs, wanted, cotangents)]


def exact(tensors):
    """The same numbers in float64."""
    return [None if x is None else x.double() for x in tensors]


def assert_near(results, expected, tolerance, dtype=None, least=0.0):
    """Errors are at most ``tolerance`` of the largest value, which counts as at least ``least``."""
    for place, (result, right) in enumerate(zip(results, expected, strict=True)):
        assert result.dtype == (dtype or result.dtype) and result.shape == right.shape, place
        error = (result.double() - right).abs().max() / right.abs().max().clamp(least)
        assert error <= tolerance, (place, error.item())


def assert_same(results, expected):
    """All bits are the same."""
    assert all(map(torch.equal, results, expected)) and len(results) == len(expected)


LAYOUTS = {
    "transposed": lambda x: x.mT.contiguous().mT,
    "sliced": lambda x: torch.cat((x, x), -1)[..., : x.shape[-1]],
    "every second": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "expanded": lambda x: x[:1].expand_as(x),
    "rows apart": lambda x: torch.cat((x, x), -2)[..., : x.shape[-2], :],
}
