"""Make the READMEs' tables of what ``evidence`` holds, as lines. Imports no torch."""

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from .._studies.peers import tables
from .._studies.peers import targets as kernel_goals
from .._studies.peers.experiments import Experiment, Timing
from .._studies.peers.peers_study import EVIDENCE, stored
from .._studies.peers.state import Results
from .._studies.training import goals
from .._studies.training import results as training
from .._studies.training.sizes import POINTS, STEP
from .._subjects.metrics import ARCHITECTURES
from .._subjects.rope.names import ITEM_BYTES
from .._system.process import ROOT, SUITE
from .readme_tables import MACHINE, RESULTS, SWEEPS, table, wrapped

SIMULATION = SUITE / "evidence" / "simulation.json"
TRAINING = SUITE / "evidence" / "training"
GPU_TESTS = SUITE / "evidence" / "gpu-tests.json"

_WHERE = f"evidence/sweep/{MACHINE}"

_Sweeps = Mapping[str, tuple[Experiment, Results]]
"""By name, the experiments that ship."""


# --- where it runs --------------------------------------------------------------------------------


def tested() -> list[str]:
    """Where the kernel was measured, and where the tests of the GPU passed when they last ran."""
    measured = [json.loads((RESULTS / MACHINE / "machine.json").read_text(encoding="utf-8"))]
    measured += [
        json.loads(path.read_text(encoding="utf-8").partition("\n")[0])["machine"]
        for path in sorted(EVIDENCE.glob("*/random.jsonl"))
    ]
    rows = {
        f"| measured | {each['gpu']} | {_versions(each['torch'], each['triton'])} |": None
        for each in measured
    }
    for each in json.loads(GPU_TESTS.read_text(encoding="utf-8")).values():
        counts = ", ".join(
            f"{each[outcome]:,} {outcome}"
            for outcome in ("passed", "failed", "error", "skipped")
            if each[outcome]
        )
        where = f"{each['gpu']} | {_versions(each['torch'], each['triton'])}"
        rows[f"| GPU tests: {counts} | {where} |"] = None
    pins = _versions(**dict(re.findall(r"^(torch|triton)==(\S+)", _text("constraints.txt"), re.M)))
    least = _versions(**dict(re.findall(r'"(torch|triton)>=([\d.]+)"', _text("pyproject.toml"))))
    rows[f"| compiled, its machine code counted | {', '.join(ARCHITECTURES)} | {pins} |"] = None
    rows[f"| tested in Triton's interpreter | Linux, without a GPU | {pins}; {least} |"] = None
    return ["| what | where | with |", "|---|---|---|", *rows]


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _versions(torch: str, triton: str) -> str:
    return f"torch {torch.partition('+')[0]}, triton {triton}"


# --- a training step ------------------------------------------------------------------------------

# What rotates -> its provider in eager PyTorch and compiled.
_ROTATIONS = {
    "Llama's formula in Transformers": ("eager", "compiled"),
    "this package": ("ours-eager", "ours"),
    "this package, patched into Transformers": ("transformers", ""),
    "this package, in the kernels of attention and its projection": ("", "triton-fused"),
}


def rope_share(directory: Path = TRAINING, point: str = "410M-2048") -> list[str]:
    """What RoPE adds to a step of one model."""
    header, _, found = training.read(directory / f"{point}.jsonl")
    of = {figure.provider: figure for figure in found if figure.part == STEP}
    size, _, context = point.rpartition("-")
    intro = (
        "What RoPE adds to a training step, with the 95 % interval: a Llama-like model "
        f"of {size} parameters, context {context}, bfloat16, at `{header['commit'][:7]}` "
        f"(`{header['command']}`):"
    )
    rows = []
    for name, providers in _ROTATIONS.items():
        shares = (training.written(of[each].rope) if each else "" for each in providers)
        rows.append(f"| {name} | {' | '.join(shares)} |")
    return table(intro, ["RoPE by", "eager PyTorch", "`torch.compile`"], rows)


def steps(directory: Path = TRAINING) -> list[str]:
    """A step of every model that was measured, by each provider."""
    lines: list[str] = []
    for point, measured in _measured(directory).items():
        lines += ["", *_step(point, measured)] if lines else _step(point, measured)
    return lines


