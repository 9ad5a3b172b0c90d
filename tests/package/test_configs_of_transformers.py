"""Every config class of Transformers that has a rotary module, where Transformers is installed.

The same JSON gives the same frequencies or is refused; with any number in it doubled, too.
"""

import importlib
import inspect
import json
import pkgutil

import pytest
import torch

from rope_triton import frequencies_from_config

transformers = pytest.importorskip("transformers", minversion="5.23")

LINEAR = {"rope_type": "linear", "factor": 8.0}


def modules():
    models = importlib.import_module("transformers.models")
    for module in pkgutil.walk_packages(models.__path__, models.__name__ + "."):
        if module.name.rpartition(".")[2].startswith("modeling_"):
            try:
                yield importlib.import_module(module.name)
            except ImportError:  # it needs another library
                continue


def rotary_modules():
    """Each config class with the class of its frequencies."""
    rotary = {}
    for module in modules():
        configs = [x for x in vars(module).values() if inspect.isclass(x)]
        configs = [x for x in configs if issubclass(x, transformers.PreTrainedConfig)]
        for name, kind in vars(module).items():
            if "Rotary" in name or "RopePosition" in name:
                parameter = inspect.signature(kind).parameters.get("config")
                kinds = configs if parameter is None else [parameter.annotation]
                for config in kinds if kinds[0] in configs else configs:
                    if parameter is not None:
                        rotary.setdefault(config, kind)
    return rotary.items()


def theirs(kind, config, values):
    """Type of layer -> frequencies and factor; None where this is no config of the class."""
    try:
        # from_dict keeps and changes what it is given.
        module = kind(config.from_dict(json.loads(json.dumps(values))))
    except Exception:
        return {}
    result = {}
    for name, buffer in module.named_buffers():
        if name.endswith("inv_freq") and "original" not in name:
            layer = name.removesuffix("inv_freq").rstrip("_")
            factor = getattr(module, f"{layer}_attention_scaling".lstrip("_"), 1.0)
            result[layer or None] = buffer.float(), factor
    return result


def verdict(config, expected, layer_type):
    try:
        inv_freq, factor = frequencies_from_config(config, 16, layer_type)
    except ValueError:
        return "refused"
    same = inv_freq.shape == expected[0].shape and factor == pytest.approx(expected[1], rel=1e-9)
    return "equal" if same and torch.allclose(inv_freq, expected[0], 4e-6, 0) else "differs"


def forms(config):
    """The JSON as it is; as it was before Transformers 5; with one of its numbers doubled."""
    yield "", config
    parameters = config.get("rope_parameters") or {}
    rest = {key: value for key, value in config.items() if key != "rope_parameters"}
    outer = {
        key: parameters[key] for key in ("rope_theta", "partial_rotary_factor") if key in parameters
    }
    if outer:
        inner = {key: value for key, value in parameters.items() if key not in outer}
        scaling = None if parameters.get("rope_type") == "default" else inner
        yield "flat", {**rest, **outer, "rope_scaling": scaling}
    elif parameters:  # by types of layers
        yield "flat", {**rest, "rope_theta": 7e4}
        yield "flat", {**rest, "rope_theta": 7e4, "rope_scaling": LINEAR}
        yield "flat", {**rest, "rope_parameters": {**LINEAR, "rope_theta": 7e4}}
    for key, value in config.items():
        if type(value) in (int, float):
            yield key, {**config, key: 2 * value}


def test_no_config_gives_other_frequencies():
    transformers.logging.set_verbosity_error()
    counts, wrong = dict.fromkeys(("equal", "refused", "differs"), 0), []
    for kind, module in rotary_modules():
        if not theirs(module, kind, {}):
            continue
        for form, config in forms(json.loads(json.dumps(kind().to_dict()))):
            for layer, values in theirs(module, kind, config).items():
                for layer_type in {layer, None} if form == "flat" else {layer}:
                    result = verdict(config, values, layer_type)
                    counts[result] += form in ("", "flat")
                    if result == "differs":
                        wrong.append((kind.__name__, form, layer_type))
    assert not wrong
    assert counts["equal"] > counts["refused"] > 0  # most of the refused are of image encoders
