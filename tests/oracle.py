"""The float64 oracle, rotation as complex multiplication, and what a call is checked against.

Shares no code with the package: a mistake there cannot hide here.
"""

from typing import NamedTuple

import torch

import rope_triton


class Mode(NamedTuple):
    """What selects another path through the kernel, whatever the shapes and strides."""

    dtype: torch.dtype
    tensor_format: str
    interleaved: bool
    rotary_percent: float

    def __str__(self):
        name = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}[self.dtype]
        pairs = "interleaved" if self.interleaved else "halves"
        return f"{name}-{self.tensor_format}-{pairs}-{self.rotary_percent}"

    def shape(self, seq: int, batch: int, heads: int, channels: int) -> tuple[int, int, int, int]:
        leading = (seq, batch) if self.tensor_format == "sbhd" else (batch, seq)
        return (*leading, heads, channels)

    def width(self, channels: int) -> int:
        """Channels that are rotated."""
        return int(channels * self.rotary_percent)


MODES = [
    Mode(torch.float32, "sbhd", False, 1.0),
    Mode(torch.float32, "bshd", True, 0.5),
    Mode(torch.float16, "sbhd", True, 0.5),
    Mode(torch.float16, "bshd", False, 1.0),
    Mode(torch.bfloat16, "sbhd", True, 1.0),
    Mode(torch.bfloat16, "bshd", False, 0.5),
]
"""Every pair of two modes' values in as few modes as possible."""


def rotate(
    t: torch.Tensor, freqs: torch.Tensor, tensor_format: str, interleaved: bool
) -> torch.Tensor:
    """The exact result, float64, differentiable in ``t``; a token's position is its index."""
    seq_dim = tensor_format.index("s")
    return rotate_by(t, freqs[: t.shape[seq_dim]].movedim(0, seq_dim), interleaved)


