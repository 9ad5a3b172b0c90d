"""The parameter matrices of other RoPE libraries' tests, and what their cases ask of this one.

A matrix is the values of each parameter, by name; a case has one of each. The sizes are the
caller's: on a GPU those of the libraries, in the interpreter a few tokens.
"""

import itertools
import math

import pytest
import torch

import rope_triton
from tests import oracle

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
FENCED = {
    "tensor_format": ["sbhd", "bshd", "thd"],
    "dtype": [torch.float32, torch.bfloat16],
    "interleaved": [False, True],
    "filling": ["nan", "random"],
}
FENCED_TABLES = {"packed": [False, True], "inplace": [False, True]} | {
    name: FENCED[name] for name in ("dtype", "interleaved", "filling")
}
FENCED_QKV = FENCED | {"tensor_format": ["sbhd", "bshd"], "dtype": [torch.bfloat16]}


def every(matrix: dict) -> list[dict]:
    """All cases of a matrix."""
    return [
        dict(zip(matrix, values, strict=True)) for values in itertools.product(*matrix.values())
    ]


def spanning(matrix: dict, strength: int = 2, allowed=lambda case: True) -> list[dict]:
    """Few of the allowed cases, with every combination of ``strength`` parameters' values."""
    bits: dict[tuple, int] = {}
    covers = []  # by case, a bit for each combination that it has
    for case in filter(allowed, every(matrix)):
        combinations = itertools.combinations(case.items(), strength)
        covers.append((sum(1 << bits.setdefault(each, len(bits)) for each in combinations), case))
    missing, chosen = (1 << len(bits)) - 1, []
    while missing:
        covered, case = max(covers, key=lambda each: (each[0] & missing).bit_count())
        chosen.append(case)
        missing &= ~covered
    return chosen


def head_dims(step: int) -> list[dict]:
    """Quack's sweep: head dimensions and rotated channels, each in another mode.

    Its own multiples of 8, and all the others between, which it refuses.
    """
    swept = zip(range(64, 257, step), itertools.cycle([1, 1 / 2, 1 / 8, 3 / 4]), strict=False)
    sizes = [(channels, 2 * int(channels * share / 2)) for channels, share in swept]
    # Where its vectors are narrower than elsewhere, or its tail is long.
    sizes += [(32, 8), (96, 72), (104, 64), (128, 104), (256, 128), (512, 256)]
    modes = itertools.cycle(spanning(QUACK))
    return [dict(zip(("channels", "width"), size, strict=True)) | next(modes) for size in sizes]


def parametrize(cases: list[dict]):
    """Run a test on each case, as its argument ``case``."""
    return pytest.mark.parametrize("case", cases, ids=_name)


def _name(case):
    named = (f"{key}_{str(value).removeprefix('torch.')}" for key, value in case.items())
    return "-".join(named).replace(" ", "")


def flash_attention(case: dict, sizes: tuple[int, int, int, int], device: str) -> None:
    """``apply_rotary_emb`` on batch, longest sequence, heads and channels of ``sizes``."""
    batch, seq, heads, channels = sizes
    cos, sin = tables(2 * seq, int(channels * case["fraction"]), case["dtype"], device)
    lengths = torch.full((batch,), seq)
    if case["packed"]:
        lengths = torch.randint(max(1, seq - 20), seq + 1, (batch,))
    given, starts = _offsets(case["offsets"], batch, seq, device)
    at = _positions(lengths, starts, device)
    options = dict(interleaved=case["interleaved"], seqlen_offsets=given)
    shape = (batch, seq)
    if case["packed"]:
        shape = (len(at),)
        options |= dict(cu_seqlens=_bounds(lengths, device), max_seqlen=seq)
    x = oracle.contiguous((*shape, heads, channels), case["dtype"], device)

    def call(leaf):
        x = leaf * 1 if case["inplace"] else leaf
        out = rope_triton.apply_rotary_emb(x, cos, sin, inplace=case["inplace"], **options)
        assert (out is x) == case["inplace"]
        return out

    check(x, call, lambda x: rotate(x, cos, sin, at.view(shape), case["interleaved"]))


