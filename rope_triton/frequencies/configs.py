"""Read the frequencies of a model from its Hugging Face config."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from rope_triton import scalings

# Type of scaling -> its function, the keys it needs and those it may have besides.
_TYPES: dict[str, tuple[Callable[..., scalings.Frequencies], set[str], set[str]]] = {
    "default": (scalings.unscaled, set(), set()),
    "mrope": (scalings.unscaled, set(), set()),
    "linear": (scalings.linear, {"factor"}, set()),
    "proportional": (scalings.proportional, set(), {"factor"}),
    "dynamic": (scalings.dynamic_ntk, {"factor"}, set()),
    # Hunyuan's fixed factor has the type "dynamic" and keys of YaRN that its model does not read.
    "alpha": (
        scalings.ntk,
        {"alpha"},
        {"factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"},
    ),
    "llama3": (
        scalings.llama3,
        {"factor", "low_freq_factor", "high_freq_factor"},
        {"original_max_position_embeddings"},
    ),
    "yarn": (
        scalings.yarn,
        set(),
        {
            *("factor", "original_max_position_embeddings", "attention_factor", "truncate"),
            *("beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
        },
    ),
    "longrope": (
        scalings.longrope,
        {"short_factor", "long_factor"},
        {
            *("factor", "original_max_position_embeddings", "attention_factor"),
            *("short_mscale", "long_mscale"),
        },
    ),
}
# These are read elsewhere, or change no frequency.
_ALWAYS = {
    *("type", "rope_type", "rope_theta", "partial_rotary_factor"),
    *("mrope_section", "mrope_interleaved", "finetuned"),
    # Scales queries by their positions; Ministral 3 repeats the new length here.
    *("llama_4_scaling_beta", "max_position_embeddings"),
}
# Name here -> other names of the same.
_ALIASES = {
    "head_dim": ("kv_channels", "attention_head_dim"),
    "partial_rotary_factor": ("rotary_pct", "rope_pct"),
    "rope_theta": ("rotary_emb_base", "rotary_embedding_base"),
}
# A key of a config that this finds is in ``_KNOWN``, or the config is refused.
_ABOUT_ROTATION = re.compile("rope|rotary|rotat|theta|freq_alloc|^pos_embed|head_dim|kv_channels")
_KNOWN = {
    *("rope_scaling", "rope_parameters", "rope_local_base_freq", *_ALIASES),
    *("rotary_dim", "qk_rope_head_dim", "global_head_dim"),
    # These change no frequency: which channels are a pair, which layers rotate, heads of values,
    # of indexers and of layers without a rotation, the part of a head that is not rotated.
    *("rope_interleave", "rope_interleaved", "no_rope_layers", "no_rope_layer_interval"),
    *("v_head_dim", "qk_nope_head_dim", "qk_head_dim", "linear_head_dim", "index_head_dim"),
    *("linear_key_head_dim", "linear_value_head_dim", "mamba_head_dim"),
}
# Floats in some configs.
_INTEGERS = {
    *("original_max_position_embeddings", "max_position_embeddings", "rotary_dim"),
    *("head_dim", "qk_rope_head_dim", "global_head_dim", "hidden_size", "num_attention_heads"),
}
# Types of models that have frequencies for each type of layer, by rules that are not in a config.
_BY_LAYER_TYPE = {
    *("beam", "deepseek_v4", "diffusion_gemma_text", "dots3_note_text", "embedding_gemma2_text"),
    *("gemma3_text", "gemma3n_text", "gemma4_text", "gemma4_unified_text", "laguna", "lfm3"),
    *("mellum", "mimo_v2_flash", "modernbert", "modernbert-decoder", "neomme", "olmo3"),
    *("t5gemma2_text", "ultrabert", "zaya"),
}
# Types of models whose code does not read the head_dim that their config has.
_WITHOUT_HEAD_DIM = {
    *("deepseek_ocr2_text", "dots3_note_audio_encoder", "musicflamingo", "unlimited_ocr_text"),
}


def frequencies_from_config(
    config: Mapping[str, Any],
    seq_len: int | torch.Tensor | None = None,
    layer_type: str | None = None,
) -> scalings.Frequencies:
    """Inverse frequencies and attention factor of a model, from its Hugging Face config.

    Parameters
    ----------
    config : mapping
        What ``config.json`` holds or ``config.to_dict()`` gives, of the text model if there are
        several. Read are ``rope_scaling`` (or ``rope_parameters``, as transformers 5 calls it),
        ``rope_theta``, ``max_position_embeddings``, ``original_max_position_embeddings``, and for
        the rotated size the first that there is of ``qk_rope_head_dim``, ``rotary_dim``,
        ``head_dim`` and ``hidden_size // num_attention_heads``, the last two times
        ``partial_rotary_factor``, but for "proportional", whose other channels get the frequency
        0. With a ``layer_type`` the ``head_dim`` is that of these layers in ``per_layer_config``,
        or ``global_head_dim`` for "full_attention". Other names that are known are ``kv_channels``
        and ``attention_head_dim`` for ``head_dim``, ``rotary_pct`` and ``rope_pct`` for
        ``partial_rotary_factor``, and ``rotary_emb_base`` and ``rotary_embedding_base`` for
        ``rope_theta``. Integers may be written as floats. An entry that is None counts as missing.
    seq_len : int or torch.Tensor, optional
        Largest position + 1, as of :func:`scalings.dynamic_ntk`; needed by "dynamic" and
        "longrope", whose frequencies depend on it.
    layer_type : str, optional
        Which entry of ``rope_parameters``, if it has one for each type of layer in ``layer_types``.
        With ``rope_local_base_freq`` (Gemma 3) that is the base of "sliding_attention", which is
        not scaled, and ``rope_scaling`` that of "full_attention".

    Returns
    -------
    scalings.Frequencies
        As ``transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS`` gives for the types "default",
        "linear", "dynamic", "yarn", "longrope", "llama3" and "proportional", but rounded once.
        Besides, "su" is "longrope", "mrope" is "default" (its sections go to
        :func:`rope_triton.mrope_angles`), and "dynamic" with ``alpha`` is :func:`scalings.ntk`.

    Raises
    ------
    TypeError
        If ``config`` is not a mapping, or ``seq_len`` no integer.
    ValueError
        If something that is needed is missing, including ``rope_theta``, for which every model has
        a default of its own; if the scaling has a type or a key that is not known here; if the
        config has another key about rotation or the size of a head, by its name; if two names of
        the same have different values; or if ``layer_type`` is none of those there are.

    Examples
    --------
    >>> config = {"rope_theta": 10000.0, "head_dim": 128, "rope_scaling": None}
    >>> inv_freq, attention_factor = frequencies_from_config(config)
    >>> angles = rope_triton.rotary_angles(torch.arange(2048), inv_freq)
    """
    if not isinstance(config, Mapping):
        raise TypeError(f"config must be a mapping, got {type(config).__name__}; see to_dict()")
    config = _checked(config)
    parameters = _parameters(config, layer_type)
    kind = _kind(parameters)
    options = _options(parameters, kind)
    config = _of_layers(config, layer_type)
    share = parameters.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    dim, base = _rotated(config, 1 if kind == "proportional" else share), _base(config, parameters)
    if kind in ("dynamic", "longrope"):
        if seq_len is None:
            raise ValueError(f"the frequencies of {kind!r} depend on seq_len, got None")
        options["seq_len"] = scalings.length_of("seq_len", seq_len)
    if kind in ("yarn", "llama3", "longrope"):
        options = _with_lengths(options, config, kind)
    if kind == "proportional":
        options["share"] = 1.0 if share is None else share
    elif kind == "dynamic":
        options["max_position_embeddings"] = _needed(config, "max_position_embeddings")
    elif kind == "alpha":
        options = {"factor": options["alpha"]}
    elif kind == "longrope":
        options = _with_mscale(options)
    return _TYPES[kind][0](dim, base, **options)


def _checked(config):
    """The config by the names that are read here, without what is None."""
    entries = {key: value for key, value in _with_integers(config).items() if value is not None}
    for name, others in _ALIASES.items():
        for other in others:
            if other in entries and entries[other] != entries.setdefault(name, entries[other]):
                raise ValueError(f"config has {name!r} and {other!r}, which differ")
            entries.pop(other, None)
    if entries.get("model_type") == "ernie4_5_vl_moe_text":
        raise ValueError("the frequencies of 'ernie4_5_vl_moe_text' have an order of their own")
    unknown = {key for key in entries if _ABOUT_ROTATION.search(key)} - _KNOWN
    if _has_bases(entries.get("rope_parameters")):  # DeepSeek V4's are there again
        unknown.discard("compress_rope_theta")
    if unknown:
        raise ValueError(
            f"config has {sorted(unknown)}, which are not known here: "
            "leave them out if they change no frequency"
        )
    return entries


def _has_bases(parameters):
    """Whether there is an entry for each type of layer, with its base."""
    entries = parameters.values() if isinstance(parameters, Mapping) else ()
    return bool(entries) and all(isinstance(x, Mapping) and x.get("rope_theta") for x in entries)


def _with_integers(config):
    """With the integers that are written as floats."""
    return {
        key: int(value)
        if key in _INTEGERS and isinstance(value, float) and value.is_integer()
        else value
        for key, value in config.items()
    }


def _parameters(config, layer_type):
    """The description of the scaling; empty if there is none."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(scaling, Mapping):
        raise TypeError(f"rope_scaling must be a mapping, got {type(scaling).__name__}")
    by_layer = {name: value for name, value in scaling.items() if isinstance(value, Mapping)}
    if "rope_local_base_freq" in config:  # Gemma 3
        sliding = {"rope_theta": config["rope_local_base_freq"]}
        by_layer = by_layer or {"full_attention": scaling}
        by_layer["sliding_attention"] = sliding | dict(by_layer.get("sliding_attention", {}))
    elif by_layer and (beside := sorted(x for x in set(scaling) - set(by_layer) if scaling[x])):
        raise ValueError(f"rope_scaling has {beside} beside its types of layers {sorted(by_layer)}")
    if not by_layer and ("global_head_dim" in config or config.get("model_type") in _BY_LAYER_TYPE):
        raise ValueError(
            "the layers of this model differ by their type: config needs rope_parameters with an "
            "entry for each, as its to_dict() of transformers 5 has"
        )
    if layer_type is None and not by_layer:
        return _with_integers(scaling)
    if layer_type not in by_layer:
        these = f"one of {sorted(by_layer)}" if by_layer else "None, as all layers share one entry"
        raise ValueError(f"layer_type must be {these}, got {layer_type!r}")
    return _with_integers(by_layer[layer_type])


