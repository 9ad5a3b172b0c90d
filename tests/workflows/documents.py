"""Comparisons as the jobs write them, of commits of a repository."""

import dataclasses
import json

from benchmarks._verdict import creep
from benchmarks._verdict.schema import Side
from tests.report.artifacts import BASE, HEAD, document


def compared(make, base, head):
    """What ``compare`` writes."""
    return json.loads(json.dumps(document(make)).replace(BASE, base).replace(HEAD, head))


def crept(make, base, head):
    """What ``creep`` writes."""
    sides = {"base": Side(base, base), "head": Side(head, head)}
    command = f"python -m benchmarks compare {base} {head}"
    return creep.to_json(creep.Creep(dataclasses.replace(make(), reproduce=command, **sides)))
