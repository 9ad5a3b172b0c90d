"""The overview's section of other libraries: its data, and how it is drawn."""

import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks._measure.cell_outcomes import Outcome
from benchmarks._site import page, peers
from benchmarks._studies.peers import state
from benchmarks._studies.peers.experiments import COPY, GRIDS, OURS, Timing
from benchmarks._studies.peers.state import Results, Row
from benchmarks._studies.runner import StudyError
from tests import publishing
from tests.lab import MACHINE
from tests.peers import timer as times
from tests.publishing import READY

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENT = GRIDS["small"]["throughput"]
LENGTHS = [256, 2048, 3968]
MISSING = "transformer-engine"


# --- data -----------------------------------------------------------------------------------------


def written(path: Path, answer=times.outcome, **said) -> Path:
    """A file of a small sweep in which a timing that is answered by None was not measured."""
    head = state.header(
        **{"experiment": "throughput", "grid": "small", "commit": times.SHA, "suite": "1"},
        **{"machine": dict(MACHINE), "software": {"a-library": "1.0"}, "command": "sweep it"},
    )
    outcomes = {timing: answer(timing) for timing in EXPERIMENT.timings}
    rows = {t: Row(t, found, "GPU-1") for t, found in outcomes.items() if found}
    state.write(path, Results(head | said, rows), EXPERIMENT.timings)
    return path


@pytest.fixture
def file(tmp_path):
    return tmp_path / "throughput.jsonl"


def batch(data: dict, wanted: int) -> dict:
    (found,) = (each for each in data["batches"] if each["batch"] == wanted)
    return found


def without(data: dict, wanted: int, provider: str) -> list[dict]:
    return [each for each in batch(data, wanted)["without"] if each["provider"] == provider]


def test_what_ships_is_shown_to_four_digits():
    lines = peers.EVIDENCE.read_text().splitlines()
    head, rows = json.loads(lines[0]), [json.loads(line) for line in lines[1:]]
    data = peers.peers(peers.EVIDENCE)
    assert head["machine"]["gpu"] in data["source"][0] and head["commit"][:8] in data["source"][1]
    assert data["source"][2] == "python -m benchmarks study peers --only throughput"
    assert [each["batch"] for each in data["batches"]] == [1, 2, 4, 8]
    shown = 0
    for row in rows:
        provider, seq_len, hidden_size, heads, of, dtype, _ = row["cell"]
        if not row.get("latency"):
            continue
        assert dtype == "float16"  # two bytes an element, read and written
        moved = 2 * 2 * seq_len * hidden_size * heads * of
        gbps = moved / statistics.median(row["latency"]) / 1e9
        chart = batch(data, of)
        assert chart["gbps"][provider][chart["seq_len"].index(seq_len)] == float(f"{gbps:.4g}")
        shown += 1
    lines = [line for each in data["batches"] for line in each["gbps"].values()]
    assert shown == sum(value is not None for line in lines for value in line) > 500


def test_of_what_ships_every_provider_has_a_line_or_a_reason():
    data = peers.peers(peers.EVIDENCE)
    assert list(data["providers"]) == list(GRIDS["full"]["throughput"].figures[0].providers)
    for each in data["batches"]:
        explained = {gap["provider"] for gap in each["without"] if gap["count"] == gap["of"] == 30}
        assert explained.isdisjoint(each["gbps"])
        assert explained | set(each["gbps"]) == set(data["providers"])


def test_what_a_sweep_says(file):
    """TransformerEngine is not installed, the seed is wrong in batches of eight, and more."""

    def answer(timing: Timing) -> Outcome | None:
        match timing.cell:
            case cell if cell.provider == "compile" and cell.seq_len == 2048:
                return Outcome(error="RuntimeError: " + "far " * 1000)
            case cell if cell.provider == "fla" and cell.seq_len == 256:
                return None
        return times.outcome(timing)

    data = peers.peers(written(file, answer))
    json.dumps(data, allow_nan=False)
    assert data["what"] == "forward, 64 heads of 128, float16, sbhd"
    assert data["source"][1:] == ["commit 01234567, grid small", "sweep it"]
    assert data["providers"]["seed"].startswith("a Triton program for each position and head")
    assert batch(data, 4)["seq_len"] == LENGTHS

    assert MISSING not in batch(data, 1)["gbps"]
    assert without(data, 1, MISSING) == [
        {"provider": MISSING, "status": "n/a", "reason": times.MISSING, "count": 3, "of": 3}
    ]
    assert "seed" in batch(data, 4)["gbps"] and not without(data, 4, "seed")
    assert "seed" not in batch(data, 8)["gbps"]
    (gap,) = without(data, 8, "seed")
    assert (gap["status"], gap["count"]) == ("wrong", 3)
    assert gap["reason"] == "AssertionError: Tensor-likes are not close!"
    first, second, third = batch(data, 2)["gbps"]["compile"]
    assert first and second is None and third
    (gap,) = without(data, 2, "compile")
    assert (gap["status"], gap["count"], gap["of"]) == ("failed", 1, 3)
    assert gap["reason"].startswith("RuntimeError: far") and len(gap["reason"]) < 250
    assert batch(data, 2)["gbps"]["fla"][0] is None
    (gap,) = without(data, 2, "fla")
    assert (gap["status"], gap["reason"]) == ("not measured", "")


