"""Functions and models of other libraries on this package's kernel."""

import functools
import sys
import types
from unittest import mock

import pytest
import torch

from rope_triton.integrations import transformers
from rope_triton.integrations.transformers import LLAMA, VISION, Convention
from tests import covering

SEQ, BATCH, CHANNELS = 5, 2, 16
IMAGES = "apply_rotary_pos_emb_vision"
CONVENTIONS = {
    "llama": LLAMA,
    "glm": Convention(interleaved=True),
    "glm4v": Convention(interleaved=True, repeated=True),
    "cohere": Convention(interleaved=True, repeated=True, rounding="once"),
}


def model_function(convention, partial):
    """As models of Transformers write it."""

    def turned(x):
        if convention.interleaved:
            return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
        first, second = x.chunk(2, -1)
        return torch.cat((-second, first), -1)

    def rotated(x, cos, sin):
        if convention.rounding == "once":
            return (x.float() * cos + turned(x).float() * sin).to(x.dtype)
        return x * cos + turned(x) * sin

    def apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1):
        if convention.interleaved and not convention.repeated:
            half = cos.shape[-1] // 2
            cos, sin = (x[..., :half].repeat_interleave(2, -1) for x in (cos, sin))
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        if not partial:
            return rotated(q, cos, sin), rotated(k, cos, sin)
        parts = (x.split([cos.shape[-1], x.shape[-1] - cos.shape[-1]], -1) for x in (q, k))
        return tuple(torch.cat((rotated(x, cos, sin), rest), -1) for x, rest in parts)

    return apply_rotary_pos_emb


