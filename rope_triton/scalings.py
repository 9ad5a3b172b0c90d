"""Inverse frequencies of the context extensions that models use, each by its published formula.

Every function takes numbers and returns :class:`Frequencies`. The argument names are those of a
Hugging Face config, and :func:`rope_triton.frequencies_from_config` reads one.

All are computed in float64 and rounded once to float32: within ``2**-24``, or 6.0e-8, of the
formula, relative. ``transformers`` computes them in float32 and so do most trainers, each with the
last bits of its own device and power function. Version 5.23.0 on a CPU is farther from the formula
than this is in every scaling, and so far from this, in the worst of 14640 configs:

- 6.8e-7 in "default", "linear", "dynamic" and "longrope", where it rounds the exponent of the base;
- 7.6e-7 in "yarn";
- 3.7e-6 in "llama3" and in "yarn" with ``truncate=False``, where it also rounds the small
  difference that is the weight of a ramp's end, and the factor magnifies that.

Those had 32 to 256 channels, bases of 1e4 to 1e7, factors of 2 to 40 and original lengths of 2048
to 131072. One last bit of a frequency near 1 turns position 131072 by 0.008 radians, so to have the
bits of one of them pass its ``inv_freq`` to :func:`rope_triton.rotary_angles`.

Arguments that all of them have:

dim : int
    Channels that are rotated, even; the size of a head times the partial rotary factor.
base : float
    Base of the inverse frequencies, ``rope_theta`` in a config.

All raise TypeError if an argument is not a number, and ValueError if one is out of its range.
"""

import math
import numbers
from collections.abc import Sequence
from typing import NamedTuple

import torch


class Frequencies(NamedTuple):
    """What a rotary position embedding is made of.

    Attributes
    ----------
    inv_freq : torch.Tensor
        Inverse frequencies, radians per position, ``[dim/2]``, float32, on the CPU.
    attention_factor : float
        What cos and sin are multiplied by; 1.0 but for YaRN and LongRoPE. The rotation of angles
        keeps norms, so multiply the rotated channels of q and k by it, or, if all channels are
        rotated, the softmax scale by its square.
    """

    inv_freq: torch.Tensor
    attention_factor: float = 1.0


def unscaled(dim: int, base: float) -> Frequencies:
    """``base ** (-2 i / dim)``: Su et al., https://arxiv.org/abs/2104.09864, equation 15."""
    return _rounded(1.0 / _powers(dim, base))


def linear(dim: int, base: float, factor: float) -> Frequencies:
    """Position interpolation: all inverse frequencies divided by ``factor``.

    Chen et al., https://arxiv.org/abs/2306.15595, equation 4, which divides positions;
    ``transformers.modeling_rope_utils._compute_linear_scaling_rope_parameters``.
    """
    check_positive(factor=factor)
    return _rounded(1.0 / (factor * _powers(dim, base)))