def test_without_the_file_there_is_nothing_to_show(file):
    assert peers.peers(file) is None


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda content: content[:-20], "does not end with a line"),
        (lambda content: content + b"\xff\n", "throughput.jsonl, line 110, is damaged: 'utf-8'"),
        (lambda content: content.partition(b"\n")[2], "is no sweep"),
        (lambda content: content.partition(b"\n")[0] + b"\n", "has no rows"),
        (lambda content: b"", "is no journal"),
        (
            lambda content: content.replace(b'"commit":', b'"comment":', 1),
            "line 1, does not say its commit",
        ),
    ],
)
def test_a_damaged_file_is_refused(file, damage, said):
    file.write_bytes(damage(written(file).read_bytes()))
    with pytest.raises(StudyError, match=said):
        peers.peers(file)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"experiment": "study"}, "holds the experiment 'study'"),
        ({"grid": "huge"}, "of the grid 'huge', which is not known"),
        ({"format": "other"}, "no sweep of format 'rope-triton sweep': 'other'"),
        ({"schema": 2}, "no sweep of schema 1: 2"),
    ],
)
def test_a_file_of_something_else_is_refused(file, other, said):
    with pytest.raises(StudyError, match=said):
        peers.peers(written(file, **other))


def test_it_needs_nothing_that_a_publishing_machine_lacks():
    blocked = ("torch", "triton", "matplotlib", "pynvml")
    script = f"import sys\nsys.modules.update(dict.fromkeys({blocked}))\n"
    script += "from benchmarks._site import peers\nprint(len(peers.peers(peers.EVIDENCE)))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) > 0


# --- colours --------------------------------------------------------------------------------------


def luminance(colour: str) -> float:
    """Of a colour as CSS writes it, 0 to 1 (WCAG 2)."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_every_line_has_a_colour_of_its_own_that_is_seen(scheme):
    css = (ROOT / "benchmarks" / "_site" / "overview.css").read_text()
    text = re.findall(r":root \{(.*?)\}", css, re.DOTALL)[scheme]
    colours = dict(re.findall(r"--lib-([\w-]+): (#\w+);", text))
    assert set(colours) == set(GRIDS["full"]["throughput"].figures[0].providers)
    assert len(set(colours.values())) == len(colours)
    (ground,) = re.findall(r"--page: (#\w+);", text)
    for colour in colours.values():
        low, high = sorted((luminance(colour), luminance(ground)))
        assert (high + 0.05) / (low + 0.05) >= 3  # what WCAG asks of graphics


# --- the page -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shipped(site):
    return publishing.overview_data(site)["peers"]


def legend(browser) -> dict[str, str]:
    """What stands under the chart: line -> value where the mouse is."""
    rows = browser.run(
        """return [...document.querySelectorAll("#peers .u-series")].map((row) =>
            [row.querySelector(".u-label").innerText, row.querySelector(".u-value").innerText]);"""
    )
    return dict(rows)


def point_at(browser, share: float, length: int) -> None:
    """Rest the mouse at so much of the chart's width, and wait until the legend is of a length."""
    browser.run(
        f"""const over = document.querySelector("#peers .u-over");
        over.scrollIntoView({{ block: "center" }});
        const box = over.getBoundingClientRect();
        const at = {{ clientX: box.left + {share} * (box.width - 1), clientY: box.top + 50 }};
        over.dispatchEvent(new MouseEvent("mouseenter", at));
        over.dispatchEvent(new MouseEvent("mousemove", at));"""
    )
    browser.wait(f"document.querySelector('#peers .u-value').innerText === '{length}'")


def table(browser) -> dict[str, list[str]]:
    """Provider -> its speed, and what is said of it."""
    rows = browser.run(
        """return [...document.querySelectorAll("#peers-table tbody tr")].map((row) =>
            [...row.cells].map((cell) => cell.innerText));"""
    )
    return {name: rest for name, *rest in rows}


def load(browser, address: str, name: str = page.PAGE) -> None:
    browser.load(f"{address}/{name}", READY)


