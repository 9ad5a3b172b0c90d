"""Loss curves of the tiny network on a CPU, and what is made of them."""

import functools
import math

import pytest
import torch

from benchmarks._engine.subject import Unavailable
from benchmarks._studies.training import parity
from benchmarks._studies.training.functions import PROVIDERS
from benchmarks._studies.training.parity import (
    COPY,
    ERROR,
    FAIL,
    FLOOR,
    NOT_RUN,
    PASS,
    TEXT,
    UNAVAILABLE,
    Curves,
    Job,
    Run,
)
from benchmarks._studies.training.sizes import SIZES, TINY

NAMES = ("eager", "ours-eager")


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    """Curves that are learned within the steps compared: 0.4 s each in float32."""
    smaller = SIZES["tiny"]._replace(tokens=192, vocabulary=16)
    monkeypatch.setitem(SIZES, "tiny", smaller)
    for name, value in {"STEPS": 120, "RATE": 2e-3, "BACK": 3, "SEEDS": (0,)}.items():
        monkeypatch.setattr(parity, name, value)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield smaller
    torch.set_num_threads(threads)


def plain(**changed):
    """Plain PyTorch but for these functions."""
    return PROVIDERS["eager"].functions()._replace(**changed)


def change(monkeypatch, **functions):
    """Let ``ours-eager`` compute plain PyTorch but for these functions."""
    changed, provider = plain(**functions), PROVIDERS["ours-eager"]
    monkeypatch.setitem(PROVIDERS, "ours-eager", provider._replace(functions=lambda: changed))


@functools.cache
def baseline(task):
    """What all are judged by: trained once for all tests of a task."""
    runs = Run("eager", "float32"), Run("eager", "bfloat16")
    return [parity.trained(run, TINY, [Job(task, 0)], "cpu")[0] for run in runs]


def trained(task, runs):
    """By provider and dtype the row of each run, and of eager PyTorch."""
    entries = list(baseline(task))
    for run in runs:
        entries += parity.trained(run, TINY, [Job(task, 0)], "cpu")
    judged = Curves(NAMES, entries).rows()
    return {row[:2]: row for row in judged if row.task == task}


def test_the_same_passes_in_both_dtypes(monkeypatch):
    change(monkeypatch)
    rows = trained(COPY, [Run("ours-eager", "bfloat16"), Run("eager", "float16")])
    one, other, half = rows.values()
    assert [row.status for row in (one, other, half)] == [PASS] * 3
    assert (other.distance, other.bound) == (one.distance, FLOOR)
    assert 0 < half.distance < FLOOR and half.dtype == "float16"
    assert 0 < one.loss < 0.5 < math.log(16)  # it was learned


def test_a_sine_of_the_wrong_sign_fails_on_the_copy(monkeypatch):
    change(monkeypatch, tables=lambda angles, dtype: plain().tables(-angles, dtype))
    row = trained(COPY, [Run("ours-eager", "bfloat16")])["ours-eager", "bfloat16"]
    assert row.status == FAIL and row.distance > 3 * row.bound


def test_attention_that_sees_the_next_token_fails_on_the_text(monkeypatch, tiny):
    monkeypatch.setitem(SIZES, "tiny", tiny._replace(vocabulary=256))

    def attention(q, k, v):
        q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
        seen = torch.ones(TINY.context, TINY.context, dtype=torch.bool).tril(1)
        mixed = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, enable_gqa=True
        )
        return mixed.transpose(1, 2)

    change(monkeypatch, attention=attention)
    rows = trained(TEXT, [Run("ours-eager", "bfloat16")])
    right, wrong = rows["eager", "bfloat16"], rows["ours-eager", "bfloat16"]
    assert (right.status, wrong.status) == (PASS, FAIL)
    assert wrong.loss < right.loss - 3 * FLOOR


def test_float16_skips_no_step(monkeypatch, tiny):
    """At the scaler's default a gradient overflows here, and float16 is the farther of the two."""
    monkeypatch.setitem(SIZES, "tiny", tiny._replace(vocabulary=256))
    rows = trained(TEXT, [Run("eager", "float16")])
    assert rows["eager", "float16"].distance < rows["eager", "bfloat16"].distance / 3


# --- what is trained ------------------------------------------------------------------------------


def test_providers_are_judged_by_float32_that_rotates_as_they_do():
    exact, half = Run("eager", "float32"), Run("eager", "bfloat16")
    assert parity.runs(["liger"]) == (exact, half, Run("liger", "bfloat16"))
    pairs = Run("triton-fused", "float32")
    dtypes = [Run("triton-fused", dtype) for dtype in ("bfloat16", "float16")]
    assert parity.runs(["triton-fused"]) == (exact, half, pairs, *dtypes)
    names = parity.with_rope(PROVIDERS)
    assert names == tuple(
        name for name in PROVIDERS if PROVIDERS[name].reference is not PROVIDERS["none"].functions
    )
    every = parity.runs(names)
    assert len(set(every)) == len(every) == 3 + len(names) + 4
    groups = Run("hybrid", "float32")
    assert {parity.reference(name) for name in names} == {exact, groups, pairs}


