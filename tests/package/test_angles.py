"""rotary_angles and mrope_angles against the product of each position with each frequency."""

import pytest
import torch

from rope_triton import (
    RotaryPositionEmbedding,
    mrope_angles,
    rotary_angles,
    scalings,
)

INV_FREQ = scalings.unscaled(16, 10000.0).inv_freq


def product(position, frequency):
    """A float32 product, by itself."""
    return torch.tensor(float(position)) * torch.tensor(frequency, dtype=torch.float32)


def pair(channel, d, interleaved):
    return channel // 2 if interleaved else channel % (d // 2)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32], ids=str)
@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "interleaved"])
def test_positions_of_each_sequence(interleaved, dtype, device):
    positions = torch.tensor([[0, 1, 5, 131071], [7, 6, 2, 2], [9, 10, 11, 12]], dtype=dtype)
    angles = rotary_angles(positions.to(device), INV_FREQ.to(device), interleaved=interleaved)
    assert angles.shape == (4, 3, 1, 16)
    assert angles.dtype == torch.float32
    assert angles.device.type == device
    for b, row in enumerate(positions.tolist()):
        for s, position in enumerate(row):
            for channel in range(16):
                frequency = INV_FREQ[pair(channel, 16, interleaved)].item()
                assert angles[s, b, 0, channel].cpu() == product(position, frequency)


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "interleaved"])
def test_shared_positions_are_those_of_one_sequence(interleaved):
    positions = torch.tensor([3, 1, 4, 1, 5])
    angles = rotary_angles(positions, INV_FREQ, interleaved=interleaved)
    assert angles.shape == (5, 1, 1, 16)
    of_two = rotary_angles(positions[None].expand(2, 5), INV_FREQ, interleaved=interleaved)
    assert torch.equal(angles.expand(5, 2, 1, 16), of_two)


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "interleaved"])
def test_same_bits_as_the_module_from_the_same_frequencies(interleaved):
    module = RotaryPositionEmbedding(64, interleaved=interleaved, device="cpu")
    angles = rotary_angles(torch.arange(100, 4000), module.inv_freq, interleaved=interleaved)
    assert torch.equal(angles, module(3900, offset=100))


@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 5)])
def test_no_positions(shape):
    s, b = shape[-1], shape[0] if len(shape) == 2 else 1
    assert rotary_angles(torch.zeros(shape, dtype=torch.int64), INV_FREQ).shape == (s, b, 1, 16)


# Qwen2-VL and Qwen2.5-VL; Qwen3-VL; Qwen3.5, which rotates 64 of 256 channels.
QWEN = [
    ((16, 24, 24), False, "t" * 16 + "h" * 24 + "w" * 24),
    ((24, 20, 20), True, "thw" * 20 + "t" * 4),
    ((11, 11, 10), True, "thw" * 10 + "th"),
    ((2, 1, 1), True, "thwt"),
    ((4, 0, 0), True, "tttt"),
    ((0, 1, 3), False, "hwww"),
]


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "interleaved"])
@pytest.mark.parametrize(("sections", "take_turns", "axes"), QWEN)
def test_mrope(sections, take_turns, axes, interleaved, device):
    d = 2 * len(axes)
    inv_freq = scalings.unscaled(d, 1000000.0).inv_freq
    positions = torch.randint(0, 32768, (3, 2, 5))
    angles = mrope_angles(
        *(positions.to(device), inv_freq.to(device), sections),
        interleaved_sections=take_turns,
        interleaved=interleaved,
    )
    assert angles.shape == (5, 2, 1, d)
    assert angles.device.type == device
    by_axis = {
        axis: rotary_angles(rows, inv_freq, interleaved=interleaved)
        for axis, rows in zip("thw", positions, strict=True)
    }
    for channel in range(d):
        axis = axes[pair(channel, d, interleaved)]
        assert torch.equal(angles[..., channel].cpu(), by_axis[axis][..., channel])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast_changes_nothing(dtype, device):
    positions, inv_freq = torch.arange(2000, device=device), INV_FREQ.to(device)
    expected = rotary_angles(positions, inv_freq)
    with torch.autocast(device, dtype=dtype):
        assert torch.equal(rotary_angles(positions, inv_freq), expected)
