"""Is the package's result close to PyTorch's: by which tolerance, to which arithmetic, and why?

"Close" has no meaning without both. In half precision an output is one of 2^16 values, so a
tolerance below their distance asks for the very same roundings.
"""

from collections.abc import Iterator, Sequence

from ..._cells import angles
from ..cells import PeerCell
from .experiments import FORMAT, HALF, HEADS, HIDDEN_SIZE, OURS

# Of a check: relative and absolute, as both functions take them without being told.
TOLERANCES = {
    "torch.testing.assert_close, of float16": (1e-3, 1e-5),
    "torch.allclose, of any dtype": (1e-5, 1e-8),
}
ROUNDED = "formula in float32, rounded once to float16"
IN_HALF = "formula in float16 throughout"
UNROUNDED = "formula in float32, left in float32"
# The check that must pass: the arithmetic that the package promises, by the tolerance of its dtype.
PROMISED = (ROUNDED, next(iter(TOLERANCES)))

WHY = """\
float16 has 11 significant bits, so rounding moves a value by up to 4.9e-4 of it. The default rtol
of `torch.allclose` is 1e-5 whatever the dtype, 49 times less: by it two float16 results agree only
where they are the very same numbers, and one that was never rounded agrees almost nowhere. A
formula that works in float16 throughout rounds cosine, sine, both products and their sum; where the
products nearly cancel, their rounding is large beside what is left, and even the tolerance of
float16 fails. The package computes in float32 and rounds once: so must what it is compared with, by
the tolerance of float16."""


def checks(seq_lens: Sequence[int], device: str = "cuda", heads: int = HEADS) -> Iterator[dict]:
    """Compare the package's forward with PyTorch's for each length, arithmetic and tolerance.

    Yields
    ------
    dict
        "seq_len", "against", "tolerance", "rtol", "atol", "passes", "outside" (share of the
        elements that are further apart) and "largest" (absolute difference).
    """
    import torch

    from rope_triton import apply_rotary_pos_emb

    for seq_len in seq_lens:
        cell = PeerCell(OURS, seq_len, HIDDEN_SIZE, heads, 1, HALF, FORMAT)
        torch.manual_seed(0)
        x = torch.randn(cell.shape, device=device, dtype=getattr(torch, cell.dtype))
        freqs = angles.of_cell(cell, device)
        out = apply_rotary_pos_emb(x, freqs, cell.format)
        for against, expected in _arithmetics(x, freqs).items():
            for name, (rtol, atol) in TOLERANCES.items():
                found = out.to(expected.dtype)
                apart = (found.double() - expected.double()).abs()
                outside = apart > atol + rtol * expected.double().abs()
                yield {
                    "seq_len": seq_len,
                    "against": against,
                    "tolerance": name,
                    "rtol": rtol,
                    "atol": atol,
                    "passes": torch.allclose(found, expected, rtol=rtol, atol=atol),
                    "outside": outside.double().mean().item(),
                    "largest": apart.max().item(),
                }


def _arithmetics(x, freqs) -> dict:
    exact = _formula(x.float(), freqs)
    return {ROUNDED: exact.to(x.dtype), IN_HALF: _formula(x, freqs), UNROUNDED: exact}


def _formula(x, freqs):
    """Plain PyTorch in the dtype of ``x``, tables rounded to it."""
    import torch

    cos, sin = freqs.cos().to(x.dtype), freqs.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
