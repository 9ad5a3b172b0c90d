"""Reports of made-up comparisons: golden texts, every reading, hostile input, the JSON.

``python -m tests.test_report`` writes the golden files again, and the text of the reports that
ship; read the difference before you commit it.
"""

import dataclasses
import itertools
import json
import random
import re
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks import _map, _wording
from benchmarks._compare import evidence
from benchmarks._grid import GRIDS, PATH_GRIDS, cells, path_cells
from benchmarks._groups import grouped
from benchmarks._report import Comparison, Side, from_json, markdown, terminal, to_json
from benchmarks._verdict import Answer, Control, Family, Rules, Subject, judge, judge_exact

GOLDEN = Path(__file__).parent / "golden"
SHIPPED = sorted((evidence.DIRECTORY / "reports").rglob("*.json"))
AGAIN = "python -m tests.test_report"
H200 = {"machine": "nvidia-h200", "gpu": "NVIDIA H200", "torch": "2.11.0", "triton": "3.6.0"}
NO_GPU = {"machine": "no-gpu-x86_64", "gpu": "none", "torch": "2.13.0", "triton": "3.7.1"}


def subjects(grid):
    return [
        Subject(f"rope.{direction}.track_latency", tuple(map(str, dataclasses.astuple(cell))))
        for direction in ("Forward", "Backward")
        for cell in cells(GRIDS[grid])
    ]


def bell(seed, rounds, count):
    """Nearly normal numbers, the same in every version of Python and numpy."""
    generator = random.Random(seed)
    uniform = [generator.random() for _ in range(rounds * count * 6)]
    return (np.reshape(uniform, (rounds, count, 6)).sum(axis=2) - 3) * 2**0.5