def _kind(parameters):
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind == "su":  # the first name of it, in Phi-3
        return "longrope"
    if kind == "dynamic" and parameters.get("alpha"):
        return "alpha"
    if kind not in _TYPES or kind == "alpha":
        names = sorted({*_TYPES, "su"} - {"alpha"})
        raise ValueError(f"the type of rope_scaling must be one of {names}, got {kind!r}")
    return kind


def _options(parameters, kind):
    """The keys that the scaling takes, without those that are None."""
    options = {key: value for key, value in parameters.items() if value is not None}
    _, needed, allowed = _TYPES[kind]
    if missing := needed - set(options):
        raise ValueError(f"rope_scaling of type {kind!r} needs {sorted(missing)}, got {parameters}")
    if unknown := set(options) - needed - allowed - _ALWAYS:
        raise ValueError(
            f"rope_scaling of type {kind!r} has {sorted(unknown)}, which are not known here: "
            "leave them out if they change no frequency"
        )
    return {key: value for key, value in options.items() if key not in _ALWAYS}


def _of_layers(config, layer_type):
    """The config with the size of a head that layers of this type have, as Gemma 4's differ."""
    own = {int(index): layer for index, layer in config.get("per_layer_config", {}).items()}
    types = config.get("layer_types", ())
    layers = [i for i, kind in enumerate(types) if layer_type in (None, kind)]
    sizes = {own.get(index, {}).get("head_dim", config.get("head_dim")) for index in layers}
    if not own and layer_type == "full_attention" and "global_head_dim" in config:
        sizes = {config["global_head_dim"]}
    if len(sizes) > 1:
        raise ValueError(f"layers of type {layer_type!r} have heads of different sizes: {sizes}")
    return {**config, "head_dim": sizes.pop()} if sizes else config


