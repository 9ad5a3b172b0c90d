"""``python -m benchmarks readme``: write the tables of the pages from stored results. No torch."""

import argparse
import functools
import json
import re
import statistics
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from .._engine.system.errors import CouldNotRunError
from .._engine.system.process import ROOT, SUITE
from .._studies import pages
from .._studies.peers import tables, targets
from .._studies.peers.experiments import Timing
from .._studies.peers.peers_study import EVIDENCE as SWEEPS
from .._studies.peers.peers_study import stored as stored_sweeps
from .._studies.training import goals, results
from .._studies.training.sizes import POINTS, STEP
from .._subjects.metric_list import ARCHITECTURES
from .._subjects.rope.names import ITEM_BYTES
from .figures import DIRECTIONS, SIZE_CLASSES, Result, Speed, path_speeds, speeds

PAGES = (
    "README.md",
    "benchmarks/README.md",
    "benchmarks/METHOD.md",
    "benchmarks/evidence/README.md",
    "benchmarks/evidence/training/README.md",
)
MACHINE = "nvidia-h200"
"""The machine that the tables are of."""
RESULTS = SUITE / "results" / MACHINE
EVIDENCE = SUITE / "evidence"
TRAINING, SWEEP = EVIDENCE / "training", SWEEPS / MACHINE
# Commit -> what it did to the kernel, in the order of the history; the last has all benchmarks.
STEPS: dict[str, str] = json.loads(Path(__file__).with_name("steps.json").read_bytes())
NEWEST = list(STEPS)[-1]
FULL_CELLS = 504
CALL_MIB = 32
WIDTH = 100
_MARKED = re.compile(r"(<!-- table: (\w+) -->\n)(.*?)(<!-- /table -->\n)", re.DOTALL)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = f"Write the tables of {', '.join(PAGES)} anew, from stored results."


def run() -> int:
    """Write the pages; name those that changed."""
    for page in PAGES:
        path = ROOT / page
        old, new = path.read_text(encoding="utf-8"), generated(path)
        if old != new:
            path.write_text(new, encoding="utf-8")
            print(f"{page} is written anew")
    return 0


def generated(path: Path) -> str:
    """The text of a page with every marked table made anew; all else stays.

    Raises CouldNotRunError if a marked table is unknown, or a mark has no end.
    """
    text = path.read_text(encoding="utf-8")
    names = marked(text)
    if len(names) != text.count("<!-- table:") or not TABLES.keys() >= set(names):
        raise CouldNotRunError(
            f"{path} must mark tables by lines <!-- table: NAME --> and <!-- /table -->, with a "
            f"name of {', '.join(TABLES)}; it marks {', '.join(names)}"
        )
    return _MARKED.sub(lambda mark: f"{mark[1]}{TABLES[mark[2]]()}{mark[4]}", text)


def marked(text: str) -> list[str]:
    """Names of a page's tables."""
    return [name for _, name, *_ in _MARKED.findall(text)]


def table(titles: Sequence[str], rows: Iterable[Iterable[str]], intro: str = "") -> str:
    """Lines of Markdown: an introduction, if there is one, and a table under it."""
    lines = [*pages.table(titles, rows)]
    if intro:
        wrapped = textwrap.wrap(intro, WIDTH, break_long_words=False, break_on_hyphens=False)
        lines = [*wrapped, "", *lines]
    return "".join(f"{line}\n" for line in lines)


def machine() -> dict[str, str]:
    """asv's record of the machine."""
    return json.loads((RESULTS / "machine.json").read_bytes())


@functools.cache
def values(commit: str) -> dict[str, dict[tuple[str, ...], float]]:
    """What asv stored of a commit: benchmark -> parameters -> value."""
    (path,) = RESULTS.glob(f"{commit}*-existing-*.json")
    return Result(path).values


# --- the kernel beside a copy ---------------------------------------------------------------------


def speed() -> str:
    """The newest step of the kernel, by the tensor's size."""
    record = machine()
    intro = (
        f"One {record['gpu']} (driver {record['driver']}, torch {record['torch']}, triton "
        f"{record['triton']}), commit `{NEWEST}`, the full grid of 64 heads, cold cache. Speed as "
        "a share of `copy_`'s on the same bytes, by the size of the tensor (`python -m benchmarks "
        f"figures {MACHINE} {NEWEST}` prints the stored result, `asv run` measures again):"
    )
    return _speeds(intro, "tensor", *(speeds(values(NEWEST), d) for d in DIRECTIONS))


def calls() -> str:
    """The newest step of the kernel, other calls than the grid's."""
    by_call = (path_speeds(values(NEWEST), direction, CALL_MIB) for direction in DIRECTIONS)
    return _speeds(f"At `{NEWEST}`, from {CALL_MIB} MiB of input on:", "call", *by_call)


def _speeds(
    intro: str, title: str, forward: Mapping[str, Speed], backward: Mapping[str, Speed]
) -> str:
    """A row for each group of cells, both directions beside each other."""
    rows = [
        (name, str(own.cells), _numbers(own), _numbers(backward.get(name)))
        for name, own in forward.items()
    ]
    numbers = ("minimum", "median", "GB/s")
    titles = [f"{direction}: {name}" for direction in ("forward", "backward") for name in numbers]
    return table([title, "cells", *titles], rows, intro)


