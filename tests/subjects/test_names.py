"""The names of calls, the list of those that are compared, and those that are drawn at random."""

import inspect
import itertools

import pytest

import rope_triton
from benchmarks._subjects.rope import grid, models, names
from benchmarks._subjects.rope.names import FUNCTIONS, OPTIONS, CallName

LISTED = grid.listed_calls()
COMMIT = "0123456789abcdef0123456789abcdef01234567"
DRAWN = [name for seed in range(3) for name in models.draw(COMMIT, seed, 67)]
# How a parameter of a public function is an option of a call.
PARAMETERS = {
    **dict.fromkeys(("t", "x", "q", "k", "qkv"), "format"),
    **dict.fromkeys(("freqs", "q_freqs", "k_freqs", "cos", "sin"), "tables"),
    **dict.fromkeys(("start_positions", "seqlen_offsets", "position_ids"), "position"),
    **dict.fromkeys(("cp_size", "cp_rank"), "parallel"),
    **{"tensor_format": "format", "cu_seqlens": "format", "qkv_split_arg_list": "heads"},
    **{"interleaved": "interleaved", "inplace": "inplace", "rounding": "rounding"},
    "inplace_gradient": "inplace",
}
# Plain PyTorch has no kernel, and the last is ignored.
NO_OPTIONS = {"fused", "max_seqlen"}


def pairs_of(calls) -> set[frozenset]:
    """Any two options with their values that meet in one of the calls."""
    pairs = set()
    for call in calls:
        values = {name: getattr(call, name) for name in ("function", "format", "dtype", *OPTIONS)}
        rotated = "all" if call.rotated == call.channels else "part"
        values |= {"channels": call.channels, "rotated": rotated}
        pairs |= set(map(frozenset, itertools.combinations(values.items(), 2)))
    return pairs


def test_a_name_says_all_of_a_call():
    words = {"interleaved": "il", "position": "starts", "layout": "sliced"}
    call = CallName("qk", "thd", "bf16", (8, 2), 96, 48, **words)
    assert names.parse("qk-thd-bf16-8x96r48-il-starts-sliced") == call
    assert names.parse("qk-thd-bf16-8+8x96").heads == (8, 8)
    assert names.parse("qkv-sbhd-bf16-8x128").head_counts == (32, 8, 8)
    assert all(str(call) == name == str(names.parse(name)) for name, call in LISTED.items())
    assert max(map(len, LISTED)) <= 80  # what a report reads


@pytest.mark.parametrize(
    "name",
    [
        *("", "angles", "angles-bshd-bf16", "angles-bshd-bf16-64", "angles-bshd-bf16-64x128-what"),
        *("Angles-bshd-bf16-64x128", "angles-bshd-half-64x128", "angles-bhsd-bf16-64x128"),
        *("angles-bshd-bf16-64x128r128", "angles-bshd-bf16-64x128r63", "angles-bshd-bf16-64x64r65"),
        *("angles-bshd-bf16-0x128", "angles-bshd-bf16-064x128", "angles-bshd-bf16-8+2x128"),
        *("qk-bshd-bf16-32+8x128", "angles-bshd-bf16-8x64-of32", "angles-bshd-bf16-8x64-short"),
        # Words in another order or twice, and combinations that no function takes.
        *("angles-bshd-bf16-64x128-cp-il", "angles-bshd-bf16-64x128-inplace"),
        *("angles-bshd-bf16-64x128-il-il", "angles-bshd-bf16-64x128-odd-sliced"),
        *("qkv-bshd-bf16-8x128-rtables", "attention-bhsd-bf16-8x128-starts"),
        *("tables-bshd-fp32-8x128-t32", "angles-thd-bf16-8x128-perbatch"),
    ],
)
def test_other_names_are_refused(name):
    with pytest.raises(ValueError, match="no call has the name"):
        names.parse(name)


