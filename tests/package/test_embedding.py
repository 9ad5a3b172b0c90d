"""RotaryPositionEmbedding against the published formula, computed in float64."""

import copy
import pickle

import pytest
import torch
from torch._subclasses import FakeTensor, FakeTensorMode

from rope_triton import RotaryPositionEmbedding
from tests.package.test_scalings import WRONG_LENGTHS

HALF = [torch.float16, torch.bfloat16]


def formula(positions, rotated, base=10000.0, interleaved=False):
    """Angles ``position * base^(-2i/d)`` in float64, ``[s, 1, 1, d]``, in the channels' order."""
    channel = torch.arange(rotated)
    i = channel // 2 if interleaved else channel % (rotated // 2)
    inverse = torch.tensor(base, dtype=torch.float64) ** (-2.0 * i.double() / rotated)
    return (positions.double()[:, None] * inverse).reshape(-1, 1, 1, rotated)


def assert_angles(angles, expected):
    assert angles.dtype == torch.float32
    # A float32 exponent of the base costs ln(base) / 2 units in the last place.
    torch.testing.assert_close(angles.cpu().double(), expected, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "interleaved"])
@pytest.mark.parametrize("base", [10000.0, 500000, 2.0])
@pytest.mark.parametrize(
    ("dim", "percent", "rotated"), [(64, 1.0, 64), (80, 0.5, 40), (40, 0.25, 10), (2, 1.0, 2)]
)
@pytest.mark.parametrize("offset", [0, 100, 131072])
def test_formula(offset, dim, percent, rotated, base, interleaved, device):
    module = RotaryPositionEmbedding(dim, percent, rotary_base=base, interleaved=interleaved)
    angles = module.to(device)(33, offset)
    assert angles.shape == (33, 1, 1, rotated) and angles.device.type == device
    assert_angles(angles, formula(offset + torch.arange(33), rotated, base, interleaved))
    assert module(0).shape == (0, 1, 1, rotated)
    assert not angles.requires_grad and not list(module.parameters())


def test_default_is_that_of_the_paper():
    """Halves from position 0, base 10000."""
    angles = RotaryPositionEmbedding(4)(3)
    expected = torch.tensor([[0, 0, 0, 0], [1, 0.01, 1, 0.01], [2, 0.02, 2, 0.02]])
    torch.testing.assert_close(angles[:, 0, 0].cpu(), expected)


@pytest.mark.parametrize("factor", [2, 4.0, 0.5])
@pytest.mark.parametrize("offset", [0, 3])
def test_interpolation(factor, offset):
    """Fixed up to the extended length, beyond it by the length."""
    pretrained = 16
    module = RotaryPositionEmbedding(8, 1.0, factor, pretrained)
    longest = int(pretrained * factor)
    for seq in (1, longest - 1, longest, longest + 1, 100):
        squeezed = 1 / factor if seq <= longest else pretrained / seq
        positions = (torch.arange(seq).double() + offset) * squeezed
        assert_angles(module(seq, offset), formula(positions, 8))


def test_angles_are_where_upstream_or_the_caller_has_them():
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert RotaryPositionEmbedding(64)(3).device.type == expected
    assert RotaryPositionEmbedding(64, device="cpu")(3).device.type == "cpu"
    with torch.device("meta"):
        assert RotaryPositionEmbedding(64).inv_freq.device.type == "meta"


def test_angles_without_data():
    """Of a model that is built on the meta device, or of fake tensors."""
    assert RotaryPositionEmbedding(64, device="meta")(3).device.type == "meta"
    with torch.device("meta"):
        module = RotaryPositionEmbedding(64, 0.5)
        assert module(3).shape == (3, 1, 1, 32) and module(3).is_meta
    moved = RotaryPositionEmbedding(64, device="cpu").to("meta").half()
    assert moved(5, offset=2).shape == (5, 1, 1, 64) and moved(5).dtype == torch.float32
    with FakeTensorMode():
        for device in ("cpu", "meta"):
            angles = RotaryPositionEmbedding(64, device=device)(3)
            assert type(angles) is FakeTensor and angles.shape == (3, 1, 1, 64)


