"""The tile of a tensor: by its size, the heads it has and the channels that are rotated."""

import itertools

import pytest

from rope_triton.kernel import tiles
from rope_triton.kernel.tiles import tile_of

TABLES = {
    "plain": tiles._TILES,
    "ready_made": tiles._READY_MADE,
    "packed": tiles._PACKED,
    "moved": tiles._MOVED,
    "heads_first": tiles._HEADS_FIRST,
    "shared_angles": tiles._SHARED_ANGLES,
}
OPTIONS = {name: {name: True} for name in ("ready_made", "packed", "moved")}
OPTIONS |= {"plain": {}, "shared_angles": {"heads_first": True}}
OPTIONS["heads_first"] = {"heads_first": True, "ready_made": True}
SIZES = (32, 64, 96, 128, 192, 256)
KEYS = list(itertools.product((2, 4), SIZES))
POWERS = [key for key in KEYS if key[1] in (64, 128, 256)]
all_tables = pytest.mark.parametrize("name", TABLES)
all_keys = pytest.mark.parametrize(("item", "channels"), POWERS, ids=str)
all_entries = pytest.mark.parametrize(
    ("name", "item", "channels"), [(name, *key) for name, table in TABLES.items() for key in table]
)


def chosen(name, size, item, channels, *, heads=64, width=None):
    return tile_of(size, item, heads, channels, width or channels, **OPTIONS[name])


@all_tables
def test_table_has_every_power(name):
    keys = list(TABLES[name])
    assert keys == [key for key in KEYS if key in keys] and set(POWERS) <= set(keys)


@all_entries
@pytest.mark.parametrize("size", [1 << 16, 1 << 30])
def test_tile_is_that_of_the_table(name, item, channels, size):
    small = name == "plain" and (item, channels) in tiles._SMALL and size < 1 << 20
    expected = tiles._SMALL[item, channels][1] if small else TABLES[name][item, channels]
    assert chosen(name, size, item, channels) == expected


@pytest.mark.parametrize(("item", "channels"), tiles._SMALL)
def test_size_decides_to_the_byte_where_it_does(item, channels):
    mib, small = tiles._SMALL[item, channels]
    large = tiles._TILES[item, channels]
    assert small != large
    assert chosen("plain", mib << 20, item, channels) == small
    assert chosen("plain", (mib << 20) + 1, item, channels) == large


@all_tables
@all_keys
@pytest.mark.parametrize("heads", [1, 3, 8])
def test_few_heads_leave_a_program_its_rows(name, item, channels, heads):
    many, few = (chosen(name, 1 << 30, item, channels, heads=n) for n in (64, heads))
    assert few.positions * few.heads >= many.positions * many.heads
    assert few.heads <= 2 * heads - 1 and few.warps == many.warps


@all_keys
def test_few_angles_are_shared_out_over_more_positions(item, channels):
    whole, part = (chosen("plain", 1 << 30, item, channels, width=w) for w in (channels, 16))
    assert part.positions * 16 >= 64 * part.warps or part.heads == 1
    assert part.positions > whole.positions


@pytest.mark.parametrize("item", [2, 4])
@pytest.mark.parametrize(("channels", "like"), [(48, 64), (80, 96), (112, 128), (160, 192)])
def test_other_head_sizes_take_the_tile_of_the_next_measured(item, channels, like):
    assert chosen("plain", 1 << 30, item, channels) == chosen("plain", 1 << 30, item, like)


@pytest.mark.parametrize("item", [2, 4])
@pytest.mark.parametrize(("channels", "like"), [(16, 32), (512, 256)])
def test_beyond_what_was_measured_a_program_keeps_its_elements(item, channels, like):
    found, measured = (chosen("plain", 1 << 30, item, each) for each in (channels, like))
    assert found.warps == measured.warps
    assert found.positions * found.heads * channels == measured.positions * measured.heads * like


@pytest.mark.parametrize(("channels", "like"), [(96, 128), (192, 256)])
def test_rotated_in_part_they_take_that_of_the_next_power_of_two(channels, like):
    whole, part = (chosen("plain", 1 << 30, 2, each, width=64) for each in (channels, like))
    assert whole == part
