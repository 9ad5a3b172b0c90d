"""The pages' tables, as lines of Markdown, from what asv and the studies stored. No torch."""

import functools
import json
import re
import statistics
import textwrap
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .._engine.system.process import ROOT, SUITE
from .._studies.peers import tables, targets
from .._studies.peers.experiments import Timing
from .._studies.peers.peers_study import EVIDENCE as SWEEPS
from .._studies.peers.peers_study import stored as stored_sweeps
from .._studies.training import goals, results
from .._studies.training.sizes import POINTS, STEP
from .._subjects.metric_list import ARCHITECTURES
from .._subjects.rope.names import ITEM_BYTES
from .figures import DIRECTIONS, SIZE_CLASSES, Speed, load_values, path_speeds, speeds

MACHINE = "nvidia-h200"
"""The machine that the tables are of."""
RESULTS = SUITE / "results" / MACHINE
EVIDENCE = SUITE / "evidence"
TRAINING, SWEEP = EVIDENCE / "training", SWEEPS / MACHINE
# Commit -> what it did to the kernel, in the order of the history; the last has all benchmarks.
STEPS: dict[str, str] = json.loads(Path(__file__).with_name("steps.json").read_bytes())
FULL_CELLS = 504
CALL_MIB = 32
WIDTH = 100


def table(intro: str, titles: Sequence[str], rows: Sequence[str]) -> list[str]:
    """An introduction, unless empty, and a table under it."""
    wrapped = textwrap.wrap(intro, WIDTH, break_long_words=False, break_on_hyphens=False)
    head = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    return [*wrapped, *([""] if wrapped else []), *head, *rows]


def machine() -> dict[str, str]:
    """asv's record of the machine."""
    return json.loads((RESULTS / "machine.json").read_bytes())


def values(commit: str) -> dict[str, dict[tuple[str, ...], float]]:
    """What asv stored of a commit: benchmark -> parameters -> value."""
    (path,) = RESULTS.glob(f"{commit}*-existing-*.json")
    return load_values(path)


def _newest() -> tuple[str, dict]:
    commit = list(STEPS)[-1]
    return commit, values(commit)


# --- the kernel beside a copy ---------------------------------------------------------------------


def speed() -> list[str]:
    """The newest step of the kernel, by the tensor's size."""
    commit, measured = _newest()
    record = machine()
    intro = (
        f"One {record['gpu']} (driver {record['driver']}, torch {record['torch']}, triton "
        f"{record['triton']}), commit `{commit}`, the full grid of 64 heads, cold cache. Speed as "
        "a share of `copy_`'s on the same bytes, by the size of the tensor (`python -m benchmarks "
        f"figures {MACHINE} {commit}` prints the stored result, `asv run` measures again):"
    )
    return _speeds(intro, "tensor", *(speeds(measured, direction) for direction in DIRECTIONS))


def calls() -> list[str]:
    """The newest step of the kernel, other calls than the grid's."""
    commit, measured = _newest()
    by_call = (path_speeds(measured, direction, CALL_MIB) for direction in DIRECTIONS)
    return _speeds(f"At `{commit}`, from {CALL_MIB} MiB of input on:", "call", *by_call)


def _speeds(
    intro: str, title: str, forward: Mapping[str, Speed], backward: Mapping[str, Speed]
) -> list[str]:
    """A row for each group of cells, both directions beside each other."""
    rows = [
        f"| {name} | {own.cells} | {_numbers(own)} | {_numbers(backward.get(name))} |"
        for name, own in forward.items()
    ]
    numbers = ("minimum", "median", "GB/s")
    titles = [f"{direction}: {name}" for direction in ("forward", "backward") for name in numbers]
    return table(intro, [title, "cells", *titles], rows)


def _numbers(one: Speed | None) -> str:
    return f"{one.least:.3f} | {one.median:.3f} | {one.gbps:.0f}" if one else "n/a | | "


def history() -> list[str]:
    """Backward, median share of a copy's speed by size, a row for each step of the kernel."""
    labels = [label for _, label in SIZE_CLASSES]
    rows = []
    for commit, step in STEPS.items():
        measured = values(commit)
        if len(measured.get("rope.Backward.track_copy_ratio", {})) == FULL_CELLS:
            by_size = speeds(measured, "Backward")
            medians = " | ".join(f"{by_size[label].median:.2f}" for label in labels)
            rows.append(f"| `{commit}` | {step} | {medians} |")
    return table("", ["commit", "the kernel", *labels], rows)


# asv's classes of host times -> what a call is named in the table, by its parameter.
_EAGER = {
    "host.Call": "`apply_rotary_pos_emb`, {}",
    "host.PathCall": "`{}`",
    "peers.Call": "one tensor, by {}",
}


def host() -> list[str]:
    """What an eager call costs the host, by this package and by other libraries."""
    commit, measured = _newest()
    rows = []
    for suite, title in _EAGER.items():
        forward, both = (
            measured.get(f"{suite}.track_{name}", {}) for name in ("forward", "forward_backward")
        )
        rows += [
            f"| {title.format(key[0].strip(chr(39)))} | {_microseconds(seconds)} "
            f"| {_microseconds(both.get(key))} |"
            for key, seconds in forward.items()
        ]
    return table(f"At `{commit}`, in µs:", ["call", "forward", "forward and gradient"], rows)


