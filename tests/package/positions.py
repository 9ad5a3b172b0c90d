"""A call of ``apply_rotary_pos_emb`` on sequences of any positions, and what it must give."""

from typing import NamedTuple

import torch

import rope_triton
from tests import oracle
from tests.oracle import LAYOUTS

TABLE = 40
"""Positions that the angles are for."""


class Call(NamedTuple):
    """All but its numbers, which follow from the seed."""

    lengths: list[int]  # of the whole sequences, of which each rank has a share
    starts: list[int] | None = None
    tensor_format: str = "thd"
    dtype: torch.dtype = torch.float32
    interleaved: bool = False
    fused: bool = True
    index: torch.dtype = torch.int32
    index_stride: int = 1
    rank: tuple[int, int] = (1, 0)  # cp_size, cp_rank
    layout: str = "contiguous"
    heads: int = 3
    channels: int = 24
    width: int = 16
    seed: int = 0

    def tensor(self, device: str) -> torch.Tensor:
        torch.manual_seed(self.seed)
        build, tail = LAYOUTS[self.layout], (self.heads, self.channels)
        if self.tensor_format == "thd":
            return build((sum(self.lengths) // self.rank[0], 1, *tail), self.dtype, device)[:, 0]
        leading = self.lengths[0] // self.rank[0], len(self.lengths)
        order = 1 if self.tensor_format == "sbhd" else -1
        return build((*leading[::order], *tail), self.dtype, device)

    def angles(self, device: str) -> torch.Tensor:
        torch.manual_seed(self.seed)
        return oracle.random_angles(TABLE, self.width, device)

    def rotate(self, t: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
        bounds = [sum(self.lengths[:i]) for i in range(len(self.lengths) + 1)]
        return rope_triton.apply_rotary_pos_emb(
            t,
            freqs,
            self.tensor_format,
            self.starts and self._indices(self.starts, t.device),
            self.interleaved,
            self.fused,
            self._indices(bounds, t.device) if self.tensor_format == "thd" else None,
            *self.rank,
        )

    def exact(self, t: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
        """What the oracle gives, float64."""
        held = oracle.positions(self.lengths, self.starts, *self.rank)
        at = oracle.angles_at(freqs, held, self.tensor_format)
        return oracle.rotate_by(t, at, self.interleaved)

    def check(self, device: str) -> None:
        """Assert that the result and its gradient are the oracle's."""
        freqs = self.angles(device)
        oracle.compare(
            self.tensor(device),
            lambda t: self.rotate(t, freqs),
            lambda t: self.exact(t, freqs),
        )

    def _indices(self, values: list[int], device) -> torch.Tensor:
        values = torch.tensor(values, dtype=self.index, device=device)
        return values.repeat_interleave(self.index_stride)[:: self.index_stride]
