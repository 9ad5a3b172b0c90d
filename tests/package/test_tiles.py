"""The tile of a call: what a thread loads, and the heads that share angles."""

import itertools

import pytest
import torch
import triton

from rope_triton.kernel import plans
from rope_triton.kernel.tiles import Call, Tile, tile_of

KINDS = {
    "plain": {},
    "tables": {"tables": True},
    "shifted": {"shifted": True},
    "shifted tables": {"shifted": True, "tables": True},
    "heads_first": {"heads_first": True, "tables": True},
    "shared_angles": {"heads_first": True},
}
SIZES = (16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 256, 512, 1024)
LONG = 1 << 14
all_kinds = pytest.mark.parametrize("kind", KINDS)
all_items = pytest.mark.parametrize("item", [2, 4])
all_sizes = pytest.mark.parametrize("channels", SIZES)


def chosen(kind, item, channels, *, n_seq=LONG, heads=64, width=None, n_bytes=1):
    facts = KINDS[kind] | {"n_bytes": n_bytes}
    return tile_of(Call(item, n_seq, heads, channels, width or channels, **facts))


@all_kinds
@all_items
@all_sizes
def test_a_program_has_2_kib_to_load_and_a_thread_16_elements_or_32(kind, item, channels):
    tile = chosen(kind, item, channels)
    elements = tile.positions * tile.heads * triton.next_power_of_2(channels)
    assert item * elements >= 2048
    assert elements // (32 * tile.warps) in (16, 64 // item) or tile.heads == 1


# What was measured for these calls: the best, or within 1 % of it.
@pytest.mark.parametrize(
    ("kind", "item", "expected"),
    [
        ("plain", 2, {32: (2, 16, 1), 64: (1, 16, 1), 96: (1, 16, 2), 128: (1, 8, 2)}),
        ("plain", 2, {192: (1, 16, 4), 256: (1, 8, 4), 512: (1, 4, 2)}),
        ("plain", 4, {32: (1, 16, 1), 64: (1, 8, 1), 96: (1, 4, 1), 128: (1, 4, 1)}),
        ("plain", 4, {192: (1, 2, 1), 256: (1, 2, 1)}),
        ("shifted", 4, {32: (1, 16, 1), 64: (1, 16, 2), 96: (1, 16, 4), 128: (1, 16, 4)}),
        ("shifted", 4, {192: (1, 2, 1), 256: (1, 2, 1)}),
        ("heads_first", 2, {64: (16, 1, 1), 96: (8, 1, 1), 128: (8, 1, 1), 256: (4, 1, 1)}),
        ("heads_first", 4, {64: (8, 1, 1), 96: (4, 1, 1), 128: (4, 1, 1), 256: (2, 1, 1)}),
        ("shared_angles", 2, {64: (4, 4, 1), 96: (4, 4, 2), 128: (4, 4, 2), 256: (2, 4, 2)}),
        ("shared_angles", 4, {64: (2, 4, 1), 96: (1, 4, 1), 128: (1, 4, 1), 256: (1, 4, 2)}),
    ],
)
def test_the_tiles_that_were_measured(kind, item, expected):
    assert {channels: chosen(kind, item, channels) for channels in expected} == expected


@all_sizes
def test_tables_and_shifted_positions_change_nothing_else(channels):
    for item, heads in itertools.product((2, 4), (1, 3, 8, 64)):
        plain = chosen("plain", item, channels, heads=heads)
        assert chosen("tables", item, channels, heads=heads) == plain
        if channels > 256 or (channels > 128 if item == 4 else heads >= 8):
            assert chosen("shifted", item, channels, heads=heads) == plain


@all_kinds
@all_items
@all_sizes
@pytest.mark.parametrize("heads", [1, 3, 8])
def test_few_heads_leave_a_program_its_rows(kind, item, channels, heads):
    """But where positions are shifted in float32: those programs are as small as all others."""
    others = "plain" if item == 4 and kind.startswith("shifted") else kind
    few, many = chosen(kind, item, channels, heads=heads), chosen(others, item, channels)
    assert few.positions * few.heads == many.positions * many.heads
    assert few.heads < 2 * heads and few.warps <= many.warps