def gpu_family(grid="small", slowdown=None, noise=0.0015, rounds=12, states=0.0, only=None):
    """A family of simulated processes; ``slowdown(subject)`` is the head's share on top."""
    names = only or subjects(grid)
    sizes = np.array([float(np.prod([int(text) for text in name.params[:3]])) for name in names])
    noises = noise * (1 + 4 / np.sqrt(sizes / sizes.min()))
    base, head = (
        np.exp(noises * bell(seed, rounds, len(names))) * (2e-6 + sizes * 4e-11) for seed in (1, 2)
    )
    jumps = 1 + states * np.array([0, 1, 1, 0] * (rounds // 4))[:, None]
    slow = [1 + slowdown(name) if slowdown else 1 for name in names]
    return judge(names, base * jumps, head * jumps * slow)


def codegen(**changes):
    """Exact values of a small survey; changes: the head's, by metric."""
    values = {"registers": 32.0, "spilled_bytes": 0.0, "instructions": 412.0, "narrow_share": 0.0}
    return tuple(
        judge_exact(
            Subject(f"codegen.Codegen.track_{metric}", (arch, "float16", fmt, "forward", "128")),
            value,
            changes.get(metric, value) if arch == "sm_90" else value,
        )
        for metric, value in values.items()
        for arch, fmt in itertools.product(("sm_80", "sm_90", "gfx942"), ("sbhd", "bshd"))
    )


def comparison(families, exact, **changes) -> Comparison:
    given = {
        "base": Side("main", "8f5b046c3d"),
        "head": Side("tiles", "0123456789abcdef"),
        "machine": H200,
        "clocks": {"SM": "1980 MHz", "memory": "3201 MHz"},
        "grid": "small",
        "rounds": 12 if families else 0,
        "extension": 0,
        "minutes": 3.62,
        "families": families,
        "exact": exact,
        "identical": frozenset(),
        "same_sources": False,
        "wrong": (),
        "notes": (),
        "disturbed": (),
        "reproduce": "python -m benchmarks compare main tiles --rounds 12",
    }
    return Comparison(**(given | changes))


def host_family(slowdown=0.0, noise=0.02):
    """Two passes in two formats; a host's noise, and rules of its own."""
    names = [
        Subject(f"host.Call.track_{name}", (fmt,))
        for name in ("forward", "forward_backward")
        for fmt in ("bshd", "sbhd")
    ]
    usual = np.array([42e-6, 42e-6, 173e-6, 173e-6])
    base, head = (usual * np.exp(noise * bell(seed, 12, 4)) for seed in (3, 4))
    return judge(names, base, head * (1 + slowdown), Rules(min_effect=0.05, margin=0.1))


def start_family(slowdown=0.0):
    names = [Subject(f"host.FirstCall.track_{name}", ()) for name in ("compile", "warm_start")]
    base, head = (np.exp(0.01 * bell(seed, 12, 2)) * [0.9, 0.3] for seed in (5, 6))
    return judge(names, base, head * (1 + slowdown), Rules(min_effect=0.1, margin=0.2))


def gpu_facts(error=0.98):
    """Exact values that only a GPU gives; error: the head's."""
    values = {"Memory.track_peak_bytes": 4096.0, "Launches.track_launches": 1.0}
    return tuple(
        judge_exact(Subject(f"host.{name}", (dtype, "sbhd")), value, head)
        for name, value, head in (
            *((name, value, value) for name, value in values.items()),
            ("Error.track_error", 0.98, error),
        )
        for dtype in ("float32", "float16", "bfloat16")
    )


def slow_in_one_format(subject):
    return 0.03 if subject.params[3:] == ("float16", "sbhd") and subject.params[2] == "4" else 0


def fast_in_half_precision(subject):
    return -0.04 if subject.params[0] == "2048" and subject.params[3] != "float32" else 0


def passing():
    same = [subject for subject in subjects("small") if subject.params[3] == "float32"]
    return comparison(
        {
            "gpu": gpu_family(slowdown=fast_in_half_precision),
            "host": host_family(),
            "start": start_family(),
        },
        (*codegen(instructions=390.0), *gpu_facts()),
        identical=frozenset(same),
        disturbed=("round 5: SM clock fell to 1310 MHz, 34 % below the median",),
    )


def failing():
    lost = judge_exact(subjects("full")[-1], 3.1e-4, None)
    return comparison(
        {"gpu": gpu_family(slowdown=slow_in_one_format), "host": host_family(slowdown=0.2)},
        (*codegen(narrow_share=0.25, registers=40.0), *gpu_facts(error=1.9), lost),
        wrong=("Backward (128, 64, 1, float16, bshd): 3 of 8192 elements are off by up to 0.1",),
    )


def blind():
    return comparison(
        {"gpu": gpu_family(noise=0.008, states=0.01)}, codegen(), rounds=24, extension=12
    )


def without_gpu():
    return comparison(
        {},
        codegen(instructions=390.0),
        machine=NO_GPU,
        minutes=0.7,
        notes=("rope.*: no NVIDIA GPU here", "host.*: no NVIDIA GPU here"),
    )


def of_the_same_code():
    return comparison(
        {"gpu": gpu_family(), "host": host_family()},
        (*codegen(), *gpu_facts()),
        identical=frozenset(subjects("small")),
    )


def of_the_same_sources():
    notes = ("both versions have the same sources: nothing was measured",)
    return comparison({}, (), same_sources=True, minutes=0.1, notes=notes)


def unfinished():
    note = "no second look at 60 timings that cannot be told: the time is up before round 3 of 24"
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
RENDERED = {"txt": terminal, "md": markdown}
GOLDEN_FILES = [(case, kind) for case in CASES for kind in RENDERED]


@pytest.mark.parametrize(("case", "kind"), GOLDEN_FILES)
def test_golden(case, kind):
    text = RENDERED[kind](CASES[case][0]())
    expected = (GOLDEN / f"report-{case}.{kind}").read_text()
    assert text == expected, f"if the new text is better, write it with: {AGAIN}"


def test_reports_that_ship():
    """Made on a GPU, by the commands that they name; the text is what their numbers say today."""
    assert SHIPPED
    for path in SHIPPED:
        comparison = from_json(json.loads(path.read_text()))
        text = path.with_suffix(".md").read_text()
        assert text == markdown(comparison), f"if the new text is better, write it with: {AGAIN}"
        assert comparison.answer.value == path.stem.replace("-", " ")
        assert comparison.reproduce in text and comparison.base.sha[:10] in text


@pytest.mark.parametrize(("make", "answer"), CASES.values(), ids=CASES)
def test_answer_width_and_size(make, answer):
    made = make()
    text = terminal(made)
    assert made.answer is answer
    assert text.startswith(f"{answer.upper()}: ")
    assert max(map(len, text.splitlines())) <= 100
    assert len(markdown(made).encode()) < 60_000


@pytest.mark.parametrize(("make", "answer"), CASES.values(), ids=CASES)
def test_json_round_trip(make, answer):
    made = make()
    document = json.loads(json.dumps(to_json(made), allow_nan=False))
    assert (document["schema"], document["answer"]) == (2, answer.value)
    assert from_json(document) == made
    assert markdown(from_json(document)) == markdown(made)


def sentence(made):
    """The verdict in the terminal, on one line."""
    return " ".join(terminal(made).split("\n\n")[0].split())


def test_no_change_and_blind_read_differently():
    told, untold = markdown(passing()), markdown(blind())
    assert re.search(r"no slower than [+-]\d\.\d\d %", told)
    seen = r"60 of 96 timings cannot be told: only a slowdown of [\d.]+ to [\d.]+ %, by timing, or"
    assert re.search(seen, untold)
    assert "60 cannot tell" in untold and "cannot" not in told


def test_a_family_that_alone_cannot_be_told_is_named():
    noisy = gpu_family(noise=0.008, states=0.01)
    alone = comparison({"gpu": noisy, "host": host_family()}, ())
    assert "of 100 timings, all of the gpu, cannot be told" in sentence(alone)
    both = comparison({"gpu": noisy, "host": host_family(noise=0.2)}, ())
    assert "of 100 timings cannot be told" in sentence(both)


def test_same_machine_code_never_reads_as_a_slowdown():
    gpu = gpu_family(slowdown=slow_in_one_format)
    slow = {t.subject for t in gpu.timings if t.answer is Answer.FAIL}
    assert len(slow) > 3
    made = comparison({"gpu": gpu}, (), identical=frozenset(subjects("small")))
    assert made.answer is Answer.CANNOT_TELL
    assert f"{len(slow)} timings came out slower although the machine code is the same" in (
        sentence(made)
    )
    text = markdown(made)
    assert f"{len(slow)} slower, but of the same machine code, " in text
    assert "🟪" in text and "🟥" not in text and "SLOWER" not in terminal(made)
    # Next to a timing that did change, it does not hide it.
    made = dataclasses.replace(made, identical=frozenset(slow) - {sorted(slow)[0]})
    assert made.answer is Answer.FAIL
    assert "1 of 96 timings is slower" in sentence(made)


def test_all_the_same_machine_code():
    made = comparison({"gpu": gpu_family()}, (), identical=frozenset(subjects("small")))
    assert made.answer is Answer.PASS
    assert sentence(made) == "PASS: the machine code of 96 timings is the same on both sides."


def test_what_was_not_timed_for_its_machine_code_is_counted():
    everything = subjects("small")
    timed = gpu_family(only=everything[:20])
    code = frozenset(everything[10:])
    made = comparison({"gpu": timed, "host": host_family()}, codegen(), identical=code)
    assert len(made.untimed) == 76 and made.answer is Answer.PASS
    assert "the machine code of 86 timings is the same on both sides" in sentence(made)
    text = markdown(made)
    assert "76 not timed: same machine code" in text
    assert "86 of 96 timings run the very same code" in text
    slow = gpu_family(only=everything[:20], slowdown=lambda subject: 0.05)
    made = comparison({"gpu": slow}, (), identical=code)
    assert "10 of 96 timings are slower" in sentence(made)


def test_same_sources():
    made = comparison({"gpu": gpu_family()}, codegen(), same_sources=True)
    assert made.answer is Answer.PASS
    assert sentence(made).startswith("PASS: both versions have the same sources; none of 96 ")
    nothing = comparison({}, (), same_sources=True)
    assert nothing.answer is Answer.PASS
    assert sentence(nothing) == (
        "PASS: both versions have the same sources; no timing was measured."
    )


def test_nothing_was_judged():
    assert sentence(comparison({}, ())) == "CANNOT TELL: nothing was judged."


def test_control_that_failed():
    made = comparison({"gpu": gpu_family(noise=0.0003, states=0.02)}, ())
    assert re.match(r"CANNOT TELL: \d+ of 96 gpu timings differ from themselves", sentence(made))


def test_timings_that_do_not_gate_are_shown_only():
    made = comparison({"gpu": gpu_family(), "start": start_family(slowdown=0.5)}, ())
    assert made.answer is Answer.PASS
    assert terminal(made).count("slower (shown only)") == 2
    text = markdown(made)
    assert "| ℹ️ | first&nbsp;call | 2 slower; shown only<br>FirstCall compile " in text
    # In the list of everything, and not among what counts.
    assert text.count("🟥") == 2 and text.index("All timings") < text.index("🟥")


def map_rows(text):
    """Of each size in a map, the symbols of its cells."""
    rows = re.findall(r"^\| (\d+ × \d+) \| (.*) \|$", text, re.MULTILINE)
    return [(size, [cell.split() for cell in cells.split(" | ")]) for size, cells in rows]


def test_map_has_a_symbol_for_each_timing():
    rows = map_rows(markdown(failing()))
    assert [size for size, _ in rows] == ["128 × 64", "128 × 128", "2048 × 64", "2048 × 128"]
    for _, drawn in rows:
        # Forward, backward: bfloat16, float16, float32; bshd, sbhd; batch 1, 4.
        assert drawn == [["⬜⬜", "⬜⬜"], ["⬜⬜", "⬜🟥"], ["⬜⬜", "⬜⬜"]] * 2


def path_family(slowdown):
    names = [
        Subject(metric, tuple(map(str, dataclasses.astuple(cell))))
        for cell in path_cells(PATH_GRIDS["small"])
        for metric in cell.metrics.values()
    ]
    base, head = (np.exp(0.001 * bell(seed, 12, len(names))) * 1e-5 for seed in (7, 8))
    return judge(names, base, head * [1 + slowdown(name) for name in names])


def test_other_paths_have_a_map_of_their_own():
    gpu, slow = gpu_family(), ("qkv", "32", "bfloat16")
    more = path_family(lambda subject: 0.05 if subject.params == slow else 0)
    family = dataclasses.replace(gpu, timings=gpu.timings + more.timings)
    made = comparison({"gpu": family}, ())
    assert map_rows(markdown(made)) == map_rows(markdown(comparison({"gpu": gpu}, ())))
    rows = dict(
        re.findall(r"^\| ([a-z0-9-]+) \| ([^|]* \| [^|]*) \|$", markdown(made), re.MULTILINE)
    )
    assert rows == {
        **dict.fromkeys(("starts", "tables", "tables-bhsd", "partial"), "⬜⬜⬜ | ⬜⬜⬜"),
        **dict.fromkeys(("thd", "thd-short", "qk", "head-96"), "⬜⬜⬜ | ⬜⬜⬜"),
        **dict.fromkeys(("tables-inplace", "then-read"), "⬜⬜⬜ | ✖️✖️✖️"),
        "qkv": "⬜🟥⬜ | ⬜🟥⬜",
    }
    assert "2 timings: Forward + Backward qkv, 32 MiB, bfloat16" in markdown(made).replace(
        "&nbsp;", " "
    )
    assert "Forward qkv, 32 MiB, bfloat16" in terminal(made)
    assert "other paths" not in markdown(comparison({"gpu": gpu}, ()))


def test_map_of_timings_that_not_both_sides_have():
    gpu = gpu_family()
    made = comparison({"gpu": dataclasses.replace(gpu, timings=gpu.timings[1:])}, ())
    text = markdown(made)
    assert "✖️ not timed on both sides: 1" in text
    assert sum("✖️" in pair for _, drawn in map_rows(text) for cell in drawn for pair in cell) == 1


@pytest.fixture(scope="module")
def full():
    return comparison({"gpu": gpu_family("full", slow_in_one_format)}, codegen(), grid="full")


def test_full_grid_is_read_in_groups(full):
    text = markdown(full)
    assert len(text) < 60_000
    [row] = [line for line in text.splitlines() if line.startswith("| 🟥")]
    label = "42 timings: Forward + Backward any size, batch 4, float16, sbhd"
    assert row.replace("&nbsp;", " ").startswith(f"| 🟥 {label} | 3.31 to 337 µs ")
    listed = text[text.index("All timings") :]
    counts = re.findall(r"^(?:🟥|🟨|⬜|🔵) (\d+): ", listed, re.MULTILINE)
    assert sum(map(int, counts)) == 1008 and "left out" not in text
    assert len(map_rows(text)) == 2 * 21
    assert "<details><summary>Map of all 1008 GPU timings" in text


def test_what_is_too_long_is_said_to_be_left_out():
    shares = random.Random(0)
    family = gpu_family("full", slowdown=lambda subject: shares.uniform(0.05, 1))
    noisy = comparison({"gpu": family}, (), grid="full", notes=("n" * 99,) * 9)
    text = markdown(noisy)
    assert 50_000 < len(text.encode()) < 60_000
    left = int(re.search(r"(\d+) of 1008 timings are left out here", text)[1])
    listed = text[text.index("All timings") :]
    counts = re.findall(r"^(?:🟥|🟨|⬜|🔵) (\d+): ", listed, re.MULTILINE)
    assert sum(map(int, counts)) + left == 1008 and left > 0
    assert "and 3 more; the JSON has all" in text


def test_groups_are_whole_products_of_alike_timings():
    timings = gpu_family(slowdown=slow_in_one_format).timings
    groups = grouped(timings)
    assert sorted(t.subject for g in groups for t in g.timings) == sorted(
        t.subject for t in timings
    )
    assert len(groups) < len(timings) / 3
    for group in groups:
        members = {(t.subject.metric, *t.subject.params) for t in group.timings}
        assert members == set(itertools.product(*group.axes))
        effects = [timing.effect for timing in group.timings]
        floor = max(timing.floor for timing in group.timings)
        assert max(effects) - min(effects) <= max(floor, 0.25 * max(map(abs, effects)))


def test_host_calls_of_different_kinds_are_never_one_group():
    groups = grouped([*host_family().timings, *start_family().timings])
    assert sorted(group.axes[0] for group in groups) == [
        ("host.Call.track_forward",),
        ("host.Call.track_forward_backward",),
        ("host.FirstCall.track_compile",),
        ("host.FirstCall.track_warm_start",),
    ]


def scattered(count):
    """Timings that no grid would have: every one of a size, batch, dtype and format of its own."""
    timing = gpu_family().timings[0]
    timings = tuple(
        dataclasses.replace(timing, subject=Subject(timing.subject.metric, (f"{i}",) * 5))
        for i in range(count)
    )
    return Family(timings, Control(count, 0, 0.001, 0.001))


def test_a_comparison_that_no_run_gives_stays_short_and_fast():
    exact = tuple(
        judge_exact(Subject("codegen.Codegen.track_registers", (f"arch{i}",) * (i > 0)), 1, i)
        for i in range(3000)
    )
    made = comparison({"gpu": scattered(3000), "x" * 2000: host_family()}, exact, minutes=1e300)
    made = from_json(to_json(made))
    start = time.monotonic()
    text = markdown(made)
    assert time.monotonic() - start < 5
    assert len(text.encode()) < 60_000
    assert "No map: the timings are spread over a grid" in text
    assert max(map(len, terminal(made).splitlines())) <= 100


HOSTILE = "](http://evil) @owner #1 <img src=x> `a` | *b* ```\n# c \x1b[31m www.evil.com</pre>" * 20


def test_hostile_text_stays_text():
    made = comparison(
        {"gpu": gpu_family()},
        (),
        base=Side(HOSTILE, ""),
        machine={HOSTILE + str(i): HOSTILE for i in range(50)},
        grid=HOSTILE,
        notes=(HOSTILE,) * 50,
        disturbed=(HOSTILE,) * 50,
        wrong=(HOSTILE,) * 50,
        reproduce=HOSTILE,
    )
    text = markdown(made)
    assert len(text.encode()) < 60_000
    for bad in ("<img", "](", "@owner", "```", "*b*", "\x1b", "://", "www.evil", "\n# c"):
        assert bad not in text
    assert not re.search(r"(?<!&)#1", text)
    assert set(re.findall(r"</?\w+", text)) == {
        f"<{slash}{tag}"
        for slash in ("", "/")
        for tag in ("code", "pre", "details", "summary", "sub", "br")
    } - {"</br"}
    assert text.count("<pre>") == text.count("</pre>") == 1
    rendered = terminal(made)
    assert "\x1b" not in rendered


def changed(path, value):
    def change(document):
        *parents, last = path
        for key in parents:
            document = document[key]
        document[last] = value

    return change


def removed(key):
    return lambda document: document.pop(key)


TIMING = ("families", "gpu", "timings", 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed(["schema"], 1), "schema 1 is unknown, this version reads 2"),
        (changed(["schema"], True), "schema True is unknown"),
        (removed("schema"), "schema None is unknown"),
        (removed("grid"), r"comparison lacks \['grid'\]"),
        (changed(["extra"], 1), r"comparison has unknown \['extra'\]"),
        (changed(["answer"], "pass"), "answer is 'pass', the rest says 'fail'"),
        (changed(["same_sources"], 0), "comparison.same_sources must be true or false, got 0"),
        (changed(["rounds"], "12"), "comparison.rounds must be a whole number, .* got '12'"),
        (changed(["rounds"], True), "comparison.rounds must be a whole number"),
        (changed(["rounds"], -1), "comparison.rounds must be a whole number, not negative"),
        (changed(["minutes"], float("nan")), "comparison.minutes must be a finite number, got nan"),
        (changed(["minutes"], 10**400), "comparison.minutes must be a finite number"),
        (changed([*TIMING, "effect"], float("inf")), r"timings\[0\].effect must be a finite"),
        (changed([*TIMING, "effect"], None), r"timings\[0\].effect must be a finite number"),
        (changed([*TIMING, "base"], 0), "seconds must be positive"),
        (changed([*TIMING, "answer"], "maybe"), r"answer must be one of \['pass', 'fail', 'cann"),
        (changed([*TIMING, "change"], ["none"]), "change must be one of"),
        (changed([*TIMING, "subject", "metric"], "x.y.z"), "no unit for the metric 'x.y.z'"),
        (changed([*TIMING, "subject", "params"], ["</pre>"]), "a parameter must match"),
        (changed([*TIMING, "subject"], ["rope"]), "subject must be an object"),
        (changed(["notes"], "text"), "comparison.notes must be a list"),
        (changed(["notes"], ["x" * 2001]), r"notes\[0\] must be a text of up to 2000"),
        (changed(["base", "sha"], "main"), "a sha is hexadecimal or empty, got 'main'"),
        (changed(["rules", "alpha"], 0), "alpha must lie between 0 and 1"),
        (changed(["exact", 0, "unit", "gates"], 1), "gates must be true or false, got 1"),
        (changed(["exact", 0, "unit", "gates"], True), "has another unit here"),
        (lambda document: document["exact"].append(document["exact"][0]), "comes twice"),
    ],
)
def test_bad_json(change, message):
    document = json.loads(json.dumps(to_json(failing())))
    change(document)
    with pytest.raises(ValueError, match=message):
        from_json(document)


