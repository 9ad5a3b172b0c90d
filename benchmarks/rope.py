"""asv: GPU time of RoPE over the grid, 64 heads, forward and backward; needs an NVIDIA GPU.

``setup_cache`` measures every cell in one process. The tracks pick their samples from it: latency,
throughput and the ratio to a copy all come from the same ones.
"""

from typing import Any

from ._engine.measure import cell_outcomes
from ._engine.subject import BACKWARD, FORWARD
from ._subjects.rope.cells import grid_cell
from ._subjects.rope.grid import GRIDS, active, cells_of, with_direction


class _Direction:
    """A base has ``cell`` and the grid of all cells; a class, those that have its direction."""

    cell: Any = staticmethod(grid_cell)
    grid = active(GRIDS)
    # The way of measuring: raise it when gpu_timer, timed_cell or the meaning of the grid changes.
    version = "1"
    timeout = 60

    def __init_subclass__(cls, direction: str = "", setup_seconds: int = 1800) -> None:
        if direction:
            cls.direction, cls.grid = direction, with_direction(cls.cell, cls.grid, direction)
            cls.params, cls.param_names = list(cls.grid.values()), list(cls.grid)
            cls.setup_cache.timeout = setup_seconds

    def measured(self) -> dict:
        """The outcome of every cell of the class's grid."""
        return cell_outcomes.measure_cells(cells_of(self.cell, self.grid), self.direction)

    def setup(self, outcomes, *params):
        outcome = outcomes[self.cell(*params)]
        if outcome.unavailable:
            raise NotImplementedError(outcome.unavailable)
        if outcome.error:
            raise RuntimeError(outcome.error)

    def track_latency(self, outcomes, *params):
        """GPU time of a call, cold cache."""
        return _samples(outcomes[self.cell(*params)].latency)

    track_latency.unit = "seconds"

    def track_gbps(self, outcomes, *params):
        """Input and output bytes over the latency; more is better. For charts, not for verdicts."""
        cell = self.cell(*params)
        return _samples(cell.bytes_moved / s / 1e9 for s in outcomes[cell].latency)

    track_gbps.unit = "GB/s"

    def track_copy_ratio(self, outcomes, *params):
        """Latency over that of ``copy_`` of the same bytes; 1 is the speed of a copy."""
        outcome = outcomes[self.cell(*params)]
        return _samples(s / c for s, c in zip(outcome.latency, outcome.copy, strict=True))

    track_copy_ratio.unit = "x copy"


class _Own(_Direction):
    """Of this package's calls, which say what they read besides the tensor."""

    def track_roofline_ratio(self, outcomes, *params):
        """Latency over that of a copy that reads angles or tables too; 1 is the roofline.

        Of the samples that were taken in turns with the roofline's.
        """
        outcome = outcomes[self.cell(*params)]
        pairs = zip(outcome.latency, outcome.roofline, strict=False)  # which has fewer
        return _samples(s / r for s, r in pairs)

    track_roofline_ratio.unit = "x roofline"


# setup_cache is in every class: asv tells caches apart by the line of their setup_cache.


class Forward(_Own, direction=FORWARD):
    def setup_cache(self):
        return self.measured()


class Backward(_Own, direction=BACKWARD):
    def setup_cache(self):
        return self.measured()


def _samples(values) -> dict:
    return {"samples": list(values), "number": 1}
