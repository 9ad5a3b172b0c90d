"""asv: GPU time of the calls that models make, forward and backward; needs an NVIDIA GPU.

Ten calls of nine models in training and in decoding, with angles and with precomputed tables: see
``models.MODELS``. Measured as ``rope`` is, n/a for commits that lack what a call needs.
"""

from ._engine.subject import BACKWARD, FORWARD
from ._subjects.rope.cells import model_cell
from ._subjects.rope.grid import MODEL_GRID
from .rope import _Own


class _Model(_Own):
    cell = staticmethod(model_cell)
    grid = MODEL_GRID
    version = "1"


class Forward(_Model, direction=FORWARD):
    def setup_cache(self):
        return self.measured()


class Backward(_Model, direction=BACKWARD):
    # In every class: asv tells caches apart by the line of their setup_cache.
    def setup_cache(self):
        return self.measured()