def _numbers(speed: Speed | None) -> str:
    """Three cells."""
    return f"{speed.least:.3f} | {speed.median:.3f} | {speed.gbps:.0f}" if speed else "n/a | | "


def history() -> str:
    """Backward, median share of a copy's speed by size, a row for each step of the kernel."""
    labels = [label for _, label in SIZE_CLASSES]
    rows = []
    for commit, step in STEPS.items():
        if len(values(commit).get("rope.Backward.track_copy_ratio", {})) == FULL_CELLS:
            by_size = speeds(values(commit), "Backward")
            rows.append((f"`{commit}`", step, *(f"{by_size[s].median:.2f}" for s in labels)))
    return table(["commit", "the kernel", *labels], rows)


# asv's classes of host times -> what a call is named in the table, by its parameter.
_EAGER = {
    "host.Call": "`apply_rotary_pos_emb`, {}",
    "host.PathCall": "`{}`",
    "peers.Call": "one tensor, by {}",
}


def host() -> str:
    """What an eager call costs the host, by this package and by other libraries."""
    rows = []
    for suite, title in _EAGER.items():
        forward, both = (
            values(NEWEST).get(f"{suite}.track_{name}", {})
            for name in ("forward", "forward_backward")
        )
        for key, seconds in forward.items():
            call = title.format(key[0].strip("'"))
            rows.append((call, _microseconds(seconds), _microseconds(both.get(key))))
    titles = ["call", "forward", "forward and gradient"]
    return table(titles, rows, f"At `{NEWEST}`, in µs:")


def _microseconds(seconds: float | None) -> str:
    return "n/a" if seconds is None else f"{seconds * 1e6:.1f}"


# --- beside other libraries -----------------------------------------------------------------------

# Provider -> the experiment that has it, and what it is called.
_BESIDE = {
    "transformer-engine": ("throughput", "TransformerEngine's CUDA kernel"),
    "flash-attention": ("throughput", "flash-attention's Triton kernel, which takes tables"),
    "compile-angles": ("study", "`torch.compile` of the formula with angles"),
}


def summary() -> str:
    """Five rows: beside a copy, beside other libraries."""
    _, (_, label), _ = SIZE_CLASSES
    rows = []
    for direction in DIRECTIONS:
        own = speeds(values(NEWEST), direction)[label]
        what = f"{direction.lower()}, {label} a tensor: speed as a share of `copy_`'s"
        rows.append((what, f"{own.least:.3f}", f"{own.median:.3f}"))
    sweeps = stored_sweeps(SWEEP)
    for provider, (name, title) in _BESIDE.items():
        gains = tables.gains_over(*sweeps[name])[provider]
        row = f"{min(gains):.2f}", f"{statistics.median(gains):.2f}"
        rows.append((f"speedup over {title}", *row))
    commits = {sweeps[name][1].header["commit"][:7] for name, _ in _BESIDE.values()}
    intro = (
        f"One {machine()['gpu']}; beside `copy_` at commit `{NEWEST}` (`python -m benchmarks "
        f"figures {MACHINE} {NEWEST}`), beside other libraries at `{'` and `'.join(commits)}` "
        "(`python -m benchmarks study peers`):"
    )
    return table(["", "minimum", "median"], rows, intro)


def peers() -> str:
    """Speedup over each other provider in each experiment, and where it is slower."""
    sweeps = stored_sweeps(SWEEP)
    gains = {name: tables.gains_over(*sweep) for name, sweep in sweeps.items()}
    providers = dict.fromkeys(p for ratios in gains.values() for p in ratios if ratios[p])
    titles = [
        f"[{name}](sweep/{MACHINE}/{name}.md) at `{measured.header['commit'][:7]}`, "
        f"of {max(map(len, gains[name].values()))}"
        for name, (_, measured) in sweeps.items()
    ]
    rows = [(p, *(_gain(ratios.get(p, [])) for ratios in gains.values())) for p in providers]
    return table(["provider", *titles], rows)


_BY_COMPILER = ("compile", "compile-angles")
_PRECISIONS = {"half precision": 2, "float32": 4}  # bytes an element


def compiled() -> str:
    """Speedup over torch.compile in all experiments together, by channels of a head."""
    gains: dict[tuple[int, int, str], list[float]] = defaultdict(list)
    for experiment, measured in stored_sweeps(SWEEP).values():
        for shape in {_shape(timing) for timing in experiment.timings}:
            over = tables.gains_over(experiment, measured, functools.partial(_has, shape))
            for provider in _BY_COMPILER:
                gains[*shape, provider] += over.get(provider, [])
    columns = [(provider, name) for provider in _BY_COMPILER for name in _PRECISIONS]
    rows = [
        (str(channels), *(_gain(gains[channels, _PRECISIONS[name], p]) for p, name in columns))
        for channels in sorted({channels for (channels, *_), ratios in gains.items() if ratios})
    ]
    return table(["channels a head", *(f"`{p}`, {name}" for p, name in columns)], rows)


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


