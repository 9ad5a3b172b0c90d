"""Forward-mode differentiation: the tangent of a rotation is the rotated tangent, or an error."""

import functools

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad

import rope_triton
from tests import oracle

SEQ, BATCH, HEADS, CHANNELS = 3, 2, 2, 8

both_paths = pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def angles(device):
    return oracle.random_angles(SEQ + 4, CHANNELS, device)


def tables(device):
    half = angles(device)[:, 0, 0, : CHANNELS // 2]
    return half.cos(), half.sin()


def by_angles(device, **options):
    call = functools.partial(rope_triton.apply_rotary_pos_emb, freqs=angles(device), **options)
    return (lambda t: (call(t),)), [(SEQ, BATCH, HEADS, CHANNELS)]


def moved(device, **options):
    starts = torch.tensor([2, -9], device=device)
    options |= dict(tensor_format="bshd", start_positions=starts)
    return by_angles(device, **options)[0], [(BATCH, SEQ, HEADS, CHANNELS)]


def by_tables(device, **options):
    call = functools.partial(rope_triton.apply_rotary_emb, **options)
    cos, sin = tables(device)
    return (lambda x: (call(x, cos, sin),)), [(BATCH, SEQ, HEADS, CHANNELS)]


def attention(device, **options):
    call = functools.partial(rope_triton.rotary_embedding, **options)
    cos, sin = (table[:SEQ] for table in tables(device))
    return (lambda x: (call(x, cos, sin),)), [(BATCH, HEADS, SEQ, CHANNELS)]


def both(device, **options):
    call = functools.partial(rope_triton.apply_qk_rotary_pos_emb, freqs=angles(device), **options)
    return call, [(SEQ, BATCH, n, CHANNELS) for n in (4, 1)]


def both_by_tables(device):
    cos, sin = tables(device)
    call = functools.partial(rope_triton.apply_qk_rotary_emb, cos=cos, sin=sin)
    return call, [(BATCH, SEQ, n, CHANNELS) for n in (4, 1)]


def packed(device):
    freqs = angles(device)
    sizes = [2 * CHANNELS, CHANNELS, CHANNELS]
    return (
        lambda qkv: rope_triton.apply_fused_qkv_rotary_pos_emb(qkv, freqs, freqs, sizes),
        [(SEQ, BATCH, HEADS, 4 * CHANNELS)],
    )


CALLS = {
    "both_by_tables": both_by_tables,
    "packed": packed,
    **{
        f"{build.__name__}-{'fused' if fused else 'unfused'}": functools.partial(build, fused=fused)
        for build in (by_angles, moved, by_tables, attention, both)
        for fused in (True, False)
    },
}
calls = pytest.mark.parametrize("build", CALLS.values(), ids=CALLS)


def random(shapes, device, dtype=torch.float32):
    return [torch.randn(shape, device=device, dtype=dtype) for shape in shapes]


def tangent_of(tensor):
    return forward_ad.unpack_dual(tensor).tangent


@calls
@dtypes
def test_the_tangent_is_rotated(dtype, build, device):
    call, shapes = build(device)
    inputs, tangents = random(shapes, device, dtype), random(shapes, device, dtype)
    expected, expected_tangents = call(*inputs), call(*tangents)
    with forward_ad.dual_level():
        outputs = call(*map(forward_ad.make_dual, inputs, tangents))
        for out, one, other in zip(outputs, expected, expected_tangents, strict=True):
            primal, tangent = forward_ad.unpack_dual(out)
            torch.testing.assert_close(primal, one, rtol=0, atol=0)
            torch.testing.assert_close(tangent, other)
        assert all(tangent_of(out) is None for out in call(*inputs))


@calls
def test_hessian_times_vector(build, device):
    """Forward over reverse and reverse over forward, as twice backward gives it."""
    call, shapes = build(device)
    inputs, vectors = random(shapes, device), random(shapes, device)
    for x in inputs:
        x.requires_grad_()

    def loss(*inputs):
        return sum(out.sin().sum() for out in call(*inputs))

    first = torch.autograd.grad(loss(*inputs), inputs, create_graph=True)
    expected = torch.autograd.grad(first, inputs, vectors)
    with forward_ad.dual_level():
        duals = list(map(forward_ad.make_dual, inputs, vectors))
        value = loss(*duals)
        reversed_last = torch.autograd.grad(tangent_of(value), inputs, retain_graph=True)
        forward_last = [tangent_of(x) for x in torch.autograd.grad(value, duals)]
    torch.testing.assert_close(list(reversed_last), list(expected))
    torch.testing.assert_close(forward_last, list(expected))


@calls
def test_a_gradient_has_the_tangent_of_the_cotangent(build, device):
    """What is rotated has none, and the level begins after the forward."""
    call, shapes = build(device)
    inputs = [x.requires_grad_() for x in random(shapes, device)]
    outputs = call(*inputs)
    cotangents, tangents = ([torch.randn_like(out) for out in outputs] for _ in range(2))
    expected = torch.autograd.grad(outputs, inputs, tangents, retain_graph=True)
    with forward_ad.dual_level():
        duals = list(map(forward_ad.make_dual, cotangents, tangents))
        for again in (False, True):
            grads = torch.autograd.grad(
                outputs, inputs, duals, retain_graph=True, create_graph=again
            )
            for grad, one in zip(grads, expected, strict=True):
                torch.testing.assert_close(tangent_of(grad), one)


def test_of_queries_alone(device):
    call, shapes = both(device)
    (q, k), tangent = random(shapes, device), torch.randn(shapes[0], device=device)
    expected, _ = call(tangent, k)
    with forward_ad.dual_level():
        q_out, k_out = call(forward_ad.make_dual(q, tangent), k)
        torch.testing.assert_close(tangent_of(q_out), expected)
        assert not tangent_of(k_out).any()


@both_paths
@pytest.mark.parametrize("gradient", [False, True], ids=["plain", "gradient"])
def test_in_place(gradient, fused, device):
    cos, sin = tables(device)
    turn = functools.partial(rope_triton.apply_rotary_emb, cos=cos, sin=sin, fused=fused)
    x, tangent, weights = random([(BATCH, SEQ, HEADS, CHANNELS)] * 3, device)
    leaf = x.clone().requires_grad_(gradient)
    expected, expected_tangent = turn(x), turn(tangent)
    (grad,) = torch.autograd.grad(turn(x.requires_grad_()), x, weights)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(leaf * 1, tangent)
        assert turn(dual, inplace=True) is dual
        primal, found = forward_ad.unpack_dual(dual)
        torch.testing.assert_close(primal, expected)
        torch.testing.assert_close(found, expected_tangent)
        torch.testing.assert_close(tangent, expected_tangent)  # itself, not a copy of it
        if gradient:
            torch.testing.assert_close(torch.autograd.grad(primal, leaf, weights)[0], grad)


def test_zeros_that_no_memory_holds(device):
    call, shapes = by_angles(device)
    (t,) = random(shapes, device)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(t, torch._efficientzerotensor(t.shape, device=device))
        assert not tangent_of(call(dual)[0]).any()


def test_plain_path_against_finite_differences(device):
    t = torch.randn(SEQ, 1, 1, CHANNELS, dtype=torch.float64, device=device, requires_grad=True)
    freqs = torch.randn(SEQ, 1, 1, 6, dtype=torch.float64, device=device, requires_grad=True)
    call = functools.partial(rope_triton.apply_rotary_pos_emb, fused=False)
    assert torch.autograd.gradcheck(call, (t, freqs), check_forward_ad=True)


def differentiated_tables(device):
    freqs, (cos, sin) = angles(device), tables(device)
    t = torch.randn(SEQ, BATCH, HEADS, CHANNELS, device=device)
    x = torch.randn(BATCH, SEQ, HEADS, CHANNELS, device=device)
    bhsd = torch.randn(BATCH, HEADS, SEQ, CHANNELS, device=device)
    cut = cos[:SEQ], sin[:SEQ]
    return {
        "angles": (rope_triton.apply_rotary_pos_emb, (t, freqs)),
        "both": (lambda *x, **y: rope_triton.apply_qk_rotary_pos_emb(x[0], *x, **y)[1], (t, freqs)),
        "tables": (rope_triton.apply_rotary_emb, (x, cos, sin)),
        "attention": (rope_triton.rotary_embedding, (bhsd, *cut)),
    }


@pytest.mark.parametrize("name", ["angles", "both", "tables", "attention"])
@pytest.mark.parametrize("only_tables", [False, True], ids=["all", "only_tables"])
def test_tables_have_tangents_too(only_tables, name, device):
    call, inputs = differentiated_tables(device)[name]
    tangents = [torch.randn_like(x) for x in inputs]
    with forward_ad.dual_level():
        duals = list(map(forward_ad.make_dual, inputs, tangents))
        if only_tables:
            duals[0] = inputs[0]
        found, expected = (
            forward_ad.unpack_dual(call(*duals, fused=fused)) for fused in (True, False)
        )
    torch.testing.assert_close(found, expected)
    assert found.tangent.any()


@pytest.mark.parametrize("name", ["angles", "both", "tables", "attention"])
def test_tangents_of_tables_beside_a_gradient_are_refused(name, device):
    call, (t, *tables) = differentiated_tables(device)[name]
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(x, torch.ones_like(x)) for x in tables]
        with pytest.raises(NotImplementedError, match="together with a gradient"):
            call(t.clone().requires_grad_(), *duals)
        learned = [x.clone().requires_grad_() for x in tables]
        with pytest.raises(NotImplementedError, match="together with a gradient"):
            call(forward_ad.make_dual(t, t), *learned)


