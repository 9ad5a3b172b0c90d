"""Read the frequencies of a model from its Hugging Face config."""

from collections.abc import Mapping
from typing import Any

import torch

from rope_triton import scalings

# Type of scaling -> the keys it needs and those it may have besides.
_KEYS: dict[str, tuple[set[str], set[str]]] = {
    "default": (set(), set()),
    "mrope": (set(), set()),
    "linear": ({"factor"}, set()),
    "proportional": (set(), {"factor"}),
    "dynamic": ({"factor"}, set()),
    # Hunyuan's fixed factor has the type "dynamic" and keys of YaRN that its model does not read.
    "alpha": ({"alpha"}, {"factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"}),
    "llama3": (
        {"factor", "low_freq_factor", "high_freq_factor"},
        {"original_max_position_embeddings"},
    ),
    "yarn": (
        set(),
        {
            *("factor", "original_max_position_embeddings", "attention_factor", "truncate"),
            *("beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
        },
    ),
    "longrope": (
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
        0. With a ``layer_type`` the ``head_dim`` is that of these layers in ``per_layer_config``. A
        model that calls them otherwise needs them under these names.
    seq_len : int or torch.Tensor, optional
        Largest position + 1, as of :func:`scalings.dynamic_ntk`; needed by "dynamic" and
        "longrope", whose frequencies depend on it.
    layer_type : str, optional
        Which entry of ``rope_parameters``, if it has one for each type of layer in ``layer_types``.

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
        a default of its own; or if the scaling has a type or a key that is not known here.

    Examples
    --------
    >>> config = {"rope_theta": 10000.0, "head_dim": 128, "rope_scaling": None}
    >>> inv_freq, attention_factor = frequencies_from_config(config)
    >>> angles = rope_triton.rotary_angles(torch.arange(2048), inv_freq)
    """
    if not isinstance(config, Mapping):
        raise TypeError(f"config must be a mapping, got {type(config).__name__}; see to_dict()")
    parameters = _parameters(config, layer_type)
    kind = _kind(parameters)
    given = _given(parameters, kind)
    config = _of_layers(config, layer_type)
    share = parameters.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    dim, base = _rotated(config, 1 if kind == "proportional" else share), _base(config, parameters)
    if kind in ("dynamic", "longrope"):
        if seq_len is None:
            raise ValueError(f"the frequencies of {kind!r} depend on seq_len, got None")
        given["seq_len"] = scalings.length_of("seq_len", seq_len)
    if kind in ("yarn", "llama3", "longrope"):
        given = _with_lengths(given, config, kind)
    match kind:
        case "linear":
            return scalings.linear(dim, base, **given)
        case "proportional":
            return scalings.proportional(dim, base, 1.0 if share is None else share, **given)
        case "dynamic":
            trained = _needed(config, "max_position_embeddings")
            return scalings.dynamic_ntk(dim, base, max_position_embeddings=trained, **given)
        case "alpha":
            return scalings.ntk(dim, base, given["alpha"])
        case "yarn":
            return scalings.yarn(dim, base, **given)
        case "llama3":
            return scalings.llama3(dim, base, **given)
        case "longrope":
            return scalings.longrope(dim, base, **_with_mscale(given))
        case _:
            return scalings.unscaled(dim, base)


def _parameters(config, layer_type):
    """The description of the scaling; empty if there is none."""
    found = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(found, Mapping):
        raise TypeError(f"rope_scaling must be a mapping, got {type(found).__name__}")
    by_layer = {name for name, value in found.items() if isinstance(value, Mapping)}
    if layer_type is None and not by_layer:
        return found
    if layer_type not in by_layer:
        raise ValueError(f"layer_type must be one of {sorted(by_layer)}, got {layer_type!r}")
    return found[layer_type]


def _kind(parameters):
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind == "su":  # the first name of it, in Phi-3
        return "longrope"
    if kind == "dynamic" and parameters.get("alpha"):
        return "alpha"
    if kind not in _KEYS or kind == "alpha":
        known = sorted({*_KEYS, "su"} - {"alpha"})
        raise ValueError(f"the type of rope_scaling must be one of {known}, got {kind!r}")
    return kind


def _given(parameters, kind):
    """The keys that the scaling takes, without those that are None."""
    given = {key: value for key, value in parameters.items() if value is not None}
    needed, allowed = _KEYS[kind]
    if missing := needed - set(given):
        raise ValueError(f"rope_scaling of type {kind!r} needs {sorted(missing)}, got {parameters}")
    if unknown := set(given) - needed - allowed - _ALWAYS:
        raise ValueError(
            f"rope_scaling of type {kind!r} has {sorted(unknown)}, which are not known here: "
            "leave them out if they change no frequency"
        )
    return {key: value for key, value in given.items() if key not in _ALWAYS}


def _of_layers(config, layer_type):
    """The config with the size of a head that layers of this type have, as Gemma 4's differ."""
    own = {int(index): each for index, each in (config.get("per_layer_config") or {}).items()}
    layers = [i for i, each in enumerate(config.get("layer_types") or ()) if each == layer_type]
    sizes = {own.get(index, {}).get("head_dim", config.get("head_dim")) for index in layers}
    if len(sizes) > 1:
        raise ValueError(f"layers of type {layer_type!r} have heads of different sizes: {sizes}")
    return {**config, "head_dim": sizes.pop()} if sizes else config


def _rotated(config, share):
    for key in ("qk_rope_head_dim", "rotary_dim"):
        if config.get(key) is not None:
            return config[key]
    head = config.get("head_dim")
    if head is None:
        head = _needed(config, "hidden_size") // _needed(config, "num_attention_heads")
    if share is None:
        return head
    scalings.check_positive(head_dim=head, partial_rotary_factor=share)
    return int(head * share)


def _base(config, parameters):
    base = parameters.get("rope_theta")
    return _needed(config, "rope_theta") if base is None else base


def _with_lengths(given, config, kind):
    """With the original length and the factor, as transformers finds them."""
    original = config.get("original_max_position_embeddings")  # Phi-3; it goes first
    if original is None:
        original = given.get("original_max_position_embeddings")
    if original is None:
        original = _needed(config, "max_position_embeddings")
    scalings.check_lengths(original_max_position_embeddings=original)
    given = {**given, "original_max_position_embeddings": original}
    if kind != "llama3" and "factor" not in given:
        given["factor"] = _needed(config, "max_position_embeddings") / original
    return given


def _with_mscale(given):
    """Phi-3.5-MoE names the attention factor of either length."""
    short, long = given.pop("short_mscale", None), given.pop("long_mscale", None)
    mscale = long if given["seq_len"] > given["original_max_position_embeddings"] else short
    return given if mscale is None else {**given, "attention_factor": mscale}


def _needed(config, key):
    if config.get(key) is None:
        inner = [name for name, value in config.items() if isinstance(value, Mapping)]
        raise ValueError(f"config needs {key!r}, which it lacks; parts of it are {sorted(inner)}")
    scalings.check_positive(**{key: config[key]})
    return config[key]