def proportional(dim: int, base: float, share: float, factor: float = 1.0) -> Frequencies:
    """:func:`linear` for a share of the pairs of channels, the first; the others never turn.

    ``dim`` is the size of the whole head, and so are the frequencies those of a rotation of all of
    it. Used by Gemma 4 and LFM3;
    ``transformers.modeling_rope_utils._compute_proportional_rope_parameters``.

    Parameters
    ----------
    share : float
        ``partial_rotary_factor`` in a config, up to 1.
    """
    check_positive(share=share, factor=factor)
    if share > 1:
        raise ValueError(f"share must be at most 1, got {share}")
    inv_freq = 1.0 / (factor * _powers(dim, base))
    inv_freq[int(share * dim // 2) :] = 0.0
    return _rounded(inv_freq)


def ntk(dim: int, base: float, factor: float) -> Frequencies:
    """NTK-aware scaling: the base times ``factor ** (dim / (dim - 2))``.

    The lowest frequency is divided by ``factor`` and the highest stays. ``dim`` must be at least 4.
    Peng et al., https://arxiv.org/abs/2309.00071, definition 1; the ``alpha`` of Hunyuan's configs
    is this ``factor``.
    """
    _check_dim(dim, least=4)
    check_positive(base=base, factor=factor)
    return unscaled(dim, base * factor ** (dim / (dim - 2)))


def dynamic_ntk(
    dim: int,
    base: float,
    factor: float,
    max_position_embeddings: int,
    seq_len: int | torch.Tensor,
) -> Frequencies:
    """Dynamic NTK scaling: as :func:`ntk`, by a factor that grows with the sequence.

    The factor is ``factor * seq_len / max_position_embeddings - (factor - 1)``, and 1 for sequences
    up to ``max_position_embeddings``; ``transformers.modeling_rope_utils
    ._compute_dynamic_ntk_parameters``. Peng et al., https://arxiv.org/abs/2309.00071, section 3.3,
    has the case ``factor = 1``.

    Parameters
    ----------
    max_position_embeddings : int
        Tokens the model was trained on.
    seq_len : int or torch.Tensor
        Largest position + 1; of a tensor, an integer without dimensions, the value is waited for.
        All positions of a call share the frequencies, so keys that were cached with those of
        another length do not fit.
    """
    seq_len = length_of("seq_len", seq_len)
    check_positive(factor=factor)
    check_lengths(max_position_embeddings=max_position_embeddings, seq_len=seq_len)
    longest = max(seq_len, max_position_embeddings)
    return ntk(dim, base, factor * longest / max_position_embeddings - (factor - 1.0))


def yarn(
    dim: int,
    base: float,
    factor: float,
    original_max_position_embeddings: int,
    *,
    beta_fast: float = 32,
    beta_slow: float = 1,
    attention_factor: float | None = None,
    mscale: float | None = None,
    mscale_all_dim: float | None = None,
    truncate: bool = True,
) -> Frequencies:
    """YaRN: high frequencies stay, low ones are divided by ``factor``, between them a ramp.

    Peng et al., https://arxiv.org/abs/2309.00071, section 3.2 and equations 21 and 22, and
    ``transformers.modeling_rope_utils._compute_yarn_parameters``. The ramp of the paper is linear
    in the rotations of a pair, that of every implementation (the authors' too) in the index of the
    pair; this one is theirs. Both agree on which pairs stay and which are divided.

    Parameters
    ----------
    factor : float
        New length over the original one.
    original_max_position_embeddings : int
        Tokens the model was trained on before.
    beta_fast, beta_slow : float
        A pair that turns at least ``beta_fast`` times over the original length stays, one that
        turns at most ``beta_slow`` times is divided. ``beta_fast > beta_slow``, ``base > 1``.
    attention_factor : float, optional
        Taken as it is. By default ``m(1)``, where ``m(x) = 0.1 x ln(factor) + 1``, or 1 for a
        factor below 1.
    mscale, mscale_all_dim : float, optional
        If both are given and not 0, the attention factor is ``m(mscale) / m(mscale_all_dim)``
        (DeepSeek), otherwise they are not used. DeepSeek's models multiply their softmax scale by
        ``m(mscale_all_dim) ** 2`` besides, which is not in the result.
    truncate : bool
        Whether the ends of the ramp are rounded outwards to whole indices (gpt-oss: False).
    """
    check_positive(factor=factor, beta_fast=beta_fast, beta_slow=beta_slow)
    check_lengths(original_max_position_embeddings=original_max_position_embeddings)
    if beta_fast <= beta_slow:
        raise ValueError(f"beta_fast must be above beta_slow, got {beta_fast} and {beta_slow}")
    powers = _powers(dim, base)
    if base <= 1:
        raise ValueError(f"base must be above 1, got {base}")
    length = original_max_position_embeddings
    low, high = (_turning(dim, base, length, beta) for beta in (beta_fast, beta_slow))
    weight = 1.0 - _ramp(dim, low, high, truncate)
    inv_freq = weight / powers + (1.0 - weight) / (factor * powers)
    if attention_factor is None:
        attention_factor = _yarn_attention_factor(factor, mscale, mscale_all_dim)
    check_positive(attention_factor=attention_factor)
    return _rounded(inv_freq, attention_factor)


def llama3(
    dim: int,
    base: float,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_max_position_embeddings: int,
) -> Frequencies:
    """Llama 3.1: as YaRN's idea, with a ramp that is linear in the rotations of a pair.

    Over the original length a pair turns ``r`` times. It stays if ``r > high_freq_factor``, is
    divided by ``factor`` if ``r < low_freq_factor``, and between them is blended with the weight
    ``(r - low_freq_factor) / (high_freq_factor - low_freq_factor)``. Source: ``apply_scaling`` in
    Meta's llama-models; ``transformers.modeling_rope_utils._compute_llama3_parameters``.

    ``high_freq_factor`` must be above ``low_freq_factor``.
    """
    check_positive(
        factor=factor, low_freq_factor=low_freq_factor, high_freq_factor=high_freq_factor
    )
    check_lengths(original_max_position_embeddings=original_max_position_embeddings)
    if high_freq_factor <= low_freq_factor:
        raise ValueError(
            "high_freq_factor must be above low_freq_factor, "
            f"got {high_freq_factor} and {low_freq_factor}"
        )
    inv_freq = 1.0 / _powers(dim, base)
    turns = original_max_position_embeddings * inv_freq / (2 * math.pi)
    weight = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0)
    return _rounded(weight * inv_freq + (1.0 - weight) * inv_freq / factor)


def longrope(
    dim: int,
    base: float,
    short_factor: Sequence[float],
    long_factor: Sequence[float],
    original_max_position_embeddings: int,
    seq_len: int | torch.Tensor,
    *,
    factor: float | None = None,
    attention_factor: float | None = None,
) -> Frequencies:
    """LongRoPE: every inverse frequency divided by a searched factor of its own.

    Ding et al., https://arxiv.org/abs/2402.13753, equation 2 without its unscaled first positions,
    and ``transformers.modeling_rope_utils._compute_longrope_parameters``.

    Parameters
    ----------
    short_factor, long_factor : sequence of float
        ``dim / 2`` divisors each, for sequences up to the original length and for longer ones.
    original_max_position_embeddings : int
        Tokens the model was trained on before.
    seq_len : int or torch.Tensor
        As of :func:`dynamic_ntk`. All positions of a call share the frequencies, as upstream.
    factor : float, optional
        New length over the original one; needed unless ``attention_factor`` is given.
    attention_factor : float, optional
        By default ``sqrt(1 + ln(factor) / ln(original_max_position_embeddings))``, or 1 for a
        factor below 1.
    """
    seq_len = length_of("seq_len", seq_len)
    check_lengths(
        original_max_position_embeddings=original_max_position_embeddings, seq_len=seq_len
    )
    powers = _powers(dim, base)
    divisors = long_factor if seq_len > original_max_position_embeddings else short_factor
    for name, values in (("short_factor", short_factor), ("long_factor", long_factor)):
        if len(values) != dim // 2:
            raise ValueError(f"{name} must have dim / 2 = {dim // 2} numbers, got {len(values)}")
        for index, value in enumerate(values):
            check_positive(**{f"{name}[{index}]": value})
    if attention_factor is None:
        attention_factor = _longrope_attention_factor(factor, original_max_position_embeddings)
    check_positive(attention_factor=attention_factor)
    inv_freq = 1.0 / (torch.tensor(divisors, dtype=torch.float64, device="cpu") * powers)
    return _rounded(inv_freq, attention_factor)


def length_of(name: str, length):
    """A length that may be a tensor, as Hugging Face's models pass it, as an int."""
    if isinstance(length, numbers.Integral | torch.SymInt):
        return length
    if not isinstance(length, torch.Tensor):
        raise TypeError(f"{name} must be an int, got {type(length).__name__}")
    if length.dtype == torch.bool or length.is_floating_point() or length.is_complex():
        raise TypeError(f"{name} must be an integer, got a tensor of {length.dtype}")
    if length.dim():
        raise ValueError(f"{name} must be one integer, got a tensor of shape {tuple(length.shape)}")
    if length.is_meta:
        raise ValueError(f"{name} must have a value, got a tensor on the meta device")
    return int(length)


def _powers(dim, base):
    """``base ** (2 i / dim)``, float64; on the CPU wherever a model is being built."""
    _check_dim(dim)
    check_positive(base=base)
    return base ** (torch.arange(0, dim, 2, dtype=torch.float64, device="cpu") / dim)


def _rounded(inv_freq, attention_factor=1.0):
    return Frequencies(inv_freq.float(), float(attention_factor))


def _turning(dim, base, length, turns):
    """Index, not whole, of the pair that turns so many times over the length."""
    return dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))


