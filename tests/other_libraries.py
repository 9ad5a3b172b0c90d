"""The parameter matrices of other RoPE libraries' tests, and what their cases ask of this one.

The sizes are the caller's: on a GPU those of the libraries, in the interpreter a few tokens.
"""

import itertools
import math

import torch

import rope_triton
from tests import covering, oracle

FLASH_ATTENTION = {
    "dtype": [torch.float16, torch.bfloat16],
    "offsets": ["none", "int", "each"],
    "fraction": [1.0, 0.5],
    "interleaved": [False, True],
    "inplace": [False, True],
    "packed": [False, True],
}
FLASH_ATTENTION_HEADS = {
    "dtype": [torch.float16, torch.bfloat16],
    # Heads that are rotated and heads that follow them in memory: queries and keys before as many
    # values, the same with two keys for four queries, and keys before values.
    "heads": [(8, 4), (6, 2), (4, 4)],
    "offsets": ["none", "int", "each"],
    "fraction": [1.0, 0.5],
    "interleaved": [False, True],
}
FLA = {
    "dtype": [torch.float32, torch.bfloat16],
    "groups": [1, 4],
    "positions": ["from_0", "moved", "left_padded", "packed"],
    "partial": [False, True],
}
QUACK = {
    "dtype": [torch.bfloat16, torch.float32],
    "table_dtype": [torch.bfloat16, torch.float32],
    "interleaved": [False, True],
    "sliced": [False, True],
}
FORMATS = {
    "tensor_format": ["sbhd", "bshd", "thd"],
    "dtype": [torch.float32, torch.bfloat16],
    "interleaved": [False, True],
}
FUSED_QKV = FORMATS | {"tensor_format": ["sbhd", "bshd"], "dtype": [torch.bfloat16]}


def head_dims(step: int) -> list[dict]:
    """Quack's sweep: head dimensions and rotated channels, each in another mode.

    Its own multiples of 8, and all the others between, which it refuses.
    """
    swept = zip(range(64, 257, step), itertools.cycle([1, 1 / 2, 1 / 8, 3 / 4]), strict=False)
    sizes = [(channels, 2 * int(channels * share / 2)) for channels, share in swept]
    # Where its vectors are narrower than elsewhere, or its tail is long.
    sizes += [(32, 8), (96, 72), (104, 64), (128, 104), (256, 128), (512, 256)]
    modes = itertools.cycle(covering.spanning(QUACK))
    return [dict(zip(("channels", "width"), size, strict=True)) | next(modes) for size in sizes]


def flash_attention(case: dict, sizes: tuple[int, int, int, int], device: str) -> None:
    """``apply_rotary_emb`` on batch, longest sequence, heads and channels of ``sizes``.

    A case may also have a ``table_dtype``, ``transposed`` tables, and ``fused``.
    """
    batch, seq, heads, channels = sizes
    dtype, inplace, interleaved = (case[name] for name in ("dtype", "inplace", "interleaved"))
    width = int(channels * case["fraction"])
    cos, sin = tables(2 * seq, width, case.get("table_dtype", dtype), device)
    if case.get("transposed"):
        cos, sin = cos.mT.contiguous().mT, sin.mT.contiguous().mT
    offsets, starts = _offsets(case["offsets"], batch, seq, device)
    options = {"interleaved": interleaved, "inplace": inplace, "seqlen_offsets": offsets}
    options["fused"] = case.get("fused", True)
    lengths = torch.full((batch,), seq)
    if case["packed"]:
        lengths = torch.randint(max(0, seq - 20), seq + 1, (batch,))
        options |= {"cu_seqlens": _bounds(lengths, device), "max_seqlen": seq}
    at = _positions(lengths, starts, device)
    at = at if case["packed"] else at.view(batch, seq)

    def call(leaf):
        x = leaf * 1 if inplace else leaf
        out = rope_triton.apply_rotary_emb(x, cos, sin, **options)
        assert (out is x) == inplace
        return out

    x = oracle.contiguous((*at.shape, heads, channels), dtype, device)
    oracle.compare(x, call, lambda x: rotate(x, cos, sin, at, interleaved))


