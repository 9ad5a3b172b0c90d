"""The seeds' experiments: what each measures, and whether its results are close."""

from collections import Counter

from benchmarks._peers.providers import PROVIDERS
from benchmarks._peers.sweep import closeness, plots
from benchmarks._peers.sweep.experiments import EXPERIMENTS, position
from tests.peers import sweeping
from tests.peers.sweeping import FULL, SMALL, sweep

bench, undrawn = sweeping.bench, sweeping.undrawn  # fixtures


# --- what is measured -----------------------------------------------------------------------------


def test_throughput_is_the_first_seeds():
    figures = FULL["throughput"].figures
    assert [{cell.batch for cell in figure.cells} for figure in figures] == [{1}, {2}, {4}, {8}]
    for figure in figures:
        seq_lens = {cell.seq_len for cell in figure.cells}
        assert seq_lens == {128 * i for i in range(2, 32)}
        assert {(c.hidden_size, c.heads, c.dtype, c.format) for c in figure.cells} == {
            (128, 64, "float16", "sbhd")
        }
        assert figure.metric == "gbps" and figure.direction == "forward"


def test_milliseconds_study_and_bandwidth_are_as_published():
    assert {t.cell.seq_len for t in FULL["milliseconds"].timings} == {32, 64, 128, 256, 512}
    study = FULL["study"].figures
    assert Counter(figure.direction for figure in study) == {"forward": 4, "backward": 4}
    for figure in study:  # one thing varies
        for name in ("seq_len", "hidden_size", "heads", "batch", "dtype", "format"):
            values = {getattr(cell, name) for cell in figure.cells}
            assert (len(values) > 1) == (name == figure.axis.name)
    sizes = [2**power for power in range(11)]
    for figure in FULL["bandwidth"].figures:
        assert sorted({position(figure.axis, cell) for cell in figure.cells}) == sizes
        assert figure.metric == "share"


def test_every_timing_is_measured_once_and_every_provider_is_known():
    for name in EXPERIMENTS:
        timings = FULL[name].timings
        assert len(set(timings)) == len(timings)
        assert set(SMALL[name].timings) < set(timings)
        assert {timing.cell.provider for timing in timings} <= PROVIDERS.keys()
        names = [figure.name for figure in FULL[name].figures]
        assert len(set(names)) == len(names)
    assert sum(len(FULL[name].timings) for name in EXPERIMENTS) < 2200
    assert PROVIDERS.keys() == plots.STYLES.keys()
    looks = [(style.marker, style.line) for style in plots.STYLES.values()]
    assert len(set(looks)) == len(looks)  # told apart without any colour


# --- is it close? ---------------------------------------------------------------------------------


def test_the_result_is_close_by_the_promised_tolerance_and_not_by_any(device):
    found = list(closeness.checks((16,), device, heads=4))
    passes = {(each["against"], each["tolerance"]): each["passes"] for each in found}
    assert_close, allclose = closeness.TOLERANCES
    assert passes[closeness.PROMISED]
    assert not passes[closeness.UNROUNDED, allclose]
    assert not passes[closeness.IN_HALF, assert_close]
    for each in found:
        assert each["passes"] == (each["outside"] == 0)
        assert 0 <= each["largest"] < 0.01


def test_a_wrong_result_is_not_close(monkeypatch, device):
    import rope_triton

    right = rope_triton.apply_rotary_pos_emb
    monkeypatch.setattr(
        rope_triton, "apply_rotary_pos_emb", lambda x, freqs, form: right(x, -freqs, form)
    )
    assert not any(each["passes"] for each in closeness.checks((16,), device, heads=4))


def test_the_page_says_what_is_close_and_why(bench, undrawn, monkeypatch, tmp_path):
    assert sweep("--experiment", "milliseconds", "--output", str(tmp_path)) == 0
    page = (tmp_path / "milliseconds.md").read_text()
    assert "passes for every length" in page and "fails: 25.00%" in page
    assert closeness.WHY in page

    def wrong(seq_len):
        return [each | {"passes": False} for each in right(seq_len)]

    right = sweeping.check
    monkeypatch.setattr(sweeping, "check", wrong)
    assert sweep("--experiment", "milliseconds", "--afresh", "--output", str(tmp_path)) == 1
    assert "**FAILS**" in (tmp_path / "milliseconds.md").read_text()