def test_what_no_tangent_is_computed_for_is_refused(device):
    freqs, (cos, sin) = angles(device), tables(device)
    x = torch.randn(BATCH, SEQ, HEADS, CHANNELS, device=device)
    qkv = torch.randn(SEQ, BATCH, HEADS, 3 * CHANNELS, device=device)
    with forward_ad.dual_level():
        freqs, cos = (forward_ad.make_dual(table, table) for table in (freqs, cos))
        with pytest.raises(ValueError, match="has a tangent"):
            rope_triton.apply_fused_qkv_rotary_pos_emb(qkv, freqs, freqs, [CHANNELS] * 3)
        with pytest.raises(ValueError, match="in place, cos and sin cannot have a gradient"):
            rope_triton.apply_rotary_emb(x, cos, sin, inplace=True)
        with pytest.raises(NotImplementedError):
            rope_triton.apply_qk_rotary_emb(x.requires_grad_(), x, cos, sin)


def test_transforms_refuse_tangents_of_tables(device):
    """Also where a transform between hides them."""
    t, freqs = torch.randn(SEQ, BATCH, HEADS, CHANNELS, device=device), angles(device)

    def rotated(freqs):
        return rope_triton.apply_rotary_pos_emb(t, freqs)

    def gradient(freqs):
        return torch.func.grad(lambda t: rope_triton.apply_rotary_pos_emb(t, freqs).square().sum())(
            t
        )

    def mapped(freqs):
        return torch.func.vmap(lambda t: rope_triton.apply_rotary_pos_emb(t, freqs))(t[None])

    for function in (rotated, gradient, mapped):
        with pytest.raises(NotImplementedError, match="gradient of angles or tables"):
            torch.func.jvp(function, (freqs,), (freqs,))
    with pytest.raises(NotImplementedError, match="gradient of angles or tables"):
        torch.func.jacfwd(rotated)(freqs)


def test_fake_tensors(device):
    call, shapes = packed(device)
    with FakeTensorMode(allow_non_fake_inputs=True), forward_ad.dual_level():
        (qkv,), (tangent,) = (random(shapes, device) for _ in range(2))
        for out in call(forward_ad.make_dual(qkv, tangent)):
            assert tangent_of(out).shape == out.shape


def test_under_compile(device):
    """Compiled outside of a level; within one the call runs eagerly."""
    call, shapes = by_angles(device)
    (t,), (tangent,) = (random(shapes, device) for _ in range(2))
    compiled = torch.compile(lambda t: call(t)[0], backend="aot_eager")
    torch.testing.assert_close(compiled(t), call(t)[0])
    with forward_ad.dual_level():
        found = tangent_of(compiled(forward_ad.make_dual(t, tangent)))
        torch.testing.assert_close(found, call(tangent)[0])