def _ramp(dim, low, high, truncate):
    """0 up to the index ``low``, 1 from ``high``, linear between."""
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low > high:
        raise ValueError(
            f"no pair of {dim} channels turns between beta_slow and beta_fast times over "
            "original_max_position_embeddings"
        )
    if low == high:
        high += 0.001  # as upstream
    index = torch.arange(dim // 2, dtype=torch.float64, device="cpu")
    return ((index - low) / (high - low)).clamp(0.0, 1.0)


def _yarn_attention_factor(factor, mscale, mscale_all_dim):
    def strength(scale):
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    if mscale and mscale_all_dim:
        check_positive(mscale=mscale, mscale_all_dim=mscale_all_dim)
        return strength(mscale) / strength(mscale_all_dim)
    return strength(1.0)


def _longrope_attention_factor(factor, original):
    if factor is None:
        raise ValueError("factor or attention_factor must be given, got neither")
    check_positive(factor=factor)
    if factor <= 1:
        return 1.0
    if original == 1:
        raise ValueError("original_max_position_embeddings must be above 1, got 1")
    return math.sqrt(1.0 + math.log(factor) / math.log(original))


def _check_dim(dim, least=2):
    if type(dim) is not int:
        raise TypeError(f"dim must be an int, got {type(dim).__name__}")
    if dim < least or dim % 2:
        raise ValueError(f"dim must be an even number from {least}, got {dim}")


def check_lengths(**lengths):
    """Raise TypeError or ValueError unless all are positive ints."""
    for name, value in lengths.items():
        if type(value) is not int:
            raise TypeError(f"{name} must be an int, got {type(value).__name__}")
        if value < 1:
            raise ValueError(f"{name} must be positive, got {value}")


def check_positive(**values):
    """Raise TypeError or ValueError unless all are positive and finite numbers."""
    for name, value in values.items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise TypeError(f"{name} must be a number, got {type(value).__name__}")
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be positive and finite, got {value}")
