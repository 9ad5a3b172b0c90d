"""What the tests of several operators ask of results and gradients."""

import torch


def gradients(function, given, cotangent, **options):
    """The output, and the gradients of all that is given; None may be among it."""
    leaves = [None if each is None else each.detach().requires_grad_() for each in given]
    out = function(*leaves, **options)
    wanted = [each for each in leaves if each is not None]
    return [out.detach(), *torch.autograd.grad(out, wanted, cotangent)]


def exact(given):
    """The same numbers in float64."""
    return [None if each is None else each.double() for each in given]


def assert_near(found, expected, tolerance, dtype=None, least=0.0):
    """Errors are at most so much of the largest value, which counts as no less than ``least``."""
    for place, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert one.dtype == (dtype or one.dtype) and one.shape == other.shape, place
        error = (one.double() - other).abs().max() / other.abs().max().clamp(least)
        assert error <= tolerance, (place, error.item())


def assert_same(found, expected):
    """All bits are the same."""
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
