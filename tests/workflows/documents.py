"""Comparisons as the jobs write them, of commits of a repository."""

import dataclasses
import json

from benchmarks._engine.verdict import release
from benchmarks._engine.verdict.schema import Side
from tests.engine.report.artifacts import BASE, HEAD, document


def compared(make, base, head):
    """What ``compare`` writes."""
    return json.loads(json.dumps(document(make)).replace(BASE, base).replace(HEAD, head))


def since_release(make, base, head):
    """What ``release`` writes."""
    sides = {"base": Side(base, base), "head": Side(head, head)}
    command = f"python -m benchmarks compare {base} {head}"
    return release.to_json(
        release.SinceRelease(dataclasses.replace(make(), reproduce=command, **sides))
    )
