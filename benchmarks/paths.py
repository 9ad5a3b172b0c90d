"""asv: GPU time of the package's other calls, forward and backward; needs an NVIDIA GPU.

Packed sequences, fused QKV, precomputed tables, rotation in place, start positions, partly rotated
heads and other head sizes: see ``cells.PATHS``. Measured as ``rope`` is, n/a for commits that lack
the call.
"""

from ._engine.subject import BACKWARD, FORWARD
from ._subjects.rope.cells import path_cell
from ._subjects.rope.grid import PATH_GRIDS, active, with_direction
from .rope import SETUP_SECONDS, _Own


class _Path(_Own):
    cell = staticmethod(path_cell)
    param_names = list(PATH_GRIDS["full"])
    # Not that of ``rope``: the way of measuring is the same, the meaning of the grid is another.
    version = "1"


class Forward(_Path):
    grid = with_direction(path_cell, active(PATH_GRIDS), FORWARD)
    params = list(grid.values())

    def setup_cache(self):
        return self.measured(FORWARD)

    setup_cache.timeout = SETUP_SECONDS


class Backward(_Path):
    grid = with_direction(path_cell, active(PATH_GRIDS), BACKWARD)
    params = list(grid.values())

    # In every class: asv tells caches apart by the line of their setup_cache.
    def setup_cache(self):
        return self.measured(BACKWARD)

    setup_cache.timeout = SETUP_SECONDS
