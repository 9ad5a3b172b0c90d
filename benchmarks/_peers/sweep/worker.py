"""A fresh process that measures cells on the one GPU that it sees; jobs and answers are lines.

It says first which GPU it has, then answers each job: ``{"direction": ..., "cells": [...]}`` with a
row for each cell as it is finished (``state.as_json``), ``{"check": [...]}`` with the checks of
those sequence lengths. A line ``{"done": [start, end]}``, monotonic seconds, ends the answer.
"""

import json
import os
import sys
import time
from collections.abc import Callable

from ..._measure import workload
from ..cells import PeerCell
from . import closeness
from .experiments import Timing
from .state import Row, as_json


def main() -> None:
    """Answer the jobs on stdin until it is closed."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not end up among the answers
    import torch

    def send(content: dict) -> None:
        answers.write(json.dumps(content, allow_nan=False) + "\n")
        answers.flush()

    count = torch.cuda.device_count()
    here = torch.cuda.get_device_properties(0) if count else None
    uuid = f"GPU-{here.uuid}" if here else ""
    send({"gpus": count, "gpu": here.name if here else "none", "uuid": uuid})
    for line in sys.stdin:
        job = json.loads(line)
        start = time.monotonic()
        _answer(job, uuid, send)
        send({"done": [start, time.monotonic()]})


def _answer(job: dict, uuid: str, send: Callable[[dict], None]) -> None:
    if "check" in job:
        for check in closeness.checks(job["check"]):
            send({"check": check})
        return
    direction = job["direction"]
    cells: list = [PeerCell(*values) for values in job["cells"]]

    def finished(cell, outcome: workload.Outcome) -> None:
        send(as_json(Row(Timing(direction, cell), outcome, uuid)))

    workload.measure_cells(cells, direction, finished)