def inputs(convention, batch, rotated, unsqueeze_dim, dtype, device):
    random = torch.Generator().manual_seed(0)
    sizes = [(BATCH, heads, SEQ, CHANNELS) for heads in (4, 2)]
    q, k = (torch.randn(size, generator=random).to(device, dtype) for size in sizes)
    if unsqueeze_dim == 2:
        q, k = q.transpose(1, 2), k.transpose(1, 2)
    angles = torch.randn(batch, SEQ, rotated // 2, generator=random)
    repeated = convention.repeated
    wide = angles.repeat_interleave(2, -1) if repeated else torch.cat((angles, angles), -1)
    return q, k, wide.cos().to(device, dtype), wide.sin().to(device, dtype)


def check(function, replacement, q, k, *others):
    """Compare results and gradients of a model's function and its replacement."""
    q, k = q.requires_grad_(), k.requires_grad_()
    outputs = [call(q, k, *others) for call in (function, replacement)]
    cotangents = q.detach(), k.detach()
    expected, results = ((*y, *torch.autograd.grad(y, (q, k), cotangents)) for y in outputs)
    atol = 1e-5 if q.dtype == torch.float32 else 2e-2
    torch.testing.assert_close(results, expected, rtol=1.6e-2, atol=atol)
    return results, expected


@covering.pairs(
    {
        "model": list(CONVENTIONS),
        "batch": [1, BATCH],
        "rotated": [CHANNELS, 8],
        "unsqueeze_dim": [1, 2],
        "dtype": [torch.float32, torch.bfloat16],
    }
)
def test_it_is_the_function_of_the_model(case, device):
    """Bit by bit where products are rounded, on a GPU: the interpreter rounds toward zero."""
    convention, dtype, dim = CONVENTIONS[case["model"]], case["dtype"], case["unsqueeze_dim"]
    tensors = inputs(convention, case["batch"], case["rotated"], dim, dtype, device)
    replacement = functools.partial(transformers.apply_rotary_pos_emb, convention=convention)
    both = check(model_function(convention, partial=True), replacement, *tensors, dim)
    if device == "cuda" and dtype != torch.float32 and convention.rounding == "each":
        assert all(map(torch.equal, *both))


def vision_function(q, k, cos, sin):
    """As models of images and text write it."""
    cos, sin = cos.unsqueeze(-2).float(), sin.unsqueeze(-2).float()
    turned = (torch.cat((-b, a), -1) for a, b in (x.float().chunk(2, -1) for x in (q, k)))
    pairs = zip((q, k), turned, strict=True)
    return tuple((x.float() * cos + other * sin).to(x.dtype) for x, other in pairs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_the_function_of_the_image_encoders(dtype, device):
    q, k, cos, sin = inputs(LLAMA, 1, CHANNELS, 2, torch.float32, device)
    q, k = (x[0].to(dtype) for x in (q, k))
    check(vision_function, transformers.apply_rotary_pos_emb_vision, q, k, cos[0], sin[0])


def test_how_image_encoders_rotate_is_found():
    with torch.device("meta"):
        assert transformers.convention_of(vision_function, IMAGES) == VISION

    def each_rounded(q, k, cos, sin):
        return model_function(LLAMA, False)(q, k, cos, sin, unsqueeze_dim=-2)

    assert transformers.convention_of(each_rounded, IMAGES) == LLAMA
    with pytest.raises(NotImplementedError, match="it takes .*, not .*unsqueeze_dim"):
        transformers.convention_of(vision_function)


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("model", CONVENTIONS)
def test_how_a_function_rotates_is_found(model, partial):
    function = model_function(CONVENTIONS[model], partial)
    with torch.device("meta"):  # wherever a model is being built
        assert transformers.convention_of(function) == CONVENTIONS[model]


def test_what_rotates_otherwise_is_refused():
    function = model_function(LLAMA, partial=True)

    def backward(q, k, cos, sin, unsqueeze_dim=1):
        return function(q, k, cos, -sin, unsqueeze_dim)

    with pytest.raises(NotImplementedError, match="does not rotate as any convention"):
        transformers.convention_of(backward)
    with pytest.raises(NotImplementedError, match="it takes .'x', 'cos'., not .'q', 'k', 'cos'"):
        transformers.convention_of(lambda x, cos: x)


# --- models ---------------------------------------------------------------------------------------


@pytest.fixture
def toys(monkeypatch):
    """Makes a model, and a module of Transformers that holds its code."""

    def make(name, **functions):
        module = types.ModuleType(f"transformers.models.{name}.modeling_{name}")
        vars(module).update(functions)
        module.Model = type("Model", (torch.nn.Module,), {"__module__": module.__name__})
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return module

    for name in [name for name in sys.modules if name.startswith("transformers.models.")]:
        monkeypatch.delitem(sys.modules, name)
    return make


def test_a_model_is_patched_until_that_is_undone(toys):
    llama, glm = (
        toys(name, apply_rotary_pos_emb=model_function(CONVENTIONS[name], partial=True))
        for name in ("llama", "glm")
    )
    before = llama.apply_rotary_pos_emb, glm.apply_rotary_pos_emb
    llama.apply_rotary_pos_emb_vision = vision_function
    undo = transformers.patch(llama.Model())
    assert llama.apply_rotary_pos_emb.function.keywords == {"convention": LLAMA}
    assert llama.apply_rotary_pos_emb_vision.function.keywords == {"convention": VISION}
    assert glm.apply_rotary_pos_emb is before[1]
    with transformers.patch():
        assert glm.apply_rotary_pos_emb.function.keywords == {"convention": CONVENTIONS["glm"]}
    assert glm.apply_rotary_pos_emb is before[1]
    assert llama.apply_rotary_pos_emb is not before[0]
    undo.close()
    assert llama.apply_rotary_pos_emb is before[0]
    assert llama.apply_rotary_pos_emb_vision is vision_function


def test_what_cannot_be_patched_is_said_and_nothing_is_changed(toys):
    with pytest.raises(ValueError, match="no model of Transformers that rotates is loaded"):
        transformers.patch()
    with pytest.raises(TypeError, match="must be a torch.nn.Module, got 'meta-llama/Llama'"):
        transformers.patch("meta-llama/Llama")
    with pytest.raises(ValueError, match="the code of Model has no function apply_rotary_pos_emb"):
        transformers.patch(toys("bert").Model())
    function = model_function(LLAMA, partial=False)
    llama = toys("llama", apply_rotary_pos_emb=function)
    other = toys("other", apply_rotary_pos_emb=lambda x, cos: x)
    with pytest.raises(NotImplementedError, match="it takes"):
        transformers.patch(llama.Model(), other.Model())
    assert llama.apply_rotary_pos_emb is function
    with pytest.warns(UserWarning, match="modeling_other is left as it is: it takes"):
        undo = transformers.patch()
    assert llama.apply_rotary_pos_emb is not function
    undo.close()


ARCHITECTURES = {
    "Llama": {},
    "Qwen3": {},
    "Gemma": {"head_dim": 16},
    "Phi": {"partial_rotary_factor": 0.5},
    "GPTNeoX": {"rotary_pct": 0.25},
    "Glm": {"head_dim": 16, "partial_rotary_factor": 0.5},
    "Cohere": {},
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_models_of_transformers(name, device, monkeypatch):
    """Logits and gradients beside those of the unpatched model, with padding on the left."""
    library = pytest.importorskip("transformers")
    sizes = dict(vocab_size=32, hidden_size=64, intermediate_size=64, num_hidden_layers=2)
    heads = dict(num_attention_heads=4, num_key_value_heads=4 if name == "GPTNeoX" else 2)
    special = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
    config = getattr(library, f"{name}Config")(**sizes | heads | special | ARCHITECTURES[name])
    model = getattr(library, f"{name}ForCausalLM")(config)
    model.to(device)
    tokens = torch.arange(3, 15, device=device).view(2, 6)
    mask = torch.ones_like(tokens)
    mask[0, :2] = 0

    def results():
        positions = (mask.cumsum(-1) - 1).clamp(0)
        logits = model(tokens, attention_mask=mask, position_ids=positions).logits[1]
        model.zero_grad()
        logits.square().mean().backward()
        return [logits.detach(), *(x.grad.clone() for x in model.parameters())]

    expected = results()
    counted = mock.Mock(wraps=transformers.apply_rotary_pos_emb)
    monkeypatch.setattr(transformers, "apply_rotary_pos_emb", counted)
    with transformers.patch(model):
        torch.testing.assert_close(results(), expected, rtol=1e-4, atol=1e-5)
    assert counted.call_count == model.config.num_hidden_layers