def _rotated(config, share):
    head, share = config.get("head_dim"), 1 if share is None else share
    scalings.check_positive(partial_rotary_factor=share)
    for key in ("qk_rope_head_dim", "rotary_dim"):
        if rotated := config.get(key):
            if key == "qk_rope_head_dim" and head and int(head * share) != rotated:
                raise ValueError(
                    f"config has {key!r} {rotated} and 'head_dim' {head}: leave out the one that "
                    "the model does not rotate"
                )
            return rotated
    ignored = config.get("model_type") in _WITHOUT_HEAD_DIM
    if head is None or ignored:
        computed = _needed(config, "hidden_size") // _needed(config, "num_attention_heads")
        if head not in (None, computed):
            raise ValueError(
                f"config has 'head_dim' {head}, which this model ignores, but hidden_size // "
                f"num_attention_heads is {computed}"
            )
        head = computed
    scalings.check_positive(head_dim=head)
    return int(head * share)


def _base(config, parameters):
    base = parameters.get("rope_theta")
    return _needed(config, "rope_theta") if base is None else base


def _with_lengths(options, config, kind):
    """With the original length and the factor, as transformers finds them."""
    original = config.get("original_max_position_embeddings")  # Phi-3; it goes first
    if original is None:
        original = options.get("original_max_position_embeddings")
    if original is None:
        original = _needed(config, "max_position_embeddings")
    scalings.check_lengths(original_max_position_embeddings=original)
    options = {**options, "original_max_position_embeddings": original}
    if kind != "llama3" and "factor" not in options:
        options["factor"] = _needed(config, "max_position_embeddings") / original
    return options


def _with_mscale(options):
    """Phi-3.5-MoE names the attention factor of either length."""
    short, long = options.pop("short_mscale", None), options.pop("long_mscale", None)
    mscale = long if options["seq_len"] > options["original_max_position_embeddings"] else short
    return options if mscale is None else {**options, "attention_factor": mscale}


def _needed(config, key):
    if config.get(key) is None:
        inner = [name for name, value in config.items() if isinstance(value, Mapping)]
        raise ValueError(f"config needs {key!r}, which it lacks; parts of it are {sorted(inner)}")
    scalings.check_positive(**{key: config[key]})
    return config[key]
