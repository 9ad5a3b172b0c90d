"""Calls that models make: the shapes of the attention layers of nine models. Imports no torch."""

import functools
from dataclasses import dataclass
from typing import NamedTuple

from .forms import FORWARD
from .surface import Form, FormCell

TRAINING, DECODE = "training", "decode"
ANGLES, TABLES = "angles", "tables"

_DECODED, _CONTEXT = 64, 4096
"""Sequences that are decoded together, and the positions that they are spread over."""


class Model(NamedTuple):
    """What a layer rotates: queries and keys in one call, or one tensor.

    ``heads`` of each tensor, of ``channels`` each; the first ``rotated`` have angles. ``layout``:
    "of192" is the last channels of a row of 192. ``tables``: "perbatch" if each sequence has
    its own. ``batch`` sequences of ``seq_len`` tokens in training. ``dtype``: a key of
    ``surface.DTYPES``. ``parallel`` and ``rounding``: words of ``surface.OPTIONS``.
    """

    heads: tuple[int, ...]
    channels: int
    rotated: int
    interleaved: bool = False
    layout: str = ""
    tables: str = ""
    batch: int = 2
    seq_len: int = 4096
    dtype: str = "bf16"
    parallel: str = ""
    rounding: str = ""


# From the models' configurations on Hugging Face.
MODELS = {
    "llama-3-8b": Model((32, 8), 128, 128),
    "llama-3-70b": Model((64, 8), 128, 128),
    "qwen-2.5-7b": Model((28, 4), 128, 128),
    "gemma-2-9b": Model((16, 8), 256, 256),
    # Latent attention: 64 channels of each query, and one key for all heads, beside 512 others.
    "deepseek-v3-q": Model((128,), 64, 64, interleaved=True, layout="of192"),
    "deepseek-v3-k": Model((1,), 64, 64, interleaved=True, layout="of576", batch=8, seq_len=8192),
    "gpt-neox-20b": Model((64, 64), 96, 24),
    "phi-2": Model((32, 32), 80, 32),
    "glm-4-9b": Model((32, 2), 128, 64, interleaved=True),
    # Images have positions in three dimensions, so each sequence has angles of its own.
    "qwen-2-vl-7b": Model((28, 4), 128, 128, tables="perbatch"),
}


_FUNCTIONS = {
    (1, ANGLES): "angles",
    (2, ANGLES): "qk",
    (1, TABLES): "tables",
    (2, TABLES): "qktables",
}
"""By tensors and what the call takes: names of ``surface_calls.FUNCTIONS``."""


class BaseModelCell(FormCell):
    """A model's call, batch first. A subclass is a frozen dataclass.

    ``step``: "training", or "decode", one token of each sequence at a position of its own.
    ``takes``: "angles" or ready-made "tables".
    """

    model: str
    step: str
    takes: str

    @property
    def layer(self) -> Model:
        """What is rotated."""
        return MODELS[self.model]

    @functools.cached_property
    def of(self) -> Form:
        model = self.layer
        decode = self.step == DECODE
        return Form(
            _FUNCTIONS[len(model.heads), self.takes],
            *("bshd", model.dtype, model.heads[0], model.channels, model.rotated),
            interleaved="il" if model.interleaved else "",
            tables=model.tables,
            position="starts" if decode and not model.tables else "",
            parallel=model.parallel,
            rounding=model.rounding,
            layout=model.layout,
        )

    @property
    def head_counts(self) -> tuple[int, ...]:
        return self.layer.heads

    @property
    def directions(self) -> tuple[str, ...]:
        return (FORWARD,) if self.step == DECODE else super().directions

    @property
    def lengths(self) -> tuple[int, ...]:
        model = self.layer
        return (1,) * _DECODED if self.step == DECODE else (model.seq_len,) * model.batch

    @property
    def starts(self) -> tuple[int, ...]:
        count = len(self.lengths)
        step = _CONTEXT // count if self.of.position else 0
        return tuple(index * step for index in range(count))


@dataclass(frozen=True)
class ModelCell(BaseModelCell):
    """This package's call."""

    suite = "model_calls"
    model: str
    step: str
    takes: str


def cells() -> list[ModelCell]:
    """Every call, in the fixed order in which they are measured."""
    return [
        ModelCell(model, step, takes)
        for model in MODELS
        for step in (TRAINING, DECODE)
        for takes in (ANGLES, TABLES)
    ]


def grid(direction: str) -> dict[str, tuple]:
    """The values of each field of the cells that have this direction."""
    steps = dict.fromkeys(cell.step for cell in cells() if direction in cell.directions)
    return {"model": tuple(MODELS), "step": tuple(steps), "takes": (ANGLES, TABLES)}