def test_a_length_may_be_a_tensor(device):
    """As of Hugging Face: the largest position, wherever it is, plus 1."""
    module = RotaryPositionEmbedding(64, 1.0, 2, 16, device=device)
    for length in (torch.tensor([7, 39], device=device).max() + 1, torch.tensor(40).short()):
        torch.testing.assert_close(module(length), module(40), rtol=0, atol=0)
    for wrong, error, message in WRONG_LENGTHS:
        with pytest.raises(error, match="max_seq_len must " + message):
            module(wrong)


def test_bits_depend_neither_on_the_device_nor_on_autocast(device):
    module = RotaryPositionEmbedding(64).to(device)
    assert torch.equal(module.inv_freq.cpu(), RotaryPositionEmbedding(64, device="cpu").inv_freq)
    for dtype in HALF:
        with torch.autocast(device, dtype=dtype):
            angles = module(2000)
        assert torch.equal(angles, module(2000))


@pytest.mark.parametrize("reset", [False, True])
def test_frequencies_of_a_module_that_was_built_on_the_meta_device(reset, device):
    expected = RotaryPositionEmbedding(64, 0.5, rotary_base=5e5, device=device)
    with torch.device("meta"):
        model = torch.nn.Sequential(RotaryPositionEmbedding(64, 0.5, rotary_base=5e5))
    model.half().to_empty(device=device)
    if reset:  # as FSDP and torchtitan do
        model[0].inv_freq.fill_(torch.nan)
        model[0].reset_parameters()
    assert torch.equal(model[0].inv_freq, expected.inv_freq)
    assert model[0].inv_freq.device == expected.inv_freq.device


@pytest.mark.parametrize("dtype", [*HALF, torch.float64], ids=str)
@pytest.mark.parametrize(("built_on", "assign"), [("cpu", False), ("cpu", True), ("meta", True)])
def test_frequencies_of_a_checkpoint_that_was_cast_are_exact(built_on, dtype, assign):
    exact = RotaryPositionEmbedding(64, device="cpu").inv_freq
    model = torch.nn.Sequential(RotaryPositionEmbedding(64, device=built_on))
    state = {"0.inv_freq": exact.to(dtype)}
    model.load_state_dict(state, assign=assign)
    assert torch.equal(model[0].inv_freq, exact)
    assert state["0.inv_freq"].dtype == dtype
    other = torch.nn.Sequential(RotaryPositionEmbedding(64, rotary_base=5e5, device="cpu"))
    if dtype == torch.float64:
        other.load_state_dict(state, assign=assign)
        assert torch.equal(other[0].inv_freq, exact)
    else:
        with pytest.raises(RuntimeError, match="0.inv_freq has the dtype .* other frequencies"):
            other.load_state_dict(state, assign=assign)


@pytest.mark.parametrize("dtype", [*HALF, torch.float64], ids=str)
def test_no_cast_rounds_the_frequencies(dtype):
    module = RotaryPositionEmbedding(64, device="cpu")
    exact = module.inv_freq.clone()
    casts = (
        lambda x: x.to(dtype),
        lambda x: torch.nn.Sequential(x).to(dtype)[0],
        lambda x: x._apply(lambda t: t.to(dtype)),
        lambda x: copy.deepcopy(x.to(dtype)),
        lambda x: pickle.loads(pickle.dumps(x.to(dtype))),
    )
    assert all(torch.equal(cast(module).inv_freq, exact) for cast in casts)
    module.inv_freq = module.inv_freq.to(dtype)
    with pytest.raises(TypeError, match="inv_freq must be torch.float32, got .*reset_parameters"):
        module(3)
    module.reset_parameters()
    assert torch.equal(module.inv_freq, exact)