def test_a_name_with_a_size_is_of_the_function_that_takes_its_tensors():
    name = "fp16-32+8x128r64-il-of192-perbatch-2x4096"
    words = {"interleaved": "il", "tables": "perbatch", "layout": "of192"}
    call = CallName("qk", "bshd", "fp16", (32, 8), 128, 64, **words)
    assert names.parse_sized(name) == (call, 2, 4096) and call.sized(2, 4096) == name
    tables = call._replace(function="qktables")
    assert names.parse_sized(name, tables=True) == (tables, 2, 4096)
    decoding, *size = names.parse_sized("bf16-1x64-64x1")
    assert (str(decoding), size) == ("angles-bshd-bf16-1x64-starts", [64, 1])
    assert len(set(models.CHOSEN)) == len(models.CHOSEN)
    for name in (*models.MODELS.values(), *models.CHOSEN, *DRAWN):
        call, *size = names.parse_sized(name)
        assert call.sized(*size) == name


@pytest.mark.parametrize(
    "name",
    [
        *("", "bf16-1x64", "bf32-1x64-1x1", "bf16-0x64-1x1", "bf16-1x64-1x0", "bf16-1x64r64-1x1"),
        *("bf16-1x64r96-1x1", "bf16-1x64r31-1x1", "bf16-1x64-of32-1x1", "bf16-1x64-of192-il-1x1"),
        *("bf16-01x64-1x1", "bf16-1+1+1x64-1x1", "bf16-1x64-1x1 "),
        *("bf16-1x64-cp-1x3", "bf16-1x64-reach-cp-1x4", "bf16-1x64-once-1x1"),
    ],
)
def test_other_names_with_sizes_are_refused(name):
    for tables in (False, True):
        with pytest.raises(ValueError, match="no call has the name"):
            names.parse_sized(name, tables)


def test_any_two_options_that_can_meet_do():
    """If this fails, add calls to the list that have the pairs which are missing."""
    possible = pairs_of(cell.call_name for seed in range(3) for cell in grid.dense(seed))
    missing = sorted(sorted(pair, key=str) for pair in possible - pairs_of(LISTED.values()))
    assert not missing, missing[:10]


def test_every_public_function_and_parameter_is_an_option():
    functions = {name for name in rope_triton.__all__ if name.startswith(("apply_", "rotary_emb"))}
    assert functions == set(FUNCTIONS.values())
    for name in functions:
        parameters = set(inspect.signature(getattr(rope_triton, name)).parameters)
        assert parameters <= PARAMETERS.keys() | NO_OPTIONS, name
    assert set(PARAMETERS.values()) <= {*CallName._fields}


# --- drawn at random ------------------------------------------------------------------------------


def test_dense_calls_are_the_same_each_time_and_of_every_option():
    cells = grid.dense()
    assert cells == grid.dense() != grid.dense(1)
    for option, words in OPTIONS.items():
        assert {getattr(cell.call_name, option) for cell in cells} == set(words)


def test_what_is_drawn_follows_from_the_commit_and_the_seed():
    assert models.draw(COMMIT, 0, 67) == DRAWN[:67] and models.draw(COMMIT, 0, 5) == DRAWN[:5]
    others = [models.draw(COMMIT, 1, 67), models.draw(COMMIT[::-1], 0, 67)]
    assert all(len(set(DRAWN[:67]) & set(other)) < 10 for other in others)
    assert len(set(models.draw(COMMIT, 0, 300))) == 300


def test_what_is_drawn_is_like_the_calls_of_models_and_varied():
    drawn = [names.parse_sized(name) for name in DRAWN]
    shares = {
        "bf16": lambda call, batch, seq_len: call.dtype == "bf16",
        "pair": lambda call, batch, seq_len: len(call.heads) == 2,
        "part": lambda call, batch, seq_len: call.rotated < call.channels,
        "interleaved": lambda call, batch, seq_len: call.interleaved,
        "decode": lambda call, batch, seq_len: seq_len == 1,
        "a table for each sequence": lambda call, batch, seq_len: call.tables,
        "in another layout": lambda call, batch, seq_len: call.layout,
        "one head of several sequences": lambda call, b, s: call.heads == (1,) and b > 1 < s,
    }
    least = dict(zip(shares, (80, 80, 30, 30, 40, 8, 30, 2), strict=True))
    counts = {
        name: sum(map(bool, itertools.starmap(share, drawn))) for name, share in shares.items()
    }
    assert all(least[name] <= counts[name] < len(DRAWN) for name in shares), counts
    mib = [2 * b * s * call.token_bytes / 2**20 for call, b, s in drawn]
    assert sum(1 <= size <= 66 for size in mib) > 0.9 * len(DRAWN)