def test_each_batch_has_a_drawing_a_legend_and_speeds(browser, address, shipped):
    load(browser, address)
    drawings, labels, speeds = set(), set(), set()
    for each in shipped["batches"]:
        browser.choose("peers-batch", each["batch"])
        names = list(legend(browser))[1:]
        assert set(names) == set(each["gbps"])
        assert (names[0], names[-1]) == (OURS, COPY)  # the wide one below, the dashes above
        drawings.add(browser.run("return document.querySelector('#peers canvas').toDataURL()"))
        label = browser.run("return document.getElementById('peers-chart').ariaLabel")
        assert "GB/s by sequence length" in label and f"batch {each['batch']}" in label
        labels.add(label)
        speeds.add(tuple(speed for speed, _ in table(browser).values()))
        for share, index in ((0, 0), (1, -1)):
            point_at(browser, share, each["seq_len"][index])
            found = legend(browser)
            del found["length"]
            values = {name: line[index] for name, line in each["gbps"].items()}
            assert {name: float(text) for name, text in found.items()} == pytest.approx(
                values, abs=0.51
            )
    assert len(drawings) == len(labels) == len(speeds) == 4


def test_our_line_is_wide_and_the_copy_dashed(browser, address):
    load(browser, address)
    markers = browser.run(
        """return [...document.querySelectorAll("#peers .u-series")].slice(1).map((row) => {
            const style = getComputedStyle(row.querySelector(".u-marker"));
            return [row.querySelector(".u-label").innerText, style.borderTopStyle,
                parseFloat(style.borderTopWidth)]; });"""
    )
    styles = {name: style for name, style, _ in markers}
    widths = {name: width for name, _, width in markers}
    unlike = {COPY: "dashed", "rope-triton-tables": "dotted"}
    assert styles == dict.fromkeys(styles, "solid") | unlike
    assert widths[OURS] > 2 * max(width for name, width in widths.items() if name != OURS)


def test_the_text_says_who_computes_what_how_fast_and_where(browser, address, shipped):
    load(browser, address)
    found, first = table(browser), shipped["batches"][0]
    assert list(found) == list(shipped["providers"])
    for name, (speed, said) in found.items():
        assert said.startswith(shipped["providers"][name])
        if name in first["gbps"]:
            assert float(speed) == pytest.approx(first["gbps"][name][-1], abs=0.51)
    for gap in first["without"]:
        speed, said = found[gap["provider"]]
        assert speed == gap["status"] and f"{gap['status']}: {gap['reason']}" in said
    assert f"GB/s at {first['seq_len'][-1]}" in browser.text("#peers-table thead")
    source = browser.text("#peers-source")
    assert all(line in source for line in shipped["source"])
    assert shipped["what"] in browser.text("#peers > p")


def test_a_wrong_one_is_not_drawn_and_a_gap_stays_a_gap(browser, site, address, file):
    def answer(timing: Timing) -> Outcome:
        if (timing.cell.provider, timing.cell.seq_len) == ("compile", 3968):
            return Outcome(error=times.WRONG)
        return times.outcome(timing)

    made_up = peers.peers(written(file, answer))
    publishing.change_overview(site, "made-up.html", lambda data: data.update(peers=made_up))
    load(browser, address, "made-up.html")
    browser.choose("peers-batch", 8)
    assert "seed" not in legend(browser)
    speed, said = table(browser)["seed"]
    assert speed == "wrong" and "wrong: AssertionError: Tensor-likes are not close!" in said
    bad = browser.run("return document.querySelector('#peers-table td .bad').innerText")
    assert bad == "wrong"
    point_at(browser, 1, 3968)
    assert legend(browser)["compile"] == table(browser)["compile"][0] == "\u2013"
    assert "wrong at 1 of 3 lengths: AssertionError" in table(browser)["compile"][1]
    point_at(browser, 0, 256)
    assert float(legend(browser)["compile"]) > 0


def test_a_value_between_two_gaps_is_seen(browser, site, address):
    def drawing(*at: int) -> str:
        def change(data):
            first = data["peers"]["batches"][0]
            first["gbps"]["fla"] = [2000.0 if i in at else None for i in range(30)]

        name = f"gaps{at}.html"  # one each: the browser keeps what it loaded a moment ago
        publishing.change_overview(site, name, change)
        load(browser, address, name)
        return browser.run("return document.querySelector('#peers canvas').toDataURL()")

    assert len({drawing(), drawing(10), drawing(29)}) == 3


def test_it_and_the_history_need_not_each_other(browser, site, address):
    publishing.change_overview(site, "without.html", lambda data: data.update(peers=None))
    load(browser, address, "without.html")
    assert browser.run("return document.getElementById('peers').offsetHeight") == 0
    assert "Beside other libraries" not in browser.text("main")
    assert browser.run("return document.querySelectorAll('canvas').length") == 2  # the rest is
    publishing.change_overview(site, "alone.html", lambda data: data.update(speed=[], codegen=[]))
    load(browser, address, "alone.html")
    assert list(legend(browser))[1] == OURS and table(browser)


def test_the_lines_take_the_colours_of_the_scheme(browser, address):
    load(browser, address)
    light = browser.run("return document.querySelector('#peers canvas').toDataURL()")
    browser.prefer("dark")
    browser.wait(f"document.querySelector('#peers canvas').toDataURL() !== '{light}'")
