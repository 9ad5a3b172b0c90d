"""asv: GPU time of the calls that models make, forward and backward; needs an NVIDIA GPU.

Ten calls of nine models in training and in decoding, by angles and by ready-made tables: see
``_subjects.rope.models``. Measured as ``rope`` is, n/a for commits that lack what a call needs.
"""

from ._measure import cell_outcomes
from ._subjects.rope import models
from ._subjects.rope.forms import BACKWARD, FORWARD
from .rope import SETUP_SECONDS, _Own


class _Model(_Own):
    cell = models.ModelCell
    param_names = list(models.grid(FORWARD))
    version = "1"


class Forward(_Model):
    params = list(models.grid(FORWARD).values())

    def setup_cache(self):
        return cell_outcomes.measure_cells(models.cells(), FORWARD)

    setup_cache.timeout = SETUP_SECONDS


class Backward(_Model):
    params = list(models.grid(BACKWARD).values())

    # In every class: asv tells caches apart by the line of their setup_cache.
    def setup_cache(self):
        cells = [cell for cell in models.cells() if BACKWARD in cell.directions]
        return cell_outcomes.measure_cells(cells, BACKWARD)

    setup_cache.timeout = SETUP_SECONDS
