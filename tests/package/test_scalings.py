"""Inverse frequencies against the papers' equations, in plain Python floats."""

import math

import pytest
import torch

from rope_triton import frequencies_from_config, scalings

# One rounding to float32, and a breath for the float64 before it.
HALF_ULP = 2.0**-24 * (1 + 1e-6)
DIM, BASE = 128, 10000.0
SHAPES = [(128, 10000.0), (64, 500000), (96, 1e6), (40, 10000.0), (4, 100.0)]


def theta(index, dim, base):
    """RoFormer, equation 15, counted from 0."""
    return base ** (-2 * index / dim)


def assert_frequencies(result, expected, attention_factor=1.0):
    assert result.inv_freq.dtype == torch.float32
    assert result.inv_freq.device.type == "cpu"
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(result.inv_freq.double(), expected, rtol=HALF_ULP, atol=0)
    assert type(result.attention_factor) is float
    assert result.attention_factor == pytest.approx(attention_factor, rel=1e-15)


@pytest.mark.parametrize("factor", [1, 2, 3.7])
@pytest.mark.parametrize(("dim", "base"), SHAPES)
def test_unscaled_and_linear(dim, base, factor):
    expected = [theta(i, dim, base) for i in range(dim // 2)]
    assert_frequencies(scalings.unscaled(dim, base), expected)
    assert_frequencies(scalings.linear(dim, base, factor), [x / factor for x in expected])


@pytest.mark.parametrize(("share", "factor"), [(1, 1), (0.25, 1.0), (0.3, 2.5)])
@pytest.mark.parametrize(("dim", "base"), SHAPES)
def test_proportional_turns_the_first_pairs_alone(dim, base, share, factor):
    turning = int(share * dim // 2)
    expected = [theta(i, dim, base) / factor * (i < turning) for i in range(dim // 2)]
    assert_frequencies(scalings.proportional(dim, base, share, factor), expected)
    with pytest.raises(ValueError, match="share must be at most 1, got 1.5"):
        scalings.proportional(dim, base, 1.5)


@pytest.mark.parametrize("factor", [1, 2, 8.5])
@pytest.mark.parametrize(("dim", "base"), SHAPES)
def test_ntk(dim, base, factor):
    expected = [
        theta(i, dim, base) * factor ** (-2 * i / (dim - 2)) for i in range(dim // 2)
    ]  # b' = b s^(d / (d - 2)), multiplied out
    assert_frequencies(scalings.ntk(dim, base, factor), expected)


@pytest.mark.parametrize("factor", [1, 2.0, 4])
@pytest.mark.parametrize("seq_len", [1, 4095, 4096, 4097, 10000])
def test_dynamic_ntk_grows_with_the_sequence(seq_len, factor):
    scale = 1.0 if seq_len <= 4096 else factor * seq_len / 4096 - (factor - 1)
    base = BASE * scale ** (DIM / (DIM - 2))
    expected = [theta(i, DIM, base) for i in range(DIM // 2)]
    assert_frequencies(scalings.dynamic_ntk(DIM, BASE, factor, 4096, seq_len), expected)


def turns(index, dim, base, length):
    """YaRN, equations 13 and 17: rotations of a pair over the original length."""
    return length * theta(index, dim, base) / (2 * math.pi)


def yarn_formula(dim, base, factor, length, fast=32, slow=1, truncate=True):
    """The paper's cases, and between them the authors' ramp over the index of the pair."""

    def position(beta):  # the index that solves turns(index) = beta
        return dim / 2 * math.log(length / (2 * math.pi * beta), base)

    low, high = position(fast), position(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    result = []
    for i in range(dim // 2):
        full = theta(i, dim, base)
        if turns(i, dim, base, length) >= fast or i <= low:
            result.append(full)
        elif turns(i, dim, base, length) <= slow or i >= high:
            result.append(full / factor)
        else:
            ramp = (i - low) / (high - low)
            result.append((1 - ramp) * full + ramp * full / factor)
    return result


YARN = [
    (128, 1000000.0, 4.0, 32768, {}),
    (64, 10000.0, 40, 4096, {"beta_fast": 32, "beta_slow": 1}),
    (64, 150000.0, 32.0, 4096, {"truncate": False}),
    (128, 10000.0, 8, 2048, {"beta_fast": 16.5, "beta_slow": 2}),
    (64, 10000.0, 16, 60, {}),  # the ramp begins at the first pair
    (64, 100.0, 16, 40000, {"beta_slow": 0.5}),  # and ends after the last
]


@pytest.mark.parametrize(("dim", "base", "factor", "length", "options"), YARN)
def test_yarn(dim, base, factor, length, options):
    names = {"beta_fast": "fast", "beta_slow": "slow", "truncate": "truncate"}
    expected = yarn_formula(
        dim, base, factor, length, **{names[key]: value for key, value in options.items()}
    )
    result = scalings.yarn(dim, base, factor, length, **options)
    assert_frequencies(result, expected, 0.1 * math.log(factor) + 1)


def test_yarn_with_ends_that_meet_is_a_step_behind_the_first_pair():
    # Not even the first pair turns once in 6 tokens: both ends are cut to index 0, as upstream.
    expected = [1.0] + [theta(i, 64, BASE) / 2 for i in range(1, 32)]
    assert_frequencies(scalings.yarn(64, BASE, 2, 6), expected, 0.1 * math.log(2) + 1)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 0.1 * math.log(40) + 1),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        (
            {"mscale": 1.0, "mscale_all_dim": 0.707},
            (0.1 * math.log(40) + 1) / (0.0707 * math.log(40) + 1),
        ),
        ({"mscale": 0.707, "mscale_all_dim": 0}, 0.1 * math.log(40) + 1),
        ({"mscale": 0.707}, 0.1 * math.log(40) + 1),
        ({"attention_factor": 1.25, "mscale": 1.0, "mscale_all_dim": 0.707}, 1.25),
    ],
    ids=str,
)
def test_yarn_attention_factor(options, expected):
    result = scalings.yarn(64, BASE, 40, 4096, **options)
    assert result.attention_factor == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("factor", [1, 0.5])
def test_no_attention_factor_without_extension(factor):
    lists = [1.0] * (DIM // 2), [2.0] * (DIM // 2)
    assert scalings.yarn(DIM, BASE, factor, 4096).attention_factor == 1.0
    assert scalings.longrope(DIM, BASE, *lists, 4096, 1, factor=factor).attention_factor == 1.0


def llama3_formula(dim, base, factor, low, high, length):
    """``apply_scaling`` of Meta's llama-models, by the wavelength of each pair."""
    result = []
    for i in range(dim // 2):
        full = theta(i, dim, base)
        wavelength = 2 * math.pi / full
        if wavelength < length / high:
            result.append(full)
        elif wavelength > length / low:
            result.append(full / factor)
        else:
            smooth = (length / wavelength - low) / (high - low)
            result.append((1 - smooth) * full / factor + smooth * full)
    return result


@pytest.mark.parametrize(
    ("dim", "base", "factor", "low", "high", "length"),
    [
        (128, 500000.0, 8.0, 1.0, 4.0, 8192),
        (64, 500000.0, 32.0, 1.0, 4.0, 8192),
        (128, 10000.0, 3, 0.5, 64, 2048),
    ],
)
def test_llama3(dim, base, factor, low, high, length):
    expected = llama3_formula(dim, base, factor, low, high, length)
    assert_frequencies(scalings.llama3(dim, base, factor, low, high, length), expected)
    plain = [theta(i, dim, base) for i in range(dim // 2)]
    cases = {
        "kept" if new == old else "divided" if new == old / factor else "blended"
        for new, old in zip(expected, plain, strict=True)
    }
    assert cases == {"kept", "divided", "blended"}


@pytest.mark.parametrize(("seq_len", "long"), [(1, False), (4096, False), (4097, True)])
def test_longrope(seq_len, long):
    short_factor = [1 + i / 10 for i in range(48)]
    long_factor = [1 + i * 1.3 for i in range(48)]
    divisors = long_factor if long else short_factor
    result = scalings.longrope(96, BASE, short_factor, long_factor, 4096, seq_len, factor=32)
    expected = [theta(i, 96, BASE) / divisor for i, divisor in enumerate(divisors)]
    assert_frequencies(result, expected, math.sqrt(1 + math.log(32) / math.log(4096)))


def test_longrope_with_an_attention_factor_needs_no_factor():
    result = scalings.longrope(4, BASE, [1, 1], [2, 2.0], 8, 9, attention_factor=1.5)
    assert_frequencies(result, [0.5, 0.5 * theta(1, 4, BASE)], 1.5)


def test_results_are_on_the_cpu_while_a_model_is_built_elsewhere():
    with torch.device("meta"):
        result = scalings.longrope(4, BASE, [1, 1], [2, 2], 8, 9, factor=2)
        ramp = scalings.yarn(64, BASE, 2, 4096)
    assert result.inv_freq.device.type == ramp.inv_freq.device.type == "cpu"


WRONG_LENGTHS = [
    (torch.tensor(5.0), TypeError, r"be an integer, got a tensor of torch\.float32"),
    (torch.tensor(True), TypeError, r"be an integer, got a tensor of torch\.bool"),
    (torch.tensor([5]), ValueError, r"be one integer, got a tensor of shape \(1,\)"),
    (torch.tensor(5, device="meta"), ValueError, "have a value, got a tensor on the meta device"),
]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_a_length_may_be_a_tensor(dtype, device):
    """As Hugging Face passes it, the largest position + 1."""
    factors, config = ([1.0] * 64, [2.0] * 64), {"head_dim": DIM, "rope_theta": BASE}
    config |= {"max_position_embeddings": 4096}
    dynamic = config | {"rope_scaling": {"type": "dynamic", "factor": 2.0}}
    phi = {"type": "longrope", "short_mscale": 1.2, "long_mscale": 1.3, "factor": 2.0}
    phi |= {"short_factor": factors[0], "long_factor": factors[1]}
    calls = [
        lambda length: scalings.dynamic_ntk(DIM, BASE, 2.0, 4096, length),
        lambda length: scalings.longrope(DIM, BASE, *factors, 4096, length, factor=2.0),
        lambda length: frequencies_from_config(dynamic, length),
        lambda length: frequencies_from_config(config | {"rope_scaling": phi}, seq_len=length),
    ]
    for call in calls:
        for length in (4096, 5001):
            tensor = torch.tensor([3, length - 1], dtype=dtype, device=device).max() + 1
            actual, expected = call(tensor), call(length)
            assert torch.equal(actual.inv_freq, expected.inv_freq)
            assert actual.attention_factor == expected.attention_factor
        for wrong, error, message in WRONG_LENGTHS:
            with pytest.raises(error, match="seq_len must " + message):
                call(wrong)
