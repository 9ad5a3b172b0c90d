"""What calls put on the stream, compared: machine code says nothing of what PyTorch launches."""

import pytest

from benchmarks._engine.compare import findings
from tests.lab import SMALL, both

ROPE, COSINE = "0a1b: 1 x Triton kernel", "2c3d: 1 x Triton kernel; 1 x kernel cos"
FIRST, SECOND = both(SMALL)


def answer(**texts) -> dict:
    names = {"first": FIRST, "second": SECOND}
    return {"nodes": [[names[n].metric, list(names[n].params), text] for n, text in texts.items()]}


@pytest.mark.parametrize(
    ("base", "head", "changed"),
    [
        ({"first": ROPE, "second": ROPE}, {"second": ROPE, "first": ROPE}, {}),
        ({}, {}, {}),
        (
            {"first": ROPE, "second": ROPE},
            {"first": COSINE, "second": ROPE},
            {FIRST: f"base {ROPE}; head {COSINE}"},
        ),
        ({"first": ROPE}, {}, {FIRST: f"base {ROPE}; head not recorded"}),
        ({}, {"second": ROPE}, {SECOND: f"base not recorded; head {ROPE}"}),
    ],
)
def test_calls_that_put_other_nodes_on_the_stream(base, head, changed):
    assert findings.changed_nodes({"base": answer(**base), "head": answer(**head)}) == changed
