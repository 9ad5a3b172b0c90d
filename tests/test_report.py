"""Reports of made-up comparisons: golden texts, every reading, hostile input, the JSON.

``python -m tests.test_report`` writes the golden files again; read the difference before you commit
it.
"""

import dataclasses
import html
import itertools
import json
import random
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks import _report
from benchmarks._grid import GRIDS, cells
from benchmarks._report import Comparison, Side, from_json, markdown, terminal, to_json
from benchmarks._verdict import Answer, Subject, judge, judge_exact

GOLDEN = Path(__file__).parent / "golden"
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


def gpu_family(grid="small", slowdown=None, noise=0.0015, rounds=12, states=0.0):
    """A family of simulated processes; ``slowdown(subject)`` is the head's share on top."""
    names = subjects(grid)
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


def slow_in_one_format(subject):
    return 0.03 if subject.params[3:] == ("float16", "sbhd") and subject.params[2] == "4" else 0


def fast_in_half_precision(subject):
    return -0.04 if subject.params[0] == "2048" and subject.params[3] != "float32" else 0


def passing():
    same = [subject for subject in subjects("small") if subject.params[3] == "float32"]
    return comparison(
        {"gpu": gpu_family(slowdown=fast_in_half_precision)},
        codegen(instructions=390.0),
        identical=frozenset(same),
        disturbed=("round 5: SM clock fell to 1310 MHz, 34 % below the median",),
    )


def failing():
    lost = judge_exact(subjects("full")[-1], 3.1e-4, None)
    return comparison(
        {"gpu": gpu_family(slowdown=slow_in_one_format)},
        (*codegen(narrow_share=0.25, registers=40.0), lost),
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


CASES = {
    "pass": (passing, Answer.PASS),
    "fail": (failing, Answer.FAIL),
    "cannot-tell": (blind, Answer.CANNOT_TELL),
    "no-gpu": (without_gpu, Answer.PASS),
}
RENDERED = {"txt": terminal, "md": markdown}
GOLDEN_FILES = [(case, kind) for case in CASES for kind in RENDERED]


@pytest.mark.parametrize(("case", "kind"), GOLDEN_FILES)
def test_golden(case, kind):
    text = RENDERED[kind](CASES[case][0]())
    expected = (GOLDEN / f"report-{case}.{kind}").read_text()
    assert text == expected, f"if the new text is better, write it with: {AGAIN}"


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
    assert (document["schema"], document["answer"]) == (1, answer.value)
    assert from_json(document) == made
    assert markdown(from_json(document)) == markdown(made)


def sentence(made):
    """The verdict in the terminal, on one line."""
    return " ".join(terminal(made).split("\n\n")[0].split())


def test_no_change_and_blind_read_differently():
    told, untold = markdown(passing()), markdown(blind())
    assert re.search(r"no slower than [+-]\d\.\d\d %", told)
    assert re.search(r"cannot tell: only a slowdown of \d\.\d\d % or more would have", untold)
    assert "cannot tell" not in told


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
    assert "same machine code: any difference is noise" in text
    assert "slower by" not in text and "SLOWER" not in terminal(made)
    # Next to a timing that did change, it does not hide it.
    made = dataclasses.replace(made, identical=frozenset(slow) - {sorted(slow)[0]})
    assert made.answer is Answer.FAIL
    assert "1 of 96 timings is slower" in sentence(made)


def test_all_the_same_machine_code():
    made = comparison({"gpu": gpu_family()}, (), identical=frozenset(subjects("small")))
    assert made.answer is Answer.PASS
    assert sentence(made) == "PASS: the machine code of 96 timings is the same on both sides."


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
    names = [Subject(f"host.FirstCall.track_{name}", ()) for name in ("compile", "warm_start")]
    generator = np.random.default_rng(0)
    base, head = (np.exp(0.001 * generator.standard_normal((12, 2))) for _ in range(2))
    host = judge(names, base, head * 1.5)
    made = comparison({"gpu": gpu_family(), "host": host}, ())
    assert made.answer is Answer.PASS
    assert terminal(made).count("slower (shown only)") == 2
    assert markdown(made).count("(shown only)") == 2


def test_map_has_a_symbol_for_each_cell():
    text = html.unescape(markdown(failing()))
    maps = text[text.index("<pre>") : text.index("</pre>")].split("\n\n")
    for direction, drawn in zip(("Forward", "Backward"), maps, strict=False):
        rows = [line for line in drawn.splitlines() if re.match(r" +\d+ +\d+ ", line)]
        assert direction in drawn and len(rows) == 4
        assert sum(len(row.split()) - 2 for row in rows) == 48
        # seq_len, hidden, then bshd by dtype and batch, then sbhd.
        assert all(re.search(r"X", row) for row in rows)
        assert all(row.split()[2:][9] == "X" for row in rows), drawn


@pytest.fixture(scope="module")
def full():
    return comparison({"gpu": gpu_family("full", slow_in_one_format)}, (), grid="full")


def test_full_grid_stays_under_the_limit_and_says_what_it_left_out(full):
    text = markdown(full)
    assert 40_000 < len(text.encode()) < 60_000
    shown = text[text.index("All timings") :].count(" | ") // 5 - 1
    left = int(re.search(r"(\d+) of 1008 timings are left out here", text)[1])
    assert shown + left == 1008 and left > 0


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
        *("<code", "</code", "<pre", "</pre", "<details", "</details", "<summary", "</summary")
    }
    assert text.count("<pre>") == text.count("</pre>") == 2
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
        (changed(["schema"], 2), "schema 2 is unknown, this version reads 1"),
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
    assert _report._seconds(seconds) == text


def test_every_state_has_a_symbol():
    assert len({symbol for symbol, _ in _report._SYMBOLS.values()}) == len(_report._SYMBOLS)


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name, suffix in GOLDEN_FILES:
        (GOLDEN / f"report-{name}.{suffix}").write_text(RENDERED[suffix](CASES[name][0]()))