def flash_attention_heads(case: dict, sizes: tuple[int, int, int], device: str) -> None:
    """Some heads of a larger tensor in place, of batch, sequence and channels of ``sizes``."""
    batch, seq, channels = sizes
    rotated, others = case["heads"]
    cos, sin = tables(2 * seq, int(channels * case["fraction"]), case["dtype"], device)
    offsets, starts = _offsets(case["offsets"], batch, seq, device)
    at = _positions(torch.full((batch,), seq), starts, device).view(batch, seq)
    options = {"interleaved": case["interleaved"], "seqlen_offsets": offsets}

    def call(leaf):
        x = leaf * 1
        rope_triton.apply_rotary_emb(x[:, :, :rotated], cos, sin, inplace=True, **options)
        return x

    def exact(x):
        turned = rotate(x[:, :, :rotated], cos, sin, at, case["interleaved"])
        return torch.cat((turned, x[:, :, rotated:]), 2)

    x = oracle.contiguous((batch, seq, rotated + others, channels), case["dtype"], device)
    out, grad, cotangent = oracle.compare(x, call, exact)
    for now, then in ((out, x), (grad, cotangent)):
        torch.testing.assert_close(now[:, :, rotated:], then[:, :, rotated:], rtol=0, atol=0)


def fla(case: dict, sizes: tuple[int, int, int, int], device: str) -> None:
    """Queries and the keys of a group, of batch, sequence, heads and channels of ``sizes``.

    A sequence that is padded on its left begins before position 0: those tokens come back as they
    are, bit by bit.
    """
    batch, seq, heads, channels = sizes
    table = 2 * seq
    width = channels // 4 * 2 if case["partial"] else channels
    cos, sin = tables(table, width, torch.float32, device)
    starts = {
        "moved": torch.randint(0, seq // 2, (batch,)),
        "left_padded": -torch.arange(batch) * (seq // (2 * batch)),
    }.get(case["positions"])
    lengths, shape = torch.full((batch,), seq), (batch, seq)
    if case["positions"] == "packed":
        cuts = torch.randperm(batch * seq - 1)[: batch - 1].sort().values + 1
        lengths = torch.diff(torch.tensor([0, *cuts.tolist(), batch * seq])).clamp(max=table)
        shape = (int(lengths.sum()),)
    at = _positions(lengths, None if starts is None else starts.tolist(), device).view(shape)
    options = {}
    if starts is not None:
        options["seqlen_offsets"] = starts.to(device)
    if case["positions"] == "packed":
        options["cu_seqlens"] = _bounds(lengths, device).long()
    assert (case["positions"] == "left_padded") == bool((at < 0).any())
    for n in (heads, heads // case["groups"]):
        x = oracle.contiguous((*shape, n, channels), case["dtype"], device)
        out, grad, cotangent = oracle.compare(
            x,
            lambda x: rope_triton.apply_rotary_emb(x, cos, sin, **options),
            lambda x: rotate(x, cos, sin, at, False),
        )
        for now, then in ((out, x), (grad, cotangent)):
            torch.testing.assert_close(now[at < 0], then[at < 0], rtol=0, atol=0)


def quack(case: dict, sizes: tuple[int, int, int], device: str) -> None:
    """A head dimension, with tables of another dtype: batch, sequence and heads are ``sizes``.

    The gradient is what quack calls conjugate. What is sliced lies amid NaN, tables too.
    """
    batch, seq, heads = sizes
    cos, sin = tables(2 * seq, case["width"], case["table_dtype"], device)
    shape = (batch, seq, heads, case["channels"])
    if case["sliced"]:
        x = oracle.sliced(shape, case["dtype"], device)
        wide = torch.full((2 * seq, case["width"] // 2 + 16), torch.nan, device=device)
        wide = wide.to(case["table_dtype"])
        cos, sin = (wide.clone()[:, 8:-8].copy_(table) for table in (cos, sin))
    else:
        x = oracle.contiguous(shape, case["dtype"], device)
    at = torch.arange(seq, device=device).expand(batch, seq)
    oracle.compare(
        x,
        lambda x: rope_triton.apply_rotary_emb(x, cos, sin, case["interleaved"]),
        lambda x: rotate(x, cos, sin, at, case["interleaved"]),
    )


def formats(case: dict, sizes: tuple[int, int, int, int], device: str) -> None:
    """``apply_rotary_pos_emb``: some tokens have no angles, one packed token no sequence."""
    batch, seq, heads, channels = sizes
    tensor_format, interleaved = case["tensor_format"], case["interleaved"]
    freqs = oracle.random_angles(seq, channels // 4 * 2, device)
    starts = [-2, *range(1, batch)]
    at = oracle.angles_at(freqs, oracle.positions([seq] * batch, starts, 1, 0), tensor_format)
    options = {"start_positions": torch.tensor(starts, device=device), "interleaved": interleaved}
    if tensor_format == "thd":
        options["cu_seqlens"] = torch.arange(0, batch * seq + 1, seq, device=device)
        at = torch.cat((at, torch.zeros_like(at[:1])))
    oracle.compare(
        oracle.contiguous((*at.shape[:-2], heads, channels), case["dtype"], device),
        lambda t: rope_triton.apply_rotary_pos_emb(t, freqs, tensor_format, **options),
        lambda t: oracle.rotate_by(t, at, interleaved),
    )


def fused_qkv(case: dict, sizes: tuple[int, int, int, int], device: str) -> None:
    """``apply_fused_qkv_rotary_pos_emb`` of two queries, a key and a value in a group."""
    batch, seq, groups, channels = sizes
    tensor_format, interleaved = case["tensor_format"], case["interleaved"]
    freqs = [oracle.random_angles(seq, channels // 4 * 2, device) for _ in range(2)]
    starts = [-2, *range(1, batch)]
    held = oracle.positions([seq] * batch, starts, 1, 0)
    ats = [oracle.angles_at(table, held, tensor_format) for table in freqs]
    starts = torch.tensor(starts, device=device)
    counts = [2, 1, 1]

    def call(qkv):
        sizes = [count * channels for count in counts]
        options = dict(start_positions=starts, interleaved=interleaved)
        parts = rope_triton.apply_fused_qkv_rotary_pos_emb(
            qkv, *freqs, sizes, tensor_format, **options
        )
        return torch.cat(parts, 2)

    def exact(qkv):
        parts = qkv.unflatten(3, (-1, channels)).split(counts, 3)
        q, k, v = (part.flatten(2, 3) for part in parts)
        q, k = (oracle.rotate_by(x, at, interleaved) for x, at in zip((q, k), ats, strict=True))
        return torch.cat((q, k, v), 2)

    shape = (*ats[0].shape[:2], groups, sum(counts) * channels)
    oracle.compare(oracle.contiguous(shape, case["dtype"], device), call, exact)


def rotate(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, at: torch.Tensor, interleaved: bool
) -> torch.Tensor:
    """The exact result of tables as they are, float64, differentiable in ``x``.

    ``at`` has the position of each token; where the tables have none, the token is not turned.
    """
    known = ((at >= 0) & (at < len(cos)))[..., None, None]
    row = at.clamp(0, len(cos) - 1)
    cos, sin = cos[row][..., None, :].where(known, 1), sin[row][..., None, :].where(known, 0)
    return oracle.rotate_by_tables(x, cos, sin, interleaved)


def tables(seq: int, width: int, dtype: torch.dtype, device: str):
    """Cosines and sines of random angles, ``[seq, width/2]`` each."""
    angles = torch.rand(seq, width // 2, device=device) * 2 * math.pi
    return angles.cos().to(dtype), angles.sin().to(dtype)


def _offsets(kind, batch, seq, device):
    """The argument of a call, and the first position of each sequence."""
    starts = {
        "none": torch.zeros(batch, dtype=torch.int32),
        "int": torch.randint(seq + 1, ()).expand(batch),
        "each": torch.randint(seq + 1, (batch,), dtype=torch.int32),
        "outside": (torch.arange(batch) % 2) * (2 * seq + 1) - 2,  # of the tables, at both ends
    }[kind]
    return (int(starts[0]) if kind in ("none", "int") else starts.to(device)), starts.tolist()


def _positions(lengths, starts, device):
    """Positions of all tokens, sequence after sequence."""
    return torch.tensor(sum(oracle.positions(lengths.tolist(), starts, 1, 0), []), device=device)


def _bounds(lengths, device):
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int().to(device)