def rotate_by(t: torch.Tensor, angles: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """The exact result for each token's own angles, ``[.., .., 1, width]`` or ``[.., 1, width]``.

    A pair of channels is the complex number ``z = x1 + i x2``; the result is the real part of
    ``z exp(i a1)`` and the imaginary part of ``z exp(i a2)``, with ``a1`` and ``a2`` the float32
    angles at the two channels.
    """
    a1, a2 = pairs(angles.float().double(), interleaved).unbind(-1)
    return _rotate_pairs(t, _unit(a1), _unit(a2), interleaved)


def rotate_by_tables(
    t: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool
) -> torch.Tensor:
    """The exact result for tables as they are, which broadcast to ``[..., width/2]`` of ``t``."""
    turn = torch.complex(cos.double(), sin.double())
    return _rotate_pairs(t, turn, turn, interleaved)


def _rotate_pairs(t, first, second, interleaved):
    width = 2 * first.shape[-1]
    z = torch.complex(*pairs(t[..., :width].double(), interleaved).unbind(-1))
    turned = torch.stack(((z * first).real, (z * second).imag), dim=-1)
    turned = turned.flatten(-2) if interleaved else turned.mT.flatten(-2)
    return torch.cat((turned, t[..., width:].double()), dim=-1)


def plain(
    t: torch.Tensor, freqs: torch.Tensor, at: torch.Tensor, interleaved: bool
) -> torch.Tensor:
    """The result in float32, differentiable in ``t``, for sizes at which float64 would not fit.

    ``at`` has the position of each token, of the shape ``t.shape[:-2]``. A token that the table
    ``[positions, 1, 1, width]`` has no angles for is not turned.
    """
    inside = ((at >= 0) & (at < len(freqs)))[..., None]
    angles = freqs[at.clamp(0, len(freqs) - 1), 0, 0].where(inside, 0)[..., None, :]
    width = angles.shape[-1]
    a1, a2 = pairs(angles, interleaved).unbind(-1)
    first, second = pairs(t[..., :width].float(), interleaved).unbind(-1)
    turned = first * a1.cos() - second * a1.sin(), second * a2.cos() + first * a2.sin()
    turned = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
    return torch.cat((turned, t[..., width:].float()), -1)


def positions(lengths: list[int], starts: list[int] | None, cp_size: int, cp_rank: int):
    """Positions of the tokens that a context-parallel rank holds, a list for each sequence.

    ``lengths`` are those of the whole sequences, which are cut into ``2 * cp_size`` chunks; a rank
    holds one from the front and its mirror image from the back.
    """
    held = []
    for length, start in zip(lengths, starts or [0] * len(lengths), strict=True):
        held_here = list(range(start, start + length))
        if cp_size > 1:
            size = length // (2 * cp_size)
            chunks = [held_here[i : i + size] for i in range(0, length, size)] if size else []
            held_here = chunks[cp_rank] + chunks[-1 - cp_rank] if size else []
        held.append(held_here)
    return held


def angles_at(freqs: torch.Tensor, held: list[list[int]], tensor_format: str) -> torch.Tensor:
    """Each token's own angles, for :func:`rotate_by`, from the positions of each sequence.

    A position that the table lacks has the angle 0, the identity.
    """
    at = torch.tensor([i if 0 <= i < len(freqs) else len(freqs) for i in sum(held, [])]).long()
    rows = torch.cat((freqs, torch.zeros_like(freqs[:1])))[at.to(freqs.device), 0]
    if tensor_format == "thd":
        return rows
    at = rows.unflatten(0, (len(held), -1))
    return at.transpose(0, 1) if tensor_format == "sbhd" else at


def gradient(
    t: torch.Tensor,
    freqs: torch.Tensor,
    tensor_format: str,
    interleaved: bool,
    cotangent: torch.Tensor,
) -> torch.Tensor:
    """The exact gradient of ``(rotate(t) * cotangent).sum()`` by ``t``, float64."""
    t = t.detach().double().requires_grad_()
    out = rotate(t, freqs, tensor_format, interleaved)
    return torch.autograd.grad(out, t, cotangent.double())[0]


def pairs(x: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """``[..., n]`` as a view ``[..., n/2, 2]``: the last dimension is a pair that is rotated."""
    if interleaved:
        return x.unflatten(-1, (-1, 2))
    return x.unflatten(-1, (2, -1)).transpose(-1, -2)


def _unit(angles: torch.Tensor) -> torch.Tensor:
    return torch.polar(torch.ones_like(angles), angles)


def random_angles(seq: int, width: int, device: str) -> torch.Tensor:
    """``[seq, 1, 1, width]``, radians in (-25, 25), another one for every channel.

    Small, because the interpreter's fused multiply-add rounds twice and loses long angles.
    """
    return (torch.rand(seq, 1, 1, width, device=device) - 0.5) * 50


def random_like(t: torch.Tensor) -> torch.Tensor:
    """Normal random numbers of the shape, dtype and device of ``t``, contiguous."""
    return torch.randn(t.shape, dtype=t.dtype, device=t.device)


def check(
    t: torch.Tensor, freqs: torch.Tensor, mode: Mode, cotangent: torch.Tensor, fused: bool = True
) -> None:
    """Assert that ``apply_rotary_pos_emb`` is right, both ways, and leaves its inputs alone."""
    before = freqs.clone(), cotangent.clone()
    options = mode.tensor_format, mode.interleaved
    compare(
        t,
        lambda t: rope_triton.apply_rotary_pos_emb(
            t, freqs, options[0], interleaved=options[1], fused=fused
        ),
        lambda t: rotate(t, freqs, *options),
        lambda out: cotangent,
    )
    for now, then in zip((freqs, cotangent), before, strict=True):
        torch.testing.assert_close(now, then, rtol=0, atol=0, equal_nan=True)


def compare(x: torch.Tensor, call, exact, cotangent=random_like):
    """Assert that ``call(x)`` and its gradient are those of ``exact``, computed in float64.

    ``cotangent``: what the gradient is taken of, given the output. Returns the output, the gradient
    and the cotangent.
    """
    x = x.detach()
    before, leaf, wide = x.clone(), x.detach().requires_grad_(), x.double().requires_grad_()
    out, expected = call(leaf), exact(wide)
    weights = cotangent(out)
    (grad,) = torch.autograd.grad(out, leaf, weights)
    (expected_grad,) = torch.autograd.grad(expected, wide, weights.double())
    torch.testing.assert_close(out, expected.to(x.dtype))
    torch.testing.assert_close(grad, expected_grad.to(x.dtype))
    torch.testing.assert_close(x, before, rtol=0, atol=0)
    assert out.is_contiguous()
    return out.detach(), grad, weights


def contiguous(shape, dtype, device):
    return torch.randn(shape, dtype=dtype, device=device)


def transposed(i, j):
    def build(shape, dtype, device):
        shape = list(shape)
        shape[i], shape[j] = shape[j], shape[i]
        return torch.randn(shape, dtype=dtype, device=device).transpose(i, j)

    return build


def channels_last(shape, dtype, device):
    """Memory in the order in which torch keeps images, which many operations then preserve."""
    n, channels, height, width = shape
    return contiguous((n, height, width, channels), dtype, device).permute(0, 3, 1, 2)


def sliced(shape, dtype, device):
    """Every second head of the middle of a larger tensor."""
    n0, n1, heads, channels = shape
    memory = _nan((n0 + 2, n1 + 1, 2 * heads + 1, channels + 3), dtype, device)
    return _randomize(memory[1 : 1 + n0, :n1, 1::2, 2 : 2 + channels])


def packed(shape, dtype, device):
    """The middle third of a tensor that holds queries, keys and values side by side."""
    *leading, channels = shape
    memory = _nan((*leading, 3 * channels), dtype, device)
    return _randomize(memory[..., channels : 2 * channels])


def every_second_channel(shape, dtype, device):
    *leading, channels = shape
    return _randomize(_nan((*leading, 2 * channels), dtype, device)[..., 1::2])


def expanded(*dims):
    """Stride 0 in these dimensions."""

    def build(shape, dtype, device):
        one = [1 if dim in dims else size for dim, size in enumerate(shape)]
        return torch.randn(one, dtype=dtype, device=device).expand(shape)

    return build


def _nan(shape, dtype, device):
    return torch.full(shape, float("nan"), dtype=dtype, device=device)


def _randomize(view):
    return view.copy_(random_like(view))


LAYOUTS = {
    "contiguous": contiguous,
    "transposed_0_1": transposed(0, 1),
    "transposed_2_3": transposed(2, 3),
    "channels_last": channels_last,
    "sliced_amid_nan": sliced,
    "packed_amid_nan": packed,
    "every_second_channel_amid_nan": every_second_channel,
    "expanded_0": expanded(0),
    "expanded_1": expanded(1),
    "expanded_heads": expanded(2),
    "expanded_all": expanded(0, 1, 2, 3),
}
"""Ways a tensor of a given shape lies in memory: name -> function of shape, dtype and device."""
