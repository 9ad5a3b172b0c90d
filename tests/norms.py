"""A subject of one call of the package: ``rope_triton.transformer.rms_norm``."""

from benchmarks import _subjects
from benchmarks._subjects.transformer.modules import ModuleCell

PACKAGE, TARGETS, TARGET = _subjects.PACKAGE, _subjects.TARGETS, _subjects.TARGET
UNITS, FAMILIES = _subjects.UNITS, _subjects.FAMILIES
cell, first, compiled = _subjects.cell, _subjects.first, _subjects.compiled
label = _subjects.label
CELLS = [ModuleCell("rmsnorm-bf16-16384x1024")]


def candidates():
    return CELLS


def checked(changed):
    return CELLS


def listed():
    return [CELLS]


dense = listed


def compilations(target):
    return [one for one in _subjects.compilations(target) if set(one.cells) <= set(CELLS)]


def variants(target):
    return []


def eager():
    return {}


def host_calls():
    return {}
