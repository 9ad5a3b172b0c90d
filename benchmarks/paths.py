"""asv: GPU time of the package's other paths, forward and backward; needs an NVIDIA GPU.

Packed sequences, fused QKV, ready-made tables, rotation in place, start positions, partly rotated
heads and other head sizes: see ``forms.PATHS``. Measured as ``rope`` is, n/a for commits that lack
the path.
"""

from ._measure import cell_outcomes
from ._subjects.rope.forms import BACKWARD, FORWARD
from ._subjects.rope.grid import PATH_PARAM_NAMES, PathCell, active_paths, path_cells
from .rope import SETUP_SECONDS, _Own


class _Path(_Own):
    cell = PathCell
    param_names = list(PATH_PARAM_NAMES)
    # Not that of ``rope``: the way of measuring is the same, the meaning of the grid is another.
    version = "1"


class Forward(_Path):
    params = list(active_paths(FORWARD).values())

    def setup_cache(self):
        return cell_outcomes.measure_cells(path_cells(active_paths(FORWARD)), FORWARD)

    setup_cache.timeout = SETUP_SECONDS


class Backward(_Path):
    params = list(active_paths(BACKWARD).values())

    # In every class: asv tells caches apart by the line of their setup_cache.
    def setup_cache(self):
        return cell_outcomes.measure_cells(path_cells(active_paths(BACKWARD)), BACKWARD)

    setup_cache.timeout = SETUP_SECONDS
