"""Forward-mode differentiation: the tangent of a rotation is the rotated tangent, or an error."""

import functools

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.autograd.forward_ad import make_dual

import rope_triton
from rope_triton.kernel import launch
from tests.package.calls import (
    CALLS,
    CHANNELS,
    WITHOUT_PLAIN,
    angles,
    by_angles,
    parts,
    random,
    tables,
)

both_paths = pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])
every_call = pytest.mark.parametrize(
    ("call", "options"),
    [(call, {}) for call in CALLS.values()]
    + [(call, {"fused": False}) for call in CALLS.values() if call not in WITHOUT_PLAIN],
)


def tangent_of(tensor):
    return forward_ad.unpack_dual(tensor).tangent


@every_call
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_tangent_is_rotated(dtype, call, options, device):
    x, tangent = (random(device, dtype) for _ in range(2))
    expected = [parts(call(value, **options)) for value in (x, tangent)]
    with forward_ad.dual_level():
        outputs = parts(call(make_dual(x, tangent), **options))
        for out, one, other in zip(outputs, *expected, strict=True):
            primal, tangent = forward_ad.unpack_dual(out)
            torch.testing.assert_close(primal, one, rtol=0, atol=0)
            torch.testing.assert_close(tangent, other)
        assert all(tangent_of(out) is None for out in parts(call(x, **options)))


@every_call
def test_hessian_times_vector(call, options, device):
    """Forward over reverse and reverse over forward, as twice backward gives it."""
    x, vector = random(device).requires_grad_(), random(device)

    def loss(x):
        return sum(out.sin().sum() for out in parts(call(x, **options)))

    (first,) = torch.autograd.grad(loss(x), x, create_graph=True)
    (expected,) = torch.autograd.grad(first, x, vector)
    with forward_ad.dual_level():
        dual = make_dual(x, vector)
        value = loss(dual)
        (reversed_last,) = torch.autograd.grad(tangent_of(value), x, retain_graph=True)
        forward_last = tangent_of(torch.autograd.grad(value, dual)[0])
    torch.testing.assert_close(reversed_last, expected)
    torch.testing.assert_close(forward_last, expected)


@every_call
def test_a_gradient_has_the_tangent_of_the_cotangent(call, options, device):
    """What is rotated has none, and the level begins after the forward."""
    x = random(device).requires_grad_()
    outputs = parts(call(x, **options))
    cotangents, tangents = ([torch.randn_like(out) for out in outputs] for _ in range(2))
    (expected,) = torch.autograd.grad(outputs, x, tangents, retain_graph=True)
    with forward_ad.dual_level():
        duals = list(map(make_dual, cotangents, tangents))
        for again in (False, True):
            (grad,) = torch.autograd.grad(outputs, x, duals, retain_graph=True, create_graph=again)
            torch.testing.assert_close(tangent_of(grad), expected)


def test_of_queries_alone(device):
    q, tangent, k = (random(device) for _ in range(3))
    expected, _ = rope_triton.apply_qk_rotary_pos_emb(tangent, k, angles(device), "bshd")
    with forward_ad.dual_level():
        dual = make_dual(q, tangent)
        q_out, k_out = rope_triton.apply_qk_rotary_pos_emb(dual, k, angles(device), "bshd")
        torch.testing.assert_close(tangent_of(q_out), expected)
        assert not tangent_of(k_out).any()


@both_paths
@pytest.mark.parametrize("gradient", [False, True], ids=["plain", "gradient"])
def test_in_place(gradient, fused, device):
    cos, sin = tables(device)
    turn = functools.partial(rope_triton.apply_rotary_emb, cos=cos, sin=sin, fused=fused)
    x, tangent, weights = (random(device) for _ in range(3))
    leaf = x.clone().requires_grad_(gradient)
    expected, expected_tangent = turn(x), turn(tangent)
    (grad,) = torch.autograd.grad(turn(x.requires_grad_()), x, weights)
    with forward_ad.dual_level():
        dual = make_dual(leaf * 1, tangent)
        assert turn(dual, inplace=True) is dual
        primal, actual = forward_ad.unpack_dual(dual)
        torch.testing.assert_close(primal, expected)
        torch.testing.assert_close(actual, expected_tangent)
        torch.testing.assert_close(tangent, expected_tangent)  # itself, not a copy of it
        if gradient:
            torch.testing.assert_close(torch.autograd.grad(primal, leaf, weights)[0], grad)


def test_zeros_that_no_memory_holds(device):
    t = random(device)
    with forward_ad.dual_level():
        dual = make_dual(t, torch._efficientzerotensor(t.shape, device=device))
        assert not tangent_of(by_angles(dual)).any()


def test_other_tangents_of_tables_are_refused_before_a_launch(device, monkeypatch):
    monkeypatch.setattr(launch, "run", lambda *_: pytest.fail("a kernel was launched"))
    x, freqs, (cos, sin) = random(device), angles(device), tables(device)
    qkv, k = torch.cat([x] * 3, -1), x.clone().requires_grad_()
    with forward_ad.dual_level():
        freqs, cos = (make_dual(table, table) for table in (freqs, cos))
        with pytest.raises(ValueError, match="has a tangent"):
            rope_triton.apply_fused_qkv_rotary_pos_emb(qkv, freqs, freqs, [CHANNELS] * 3, "bshd")
        with pytest.raises(ValueError, match="in place, cos and sin cannot have a gradient"):
            rope_triton.apply_rotary_emb(x, cos, sin, inplace=True)
        # Where the keys alone need a gradient.
        with pytest.raises(NotImplementedError, match="together with a gradient"):
            rope_triton.apply_qk_rotary_pos_emb(x, k, freqs, "bshd")
        with pytest.raises(NotImplementedError, match="together with a gradient"):
            rope_triton.apply_qk_rotary_emb(x, k, cos, sin)


def test_transforms_refuse_tangents_of_tables(device):
    """Also where a transform between hides them."""
    x = random(device)

    def apply(x, freqs):
        return rope_triton.apply_rotary_pos_emb(x, freqs, "bshd")

    functions = (
        lambda freqs: apply(x, freqs),
        lambda freqs: torch.func.grad(lambda t: apply(t, freqs).square().sum())(x),
        lambda freqs: torch.func.vmap(lambda t: apply(t, freqs))(x[None]),
        lambda freqs: torch.func.vmap(lambda freqs: apply(x, freqs))(freqs[None]),
    )
    for function in functions:
        with pytest.raises(NotImplementedError, match="gradient of angles or tables"):
            torch.func.jvp(function, (angles(device),), (angles(device),))
    with pytest.raises(NotImplementedError, match="gradient of angles or tables"):
        torch.func.jacfwd(functions[0])(angles(device))


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_fake_tensors(call, device):
    with FakeTensorMode(allow_non_fake_inputs=True), forward_ad.dual_level():
        dual = make_dual(random(device), random(device))
        for out in parts(call(dual)):
            assert tangent_of(out).shape == out.shape