def _measured(directory: Path) -> dict[str, training.Stored]:
    """By name, the points that are stored."""
    paths = {point: directory / f"{point}.jsonl" for point in POINTS}
    return {point: training.read(path) for point, path in paths.items() if path.exists()}


def _step(point: str, measured: training.Stored) -> list[str]:
    header, _, found = measured
    machine = header["machine"]
    intro = (
        f"`{point}` on one {machine['gpu']} (driver {machine['driver']}, torch {machine['torch']}, "
        f"triton {machine['triton']}), commit `{header['commit'][:7]}`; `{header['command']}`, "
        f"[all of it](evidence/training/{point}.md):"
    )
    shown = [each for each in found if each.part == STEP and each.status == "measured"]
    return [*wrapped(intro), "", *training.table(shown)]


def targets(directory: Path = TRAINING) -> list[str]:
    """How what was measured stands beside the goals; nothing where nothing is stored."""
    measured = _measured(directory)
    if not measured:
        return []
    intro = (
        "The goals of the project, and what was reached. Where a row names nothing else, it is the "
        "speed of the first provider as a multiple of the second's, from their times in the same "
        "turns, with the 95 % interval. Peak memory is a share of the second's. Bold is below what "
        "is asked at least, or above the most:"
    )
    rows = [f"| {' | '.join(cells)} |" for cells in goals.rows(measured)]
    return table(intro, ["goal", "at least", "aim", *(f"`{each}`" for each in measured)], rows)


# --- the sweep ------------------------------------------------------------------------------------


def peers(directory: Path = SWEEPS) -> list[str]:
    """The package beside other libraries, from the sweep that ships; nothing where none does."""
    found = stored(directory)
    if not found:
        return []
    throughput = _throughput(*found["throughput"]) if "throughput" in found else []
    return [*throughput, *_gains(found), "", *_compiled(found)]


def held(directory: Path = EVIDENCE) -> list[str]:
    """How many calls reach the kernel's goals, on every machine whose sweep ships."""
    rows = []
    for machine in sorted(directory.iterdir()):
        for name, (experiment, measured) in stored(machine).items():
            if not experiment.judged:
                continue
            header, where = measured.header, f"evidence/sweep/{machine.name}/{name}.md"
            with_quack = "with" if "quack-kernels" in header["software"] else "without"
            counts = " | ".join(kernel_goals.held(experiment, measured).values())
            rows.append(
                f"| [{name}]({where}) | {header['machine']['gpu']} | `{header['commit'][:8]}` "
                f"| {with_quack} | {counts} |"
            )
    intro = "Timings that reach the goals below, of those that are judged:"
    titles = ["experiment", "GPU", "commit", "quack", *kernel_goals.GOALS]
    return table(intro, titles, rows)


def _throughput(experiment: Experiment, measured: Results) -> list[str]:
    machine, commit, command = tables.source(measured.header)
    text = (
        f"Beside other libraries, on the same buffers and by the same clock: {machine}, {commit} "
        f"(`{command}`; [all of it]({_WHERE}/throughput.md)). Median GB/s from "
        f"{tables.SETTLED_SEQ_LEN} tokens on, 64 heads of 128, float16, beside what the "
        "seed published of an RTX 2070 Super:"
    )
    pictures = [
        f"[![{each.title}]({_WHERE}/{each.name}.png)]({_WHERE}/{experiment.name}.md)"
        for each in (experiment.figures[0], experiment.figures[-1])
    ]
    seeds = tables.seed_table(experiment, measured)[2:]
    return [*wrapped(text), "", *seeds, "", *pictures, ""]


def _gains(found: _Sweeps) -> list[str]:
    """Speedup over each other provider in each experiment, and where it is slower."""
    gains = {name: tables.gains_over(*each) for name, each in found.items()}
    providers = dict.fromkeys(p for of in gains.values() for p, values in of.items() if values)
    commits = {name: results.header["commit"][:8] for name, (_, results) in found.items()}
    differ = len(set(commits.values())) > 1
    where = ", ".join(
        f"[{name}]({_WHERE}/{name}.md)" + f" at `{commit}`" * differ
        for name, commit in commits.items()
    )
    text = (
        "Speedup over each provider: minimum, median (number of timings in which the provider is "
        f"faster), in {where}; the same command with `--experiment`:"
    )
    titles = [f"{name}, of {max(map(len, of.values()))}" for name, of in gains.items()]
    rows = [
        f"| {provider} | {' | '.join(_gain(of.get(provider, [])) for of in gains.values())} |"
        for provider in providers
    ]
    return table(text, ["provider", *titles], rows)


