"""asv: GPU time of the package's other calls, forward and backward; needs an NVIDIA GPU.

Packed sequences, fused QKV, precomputed tables, rotation in place, start positions, partly rotated
heads and other head sizes: see ``cells.PATHS``. Measured as ``rope`` is, n/a for commits that lack
the call.
"""

from ._engine.subject import BACKWARD, FORWARD
from ._subjects.rope.cells import path_cell
from ._subjects.rope.grid import PATH_GRIDS, active
from .rope import _Own


class _Path(_Own):
    cell = staticmethod(path_cell)
    grid = active(PATH_GRIDS)
    # Not that of ``rope``: the way of measuring is the same, the meaning of the grid is another.
    version = "1"


class Forward(_Path, direction=FORWARD):
    def setup_cache(self):
        return self.measured()


class Backward(_Path, direction=BACKWARD):
    # In every class: asv tells caches apart by the line of their setup_cache.
    def setup_cache(self):
        return self.measured()