def _microseconds(seconds: float | None) -> str:
    return "n/a" if seconds is None else f"{seconds * 1e6:.1f}"


# --- beside other libraries -----------------------------------------------------------------------

# Provider -> the experiment that has it, and what it is called.
_BESIDE = {
    "transformer-engine": ("throughput", "TransformerEngine's CUDA kernel"),
    "flash-attention": ("throughput", "flash-attention's Triton kernel, which takes tables"),
    "compile-angles": ("study", "`torch.compile` of the formula with angles"),
}


def summary() -> list[str]:
    """Five rows: beside a copy, beside other libraries."""
    commit, measured = _newest()
    _, label, _ = (label for _, label in SIZE_CLASSES)
    rows = []
    for direction in DIRECTIONS:
        own = speeds(measured, direction)[label]
        what = f"{direction.lower()}, {label} a tensor: speed as a share of `copy_`'s"
        rows.append(f"| {what} | {own.least:.3f} | {own.median:.3f} |")
    sweeps = stored_sweeps(SWEEP)
    for provider, (name, title) in _BESIDE.items():
        gains = tables.gains_over(*sweeps[name])[provider]
        row = f"{min(gains):.2f} | {statistics.median(gains):.2f}"
        rows.append(f"| speedup over {title} | {row} |")
    commits = {sweeps[name][1].header["commit"][:7] for name, _ in _BESIDE.values()}
    intro = (
        f"One {machine()['gpu']}; beside `copy_` at commit `{commit}` (`python -m benchmarks "
        f"figures {MACHINE} {commit}`), beside other libraries at `{'` and `'.join(commits)}` "
        "(`python -m benchmarks study peers`):"
    )
    return table(intro, ["", "minimum", "median"], rows)


def peers(directory: Path = SWEEP) -> list[str]:
    """Speedup over each other provider in each experiment, and where it is slower."""
    sweeps = stored_sweeps(directory)
    gains = {name: tables.gains_over(*sweep) for name, sweep in sweeps.items()}
    providers = dict.fromkeys(p for ratios in gains.values() for p in ratios if ratios[p])
    titles = [
        f"[{name}](sweep/{MACHINE}/{name}.md) at `{measured.header['commit'][:7]}`, "
        f"of {max(map(len, gains[name].values()))}"
        for name, (_, measured) in sweeps.items()
    ]
    rows = []
    for provider in providers:
        cells = (_gain(ratios.get(provider, [])) for ratios in gains.values())
        rows.append(f"| {provider} | {' | '.join(cells)} |")
    return table("", ["provider", *titles], rows)


_BY_COMPILER = ("compile", "compile-angles")
_PRECISIONS = {"half precision": 2, "float32": 4}  # bytes an element


def compiled(directory: Path = SWEEP) -> list[str]:
    """Speedup over torch.compile in all experiments together, by channels of a head."""
    gains: dict[tuple[int, int, str], list[float]] = defaultdict(list)
    for experiment, measured in stored_sweeps(directory).values():
        for shape in {_shape(timing) for timing in experiment.timings}:
            over = tables.gains_over(experiment, measured, functools.partial(_has, shape))
            for provider in _BY_COMPILER:
                gains[*shape, provider] += over.get(provider, [])
    columns = [(provider, name) for provider in _BY_COMPILER for name in _PRECISIONS]
    rows = []
    for channels in sorted({channels for (channels, *_), values in gains.items() if values}):
        cells = (_gain(gains[channels, _PRECISIONS[name], p]) for p, name in columns)
        rows.append(f"| {channels} | {' | '.join(cells)} |")
    return table("", ["channels a head", *(f"`{p}`, {name}" for p, name in columns)], rows)


def _shape(timing: Timing) -> tuple[int, int]:
    return timing.cell.call_name.channels, ITEM_BYTES[timing.cell.dtype]


def _has(shape: tuple[int, int], timing: Timing) -> bool:
    return _shape(timing) == shape


def _gain(values: Sequence[float]) -> str:
    if not values:
        return ""
    faster = sum(value < 1 for value in values)
    text = f"{min(values):.2f}, {statistics.median(values):.2f}"
    return f"{text} ({faster})" if faster else text


def held(directory: Path = SWEEPS) -> list[str]:
    """How many calls reach the kernel's targets, on every machine whose sweep ships."""
    rows = []
    for path in sorted(directory.iterdir()):
        for name, (experiment, measured) in stored_sweeps(path).items():
            if experiment.judged:
                gpu, commit = measured.header["machine"]["gpu"], measured.header["commit"][:7]
                counts = " | ".join(targets.held(experiment, measured).values())
                link = f"[{name}](evidence/sweep/{path.name}/{name}.md)"
                rows.append(f"| {link} | {gpu} | `{commit}` | {counts} |")
    return table("", ["calls", "GPU", "commit", *targets.GOALS], rows)


