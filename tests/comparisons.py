"""Made-up comparisons of two versions, one for each answer, and the parts to make more of."""

import itertools
import random
from functools import partial

import numpy as np

from benchmarks import _subjects
from benchmarks._engine.verdict.judge import judge
from benchmarks._engine.verdict.note import Note
from benchmarks._engine.verdict.rules import RULES, Answer, Key, judge_exact
from benchmarks._engine.verdict.schema import Comparison, Side
from benchmarks._subjects.rope.cells import grid_cell
from benchmarks._subjects.rope.grid import GRIDS, cells_of

H200 = {"machine": "nvidia-h200", "gpu": "NVIDIA H200", "torch": "2.11.0", "triton": "3.6.0"}
NO_GPU = {"machine": "no-gpu-x86_64", "gpu": "none", "torch": "2.13.0", "triton": "3.7.1"}


# --- parts ----------------------------------------------------------------------------------------


def subjects(grid):
    return [
        Key(f"rope.{direction}.track_latency", cell.params)
        for direction in ("Forward", "Backward")
        for cell in cells_of(grid_cell, GRIDS[grid])
    ]


def bell(seed, rounds, count):
    """Nearly normal numbers, the same in every version of Python and numpy."""
    generator = random.Random(seed)
    uniform = [generator.random() for _ in range(rounds * count * 6)]
    return (np.reshape(uniform, (rounds, count, 6)).sum(axis=2) - 3) * 2**0.5


