"""Calls that models make, and any number drawn at random: names with sizes. Imports no torch.

See ``names.parse_sized``.
"""

import hashlib
import math
import random

from .names import DTYPES, ITEM_BYTES, PACKED, TAIL, CallName

TRAINING, DECODE = "training", "decode"
_DECODED = 64  # sequences together, by models

# The shapes of attention layers in training, from the models' configurations on Hugging Face:
# queries and keys in one call, or one tensor.
MODELS = {
    "llama-3-8b": "bf16-32+8x128-2x4096",
    "llama-3-70b": "bf16-64+8x128-2x4096",
    "qwen-2.5-7b": "bf16-28+4x128-2x4096",
    "gemma-2-9b": "bf16-16+8x256-2x4096",
    # Latent attention: 64 channels of each query, and one key for all heads, beside 512 others.
    "deepseek-v3-q": "bf16-128x64-il-of192-2x4096",
    "deepseek-v3-k": "bf16-1x64-il-of576-8x8192",
    "gpt-neox-20b": "bf16-64+64x96r24-2x4096",
    "phi-2": "bf16-32+32x80r32-2x4096",
    "glm-4-9b": "bf16-32+2x128r64-il-2x4096",
    # Images have positions in three dimensions, so each sequence has angles of its own.
    "qwen-2-vl-7b": "bf16-28+4x128-perbatch-2x4096",
}

CHOSEN = (
    # Few heads: latent attention's key as it is and as a view, grouped keys of one head and three.
    *("bf16-1x64-8x8192", "bf16-1x64-of576-8x8192", "bf16-1x128-1x32768", "bf16-3x128-2x8192"),
    *("bf16-8x128-1x8192", "bf16-8x256-2x4096"),
    # Other head sizes, and rotation of a part.
    *("bf16-64x96r24-2x2048", "bf16-32x80r32-2x2048", "bf16-32x48-1x8192", "bf16-32x112-1x8192"),
    *("bf16-32x160-1x4096", "bf16-16x512-1x4096"),
    # Decoding. By its own angles or tables, each sequence has a row, as Liger's kernel gets it.
    *("bf16-32x128-256x1", "bf16-8x128-64x1", "bf16-16+8x256-perbatch-64x1"),
    # Views: a part of packed queries, keys and values, another order, not aligned.
    *(
        "bf16-32x128-packed-2x4096",
        "bf16-32x128-transposed-2x4096",
        "bf16-32x128-misaligned-1x4096",
    ),
    "bf16-128x64-of192-1x4096",
    # Pairs of neighbours.
    *("bf16-32x64-il-1x8192", "bf16-32x128-il-2x4096"),
    *("fp32-32x64-il-1x8192", "fp32-32x128-il-2x4096"),
    # A rank's part of each sequence, and the other roundings.
    *("bf16-32x128-cp-2x4096", "bf16-32x128-rtables-2x4096", "bf16-32x128-reach-2x4096"),
    # From short to long.
    *("fp16-64x128-1x128", "fp16-64x128-1x512", "fp16-12x64-16x1024", "fp16-64x128-4x2048"),
    *("fp32-64x128-2x2048", "bf16-64x256-2x2048", "bf16-32x128-1x16384"),
)
"""Calls that the models' do not have: names."""


def sized_name(model: str, step: str) -> str:
    """The name of a model's call in training or in decoding."""
    name = MODELS[model]
    return f"{name.rpartition('-')[0]}-{_DECODED}x1" if step == DECODE else name


# --- drawn at random ------------------------------------------------------------------------------

# Any of a tuple alike: what is there twice is drawn twice as often.
_DTYPES = ("bf16",) * 4 + ("fp16", "fp32")
_HEADS = (1,) * 4 + (2, 3, 4, 6, 8, 8, 12, 14, 16, 20, 24, 28, 32, 32, 40, 48, 56, 64, 96, 128)
_CHANNELS = (32, 48, 64, 64, 80, 96, 112, 128, 128, 128, 128, 160, 192, 256)
_ROTATED_STEP = 8  # channels
_LAYOUTS = ("",) * 11 + (TAIL, TAIL, PACKED, PACKED, PACKED, "transposed", "transposed", "sliced")
_BESIDE = (64, 128, 512)  # channels before those of a tail
_BATCHES = (1, 1, 2, 2, 4, 8, 16)
_MIB = {TRAINING: (2, 64), DECODE: (1, 16)}
"""MiB that a call moves, from the least to the most: as many of each power of two."""
_MOST_DECODED = 1024  # sequences
_MOST_TOKENS = 32768  # of a sequence


def draw(commit: str, seed: int, count: int) -> list[str]:
    """Names of calls drawn at random, all different: the same ones for a commit and a seed.

    Shapes are like those of models. Nobody chooses them: they follow from the hash of the commit,
    which is known when nothing of the commit can be changed any more.
    """
    source = random.Random(hashlib.sha256(f"{commit} {seed}".encode()).digest())
    drawn: dict[str, None] = {}
    while len(drawn) < count:
        drawn[_drawn(source)] = None
    return list(drawn)


def _drawn(source: random.Random) -> str:
    step = source.choice((TRAINING, TRAINING, DECODE))
    dtype, channels = source.choice(_DTYPES), source.choice(_CHANNELS)
    heads: tuple[int, ...] = (source.choice(_HEADS),)
    if source.random() < 0.7:  # queries and keys, grouped or not
        heads += (source.choice([n for n in range(1, heads[0] + 1) if heads[0] % n == 0]),)
    rotated = channels
    if source.random() < 0.3:
        rotated = source.randrange(2 * _ROTATED_STEP, channels, _ROTATED_STEP)
    interleaved, perbatch = source.random() < 0.25, source.random() < 0.1
    layout = source.choice(_LAYOUTS)
    if layout == TAIL:
        layout += str(channels + source.choice(_BESIDE))
    if source.random() < 0.03 and dtype != "fp32":
        layout = "misaligned"  # by 2 bytes
    least, most = map(math.log2, _MIB[step])
    moved = 2 ** (20 + source.uniform(least, most))
    tokens = moved / (2 * sum(heads) * channels * ITEM_BYTES[DTYPES[dtype]])
    if step == DECODE:
        batch, seq_len = min(_MOST_DECODED, max(1, round(tokens))), 1
        layout = "" if layout == "transposed" else layout  # one position has no order
    else:
        batch = max(source.choice(_BATCHES), math.ceil(tokens / _MOST_TOKENS))
        seq_len = max(2, round(tokens / batch))
        if source.random() < 0.8:  # as users pad them
            seq_len = max(16, round(seq_len / 16) * 16)
    words = {"interleaved": "il" * interleaved, "tables": "perbatch" * perbatch, "layout": layout}
    function = "qk" if len(heads) > 1 else "angles"
    call = CallName(function, "bshd", dtype, heads, channels, rotated, **words)
    return call.sized(batch, seq_len)
