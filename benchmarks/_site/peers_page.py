"""Make the overview's data on other libraries from the sweep that ships."""

from collections import Counter
from pathlib import Path

from .._studies.peers.experiments import Figure, Timing
from .._studies.peers.providers import PROVIDERS
from .._studies.peers.state import Results, Row, read_experiment
from .._studies.peers.tables import source
from .._studies.runner import StudyError
from .overview import rounded
from .readme import SWEEP

EXPERIMENT = "throughput"
EVIDENCE = SWEEP / f"{EXPERIMENT}.jsonl"

REASON_LENGTH = 200
"""Most characters of a reason: another library's error can have any length."""


def peers(path: Path) -> dict:
    """Bandwidth over the sequence length of every provider, as plain JSON.

    ``source``: machine, commit and command, a line each; ``what``: the tensor; ``providers``: what
    each computes; ``batches``: for each batch ``seq_len`` in tokens, ``gbps`` by provider at each
    of them, None where there is no speed, and ``without``: who has none, at how many of the
    lengths, and why. A file without rows is an error: a page would say that nothing was measured.
    """
    experiment, results = read_experiment(path)
    if not results.rows:
        raise StudyError(f"{path} has no rows")
    names = dict.fromkeys(name for figure in experiment.figures for name in figure.providers)
    cell = experiment.figures[0].cells[0]
    call = cell.call_name
    tensor = f"{sum(call.heads)} heads of {call.channels}, {cell.dtype}, {call.format}"
    return {
        "source": source(results.header),
        "what": f"{experiment.figures[0].direction}, {tensor}",
        "providers": {name: PROVIDERS[name] for name in names},
        "batches": [_batch(figure, results) for figure in experiment.figures],
    }


def _batch(figure: Figure, results: Results) -> dict:
    """What one chart shows; a provider without any speed has no line."""
    (batch,) = {len(cell.lengths) for cell in figure.cells}
    rows: dict[str, list[Row | None]] = {}  # by sequence length, None where the sweep has none
    for cell in figure.cells:
        row = results.rows.get(Timing(figure.direction, cell))
        rows.setdefault(cell.provider, []).append(row)
    gbps = {
        name: [rounded(row.gbps) if row and row.status == "measured" else None for row in line]
        for name, line in rows.items()
    }
    return {
        "batch": batch,
        "seq_len": list(dict.fromkeys(cell.lengths[0] for cell in figure.cells)),
        "gbps": {name: line for name, line in gbps.items() if any(line)},
        "without": [reason for name, line in rows.items() for reason in _without(name, line)],
    }


def _without(provider: str, rows: list[Row | None]) -> list[dict]:
    """Each reason once, with how many of the provider's lengths it holds for."""
    reasons = Counter(
        (row.status, _short(row.reason)) if row else ("not measured", "")
        for row in rows
        if not row or row.status != "measured"
    )
    return [
        {"provider": provider, "status": status, "reason": reason, "count": n, "of": len(rows)}
        for (status, reason), n in reasons.items()
    ]


def _short(reason: str) -> str:
    return reason if len(reason) <= REASON_LENGTH else f"{reason[:REASON_LENGTH]} ..."
