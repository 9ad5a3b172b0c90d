"""The first lines of a report, its links and its notes; and that it fits a comment's width."""

import dataclasses
import html
import json
import re

import pytest

from benchmarks._engine.report.markdown import markdown
from benchmarks._engine.report.terminal import terminal
from benchmarks._engine.report.text import change_of, label
from benchmarks._engine.verdict.note import Note
from benchmarks._engine.verdict.rules import Key, judge_exact
from benchmarks._engine.verdict.schema import Side, from_json
from tests.comparisons import CASES, blind, comparison, failing, gpu_family, passing, subjects
from tests.engine.report.artifacts import REQUEST
from tests.engine.report.test_report_golden import SHIPPED

PAGE = REQUEST.page
SHAS = "a" * 40, "b" * 40

# --- the first lines ------------------------------------------------------------------------------


def reports():
    made = {name: make() for name, (make, _) in CASES.items()}
    stored = {path.parent.name + path.stem: json.loads(path.read_text()) for path in SHIPPED}
    return made | {name: from_json(document) for name, document in stored.items()}


REPORTS = reports()


def unfolded(text):
    """The lines that a reader sees before anything is opened."""
    left = re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL)
    return [line for line in left.replace("&nbsp;", " ").splitlines() if line.strip()]


@pytest.mark.parametrize("name", REPORTS)
def test_what_is_not_folded_is_short(name):
    made = REPORTS[name]
    lines = unfolded(markdown(made, PAGE))
    # Without the head of the table, and what must never be folded.
    rest = [line for line in lines if not re.match(r"\|  \||\| :--|- |Wrong|Not measured", line)]
    assert rest[0].startswith("## ") and len(rest) <= 10
    assert sum(line.startswith("Next: ") for line in rest) == 1


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (dataclasses.replace(failing(), wrong=()), "Next: fix it, or accept it: [CONTRIBUTING"),
        (dataclasses.replace(blind(), rounds=62 + 12), "Next: these are all rounds that can be "),
        (
            dataclasses.replace(passing(), unmeasured=(Note("requirement", "a"),)),
            "Next: settle what was not measured",
        ),
    ],
)
def test_next_step(made, says):
    """The steps that no golden report has."""
    [line] = [line for line in unfolded(markdown(made, PAGE)) if line.startswith("Next: ")]
    assert line.startswith(says)
    assert line.endswith(f"{made.reproduce}</code>")


# --- links ----------------------------------------------------------------------------------------


def test_commits_and_what_is_between_are_links():
    base, head = (Side(name, sha) for name, sha in zip(("](x) @a <b>", "head"), SHAS, strict=True))
    made = dataclasses.replace(passing(), base=base, head=head)
    links = re.findall(r"\]\(([^)]*)\)", markdown(made, PAGE))
    commits = [f"{PAGE}/commit/{sha}" for sha in SHAS]
    assert links == [*commits, f"{PAGE}/compare/{'...'.join(SHAS)}"]
    assert "](" not in markdown(made)  # no page is known
    tree = dataclasses.replace(made, head=Side("working tree", ""))
    assert re.findall(r"\]\(([^)]*)\)", markdown(tree, PAGE)) == commits[:1]


# --- notes ----------------------------------------------------------------------------------------

TOO_OLD = "tensor_format='thd' is not implemented yet"


def test_what_the_base_is_too_old_for_is_one_number():
    memory = Key("host.PathMemory.track_peak_bytes", ("forward", "thd"))
    notes_of_base = (
        Note("no value", TOO_OLD, "base", count=2),
        Note("no value", TOO_OLD, "head", count=1),
        Note("unavailable", TOO_OLD, "base", tuple(subjects("small")[:13])),
        Note("fewer rounds", count=10, total=12),
    )
    made = comparison(
        {"gpu": gpu_family()}, (judge_exact(memory, None, 2.0**24),), notes=notes_of_base
    )
    says = " ".join(terminal(made).split())
    assert f"note: 14 cells new in head; the base: {TOO_OLD} note: head: 1 exact value miss" in says
    assert "note: 10 rounds: there was no time for 12" in says
    assert "peak memory of other calls: 1 new of 1 value" in markdown(made)


def test_values_missing_for_many_reasons_are_one_sentence():
    notes = tuple(Note("no value", f"reason {n}", "base", count=2) for n in range(45))
    says = " ".join(terminal(comparison({"gpu": gpu_family()}, (), notes=notes)).split())
    assert "note: base: 90 exact values missing: 45 reasons, the first: reason 0" in says
    assert says.count("missing") == 1


# --- names and numbers ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "params", "text"),
    [
        ("host.PathCall.track_forward_backward", ["qkv"], "Host call forward + backward, qkv"),
        ("host.FirstCall.track_warm_start", [], "First call, cache filled"),
        ("host.Error.track_error", ["backward", "float32", "long", "True"],
         "error, backward, float32, long context, interleaved"),
        ("host.PathMemory.track_peak_bytes", ["forward", "thd"],
         "peak memory of other calls, forward, thd"),
        ("codegen.Codegen.track_narrow_share",
         ["sm_90", "float16", "sbhd", "forward", "64", "small"],
         "narrow accesses, sm_90, float16, sbhd, forward, 64 channels, small tensor"),
        ("model_calls.Forward.track_latency", ["phi-2", "decode", "tables"],
         "Forward phi-2, decode, with tables"),
    ],
)  # fmt: skip
def test_names_in_words(metric, params, text):
    assert label(Key(metric, tuple(params))) == text


@pytest.mark.parametrize(
    ("base", "head", "unit", "text"),
    [
        (2.0**24, 20 * 2.0**20, "bytes", "16 → 20 MiB"),
        (2.0**24, 2.0**24 - 2**14, "bytes", "16 → 15.98 MiB"),
        (None, 4096.0, "bytes", "none → 4 KiB"),
        (0.0, 0.0, "bytes", "0 → 0 B"),
        (1.69737, 1.70139, "x rounding", "1.697 → 1.701 × rounding"),
        (1.70137, 1.70139, "x rounding", "1.70137 → 1.70139 × rounding"),
        (0.2, 1.0, "share", "20 → 100 %"),
        (42.0, 46.0, "registers/thread", "42 → 46"),
        (3.1e-4, None, "seconds", "310 µs → none"),
        (1e308, -1e308, "share", "inf → -inf %"),
    ],
)
def test_changes_show_the_digits_that_differ(base, head, unit, text):
    assert change_of(base, head, unit) == text


# --- width ----------------------------------------------------------------------------------------

_COLUMN, _LETTER, _COMMENT = 27, 8.2, 748  # pixels: of padding, of a letter at most, of a comment


@pytest.mark.parametrize("name", REPORTS)
def test_tables_fit_a_comment(name):
    """By the longest word of each column, which is as narrow as a browser makes it."""
    for table in re.findall(r"(?:^\|.*\n?)+", markdown(REPORTS[name], PAGE), re.MULTILINE):
        rows = [re.split(r" \| ", line.strip("|\n ")) for line in table.splitlines()]
        columns = zip(*(row for row in rows if len(row) == len(rows[1])), strict=True)
        words = [
            max(len(html.unescape(w)) for cell in column for w in re.split(r"[ */-]|<br>", cell))
            for column in columns
        ]
        assert sum(_COLUMN + _LETTER * letters for letters in words) <= _COMMENT, table[:200]
