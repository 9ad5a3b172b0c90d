"""``python -m benchmarks compare`` of the other paths, beside the grid."""

import json

import pytest

from benchmarks._compare.findings import subjects_of
from benchmarks._verdict.rules import Answer, Subject
from tests.lab import CELLS, FAIL, IN_PLACE, PASS, PATHS, QKV, ROUNDS, noisy


@pytest.fixture
def pathed(lab):
    """Compares other paths, too: fused QKV, and rotation in place, which is timed forward only."""
    lab.with_paths()
    return lab


PATH_SUBJECTS = [
    *(Subject(metric, tuple(QKV.split())) for metric in PATHS),
    Subject(PATHS[0], tuple(IN_PLACE.split())),
]


def test_paths_are_timed_with_the_grid_and_stored(pathed):
    pathed.versions({}, {})
    assert pathed.compare() == PASS
    timed = {each.subject for each in pathed.found.families["gpu"].timings}
    assert timed == set().union(PATH_SUBJECTS, *map(subjects_of, CELLS))
    (stored, _) = (json.loads(path.read_text())["results"] for path in pathed.stored())
    assert set(PATHS) <= set(stored)


def test_slower_path_fails(pathed, capsys):
    pathed.versions({}, {"slower": {IN_PLACE: 1.05}})
    assert pathed.compare() == FAIL
    assert [t.subject for t in pathed.found.timings if t.answer is Answer.FAIL] == PATH_SUBJECTS[2:]
    assert "Forward tables-inplace, 4 MiB, bfloat16" in capsys.readouterr().out


def test_path_that_cannot_be_told_is_looked_at_again(pathed):
    pathed.versions({}, {})
    noisy(pathed, QKV, 0.001)
    assert pathed.compare() == PASS
    assert pathed.gpu.jobs[-1][1]["cells"] == [["paths", ["qkv", "4", "bfloat16"]]]
    assert pathed.timing(PATH_SUBJECTS[0]).rounds > ROUNDS