def flash_attention_heads(case: dict, sizes: tuple[int, int, int], device: str) -> None:
    """Some heads of a larger tensor in place, of batch, sequence and channels of ``sizes``."""
    batch, seq, channels = sizes
    rotated, kept = case["heads"]
    cos, sin = tables(2 * seq, int(channels * case["fraction"]), case["dtype"], device)
    given, starts = _offsets(case["offsets"], batch, seq, device)
    at = _positions(torch.full((batch,), seq), starts, device).view(batch, seq)
    options = dict(interleaved=case["interleaved"], seqlen_offsets=given)

    def call(leaf):
        x = leaf * 1
        rope_triton.apply_rotary_emb(x[:, :, :rotated], cos, sin, inplace=True, **options)
        return x

    def exact(x):
        turned = rotate(x[:, :, :rotated], cos, sin, at, case["interleaved"])
        return torch.cat((turned, x[:, :, rotated:]), 2)

    x = oracle.contiguous((batch, seq, rotated + kept, channels), case["dtype"], device)
    out, grad, cotangent = check(x, call, exact)
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
        out, grad, cotangent = check(
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
    check(
        x,
        lambda x: rope_triton.apply_rotary_emb(x, cos, sin, case["interleaved"]),
        lambda x: rotate(x, cos, sin, at, case["interleaved"]),
    )


class Fence:
    """Tensors in the middle of memory that is not theirs.

    What is read of it by mistake is NaN, or a large index. Mistakes in writing are seen: also where
    the filling is NaN and what was computed from it is, as another filling is random numbers.
    """

    # More than the largest tile reaches beyond a tensor; an odd one takes the alignment away too.
    MARGINS = {"nan": 1 << 14, "random": (1 << 14) - 3}

    def __init__(self, filling: str):
        self._filling = filling
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.allocated = 0

    def around(self, tensor: torch.Tensor) -> torch.Tensor:
        """A contiguous copy."""
        inside = self._empty(tensor.shape, tensor.dtype, tensor.device)
        return inside.copy_(tensor)

    def allocate(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let what the package allocates lie here as well, and hold NaN until it is written."""
        new_empty = torch.Tensor.new_empty

        def empty_like(t, **_):
            self.allocated += 1
            return self._empty(t.shape, t.dtype, t.device)

        def fenced_new_empty(t, size, **options):
            if options:  # the interpreter's own
                return new_empty(t, size, **options)
            self.allocated += 1
            return self._empty(size, t.dtype, t.device)

        monkeypatch.setattr(torch, "empty_like", empty_like)
        monkeypatch.setattr(torch.Tensor, "new_empty", fenced_new_empty)

    def assert_intact(self) -> None:
        for frame, before in self._kept:
            assert torch.equal(frame.view(torch.uint8), before.view(torch.uint8))

    def _empty(self, shape, dtype, device):
        n, margin = math.prod(shape), self.MARGINS[self._filling]
        memory = torch.empty(n + 2 * margin, dtype=dtype, device=device)
        if not dtype.is_floating_point:
            memory.random_(1 << 24, 1 << 30)
        elif self._filling == "random":
            memory.normal_()
        else:
            memory.fill_(torch.nan)
        inside = memory[margin : margin + n]
        if dtype.is_floating_point:
            inside.fill_(torch.nan)
        self._kept += [(x, x.clone()) for x in (memory[:margin], memory[margin + n :])]
        return inside.view(shape)


def fenced(case: dict, sizes: tuple[int, int, int, int], device: str, fence: Fence) -> None:
    """``apply_rotary_pos_emb``: some tokens have no angles, one packed token no sequence."""
    batch, seq, heads, channels = sizes
    tensor_format, interleaved = case["tensor_format"], case["interleaved"]
    freqs = fence.around(oracle.random_angles(seq, channels // 4 * 2, device))
    starts = [-2, *range(1, batch)]
    held = oracle.positions([seq] * batch, starts, 1, 0)
    at = torch.stack([oracle.angles_at(freqs, each) for each in held])
    options = {"start_positions": fence.around(torch.tensor(starts, device=device))}
    if tensor_format == "thd":
        bounds = torch.arange(0, batch * seq + 1, seq, device=device)
        options["cu_seqlens"] = fence.around(bounds)
        at = torch.cat((at.flatten(0, 1), torch.zeros_like(at[0, :1])))
    elif tensor_format == "sbhd":
        at = at.transpose(0, 1)
    t = fence.around(oracle.contiguous((*at.shape[:-2], heads, channels), case["dtype"], device))
    check(
        t,
        lambda t: rope_triton.apply_rotary_pos_emb(
            t, freqs, tensor_format, interleaved=interleaved, **options
        ),
        lambda t: oracle.rotate_by(t, at, interleaved),
        fence,
    )


def fenced_tables(case: dict, sizes: tuple[int, int, int, int], device: str, fence: Fence) -> None:
    """``apply_rotary_emb``, also in place: some tokens have no position in the tables."""
    batch, seq, heads, channels = sizes
    width, inplace = channels // 4 * 2, case["inplace"]
    cos, sin = (fence.around(x) for x in tables(seq, width, torch.float32, device))
    starts = [-2, *range(1, batch)]
    lengths = torch.full((batch,), seq)
    at = _positions(lengths, starts, device)
    options = {"seqlen_offsets": fence.around(torch.tensor(starts, device=device))}
    if case["packed"]:
        options["cu_seqlens"] = fence.around(_bounds(lengths, device))
    else:
        at = at.view(batch, seq)
    x = fence.around(oracle.contiguous((*at.shape, heads, channels), case["dtype"], device))

    def call(x):
        return rope_triton.apply_rotary_emb(
            x, cos, sin, case["interleaved"], inplace=inplace, **options
        )

    def exact(x):
        return rotate(x, cos, sin, at, case["interleaved"])

    if inplace:
        expected = exact(x).to(x.dtype)
        assert call(x) is x
        torch.testing.assert_close(x, expected)
        fence.assert_intact()
    else:
        check(x, call, exact, fence)


def fenced_qkv(case: dict, sizes: tuple[int, int, int, int], device: str, fence: Fence) -> None:
    """``apply_fused_qkv_rotary_pos_emb`` of two queries, a key and a value in a group."""
    batch, seq, groups, channels = sizes
    tensor_format, interleaved = case["tensor_format"], case["interleaved"]
    freqs = [fence.around(oracle.random_angles(seq, channels // 4 * 2, device)) for _ in range(2)]
    starts = [-2, *range(1, batch)]
    held = oracle.positions([seq] * batch, starts, 1, 0)
    ats = [torch.stack([oracle.angles_at(table, each) for each in held]) for table in freqs]
    ats = [at.transpose(0, 1) if tensor_format == "sbhd" else at for at in ats]
    starts = fence.around(torch.tensor(starts, device=device))
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
    qkv = fence.around(oracle.contiguous(shape, case["dtype"], device))
    check(qkv, call, exact, fence)


def check(
    x: torch.Tensor, call, exact, fence: Fence | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compare ``call(x)`` and its gradient with ``exact`` of the same numbers in float64.

    Returns the result, the gradient and the cotangent.
    """
    before, leaf = x.clone(), x.detach().requires_grad_()
    wide = x.double().requires_grad_()
    expected = exact(wide)
    cotangent = oracle.random_like(expected.to(x.dtype))
    (expected_grad,) = torch.autograd.grad(expected, wide, cotangent.double())
    if fence:
        cotangent = fence.around(cotangent)
    out = call(leaf)
    (grad,) = torch.autograd.grad(out, leaf, cotangent)
    out = out.detach()
    torch.testing.assert_close(out, expected.to(x.dtype))
    torch.testing.assert_close(grad, expected_grad.to(x.dtype))
    torch.testing.assert_close(leaf.detach(), before, rtol=0, atol=0)
    if fence:
        assert fence.allocated >= 2
        fence.assert_intact()
    return out, grad, cotangent


def rotate(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, at: torch.Tensor, interleaved: bool
) -> torch.Tensor:
    """The exact result of tables as they are, float64, differentiable in ``x``.

    ``at`` has the position of each token; where the tables have none, the token is not turned.
    """
    width = 2 * cos.shape[1]
    known = ((at >= 0) & (at < len(cos)))[..., None]
    row = at.clamp(0, len(cos) - 1)
    turn = torch.complex(cos.double()[row].where(known, 1), sin.double()[row].where(known, 0))
    z = torch.view_as_complex(oracle.pairs(x[..., :width].double(), interleaved).contiguous())
    turned = torch.view_as_real(z * turn[..., None, :])
    turned = turned.flatten(-2) if interleaved else turned.mT.flatten(-2)
    return torch.cat((turned, x[..., width:].double()), -1)


def tables(seq: int, width: int, dtype: torch.dtype, device: str):
    """Cosines and sines of random angles, ``[seq, width/2]`` each."""
    angles = torch.rand(seq, width // 2, device=device) * 2 * math.pi
    return angles.cos().to(dtype), angles.sin().to(dtype)


def _offsets(kind, batch, seq, device):
    """What a call is given, and the first position of each sequence."""
    starts = {
        "none": torch.zeros(batch, dtype=torch.int32),
        "int": torch.randint(seq + 1, ()).expand(batch),
        "each": torch.randint(seq + 1, (batch,), dtype=torch.int32),
    }[kind]
    given = starts.to(device) if kind == "each" else int(starts[0])
    return given, starts.tolist()


def _positions(lengths, starts, device):
    """Positions of all tokens, sequence after sequence."""
    return torch.tensor(sum(oracle.positions(lengths.tolist(), starts, 1, 0), []), device=device)


def _bounds(lengths, device):
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int().to(device)