def gpu_family(
    grid="small", slowdown=None, noise=0.0015, rounds=12, steps=0.0, only=None, identical=()
):
    """A family of simulated processes; ``slowdown(key)`` is the head's share on top."""
    names = only or subjects(grid)
    sizes = np.array([float(np.prod([int(text) for text in name.params[:3]])) for name in names])
    noises = noise * (1 + 4 / np.sqrt(sizes / sizes.min()))
    base, head = (
        np.exp(noises * bell(seed, rounds, len(names))) * (2e-6 + sizes * 4e-11) for seed in (1, 2)
    )
    # Of every round, for both versions alike: they cancel in the pairs, and the control sees them.
    levels = np.array([0, 1, 1, 0] * (rounds // 4)) + 3 * np.repeat(np.arange(rounds // 2), 2)
    jumps = (1 + steps) ** levels[:, None]
    slow = [1 + slowdown(name) if slowdown else 1 for name in names]
    return judge(names, base * jumps, head * jumps * slow, identical=frozenset(identical))


def slow_in_one_format(key):
    return 0.03 if key.params[3:] == ("float16", "sbhd") and key.params[2] == "4" else 0


def fast_in_half_precision(key):
    return -0.04 if key.params[0] == "2048" and key.params[3] != "float32" else 0


def host_family(slowdown=0.0, noise=0.02):
    """Two passes in two formats; a host's noise, and rules of its own."""
    names = [
        Key(f"host.Call.track_{name}", (fmt,))
        for name in ("forward", "forward_backward")
        for fmt in ("bshd", "sbhd")
    ]
    usual = np.array([42e-6, 42e-6, 173e-6, 173e-6])
    base, head = (usual * np.exp(noise * bell(seed, 12, 4)) for seed in (3, 4))
    return judge(names, base, head * (1 + slowdown), RULES["host"])


def start_family(slowdown=0.0):
    names = [Key(f"host.FirstCall.track_{name}", ()) for name in ("compile", "warm_start")]
    base, head = (np.exp(0.01 * bell(seed, 12, 2)) * [0.9, 0.3] for seed in (5, 6))
    return judge(names, base, head * (1 + slowdown), RULES["start"])


def codegen(**changes):
    """Exact values of a few calls; changes: the head's, by metric."""
    values = {"registers": 32.0, "spilled_bytes": 0.0, "instructions": 412.0, "narrow_share": 0.0}
    return tuple(
        judge_exact(
            Key(f"codegen.Codegen.track_{metric}", (arch, "float16", fmt, "forward", "128")),
            value,
            changes.get(metric, value) if arch == "sm_90" else value,
        )
        for metric, value in values.items()
        for arch, fmt in itertools.product(("sm_80", "sm_90", "gfx942"), ("sbhd", "bshd"))
    )


def gpu_facts(error=0.98):
    """Exact values that only a GPU gives; error: the head's."""
    values = {"Memory.track_peak_bytes": 4096.0, "Launches.track_launches": 1.0}
    return tuple(
        judge_exact(Key(f"host.{name}", (dtype, "sbhd")), value, head)
        for name, value, head in (
            *((name, value, value) for name, value in values.items()),
            ("Error.track_error", 0.98, error),
        )
        for dtype in ("float32", "float16", "bfloat16")
    )


def comparison(families, exact, **changes) -> Comparison:
    fields = {
        "base": Side("main", "8f5b046c3d"),
        "head": Side("tiles", "0123456789abcdef"),
        "machine": H200,
        "clocks": {"SM": "1980 MHz", "memory": "3201 MHz"},
        "rounds": 12 if families else 0,
        "minutes": 3.62,
        "families": families,
        # Where a GPU was timed, the clock decides on what its machine code costs.
        "exact": tuple(judge_exact(e.key, e.base, e.head, "gpu" in families) for e in exact),
        "same_sources": False,
        "unmeasured": (),
        "reproduce": "python -m benchmarks compare main tiles --rounds 12",
    }
    return Comparison(**(fields | changes))


# --- of the job for pull requests -----------------------------------------------------------------


def job_exact(prefix="", spilled=1.0):
    """An exact value of each metric whose name begins so; spilled: bytes on the head."""
    return tuple(
        judge_exact(
            Key(metric, ("sm_90",)), 1.0, spilled if "Codegen.track_spilled" in metric else 1
        )
        for metric, unit in _subjects.UNITS.items()
        if unit.exact and metric.startswith(prefix)
    )


def job_comparison(noise=0.001, slowdown=None, **changes):
    """What the job writes on an H200."""
    families = {
        "gpu": gpu_family(noise=noise, slowdown=slowdown),
        "host": host_family(noise=0.002),
        "start": start_family(),
    }
    return comparison(families, job_exact(), **changes)


job_passing = job_comparison
job_failing = partial(job_comparison, slowdown=slow_in_one_format)
job_blind = partial(job_comparison, noise=0.02)


def job_of_code(spilled=1.0):
    """What the job without a GPU writes."""
    return comparison(
        {},
        (*job_exact("codegen.", spilled), *job_exact("host_cost.")),
        machine=NO_GPU,
        clocks={},
    )


job_of_worse_code = partial(job_of_code, spilled=2.0)


# --- complete -------------------------------------------------------------------------------------


def passing():
    same = [key for key in subjects("small") if key.params[3] == "float32"]
    return comparison(
        {
            "gpu": gpu_family(slowdown=fast_in_half_precision, identical=same),
            "host": host_family(),
            "start": start_family(),
        },
        (*codegen(instructions=390.0), *gpu_facts()),
        identical=frozenset(same),
        discarded=("round 5: SM clock fell to 1310 MHz, 34 % below the median",),
    )


def failing():
    lost = judge_exact(subjects("full")[-1], 3.1e-4, None)
    return comparison(
        {"gpu": gpu_family(slowdown=slow_in_one_format), "host": host_family(slowdown=0.2)},
        (*codegen(narrow_share=0.25, registers=40.0), *gpu_facts(error=1.9), lost),
        wrong=(
            Note(
                "failed", "3 of 8192 elements are off by up to 0.1", "head", (subjects("small")[0],)
            ),
        ),
    )


def blind():
    return comparison(
        {"gpu": gpu_family(noise=0.008, steps=0.01)}, codegen(), rounds=24, extension=12
    )


def without_gpu():
    return comparison(
        {},
        codegen(instructions=390.0),
        machine=NO_GPU,
        minutes=0.7,
        notes=(Note("no GPU", "no NVIDIA GPU"),),
    )


def of_the_same_code():
    return comparison(
        {"gpu": gpu_family(identical=subjects("small")), "host": host_family()},
        (*codegen(), *gpu_facts()),
        identical=frozenset(subjects("small")),
    )


def of_the_same_sources():
    return comparison({}, (), same_sources=True, minutes=0.1)


def unfinished():
    note = Note("no second look", "the time is up before round 3 of 24", count=60)
    return comparison({"gpu": gpu_family(noise=0.008)}, codegen(), minutes=8.0, notes=(note,))


CASES = {
    "pass": (passing, Answer.PASS),
    "fail": (failing, Answer.FAIL),
    "cannot-tell": (blind, Answer.CANNOT_TELL),
    "no-gpu": (without_gpu, Answer.PASS),
    "same-code": (of_the_same_code, Answer.PASS),
    "same-sources": (of_the_same_sources, Answer.PASS),
    "unfinished": (unfinished, Answer.CANNOT_TELL),
}
