"""Configs of models in use, reduced to what matters here; "dynamic" is made from Llama 2's."""

import pytest
import torch

from rope_triton import frequencies_from_config, scalings

# rope_scaling of Phi-3-vision-128k-instruct, as in mlx-vlm's tests/test_models.py.
SHORT = [1.05] * 3 + [1.1] * 3 + [1.25] * 2 + [1.4, 1.45, 1.55, 1.85, 1.9] + [2.0] * 19
SHORT += [2.1, 2.1, 2.2] + [2.35] * 4 + [2.4] * 2 + [2.65, 2.7, 2.9, 2.95] + [3.05] * 3
LONG = [1.03, 1.05, 1.05, 1.08, 1.23, 1.23, 1.3, 1.45, 1.6, 1.65, 1.9, 2.86, 3.69, 5.42, 5.49, 5.49]
LONG += [9.09, 11.58, 15.66, 15.77, 15.79, 18.36, 21.99, 23.08, 30.01, 32.35, 32.59, 35.56, 39.95]
LONG += [53.84, 56.2, 57.95, 59.29, 59.77, 59.92, 61.19, 61.96, 62.5, 63.37, 63.48, 63.48, 63.66]
LONG += [63.85, 64.08, 64.76, 64.8, 64.81, 64.81]

LLAMA_31_8B = {
    **{"hidden_size": 4096, "num_attention_heads": 32, "rope_theta": 500000.0},
    "max_position_embeddings": 131072,
    "rope_scaling": {
        **{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        "original_max_position_embeddings": 8192,
    },
}
DEEPSEEK_V3 = {
    **{"hidden_size": 7168, "num_attention_heads": 128, "qk_rope_head_dim": 64},
    **{"rope_theta": 10000, "max_position_embeddings": 163840},
    "rope_scaling": {
        **{"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
        **{"beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
    },
}
GPT_OSS_20B = {
    **{"hidden_size": 2880, "num_attention_heads": 64, "head_dim": 64, "rope_theta": 150000},
    "max_position_embeddings": 131072,
    "rope_scaling": {
        **{"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
        **{"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
    },
}
PHI3_128K = {
    **{"hidden_size": 3072, "num_attention_heads": 32, "rope_theta": 10000.0},
    **{"max_position_embeddings": 131072, "original_max_position_embeddings": 4096},
    "rope_scaling": {"type": "su", "short_factor": SHORT, "long_factor": LONG},
}
LLAMA_2_7B = {
    **{"hidden_size": 4096, "num_attention_heads": 32, "rope_theta": 10000.0},
    "max_position_embeddings": 4096,
}
GEMMA_4 = {
    **{"hidden_size": 2304, "num_attention_heads": 8, "head_dim": 256},
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "per_layer_config": {"01": {"head_dim": 512}, "03": {"head_dim": 512}},
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {
            **{"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}
        },
    },
}
DYNAMIC = {**LLAMA_2_7B, "rope_scaling": {"type": "dynamic", "factor": 2.0}}


def test_layers_of_gemma_4_differ_in_frequencies_and_in_the_size_of_their_heads():
    full = frequencies_from_config(GEMMA_4, layer_type="full_attention").inv_freq
    assert full.shape == (256,) and not full[64:].any()
    # Of transformers 5.23.0, from the defaults of Gemma4TextConfig.
    for index, expected in {1: 0.9474635124206543, 32: 0.17782793939113617}.items():
        assert full[index].item() == pytest.approx(expected, rel=4e-7)
    sliding = frequencies_from_config(GEMMA_4, layer_type="sliding_attention")
    assert torch.equal(sliding.inv_freq, scalings.unscaled(256, 1e4).inv_freq)
    halved = {**GEMMA_4["rope_parameters"]["full_attention"], "factor": 2.0}
    config = {"head_dim": 512, "rope_scaling": halved}
    assert torch.equal(frequencies_from_config(config).inv_freq, full / 2)
    mixed = {**GEMMA_4, "layer_types": ["full_attention"] * 4}
    with pytest.raises(ValueError, match="'full_attention' have heads of different sizes: {"):
        frequencies_from_config(mixed, layer_type="full_attention")


def scaled(**scaling):
    return {**LLAMA_2_7B, "rope_scaling": scaling}


CALLS = {
    "null": ({**LLAMA_2_7B, "rope_scaling": None}, scalings.unscaled(128, 1e4)),
    "linear": (scaled(type="linear", factor=4.0), scalings.linear(128, 1e4, 4.0)),
    "mrope": (scaled(type="mrope", mrope_section=[16, 24, 24]), scalings.unscaled(128, 1e4)),
    "no heads": ({"rope_theta": 100, "head_dim": 8}, scalings.unscaled(8, 100)),
    "rotary_dim": (
        {**LLAMA_2_7B, "rotary_dim": 64, "partial_rotary_factor": 0.5},
        scalings.unscaled(64, 1e4),
    ),
    "partial": (
        {**LLAMA_2_7B, "head_dim": 80, "partial_rotary_factor": 0.4},
        scalings.unscaled(32, 1e4),
    ),
    "transformers 5": (
        {
            **{"head_dim": 256, "rope_scaling": None},
            "rope_parameters": {
                **{"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
                **{"mrope_section": [11, 11, 10], "mrope_interleaved": True},
            },
        },
        scalings.unscaled(64, 1e7),
    ),
    "Hunyuan's alpha": (
        scaled(type="dynamic", alpha=1000.0, factor=1.0, beta_fast=32, beta_slow=1, mscale=1.0),
        scalings.ntk(128, 1e4, 1000.0),
    ),
    "yarn, all keys": (
        scaled(
            **{"type": "yarn", "factor": 16, "original_max_position_embeddings": 2048},
            **{"attention_factor": 1.1, "beta_fast": 24, "beta_slow": 2, "truncate": False},
            **{"mscale": None, "finetuned": True},
        ),
        scalings.yarn(
            *(128, 1e4, 16, 2048),
            **{"attention_factor": 1.1, "beta_fast": 24, "beta_slow": 2, "truncate": False},
        ),
    ),
    "yarn, factor from the lengths": (
        scaled(type="yarn", original_max_position_embeddings=1024.0, factor=None),
        scalings.yarn(128, 1e4, 4.0, 1024),
    ),
    "yarn, original length is the only one": (
        scaled(type="yarn", factor=2),
        scalings.yarn(128, 1e4, 2, 4096),
    ),
    "original length outside first": (
        {
            **scaled(type="yarn", factor=2, original_max_position_embeddings=1024),
            "original_max_position_embeddings": 2048,
        },
        scalings.yarn(128, 1e4, 2, 2048),
    ),
}


@pytest.mark.parametrize(("seq_len", "factor"), [(4096, 1.2), (4097, 1.3)])
def test_phi35_moe_names_the_attention_factors(seq_len, factor):
    scaling = {**PHI3_128K["rope_scaling"], "short_mscale": 1.2, "long_mscale": 1.3}
    result = frequencies_from_config({**PHI3_128K, "rope_scaling": scaling}, seq_len=seq_len)
    assert result.attention_factor == factor


# Entries as published, the type of layer, and what Transformers 5.23.0 has for them.
GEMMA_4_TYPES = {"rope_parameters": GEMMA_4["rope_parameters"], "head_dim": 256}
GEMMA_3 = {"head_dim": 256, "rope_theta": 1e6, "rope_local_base_freq": 1e4}
GEMMA_3["rope_scaling"] = {"rope_type": "linear", "factor": 8.0}
MINISTRAL_3 = {
    **{"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "mscale": 1.0},
    **{"mscale_all_dim": 1.0, "beta_fast": 32.0, "beta_slow": 1.0, "llama_4_scaling_beta": 0.1},
    "original_max_position_embeddings": 16384,
}
PUBLISHED = {
    "Gemma 4, full": (
        {**GEMMA_4_TYPES, "global_head_dim": 512},
        "full_attention",
        scalings.proportional(512, 1e6, 0.25),
    ),
    "Gemma 4, sliding": (
        {**GEMMA_4_TYPES, "global_head_dim": 512},
        "sliding_attention",
        scalings.unscaled(256, 1e4),
    ),
    "Gemma 3, full": (GEMMA_3, "full_attention", scalings.linear(256, 1e6, 8.0)),
    "Gemma 3, sliding": (GEMMA_3, "sliding_attention", scalings.unscaled(256, 1e4)),
    "JetMoe": ({**LLAMA_2_7B, "kv_channels": 64}, None, scalings.unscaled(64, 1e4)),
    "StableLM": ({**LLAMA_2_7B, "rope_pct": 0.25}, None, scalings.unscaled(32, 1e4)),
    "GPT-NeoX": (
        {"hidden_size": 64, "num_attention_heads": 1, "rotary_pct": 0.25, "rotary_emb_base": 100},
        None,
        scalings.unscaled(16, 100),
    ),
    "Ministral 3": (
        {"head_dim": 128, "rope_parameters": MINISTRAL_3},
        None,
        scalings.yarn(128, 1e6, 16, 16384, attention_factor=1.0),
    ),
}


def by_length(length):
    return scalings.longrope(96, 1e4, SHORT, LONG, 4096, length, factor=32)


# Entries as published, the longest sequence, and what their types of scaling give.
SCALED = {
    "Llama-3.1-8B": (LLAMA_31_8B, None, scalings.llama3(128, 5e5, 8, 1, 4, 8192)),
    "DeepSeek-V3": (DEEPSEEK_V3, None, scalings.yarn(64, 1e4, 40, 4096, attention_factor=1.0)),
    "gpt-oss-20b": (GPT_OSS_20B, None, scalings.yarn(64, 150000, 32, 4096, truncate=False)),
    "Phi-3-128k, short": (PHI3_128K, 4096, by_length(4096)),
    "Phi-3-128k, long": (PHI3_128K, 4097, by_length(4097)),
    "dynamic, short": (DYNAMIC, 4096, scalings.unscaled(128, 1e4)),
    "dynamic, long": (DYNAMIC, 20000, scalings.dynamic_ntk(128, 1e4, 2.0, 4096, 20000)),
}
ALL = {name: (config, {}, expected) for name, (config, expected) in CALLS.items()}
ALL |= {name: (a, {"layer_type": b}, expected) for name, (a, b, expected) in PUBLISHED.items()}
ALL |= {name: (a, {"seq_len": b}, expected) for name, (a, b, expected) in SCALED.items()}


@pytest.mark.parametrize(("config", "options", "expected"), ALL.values(), ids=ALL)
def test_config(config, options, expected):
    result = frequencies_from_config(config, **options)
    assert torch.equal(result.inv_freq, expected.inv_freq)
    assert result.attention_factor == expected.attention_factor


def test_the_config_is_not_changed():
    config = {**PHI3_128K, "rope_scaling": dict(PHI3_128K["rope_scaling"])}
    frequencies_from_config(config, seq_len=5000)
    assert config == PHI3_128K