# Of few heads. Calls like these were timed with every tile; not each of these is the best.
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
    found = {n: chosen(kind, item, channels, heads=n, width=width).heads for n in expected}
    assert found == expected


@pytest.mark.parametrize("heads", range(1, 65))
@pytest.mark.parametrize(
    ("kind", "item", "channels"),
    [("plain", 2, 128), ("tables", 2, 160), ("plain", 4, 48), ("shifted tables", 4, 96)],
)
def test_programs_have_room_for_few_heads_that_are_not_there(kind, item, channels, heads):
    tile = chosen(kind, item, channels, heads=heads)
    room = triton.cdiv(heads, tile.heads) * tile.heads
    if kind == "shifted tables" and heads > 16:  # programs of 16 were measured with 32 and 64 alone
        assert tile == chosen(kind, item, channels)
        return
    most = 1.4 if kind == "shifted tables" else 1.25
    assert room <= most * heads or (item == 2 and heads <= 4)
    decode, padded = (
        chosen(kind, item, channels, heads=n, n_seq=1)
        for n in (heads, triton.next_power_of_2(heads))
    )
    assert decode == padded


@all_kinds
@all_items
@all_sizes
def test_a_program_of_decoding_has_one_position(kind, item, channels):
    """And more heads instead."""
    decode, long = (chosen(kind, item, channels, n_seq=n) for n in (1, LONG))
    rows = long.positions * long.heads
    assert decode == (1, min(rows, 16), long.warps)
    assert chosen(kind, item, channels, n_seq=2) == long
    assert chosen(kind, item, channels, n_seq=1, heads=1).heads == 1


@all_items
@pytest.mark.parametrize("channels", [64, 128, 256])
def test_few_angles_are_shared_out_over_more_positions(item, channels):
    whole, part = (chosen("plain", item, channels, width=width) for width in (channels, 16))
    assert part.positions * 16 >= 64 * part.warps or part.heads == 1
    assert part.positions > whole.positions


@all_kinds
@all_items
@pytest.mark.parametrize(("channels", "like"), [(48, 64), (80, 96), (112, 96), (160, 192)])
def test_other_head_sizes_have_the_tile_of_those_with_as_many_padded(kind, item, channels, like):
    if like != 64:  # which has no padding
        assert chosen(kind, item, channels) == chosen(kind, item, like)
    assert chosen(kind, item, channels).warps == chosen(kind, item, like).warps


# In half precision, by channels and those of them that have angles.
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("plain", {(128, 64): (1, 8, 1), (256, 128): (1, 8, 2), (256, 64): (2, 4, 2)}),
        ("shifted", {(128, 64): (1, 8, 1), (256, 128): (1, 8, 2), (256, 64): (4, 2, 4)}),
        ("tables", {(128, 64): (1, 8, 1), (256, 128): (1, 8, 2), (256, 64): (4, 2, 4)}),
        ("plain", {(128, 32): (4, 2, 2), (128, 96): (1, 8, 2), (512, 128): (1, 4, 2)}),
        # These heads have padding.
        ("plain", {(96, 24): (4, 2, 2), (96, 64): (2, 4, 2), (192, 64): (4, 2, 4)}),
    ],
)
def test_the_tiles_of_heads_rotated_in_part(kind, expected):
    assert {sizes: chosen(kind, 2, sizes[0], width=sizes[1]) for sizes in expected} == expected


def test_rotated_in_part_threads_are_fewer_where_heads_share_the_angles():
    assert chosen("plain", 2, 128, width=64, n_bytes=0) == (2, 4, 2)
    assert [chosen("shifted", 2, 128, width=64, heads=n).warps for n in (1, 2, 4, 8)] == [
        2,
        2,
        2,
        1,
    ]