# --- a training step ------------------------------------------------------------------------------

# What rotates -> its provider in eager PyTorch and compiled.
_ROTATIONS = {
    "Llama's formula in Transformers": ("eager", "compiled"),
    "this package": ("ours-eager", "ours"),
    "this package, patched into Transformers": ("transformers", ""),
    "this package, in the kernels of attention and its projection": ("", "triton-fused"),
}
_COMPARED = ("eager", "compiled", "ours", "hybrid")


def rope_share(directory: Path = TRAINING, point: str = "410M-2048") -> list[str]:
    """What RoPE adds to a step of one model."""
    header, _, _ = measured = results.read(directory / f"{point}.jsonl")
    step = _of_step(measured)
    size, _, context = point.rpartition("-")
    intro = (
        "What RoPE adds to the time of a training step, with the 95 % interval (Llama-like, "
        f"{size}, context {context}, bfloat16, at `{header['commit'][:7]}`; `{header['command']}`):"
    )
    rows = []
    for name, providers in _ROTATIONS.items():
        shares = (results.written(step[p].rope) if p else "" for p in providers)
        rows.append(f"| {name} | {' | '.join(shares)} |")
    return table(intro, ["RoPE by", "eager PyTorch", "`torch.compile`"], rows)


def training(directory: Path = TRAINING) -> list[str]:
    """A step of every model that was measured, by some providers."""
    rows = []
    for point, measured in _measured(directory).items():
        step = _of_step(measured)
        times = (f"{step[p].seconds * 1e3:.1f}" if p in step else "n/a" for p in _COMPARED)
        link = f"[{point}](evidence/training/{point}.md)"
        rows.append(f"| {link} | `{measured.header['commit'][:7]}` | {' | '.join(times)} |")
    return table("", ["step", "commit", *(f"`{name}`" for name in _COMPARED)], rows)


def training_targets(directory: Path = TRAINING) -> list[str]:
    """What was measured beside what a step and its kernels are to reach."""
    measured = _measured(directory)
    rows = [f"| {' | '.join(cells)} |" for cells in goals.rows(measured)]
    return table("", ["target", "at least", "aim", *measured], rows)


def _measured(directory: Path) -> dict[str, results.Stored]:
    """By name, the points that are stored."""
    paths = {point: directory / f"{point}.jsonl" for point in POINTS}
    return {point: results.read(path) for point, path in paths.items() if path.exists()}


def _of_step(measured: results.Stored) -> dict[str, results.Figure]:
    """By provider, the figures of a step that have a time."""
    timed = (f for f in measured.figures if f.part == STEP and f.status == "measured")
    return {figure.provider: figure for figure in timed}


# --- where it runs, and the simulated verdict -----------------------------------------------------


def tested() -> list[str]:
    """Where the kernel was measured, and where the tests of the GPU passed when they last ran."""
    machines = [machine()]
    for path in sorted(SWEEPS.glob("*/random.jsonl")):
        machines.append(json.loads(path.read_text(encoding="utf-8").splitlines()[0])["machine"])
    rows = [f"| measured | {record['gpu']} | {_versions(record)} |" for record in machines]
    for run in json.loads((EVIDENCE / "gpu-tests.json").read_text(encoding="utf-8")).values():
        outcomes = (name for name in ("passed", "failed", "error", "skipped") if run[name])
        counts = ", ".join(f"{run[name]:,} {name}" for name in outcomes)
        rows.append(f"| GPU tests: {counts} | {run['gpu']} | {_versions(run)} |")
    pins = _versions(_matches(r"^(torch|triton)==(\S+)", "constraints.txt"))
    least = _versions(_matches(r'"(torch|triton)>=([\d.]+)"', "pyproject.toml"))
    rows.append(f"| compiled, its machine code counted | {', '.join(ARCHITECTURES)} | {pins} |")
    rows.append(f"| tested in Triton's interpreter | Linux, without a GPU | {pins}; {least} |")
    return table("", ["what", "where", "with"], list(dict.fromkeys(rows)))


def _matches(pattern: str, name: str) -> dict[str, str]:
    return dict(re.findall(pattern, (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE))


def _versions(record: Mapping[str, str]) -> str:
    return f"torch {record['torch'].partition('+')[0]}, triton {record['triton']}"


def simulation() -> list[str]:
    """A row for each kind of noise, in percent."""
    stored = json.loads((EVIDENCE / "simulation.json").read_bytes())
    shares = {name: run["figures"] for name, run in stored["runs"]["today"].items()}
    rows = [
        f"| {noise} | {' | '.join(f'{100 * share:.3g}' for share in shares[name].values())} |"
        for name, noise in stored["noise"].items()
    ]
    return table("", ["noise", *shares[next(iter(shares))]], rows)


TABLES: dict[str, Callable[[], list[str]]] = {
    **{"summary": summary, "speed": speed, "history": history, "calls": calls, "host": host},
    **{"peers": peers, "compiled": compiled, "held": held, "rope": rope_share},
    **{"training": training, "targets": training_targets},
    **{"tested": tested, "simulation": simulation},
}
"""By the name that pages mark."""
