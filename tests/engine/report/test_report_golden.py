"""Whole reports: the golden texts of made-up comparisons, and those of the reports that ship.

``python -m tests.engine.report.test_report_golden`` writes all of them again; read the difference
before you commit it.
"""

import json
from pathlib import Path

import pytest

from benchmarks._engine import subject
from benchmarks._engine.report.markdown import markdown
from benchmarks._engine.report.terminal import terminal
from benchmarks._engine.system.process import SUITE
from benchmarks._engine.verdict.schema import from_json
from tests.comparisons import CASES
from tests.engine.report.artifacts import REQUEST

GOLDEN = Path(__file__).parent / "golden"
SHIPPED = sorted((SUITE / "evidence" / "reports").rglob("*.json"))
AGAIN = "python -m tests.engine.report.test_report_golden"


def texts(case):
    """File of ``GOLDEN`` -> text."""
    made = CASES[case][0]()
    return {f"report-{case}.txt": terminal(made), f"report-{case}.md": markdown(made)}


@pytest.mark.parametrize("case", CASES)
def test_golden(case):
    answer = CASES[case][1]
    for name, text in texts(case).items():
        expected = (GOLDEN / name).read_text()
        assert text == expected, f"if the new text is better, write it with: {AGAIN}"
        only_code = " (exact values only; nothing was timed)" if case == "no-gpu" else ""
        says = text.partition("\n")[0]
        if name.endswith(".md"):
            assert says.endswith(f"{answer.upper()}{only_code}")
        else:
            assert says.startswith(f"{answer.upper()}{only_code}: ")
            assert max(map(len, text.splitlines())) <= 100


def test_reports_that_ship():
    """Made on a GPU, by the commands that they name; the text is what their numbers say today."""
    assert SHIPPED
    for path in SHIPPED:
        comparison = from_json(json.loads(path.read_text()))
        text = path.with_suffix(".md").read_text()
        assert text == markdown(comparison, REQUEST.page), (
            f"if the new text is better, write it with: {AGAIN}"
        )
        assert comparison.answer.value == path.stem.replace("-", " ")
        assert comparison.reproduce in text and comparison.base.sha[:10] in text


if __name__ == "__main__":
    subject.load(subject.DEFAULT)
    for case in CASES:
        for name, text in texts(case).items():
            (GOLDEN / name).write_text(text)
    for path in SHIPPED:
        made = from_json(json.loads(path.read_text()))
        path.with_suffix(".md").write_text(markdown(made, REQUEST.page))
