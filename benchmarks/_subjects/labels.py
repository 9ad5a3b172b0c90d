"""Name metrics and their parameters as a reader sees them."""

_NAMES = {
    "host.Call.forward": "Host call forward",
    "host_cost.Call.seconds": "Host call",
    "host.Call.forward_backward": "Host call forward + backward",
    "host.Memory.peak_bytes": "peak memory",
    "codegen.Codegen.spilled_bytes": "spills",
    "codegen.Codegen.stack_bytes": "stack",
    "codegen.Codegen.shared_bytes": "shared memory",
    "codegen.Codegen.narrow_share": "narrow accesses",
}
# Values of parameters that say nothing without the parameter's name.
_WORDS = {
    **{"True": "interleaved", "False": "", "long": "long context", "short": "short context"},
    **{"small": "small tensor", "large": "large tensor"},
}


def label(metric: str, params: tuple[str, ...]) -> tuple[str, str]:
    """ "rope.Forward.track_latency" as "Forward", and its parameters in words."""
    return _name(metric), _where(metric.partition(".")[0], params)


def _name(metric: str) -> str:
    module, suite, name = metric.replace("track_", "").split(".")
    if name == "latency":
        return suite
    alike = "Codegen" if suite == "Surface" else suite.removeprefix("Path")
    words = _NAMES.get(f"{module}.{alike}.{name}", name.replace("_", " "))
    return f"{words} of other calls" if suite[4:] in ("Memory", "Launches", "Error") else words


def _where(module: str, params: tuple[str, ...]) -> str:
    match module, params:
        case "rope", (seq_len, hidden, batch, dtype, layout):
            return f"{seq_len} × {hidden}, batch {batch}, {dtype}, {layout}"
        case "paths", (call, mib, dtype):
            return f"{call}, {mib} MiB, {dtype}"
        case "surface", (call, mib):
            return f"{call}, {mib} MiB"
        case "model_calls", (model, step, inputs):
            return f"{model}, {step}, with {inputs}"
    words = [_WORDS.get(value, value) for value in params]
    channels = [f"{word} channels" if word.isdecimal() else word for word in words]
    return ", ".join(filter(None, channels))