def test_batches_are_of_the_seed_and_the_task(tiny, monkeypatch):
    tokens, targets = parity.batches(Job(COPY, 0), TINY)
    assert tokens.shape == targets.shape == (120, 192 // 24, 24)
    assert tokens.unique().tolist() == list(range(16))
    assert (targets[..., 3:] == tokens[..., :-3]).all()
    assert (targets[..., :3] == tokens[..., :1]).all()
    assert (parity.batches(Job(COPY, 0), TINY)[0] == tokens).all()
    assert (parity.batches(Job(COPY, 1), TINY)[0] != tokens).any()
    monkeypatch.setitem(SIZES, "tiny", tiny._replace(vocabulary=256))
    tokens, targets = parity.batches(Job(TEXT, 0), TINY)
    assert (targets[..., :-1] == tokens[..., 1:]).all()
    assert bytes(tokens[7, 3].tolist()) + bytes(targets[7, 3, -1:].tolist()) in parity.text()


def missing():
    raise Unavailable("liger is not there")


@pytest.mark.parametrize(
    ("functions", "key", "why"),
    [
        (lambda: plain(loss=lambda x, y: x.sum() * math.nan), "error", "loss of step 0 is nan"),
        (lambda: plain(attention=lambda q, k, v: 1 / 0), "error", "ZeroDivisionError"),
        (missing, "unavailable", "liger is not there"),
    ],
    ids=["NaN", "exception", "no library"],
)
def test_why_there_is_no_curve(monkeypatch, functions, key, why):
    monkeypatch.setattr(parity, "STEPS", 2)
    monkeypatch.setitem(PROVIDERS, "liger", PROVIDERS["liger"]._replace(functions=functions))
    (entry,) = parity.trained(Run("liger", "bfloat16"), TINY, [Job(COPY, 0)], "cpu")
    assert why in entry.pop(key)
    assert entry == {"task": COPY, "seed": 0, "provider": "liger", "dtype": "bfloat16"}


# --- what is made of it ---------------------------------------------------------------------------


def entries(shifts, seeds=(0, 1, 2)):
    """Curves that lie so far above float32's, each in all steps but the first hundred."""
    return [
        {
            **{"task": task, "seed": seed, "provider": name, "dtype": dtype},
            "losses": [1.0 + seed] * 100 + [1.0 + seed + shift * (-1) ** seed] * 100,
        }
        for (name, dtype), shift in shifts.items()
        for task in (TEXT, COPY)
        for seed in seeds
    ]


@pytest.fixture
def three(monkeypatch):
    monkeypatch.setattr(parity, "SEEDS", (0, 1, 2))


@pytest.mark.parametrize(
    ("baseline", "shift", "bound", "status"),
    [
        (0.08, 0.099, 0.1, PASS),
        (0.08, 0.101, 0.1, FAIL),
        (0.001, 0.019, 0.02, PASS),
        (0.001, -0.021, 0.02, FAIL),
    ],
)
def test_the_bound_is_that_of_bfloat16(three, baseline, shift, bound, status):
    shifts = {("eager", "float32"): 0, ("eager", "bfloat16"): baseline}
    judged = Curves(NAMES, entries(shifts | {("ours-eager", "bfloat16"): shift})).rows()
    for row in judged:
        if row.provider == "ours-eager":
            assert (row.status, row.bound) == (status, pytest.approx(bound))
            assert row.distance == pytest.approx(abs(shift))
            assert row.loss == pytest.approx(2 + shift / 3)


EXACT, BASELINE, OURS = (
    *(("eager", "float32"), ("eager", "bfloat16")),
    ("ours-eager", "bfloat16"),
)
ERRED = {"seed": 1, "error": "Traceback\n  deep\nRuntimeError: bad"}


@pytest.mark.parametrize(
    ("trained", "seeds", "other", "status", "why"),
    [
        ([EXACT, BASELINE], (), {}, NOT_RUN, "0 of 3 seeds"),
        ([EXACT, BASELINE], (0, 2), {}, NOT_RUN, "2 of 3 seeds"),
        ([EXACT, BASELINE], (0, 2), ERRED, ERROR, "RuntimeError: bad"),
        ([EXACT, BASELINE], (0,), {"unavailable": "no liger"}, UNAVAILABLE, "no liger"),
        ([BASELINE], (0, 1, 2), {}, ERROR, "no curves of eager in float32"),
        ([EXACT], (0, 1, 2), {}, ERROR, "no curves of eager in bfloat16 or float32"),
    ],
)
def test_what_has_no_distance(three, trained, seeds, other, status, why):
    curves = entries(dict.fromkeys(trained, 0)) + entries({OURS: 0}, seeds)
    if other:
        curves.append(curves[-1] | other)
    rows = {row[:3]: row for row in Curves(NAMES, curves).rows()}
    row = rows[*OURS, COPY]
    assert (row.status, row.why, row.bound) == (status, why, None)
    if len(trained) == 2:
        assert rows[*BASELINE, COPY].status == PASS