@pytest.mark.parametrize("width", [16, 24, 64, 96, 128, 256])
@pytest.mark.parametrize("channels", [64, 80, 128, 256])
def test_in_decoding_threads_are_no_more_than_the_angles_of_a_half(channels, width):
    width = min(width, channels)
    computed, ready = (
        chosen(kind, 2, channels, width=width, n_seq=1) for kind in ("plain", "tables")
    )
    most = max(triton.next_power_of_2(width) // 64, 1)
    assert computed == ready._replace(warps=min(ready.warps, most))


@all_kinds
@pytest.mark.parametrize("n_seq", [LONG, 1])
@pytest.mark.parametrize(
    ("item", "channels", "width", "tile"),
    [
        (2, 128, 128, (1, 8, 1)),
        (2, 256, 256, (1, 8, 2)),
        (2, 128, 64, (1, 8, 1)),
        (2, 256, 128, (1, 8, 2)),
        # Others have the tile of any size.
        *((2, 64, 64, None), (2, 96, 96, None), (2, 128, 96, None), (2, 192, 192, None)),
        *((4, 128, 128, None), (2, 512, 512, None)),
    ],
)
def test_programs_that_fill_a_gpu_once_have_half_as_many_threads(
    kind, n_seq, item, channels, width, tile
):
    call = {"n_seq": n_seq, "width": width}
    usual = chosen(kind, item, channels, **call)
    for n_bytes in (6 << 20, 8 << 20, (17 << 19) - 1):
        expected = tile if tile and kind == "plain" else usual
        assert chosen(kind, item, channels, **call, n_bytes=n_bytes) == expected
    for n_bytes in ((6 << 20) - 1, 17 << 19):
        assert chosen(kind, item, channels, **call, n_bytes=n_bytes) == usual


def test_a_call_has_no_bytes_where_threads_have_more_to_do(monkeypatch):
    """Of angles of each head, of channels apart in memory, or of more roundings."""
    given = []

    def tile(call):
        given.append(call.n_bytes)
        return Tile(1, 8, 1)

    monkeypatch.setattr(plans, "tile_of", tile)
    options = plans.Options("bshd", interleaved=False, cp_size=1, cp_rank=0)
    t, freqs = torch.empty(2, 4, 8, 128), torch.empty(4, 1, 1, 128)
    apart = torch.empty(2, 4, 8, 256)[..., ::2]

    def planned(t, freqs, options):
        given.clear()
        plans.rotation(t, None, t, None, freqs, None, None, None, options)
        plans.rotation(t, t, t, t[:, :, :4], freqs, None, None, None, options)
        return given[0], given[-1]

    assert planned(t, freqs, options) == (t.nbytes, 1.5 * t.nbytes)
    for more in (
        (t, freqs, options._replace(rounding="tables")),
        (t, freqs.expand(4, 2, 1, 128), options),
    ):
        assert planned(*more) == (t.nbytes, 1.5 * t.nbytes)
    for more in (
        (t, freqs.expand(4, 1, 8, 128), options),
        (t, freqs, options._replace(rounding="each")),
        (apart, freqs, options),
    ):
        assert planned(*more) == (0, 0)
    packed, other = torch.empty(4, 2, 2, 48), torch.empty(4, 2, 2, 96)[..., ::2]
    options = plans.QkvOptions("sbhd", False, 1, 0, q_channels=16, k_channels=16, v_channels=16)
    for qkv, expected in ((packed, packed.nbytes), (other, 0)):
        plans.qkv_rotation(qkv, *qkv.split(16, dim=3), *[freqs[..., :16]] * 2, None, options)
        assert given[-1] == expected


@pytest.mark.parametrize(
    ("counts", "heads"),
    [((32, 8, 8), 8), ((32, 1, 1), 4), ((32, 4, 4), 8), ((16, 16, 16), 16), ((2, 1, 1), 1)],
)
def test_heads_of_queries_keys_and_values_share_a_tile(counts, heads):
    for each in (counts, counts[::-1]):
        assert plans._shared_heads(each, 2048) == heads
    assert heads * plans._blocks(counts, heads) <= max(1.2 * sum(counts), len(counts) * heads)
    assert plans._shared_heads(counts, 1) == max(counts)