def held() -> str:
    """How many calls reach the kernel's targets, on every machine whose sweep ships."""
    rows = []
    for path in sorted(SWEEPS.iterdir()):
        for name, (experiment, measured) in stored_sweeps(path).items():
            if experiment.judged:
                gpu, commit = measured.header["machine"]["gpu"], measured.header["commit"][:7]
                link = f"[{name}](evidence/sweep/{path.name}/{name}.md)"
                counts = targets.held(experiment, measured).values()
                rows.append((link, gpu, f"`{commit}`", *counts))
    return table(["calls", "GPU", "commit", *targets.GOALS], rows)


# --- a training step ------------------------------------------------------------------------------

# What rotates -> its provider in eager PyTorch and compiled.
_ROTATIONS = {
    "Llama's formula in Transformers": ("eager", "compiled"),
    "this package": ("ours-eager", "ours"),
    "this package, patched into Transformers": ("transformers", ""),
    "this package, in the kernels of attention and its projection": ("", "triton-fused"),
}
_COMPARED = ("eager", "compiled", "ours", "hybrid")
_SHARE_OF = "410M-2048"


def rope_share() -> str:
    """What RoPE adds to a step of one model."""
    measured = _measured()[_SHARE_OF]
    header, step = measured.header, measured.timed(STEP)
    size, _, context = _SHARE_OF.rpartition("-")
    intro = (
        "What RoPE adds to the time of a training step, with the 95 % interval (Llama-like, "
        f"{size}, context {context}, bfloat16, at `{header['commit'][:7]}`; `{header['command']}`):"
    )
    rows = [
        (name, *(results.written(step[p].rope) if p else "" for p in providers))
        for name, providers in _ROTATIONS.items()
    ]
    return table(["RoPE by", "eager PyTorch", "`torch.compile`"], rows, intro)


def training() -> str:
    """A step of every model that was measured, by some providers."""
    rows = []
    for point, measured in _measured().items():
        step = measured.timed(STEP)
        times = (f"{step[p].seconds * 1e3:.1f}" if p in step else "n/a" for p in _COMPARED)
        link, header = f"[{point}](evidence/training/{point}.md)", measured.header
        rows.append((link, header["machine"]["gpu"], f"`{header['commit'][:7]}`", *times))
    return table(["step", "GPU", "commit", *(f"`{name}`" for name in _COMPARED)], rows)


def training_targets() -> str:
    """What was measured beside what a step and its kernels are to reach."""
    measured = _measured()
    return table(["target", "at least", "aim", *measured], goals.rows(measured))


def _measured() -> dict[str, results.Stored]:
    """By name, the points that are stored."""
    paths = {point: TRAINING / f"{point}.jsonl" for point in POINTS}
    return {point: results.read(path) for point, path in paths.items() if path.exists()}


# --- where it runs, and the simulated verdict -----------------------------------------------------


def tested() -> str:
    """Where the kernel was measured, and where the tests of the GPU passed when they last ran."""
    machines = [machine()]
    for path in sorted(SWEEPS.glob("*/random.jsonl")):
        machines.append(json.loads(path.read_text(encoding="utf-8").splitlines()[0])["machine"])
    rows = [("measured", record["gpu"], _versions(record)) for record in machines]
    for tests in json.loads((EVIDENCE / "gpu-tests.json").read_text(encoding="utf-8")).values():
        outcomes = ("passed", "failed", "error", "skipped", "rerun")
        counts = ", ".join(f"{tests[name]:,} {name}" for name in outcomes if tests.get(name))
        rows.append((f"GPU tests: {counts}", tests["gpu"], _versions(tests)))
    pins = _versions(_matches(r"^(torch|triton)==(\S+)", "constraints.txt"))
    least = _versions(_matches(r'"(torch|triton)>=([\d.]+)"', "pyproject.toml"))
    rows.append(("compiled, its machine code counted", ", ".join(ARCHITECTURES), pins))
    rows.append(("tested in Triton's interpreter", "Linux, without a GPU", f"{pins}; {least}"))
    return table(["what", "where", "with"], dict.fromkeys(rows))


def _matches(pattern: str, name: str) -> dict[str, str]:
    return dict(re.findall(pattern, (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE))


def _versions(record: Mapping[str, str]) -> str:
    return f"torch {record['torch'].partition('+')[0]}, triton {record['triton']}"


def simulation() -> str:
    """A row for each kind of noise, in percent."""
    stored = json.loads((EVIDENCE / "simulation.json").read_bytes())
    shares = {name: run["figures"] for name, run in stored["models"].items()}
    rows = [
        (noise, *(f"{100 * share:.3g}" for share in shares[name].values()))
        for name, noise in stored["noise"].items()
    ]
    return table(["noise", *shares[next(iter(shares))]], rows)


TABLES: dict[str, Callable[[], str]] = {
    **{"summary": summary, "speed": speed, "history": history, "calls": calls, "host": host},
    **{"peers": peers, "compiled": compiled, "held": held, "rope": rope_share},
    **{"training": training, "targets": training_targets},
    **{"tested": tested, "simulation": simulation},
}
"""By the name that pages mark."""
