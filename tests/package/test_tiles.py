"""The tile of a call: what a thread loads, and the heads that share angles."""

import pytest
import torch
import triton

from rope_triton.kernel import plans
from rope_triton.kernel.tiles import ONE_WAVE, Tile, tile_of

KINDS = {
    "plain": {},
    "tables": {"tables": True},
    "shifted": {"shifted": True},
    "shifted tables": {"shifted": True, "tables": True},
    "heads first": {"heads_first": True, "tables": True},
    "shared angles": {"heads_first": True},
}
LONG = 1 << 14
all_kinds = pytest.mark.parametrize("kind", KINDS)
all_items = pytest.mark.parametrize("item", [2, 4])


def chosen(kind, item, channels, width=None, *, n_seq=LONG, heads=64, busy=False, one_wave=False):
    facts = KINDS[kind] | {"busy": busy, "one_wave": one_wave}
    return tile_of(item, n_seq == 1, heads, channels, width or channels, **facts)


# What was measured for these calls: the best, or within 1 % of it. By channels, or by channels and
# those of them that have angles.
@pytest.mark.parametrize(
    ("kind", "item", "expected"),
    [
        ("plain", 2, {(32,): (2, 16, 1), (64,): (1, 16, 1), (96,): (1, 16, 2), (128,): (1, 8, 2)}),
        ("plain", 2, {(192,): (1, 16, 4), (256,): (1, 8, 4), (512,): (1, 4, 2)}),
        ("plain", 4, {(32,): (1, 16, 1), (64,): (1, 8, 1), (96,): (1, 4, 1), (128,): (1, 4, 1)}),
        (
            "plain",
            4,
            {(192,): (1, 2, 1), (256,): (1, 2, 1), (256, 16): (2, 1, 1), (1024,): (1, 1, 1)},
        ),
        ("tables", 4, {(64,): (1, 8, 1), (128,): (1, 4, 1)}),
        ("shifted", 2, {(64,): (1, 16, 1), (128,): (1, 8, 2), (256,): (1, 8, 4)}),
        ("shifted", 4, {(32,): (1, 16, 1), (64,): (1, 16, 2), (96,): (1, 16, 4)}),
        ("shifted", 4, {(128,): (1, 16, 4), (192,): (1, 2, 1), (256,): (1, 2, 1)}),
        ("heads first", 2, {(64,): (16, 1, 1), (96,): (8, 1, 1), (256,): (4, 1, 1)}),
        ("heads first", 4, {(64,): (8, 1, 1), (96,): (4, 1, 1), (256,): (2, 1, 1)}),
        ("shared angles", 2, {(64,): (4, 4, 1), (96,): (4, 4, 2), (256,): (2, 4, 2)}),
        ("shared angles", 4, {(64,): (2, 4, 1), (96,): (1, 4, 1), (256,): (1, 4, 2)}),
        ("plain", 2, {(128, 64): (1, 8, 1), (256, 128): (1, 8, 2), (256, 64): (2, 4, 2)}),
        ("shifted", 2, {(128, 64): (1, 8, 1), (256, 128): (1, 8, 2), (256, 64): (4, 2, 4)}),
        ("tables", 2, {(128, 64): (1, 8, 1), (256, 128): (1, 8, 2), (256, 64): (4, 2, 4)}),
        ("plain", 2, {(128, 32): (4, 2, 2), (128, 96): (1, 8, 2), (512, 128): (1, 4, 2)}),
        # These heads have padding.
        ("plain", 2, {(96, 24): (4, 2, 2), (96, 64): (2, 4, 2), (192, 64): (4, 2, 4)}),
    ],
)
def test_the_tiles_that_were_measured(kind, item, expected):
    assert {sizes: chosen(kind, item, *sizes) for sizes in expected} == expected


# Calls like these were timed with every tile; not each of these is the best.
@pytest.mark.parametrize(
    ("kind", "item", "channels", "width", "expected"),
    [
        ("tables", 4, 48, 48, {1: 1, 3: 1, 4: 4, 5: 2, 10: 4, 12: 4, 15: 8}),
        ("plain", 4, 160, 160, {2: 2, 3: 1, 5: 2, 10: 2}),
        ("plain", 4, 32, 32, {3: 4, 5: 4, 6: 4}),
        ("tables", 2, 48, 48, {2: 2, 3: 4, 5: 4, 10: 4, 15: 16}),
        ("plain", 2, 64, 64, {3: 4, 6: 8, 10: 16, 12: 16}),
        ("plain", 2, 128, 128, {3: 4, 5: 2, 6: 2, 8: 8, 10: 4}),
        ("shifted", 2, 128, 128, {3: 4, 5: 8, 6: 8, 10: 4}),
        ("shifted", 2, 160, 80, {5: 2, 6: 2}),
        ("shifted tables", 2, 160, 80, {1: 1, 3: 1, 10: 1, 15: 4}),
        ("shifted tables", 2, 160, 160, {3: 2, 4: 4, 10: 2, 15: 16}),
        ("shifted tables", 2, 64, 64, {4: 4, 10: 4, 15: 16}),
        ("shifted", 4, 128, 128, {1: 1, 3: 1, 4: 2, 10: 2, 12: 16}),
        ("shifted", 4, 96, 48, {1: 1, 4: 1, 15: 1}),
        ("shifted tables", 4, 128, 128, {1: 1, 4: 1, 10: 1, 12: 16}),
    ],
)
def test_the_heads_of_a_program_where_there_are_few(kind, item, channels, width, expected):
    heads = {n: chosen(kind, item, channels, width, heads=n).heads for n in expected}
    assert heads == expected