@pytest.mark.parametrize("document", [None, [], "x"])
def test_json_that_is_no_object(document):
    with pytest.raises(ValueError, match="a comparison is an object"):
        from_json(document)


def test_what_cannot_be_read_is_not_written():
    with pytest.raises(ValueError, match="comparison.minutes must be a finite number"):
        to_json(dataclasses.replace(without_gpu(), minutes=float("nan")))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2.0, "2 s"), (3.5e-3, "3.5 ms"), (1.23456e-5, "12.35 µs"), (5e-7, "500 ns")],
)
def test_seconds(seconds, text):
    assert _wording.seconds(seconds) == text


@pytest.mark.parametrize(
    ("share", "text"), [(0.0123, "+1.23 %"), (-0.25, "-25.0 %"), (1e300, "+1e+302 %")]
)
def test_percent(share, text):
    assert _wording.percent(share) == text


def test_every_state_has_a_symbol():
    assert _map.SYMBOLS.keys() == _wording.STATES.keys()
    assert len(set(_map.SYMBOLS.values())) == len(_map.SYMBOLS)


def test_a_name_that_is_the_commit_is_said_once():
    assert _wording.side(Side("8f5b046", "8f5b046c3d11")) == "8f5b046c3d"
    assert _wording.side(Side("main", "8f5b046c3d11")) == "main 8f5b046c3d"
    assert _wording.side(Side("working tree", "")) == "working tree (not committed)"


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name, suffix in GOLDEN_FILES:
        (GOLDEN / f"report-{name}.{suffix}").write_text(RENDERED[suffix](CASES[name][0]()))
    for path in SHIPPED:
        path.with_suffix(".md").write_text(markdown(from_json(json.loads(path.read_text()))))