_BY_COMPILER = {
    "compile": "torch.compile with precomputed tables and static shapes",
    "compile-angles": "the same with angles, which is what the package computes",
}
_PRECISIONS = {"half precision": 2, "float32": 4}  # bytes an element


def _compiled(found: _Sweeps) -> list[str]:
    """Speedup over torch.compile in all experiments together, by channels of a head."""
    every = (timing for experiment, _ in found.values() for timing in experiment.timings)
    timings = [timing for timing in every if timing.cell.provider in _BY_COMPILER]
    measured = {timing.cell.provider for timing in timings}
    over = {name: about for name, about in _BY_COMPILER.items() if name in measured}
    columns = [(name, precision) for name in over for precision in _PRECISIONS]
    rows = []
    for size in sorted({timing.cell.hidden_size for timing in timings}):
        gains = (_gain(_over_compiled(found, *column, size)) for column in columns)
        rows.append(f"| {size} | {' | '.join(gains)} |")
    names = ", and ".join(f"`{name}`, {about}" for name, about in over.items())
    titles = [f"`{name}`, {precision}" for name, precision in columns]
    return table(f"Over {names}, in all experiments together:", ["channels a head", *titles], rows)


def _over_compiled(found: _Sweeps, provider: str, precision: str, hidden_size: int) -> list[float]:
    def counts(timing: Timing) -> bool:
        asked = hidden_size, _PRECISIONS[precision]
        return (timing.cell.call_name.channels, ITEM_BYTES[timing.cell.dtype]) == asked

    every = (tables.gains_over(*each, counts).get(provider, []) for each in found.values())
    return [gain for gains in every for gain in gains]


def _gain(values: Sequence[float]) -> str:
    if not values:
        return ""
    faster = sum(value < 1 for value in values)
    text = f"{min(values):.2f}, {statistics.median(values):.2f}"
    return f"{text} ({faster})" if faster else text


# --- the simulated verdict ------------------------------------------------------------------------

# Title -> the figure of a model.
_FIGURES = {
    "fails": "fails",
    "cannot tell, first look": "cannot tell, first look",
    "cannot tell": "cannot tell",
    "interval": "intervals hold the truth",
    "+1 % fails": "+1 % fails",
    "+1 % passes": "+1 % passes",
    "+2 % fails": "+2 % fails",
    "+5 % fails": "+5 % fails",
    "MDE fails": "MDE fails",
    "one changed: passes": "one changed, +1 % passes",
    "eight: pass": "eight changed, +1 % pass",
    "host +5 % fails": "a host call, +5 % fails",
}
_OF_THE_SAME = ("fails", "cannot tell, first look", "cannot tell")


def simulation() -> list[str]:
    """A row for each kind of noise, former figures and today's."""
    stored = json.loads(SIMULATION.read_bytes())
    runs = dict(stored["runs"])
    today = runs.pop("today")
    ((former, before),) = runs.items()
    rows = []
    for model, what in stored["noise"].items():
        figures = [run[model]["figures"] for run in (before, today)]
        cells = {title: _shares(figures, name) for title, name in _FIGURES.items()}
        if model in stored["unlike"]:
            cells |= dict.fromkeys(_OF_THE_SAME, "")
            cells["fails"] = f"(passes {_shares(figures, 'passes')})"
        rows.append(f"| {what} | {' | '.join(cells.values())} |")
    intro = f"In %, by `{former}` → today; `{stored['command']}` simulates it again, without a GPU:"
    return table(intro, ["noise", *_FIGURES], rows)


def _shares(figures: Sequence[Mapping[str, float]], name: str) -> str:
    """Former and today's percent; one where they read the same."""
    texts = [f"{100 * each[name]:.3g}" for each in figures]
    return " → ".join(dict.fromkeys(texts))
