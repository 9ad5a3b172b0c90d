"""Covering designs: few cases of a matrix of parameters in which any two or three values meet.

A matrix is the values of each parameter, by name; a case has one of each.
"""

import itertools

import pytest


def every(matrix: dict) -> list[dict]:
    """All cases of a matrix."""
    return [
        dict(zip(matrix, values, strict=True)) for values in itertools.product(*matrix.values())
    ]


def spanning(matrix: dict, strength: int = 2, allowed=lambda case: True) -> list[dict]:
    """Few of the allowed cases, with every combination of ``strength`` parameters' values."""
    bits: dict[tuple, int] = {}
    covers = []  # by case, a bit for each combination that it has
    for case in filter(allowed, every(matrix)):
        combinations = itertools.combinations(case.items(), strength)
        covers.append((sum(1 << bits.setdefault(entry, len(bits)) for entry in combinations), case))
    missing, chosen = (1 << len(bits)) - 1, []
    while missing:
        covered, case = max(covers, key=lambda entry: (entry[0] & missing).bit_count())
        chosen.append(case)
        missing &= ~covered
    return chosen


def parametrize(cases: list[dict]):
    """Run a test on each case, as its argument ``case``."""
    return pytest.mark.parametrize("case", cases, ids=_name)


def _name(case):
    named = (f"{key}_{str(value).removeprefix('torch.')}" for key, value in case.items())
    return "-".join(named).replace(" ", "")


def pairs(matrix: dict):
    """Run a test on few cases of a matrix, with any two values together."""
    return parametrize(spanning(matrix))


def triples(matrix: dict):
    """Run a test on few cases of a matrix, with any three values together."""
    return parametrize(spanning(matrix, 3))
