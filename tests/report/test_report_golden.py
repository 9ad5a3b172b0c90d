"""Whole reports: the golden texts of made-up comparisons, and those of the reports that ship.

``python -m tests.report.test_report_golden`` writes all of them again; read the difference
before you commit it.
"""

import json
from pathlib import Path

import pytest

from benchmarks._compare import evidence
from benchmarks._report import from_json, markdown, terminal
from tests.comparisons import CASES

GOLDEN = Path(__file__).parent / "golden"
SHIPPED = sorted((evidence.DIRECTORY / "reports").rglob("*.json"))
AGAIN = "python -m tests.report.test_report_golden"
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


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name, suffix in GOLDEN_FILES:
        (GOLDEN / f"report-{name}.{suffix}").write_text(RENDERED[suffix](CASES[name][0]()))
    for path in SHIPPED:
        path.with_suffix(".md").write_text(markdown(from_json(json.loads(path.read_text()))))