@all_kinds
@all_items
@pytest.mark.parametrize("channels", [16, 48, 64, 96, 128, 160, 256, 1024])
def test_a_program_has_2_kib_to_load_and_one_of_decoding_a_single_position(kind, item, channels):
    long = chosen(kind, item, channels)
    decode, last, three, four, nine, sixteen = (
        chosen(kind, item, channels, n_seq=1, heads=heads) for heads in (64, 1, 3, 4, 9, 16)
    )
    rows = long.positions * long.heads
    assert item * rows * triton.next_power_of_2(channels) >= 2048
    assert decode == (1, min(rows, 16), long.warps)
    assert chosen(kind, item, channels, n_seq=2) == long
    assert last.positions == last.heads == 1
    assert (three, nine) == (four, sixteen)


@pytest.mark.parametrize("width", [16, 24, 64, 96, 128, 256])
@pytest.mark.parametrize("channels", [64, 80, 128, 256])
def test_in_decoding_threads_are_no_more_than_the_angles_of_a_half(channels, width):
    width = min(width, channels)
    computed, loaded = (chosen(kind, 2, channels, width, n_seq=1) for kind in ("plain", "tables"))
    most = max(triton.next_power_of_2(width) // 64, 1)
    assert computed == loaded._replace(warps=min(loaded.warps, most))


def test_threads_are_fewer_where_few_heads_share_the_angles():
    assert chosen("plain", 2, 128, heads=4) == (2, 4, 1)
    assert chosen("plain", 2, 128, 64, busy=True) == (2, 4, 2)
    warps = [chosen("shifted", 2, 128, 64, heads=n).warps for n in (1, 2, 4, 8)]
    assert warps == [2, 2, 2, 1]


@all_kinds
@pytest.mark.parametrize("n_seq", [LONG, 1])
@pytest.mark.parametrize(
    ("item", "channels", "tile"),
    [
        *((2, 128, (1, 8, 1)), (2, 256, (1, 8, 2))),
        *((2, 64, None), (2, 96, None), (2, 192, None), (4, 128, None), (2, 512, None)),
    ],
)
def test_programs_that_fill_a_gpu_once_have_half_as_many_threads(kind, n_seq, item, channels, tile):
    usual = chosen(kind, item, channels, n_seq=n_seq)
    expected = tile if tile and kind == "plain" else usual
    assert chosen(kind, item, channels, n_seq=n_seq, one_wave=True) == expected


def test_threads_have_more_to_do_with_angles_of_each_head_channels_apart_or_more_roundings(
    monkeypatch,
):
    """Of other calls the bytes are looked at."""
    loads = []

    def tile(*sizes, busy, one_wave, **facts):
        loads.append((busy, one_wave))
        return Tile(1, 8, 1)

    monkeypatch.setattr(plans, "tile_of", tile)
    options = plans.Options("bshd", interleaved=False, cp_size=1, cp_rank=0)
    t, freqs = torch.empty(2, 512, 8, 128), torch.empty(512, 1, 1, 128)
    apart = torch.empty(2, 512, 8, 256)[..., ::2]
    assert [t.nbytes * n // 2 in ONE_WAVE for n in (2, 3, 4, 5)] == [False, True, True, False]

    def planned(t, freqs, options):
        loads.clear()
        plans.rotation(t, None, t, None, freqs, None, None, None, options)
        plans.rotation(t, t, t, t[:, :, :4], freqs, None, None, None, options)
        return loads[0], loads[-1]

    usual, busy = ((False, False), (False, True)), ((True, False), (True, False))
    assert planned(t, freqs, options) == usual
    assert planned(t, freqs, options._replace(rounding="tables")) == usual
    assert planned(t, freqs.expand(512, 2, 1, 128), options) == usual
    assert planned(t, freqs.expand(512, 1, 8, 128), options) == busy
    assert planned(t, freqs, options._replace(rounding="each")) == busy
    assert planned(apart, freqs, options) == busy
    packed, other = torch.empty(512, 2, 2, 768), torch.empty(512, 2, 2, 1536)[..., ::2]
    options = plans.QkvOptions("sbhd", False, 1, 0, q_channels=256, k_channels=256, v_channels=256)
    for qkv, expected in ((packed, (False, True)), (other, (True, False))):
        plans.qkv_rotation(qkv, *qkv.split(256, dim=3), *[freqs] * 2, None, options)
        assert loads[-1] == expected


@pytest.mark.parametrize(
    ("counts", "heads"),
    [((32, 8, 8), 8), ((32, 1, 1), 4), ((32, 4, 4), 8), ((16, 16, 16), 16), ((2, 1, 1), 1)],
)
def test_heads_of_queries_keys_and_values_share_a_tile(counts, heads):
    assert plans._shared_heads(counts, 2048) == plans._shared_heads(counts[::-1], 2048) == heads
    assert plans._shared_heads(counts, 1) == max(counts)
