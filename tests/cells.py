"""Cells of the rotation by a name with a size, and small ones for the interpreter."""

import dataclasses

from benchmarks._subjects.rope.cells import RopeCell, sized


def sized_cell(name: str, takes: str = "angles") -> RopeCell:
    return near(RopeCell("sized", (name, takes), **sized(name, takes)))


def near(cell):
    """The cell with sequences that begin before 63: the interpreter rounds an fma twice."""
    return dataclasses.replace(cell, starts=tuple(start % 63 for start in cell.starts))


def few(cell):
    """The cell on few heads, sequences and tokens."""
    call = cell.call_name
    heads = tuple(min(count, 1 + index) for index, count in enumerate(call.heads))
    lengths = tuple(min(length, 3) for length in cell.lengths[:4])
    more = {"call_name": call._replace(heads=heads), "lengths": lengths, "starts": cell.starts[:4]}
    return near(dataclasses.replace(cell, **more))
