"""Loss curves of the tiny network on a CPU, and what is made of them."""

import functools
import math

import pytest
import torch

from benchmarks._engine.subject import Unavailable
from benchmarks._studies.training import parity
from benchmarks._studies.training.functions import PROVIDERS
from benchmarks._studies.training.parity import COPY, TEXT, Job, Run
from benchmarks._studies.training.parity_study import (
    ERROR,
    FAIL,
    FLOOR,
    NOT_RUN,
    PASS,
    UNAVAILABLE,
    Curves,
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


def change(monkeypatch, name, **other):
    """Let a provider compute plain PyTorch but for these functions."""
    made = PROVIDERS["eager"].functions()._replace(**other)
    monkeypatch.setitem(PROVIDERS, name, PROVIDERS[name]._replace(functions=lambda: made))


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
    change(monkeypatch, "ours-eager")
    found = trained(COPY, [Run("ours-eager", "bfloat16"), Run("eager", "float16")])
    one, other, half = (found[key] for key in found)
    assert [row.status for row in (one, other, half)] == [PASS] * 3
    assert (other.distance, other.bound) == (one.distance, FLOOR)
    assert 0 < half.distance < FLOOR and half.dtype == "float16"
    assert 0 < one.loss < 0.5 < math.log(16)  # it was learned


def test_a_sine_of_the_wrong_sign_fails_on_the_copy(monkeypatch):
    change(
        monkeypatch,
        "ours-eager",
        tables=lambda a, dtype: PROVIDERS["eager"].functions().tables(-a, dtype),
    )
    row = trained(COPY, [Run("ours-eager", "bfloat16")])["ours-eager", "bfloat16"]
    assert row.status == FAIL and row.distance > 3 * row.bound


def test_attention_that_sees_the_next_token_fails_on_the_text(monkeypatch, tiny):
    monkeypatch.setitem(SIZES, "tiny", tiny._replace(vocabulary=256))

    def attention(q, k, v):
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        seen = torch.ones(TINY.context, TINY.context, dtype=torch.bool).tril(1)
        mixed = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, enable_gqa=True
        )
        return mixed.transpose(1, 2)

    change(monkeypatch, "ours-eager", attention=attention)
    found = trained(TEXT, [Run("ours-eager", "bfloat16")])
    right, wrong = found["eager", "bfloat16"], found["ours-eager", "bfloat16"]
    assert (right.status, wrong.status) == (PASS, FAIL)
    assert wrong.loss < right.loss - 3 * FLOOR


def test_float16_skips_no_step(monkeypatch, tiny):
    """At the scaler's default a gradient overflows here, and float16 is the farther of the two."""
    monkeypatch.setitem(SIZES, "tiny", tiny._replace(vocabulary=256))
    found = trained(TEXT, [Run("eager", "float16")])
    assert found["eager", "float16"].distance < found["eager", "bfloat16"].distance / 3


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


@pytest.mark.parametrize(
    ("functions", "key", "why"),
    [
        ({"loss": lambda logits, targets: logits.sum() * math.nan}, "error", "loss of step 0 is n"),
        ({"attention": lambda q, k, v: 1 / 0}, "error", "ZeroDivisionError"),
    ],
    ids=["NaN", "exception"],
)
def test_a_failure_is_told(monkeypatch, functions, key, why):
    monkeypatch.setattr(parity, "STEPS", 2)
    change(monkeypatch, "ours-eager", **functions)
    (entry,) = parity.trained(Run("ours-eager", "bfloat16"), TINY, [Job(COPY, 0)], "cpu")
    assert why in entry.pop(key)
    expected = {"task": COPY, "seed": 0, "provider": "ours-eager", "dtype": "bfloat16"}
    assert entry == expected


def test_a_library_that_is_not_there(monkeypatch):
    def missing():
        raise Unavailable("liger is not there")

    liger = PROVIDERS["liger"]._replace(functions=missing)
    monkeypatch.setitem(PROVIDERS, "liger", liger)
    (entry,) = parity.trained(Run("liger", "bfloat16"), TINY, [Job(TEXT, 0)], "cpu")
    assert entry["unavailable"] == "liger is not there"


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


def test_what_has_no_distance(three):
    shifts = {("eager", "float32"): 0, ("eager", "bfloat16"): 0}
    some = entries(shifts) + entries({("ours-eager", "bfloat16"): 0}, (0, 2))
    for row in Curves(NAMES, some).rows():
        expected = {"ours-eager": (NOT_RUN, "2 of 3 seeds")}.get(row.provider)
        expected = expected or (
            (PASS, "") if row.dtype == "bfloat16" else (NOT_RUN, "0 of 3 seeds")
        )
        assert (row.status, row.why) == expected
    failed = some[-1] | {"seed": 1, "error": "Traceback\n  deep\nRuntimeError: bad"}
    absent = some[-1] | {"provider": "liger", "unavailable": "not installed"}
    judged = Curves(("ours-eager", "liger"), [*some, failed, absent]).rows()
    found = {(row.provider, row.task): row for row in judged}
    assert found["ours-eager", COPY].status == ERROR
    assert found["ours-eager", COPY].why == "RuntimeError: bad"
    assert found["liger", COPY].status == UNAVAILABLE
    for lost in shifts:
        kept = [each for each in entries(shifts) if (each["provider"], each["dtype"]) != lost]
        kept += entries({("ours-eager", "bfloat16"): 0})
        (row, _) = Curves(["ours-eager"], kept).rows()[1::2]
        assert (row.status, row.bound) == (ERROR, None)
        assert f"eager in {lost[1]}" in row.why
