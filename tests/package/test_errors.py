"""What is refused: the call, the exception and what its message says; nothing is computed before.

An entry is a call, changed from a valid one, and the error behind an arrow; "..." stands for any
text.
"""

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import ones, zeros

import rope_triton
from rope_triton import (
    RotaryPositionEmbedding,
    frequencies_from_config,
    mrope_angles,
    rotary_angles,
    scalings,
)
from rope_triton.integrations import flash_attention, transformers, vllm
from rope_triton.kernel import launch

ROTATIONS = """
angles(t=[1.0]) -> TypeError: t must be a torch.Tensor, got list
angles(freqs=1.0) -> TypeError: freqs must be a torch.Tensor, got float
angles(t=ones(4, 2, 3, 8).int()) -> TypeError: t must be ...float32...got torch.int32
angles(t=ones(4, 2, 3, 8).double(), fused=True) -> TypeError: t is torch.float64...pass fused=False
angles(freqs=ones(6, 1, 1, 8).int()) -> TypeError: freqs must be one of ...float32...got torch.int32
angles(freqs=ones(6, 1, 1, 8).half()) -> TypeError: torch.float64), got torch.float16
angles(freqs=ones(6, 1, 1, 8, device="meta")) -> ValueError: must share a device, got c... and meta
angles(t=ones(4, 3, 8)) -> ValueError: 4 dimensions for tensor_format='sbhd', got shape (4, 3, 8)
angles(freqs=ones(6, 8)) -> ValueError: must have shape [s2, 1 or b=2, 1 or h=3, d2], got (6, 8)
angles(freqs=ones(6, 3, 1, 8)) -> ValueError: shape [s2, 1 or b=2, 1 or h=3, d2], got (6, 3, 1, 8)
angles(freqs=ones(3, 1, 1, 8)) -> ValueError: freqs covers 3 positions...(4, 2, 3, 8) (sbhd) has 4
angles(freqs=ones(6, 1, 1, 7)) -> ValueError: even number of channels wide, from 2 to d=8, got 7
angles(freqs=ones(6, 1, 1, 10)) -> ValueError: even number of channels wide, from 2 to d=8, got 10
angles(tensor_format="bhsd") -> ValueError: must be 'sbhd', 'bshd' or 'thd', got 'bhsd'
angles(tensor_format=None) -> ValueError: 'sbhd', 'bshd' or 'thd', got None
angles(cu_seqlens=zeros(2).int()) -> ValueError: cu_seqlens must have shape [b + 1] = (3,), got (2,)
angles(tensor_format="thd") -> ValueError: tensor_format='thd' needs cu_seqlens, got None
packed(cu_seqlens=zeros(1).int()) -> ValueError: must bound every token of t, got 1 values
packed(freqs=ones(0, 1, 1, 8)) -> ValueError: freqs covers 0 positions
packed(cu_seqlens=zeros(2)) -> TypeError: cu_seqlens must be ...int32...got torch.float32
packed(cu_seqlens=zeros(1, 2).int()) -> ValueError: cu_seqlens must have shape [b + 1], got (1, 2)
packed(start_positions=zeros(2).int()) -> ValueError: must have shape [b] = (1,), got (2,)
angles(start_positions=zeros(3).long()) -> ValueError: must have shape [b] = (2,), got (3,)
angles(t=ones(3, 2, 3, 8), cp_size=2) -> ValueError: has 3 tokens, cp_size=2 needs two equal chunks
angles(cp_size=2, cp_rank=1) -> ValueError: covers 6 positions, ... has 4 on each of cp_size=2 ranks
angles(cp_size=1.0) -> TypeError: cp_size must be an int, got float
angles(cp_size=0) -> ValueError: 0 <= cp_rank < cp_size, got cp_rank=0, cp_size=0
angles(cp_size=2, cp_rank=2) -> ValueError: 0 <= cp_rank < cp_size, got cp_rank=2, cp_size=2
angles(rounding="twice") -> ValueError: rounding must be one of ... got 'twice'

qk(k=[1.0]) -> TypeError: k must be a torch.Tensor, got list
qk(k=ones(5, 2, 2, 8).half()) -> ValueError: one dtype...float32...float16
qk(k=ones(4, 2, 2, 8)) -> ValueError: one shape but for the heads
qk(freqs=ones(5, 1, 2, 8)) -> ValueError: 1 or h=4
qk(k=ones(5, 2, 4, 8), freqs=ones(5, 1, 4, 8), fused=True) -> ValueError: and keys must share angles
qk(freqs=ones(4, 1, 1, 8)) -> ValueError: freqs covers 4 positions, the sequence of q with
qk(tensor_format=None) -> ValueError: 'sbhd', 'bshd' or 'thd', got None

qkv(tensor_format="bhsd") -> ValueError: tensor_format must be 'sbhd' or 'bshd', got 'bhsd'
qkv(cu_seqlens=zeros(2)) -> ValueError: cu_seqlens must be None
qkv(qkv_split_arg_list=72) -> ValueError: three positive ints, got 72
qkv(qkv_split_arg_list=[24, 24, 0]) -> ValueError: three positive ints
qkv(qkv_split_arg_list=[24, 24, 24]) -> ValueError: 144 together, got [24, 24, 24]
qkv(qkv_split_arg_list=[92, 28, 24]) -> ValueError: multiples of the last
qkv(k_freqs=ones(40, 2, 1, 24)) -> ValueError: must have shape [s2, 1, 1, d2], got (40, 2, 1, 24)
qkv(qkv=ones(2, 2, 144)) -> ValueError: qkv must have 4 dimensions
qkv(k_freqs=ones(40, 1, 1, 8)) -> ValueError: have one shape, got (40, 1, 1, 24) and (40, 1, 1, 8)
qkv(q_freqs=ones(1, 1, 1, 24), k_freqs=ones(1, 1, 1, 24)) -> ValueError: with shape (2, 2, 2, 144)
qkv(q_freqs=ones(40, 1, 1, 24, requires_grad=True)) -> ValueError: q_freqs or k_freqs requires a
qkv(start_positions=zeros(3).int()) -> ValueError: must have shape [b] = (2,), got (3,)
qkv(qkv=ones(2, 2, 2, 144).double()) -> TypeError: torch.float64, which the kernel does not compute

tables(sin=None) -> TypeError: sin must be a torch.Tensor, got NoneType
tables(cos=ones(12, 12).to(float8)) -> TypeError: cos must be one of ...got torch.float8_e4m3fnuz
tables(cos=ones(12, 1, 1, 12), sin=ones(12, 1, 1, 12)) -> ValueError: s2, d2/2], got (12, 1, 1, 12)
tables(cos=ones(3, 12, 12), sin=ones(3, 12, 12)) -> ValueError: or b=2, s2, d2/2], got (3, 12, 12)
tables(cos=ones(11, 12)) -> ValueError: must have one shape
tables(sin=ones(12, 12, requires_grad=True), inplace=True) -> ValueError: sin cannot have a gradient
tables(x=ones(2, 3, 24)) -> ValueError: x must have 4 dimensions
tables(cos=ones(12, 12, device="meta"), sin=ones(12, 12, device="meta"))
    -> ValueError: x and cos must share a device
tables(cos=ones(12, 24), sin=ones(12, 24)) -> ValueError: :12] and sin[..., :12] if they have one
tables(cos=ones(12, 24), sin=ones(12, 24), interleaved=True)
    -> ValueError: got 24: pass cos[..., ::2] and sin[..., ::2] if they have one for each channel
tables(seqlen_offsets=-1) -> ValueError: from 0 to 12, got -1
tables(seqlen_offsets=10) -> ValueError: positions from the first token's on, the sequence of x with
tables(x=ones(2, 3, 3, 48)[..., ::2], inplace=True) -> ValueError: the channels must be contiguous
tables(x=ones(2, 1, 3, 24).expand(2, 3, 3, 24), inplace=True)
    -> ValueError: no two elements at one address
tables(inplace_gradient=True) -> ValueError: inplace_gradient=True needs inplace=True and
tables(inplace_gradient=True, inplace=True, fused=False) -> ValueError: needs inplace=True and
qk_tables(k=ones(2, 3, 1, 24).double(), q=ones(2, 3, 3, 24).double())
    -> TypeError: q is torch.float64, which the kernel does not compute
qk_tables(cos=ones(2, 12), sin=ones(2, 12).requires_grad_())
    -> ValueError: cos covers 2 positions from the first token's on, the sequence of q
qk_tables(sin=None) -> TypeError: sin must be a torch.Tensor, got NoneType

attention(x=ones(3, 5, 24)) -> ValueError: x must have 4 dimensions
attention(sin=None) -> TypeError: sin must be a torch.Tensor, got NoneType
attention(cos=ones(4, 12), sin=ones(4, 12)) -> ValueError: [b, h, s, d2/2] of x, got (4, 12) for s=5
attention(cos=ones(2, 5, 12), sin=ones(2, 5, 12)) -> ValueError: s, d2/2] of x, got (1, 2, 5, 12)
attention(cos=ones(5, 24)) -> ValueError: must have one shape
attention(cos=ones(5, 24), sin=ones(5, 24), interleaved=True) -> ValueError: from 1 to 12 of d=24
attention(position_ids=zeros(2, 5)) -> TypeError: position_ids must be one of ...float32
attention(position_ids=zeros(5).long()) -> ValueError: shape [b, s] = (2, 5), got (5,)
attention(cos=ones(3, 5, 12), sin=ones(3, 5, 12), position_ids=zeros(2, 5).long())
    -> ValueError: with position_ids, cos and sin must have shape [n, d2/2], got (3, 5, 12)
"""

FREQUENCIES = """
RotaryPositionEmbedding(8.5) -> TypeError: dim must be an int, got float
RotaryPositionEmbedding(8, rotary_percent=0.0) -> ValueError: rotary_percent must be positive
RotaryPositionEmbedding(8, rotary_percent=1.5) -> ValueError: rotary_percent must be at most 1
RotaryPositionEmbedding(6, rotary_percent=0.5) -> ValueError: got 3 from dim=6, rotary_percent=0.5
RotaryPositionEmbedding(0) -> ValueError: positive even number, got 0 from dim=0
RotaryPositionEmbedding(8, rotary_base=math.inf) -> ValueError: rotary_base must be positive and f
RotaryPositionEmbedding(8, rotary_base="1") -> TypeError: rotary_base must be a number, got str
RotaryPositionEmbedding(8, 1.0, -2, 8) -> ValueError: must be positive and finite, got -2
RotaryPositionEmbedding(8, 1.0, 2, 0) -> ValueError: must be positive and finite, got 0
RotaryPositionEmbedding(8, 1.0, 2) -> ValueError: and pretrained_max... together, got 2 and None
RotaryPositionEmbedding(8)(-1) -> ValueError: max_seq_len must not be negative, got -1
RotaryPositionEmbedding(8)(5.5) -> TypeError: max_seq_len must be an int, got float

rotary_angles([0, 1], INV_FREQ) -> TypeError: positions must be a torch.Tensor
rotary_angles(P.half(), INV_FREQ) -> TypeError: positions must be one of
rotary_angles(P, INV_FREQ.bfloat16()) -> TypeError: inv_freq must be torch.float32
rotary_angles(P3, INV_FREQ) -> ValueError: [s] or [b, s], got (3, 1, 4)
rotary_angles(P, INV_FREQ[None]) -> ValueError: [d/2], got (1, 8)
rotary_angles(P, INV_FREQ.to("meta")) -> ValueError: got cpu and meta
mrope_angles(P, INV_FREQ, [4, 2, 2]) -> ValueError: [3, b, s]...got (4,)
mrope_angles(P3, INV_FREQ, [4, 4]) -> ValueError: three counts...got [4, 4]
mrope_angles(P3, INV_FREQ, [9, -1, 0]) -> ValueError: three counts
mrope_angles(P3, INV_FREQ, [4, 2, 3]) -> ValueError: the 8 inverse...add up to 9
mrope_angles(P3, INV_FREQ, [1, 5, 2], interleaved_sections=True)
    -> ValueError: sections [1, 5, 2] cannot take turns over 8 pairs

unscaled(0, 1e4) -> ValueError: dim must be an even number from 2, got 0
unscaled(64.0, 1e4) -> TypeError: dim must be an int, got float
unscaled(64, 0) -> ValueError: base must be positive and finite, got 0
unscaled(64, True) -> TypeError: base must be a number, got bool
linear(64, 1e4, -1) -> ValueError: factor must be positive and finite
ntk(2, 1e4, 2) -> ValueError: dim must be an even number from 4, got 2
dynamic_ntk(64, 1e4, 2, 0, 5) -> ValueError: max_position_embeddings must be positive, got 0
dynamic_ntk(64, 1e4, 2, 8, 5.0) -> TypeError: seq_len must be an int, got float
yarn(64, 1.0, 2, 8) -> ValueError: base must be above 1, got 1.0
yarn(64, 1e4, 2, 8, beta_fast=1, beta_slow=1) -> ValueError: must be above beta_slow, got 1 and 1
yarn(64, 1e4, 2, 2) -> ValueError: no pair of 64 channels turns
yarn(64, 1e4, 2, 64, mscale=-1, mscale_all_dim=1) -> ValueError: must be positive and finite, got -1
yarn(64, 1e4, 2, 64, attention_factor=0) -> ValueError: must be positive and finite, got 0
llama3(64, 1e4, 8, 4, 4, 8192) -> ValueError: must be above low_freq_factor, got 4 and 4
longrope(6, 1e4, [1.0] * 3, [1.0] * 2, 8, 9, factor=2) -> ValueError: dim / 2 = 3 numbers, got 2
longrope(4, 1e4, [1.0, 0], [1.0, 1], 8, 9, factor=2) -> ValueError: be positive and finite, got 0
longrope(4, 1e4, [1, 1], [2, 2], 8, 9) -> ValueError: or attention_factor must be given, got neither
longrope(4, 1e4, [1, 1], [1, 1], 1, 9, factor=2)
    -> ValueError: original_max_position_embeddings must be above 1, got 1

from_config(object()) -> TypeError: config must be a mapping, got object; see to_dict()
from_config(CONFIG | {"rope_scaling": "yarn"}) -> TypeError: rope_scaling must be a mapping, got str
from_config(CONFIG | {"num_attention_heads": 0}) -> ValueError: must be positive and finite, got 0
from_config(CONFIG | {"partial_rotary_factor": "a"}) -> TypeError: must be a number, got str
from_config(scaled(type="yarn", original_max_position_embeddings=0))
    -> ValueError: original_max_position_embeddings must be positive, got 0
from_config(without("rope_theta")) -> ValueError: config needs 'rope_theta', which it lacks
from_config({"text_config": CONFIG}) -> ValueError: parts of it are ['text_config']
from_config(scaled(type="linear")) -> ValueError: 'linear' needs ['factor']
from_config(scaled(type="llama3", factor=8)) -> ValueError: needs ['high_freq_factor', 'low_freq_fa
from_config(scaled(type="magic", factor=2)) -> ValueError: must be one of ...'yarn'...got 'magic'
from_config(scaled(type="linear", factor=2, beta=1)) -> ValueError: ['beta'], which are not known
from_config(scaled(type="dynamic", factor=2.0)) -> ValueError: 'dynamic' depend on seq_len, got None
from_config(CONFIG | {"partial_rotary_factor": 0.4}) -> ValueError: dim must be ... got 51
from_config(without("max_position_embeddings", type="yarn", factor=2)) -> ValueError: needs 'max
from_config(CONFIG, layer_type="full_attention") -> ValueError: must be None, as all layers
from_config(TYPES) -> ValueError: one of ['full_attention', 'sliding_attention'], got None
from_config(TYPES, layer_type="chunked") -> ValueError: 'sliding_attention'], got 'chunked'
from_config(CONFIG | {"compress_rope_theta": 1.6e5}) -> ValueError: has ['compress_rope_theta'], wh
from_config(CONFIG | {"rope_ratio": 50, "swa_head_dim": 8})
    -> ValueError: config has ['rope_ratio', 'swa_head_dim'], which are not known here
from_config(CONFIG | {"pos_embed_rescale": 2.0}) -> ValueError: has ['pos_embed_rescale'], which
from_config(CONFIG | {"head_dim": 128, "kv_channels": 64})
    -> ValueError: config has 'head_dim' and 'kv_channels', which differ
from_config(CONFIG | {"head_dim": 192, "qk_rope_head_dim": 64})
    -> ValueError: config has 'qk_rope_head_dim' 64 and 'head_dim' 192
from_config(CONFIG | {"rope_local_base_freq": 1e4})
    -> ValueError: must be one of ['full_attention', 'sliding_attention'], got None
from_config(CONFIG | {"global_head_dim": 512}) -> ValueError: layers of this model differ by their
from_config(CONFIG | {"model_type": "olmo3"}, layer_type="sliding_attention")
    -> ValueError: the layers of this model differ by their type
from_config(CONFIG | {"model_type": "ernie4_5_vl_moe_text"}) -> ValueError: an order of their own
from_config(scaled(type="yarn") | {"original_max_position_embeddings": 1.5})
    -> TypeError: original_max_position_embeddings must be an int, got float
from_config({"rope_parameters": {"full": {}, "factor": 2.0}}, layer_type="full")
    -> ValueError: rope_scaling has ['factor'] beside its types of layers ['full']
"""


INTEGRATIONS = """
vllm(cos_sin_cache=ones(5, 7)) -> ValueError: must have shape [n, d2] with an even d2, got (5, 7)
vllm(cos_sin_cache=ones(5)) -> ValueError: cos_sin_cache must have shape [n, d2]
vllm(cos_sin_cache=ones(5, 16).int()) -> TypeError: cos_sin_cache must be one of
vllm(cos_sin_cache=None) -> TypeError: cos_sin_cache must be a torch.Tensor, got NoneType
vllm(rope_dim_offset=8) -> ValueError: 16 channels cannot be rotated in 16, ... rope_dim_offset=8
vllm(rope_dim_offset=-1) -> ValueError: from rope_dim_offset=-1 on
vllm(query=ones(3, 64)) -> ValueError: query must have 4 tokens, ... got (3, 64)
vllm(query=ones(4, 64).int(), key=None) -> TypeError: query must be one of
vllm(query=ones(4, 32).double(), key=ones(4, 32).double()) -> TypeError: query is ... not compute
vllm(key=ones(4, 40)) -> ValueError: key must have 4 tokens, ... of 16 channels: got (4, 40)
vllm(key=ones(4, 32).half()) -> ValueError: one dtype and one device, got
vllm(key=ones(32, 4).T) -> ValueError: the channels must be contiguous
vllm(key=ones(4, 32, requires_grad=True)) -> ValueError: a leaf that requires a gradient
vllm(key=[0]) -> TypeError: key must be a torch.Tensor, got list
vllm(positions=ones(4)) -> TypeError: positions must be one of
vllm(positions=[0]) -> TypeError: positions must be a torch.Tensor, got list
vllm(head_size=48) -> ValueError: query must have 4 tokens, ... heads of 48 channels
vllm(head_size=0, cos_sin_cache=ones(5, 0)) -> ValueError: a head of 0 channels

packed(qkv=ones(1, 2, 2, 4, 16)) -> ValueError: shape [b, s, 3, h, d], got (1, 2, 2, 4, 16)
packed(qkv=ones(1, 2, 12, 16)) -> ValueError: qkv must have shape [b, s, 3, h, d]
packed(qkv=ones(1, 2, 9, 16), num_heads_q=4) -> ValueError: [b, s, 4 + 2 k, d] with num_heads_q=4
packed(qkv=ones(1, 2, 3, 16), num_heads_q=4) -> ValueError: num_heads_q=4
packed(qkv=None) -> TypeError: qkv must be a torch.Tensor, got NoneType
packed(qkv=ones(1, 2, 4, 3, 16).transpose(2, 3)) -> ValueError: must lie at equal distances
packed(qkv=ones(1, 2, 3, 4, 16).int()) -> TypeError: qkv must be one of
packed(qkv=ones(1, 2, 3, 4, 16).double()) -> TypeError: qkv is ... the kernel does not compute
packed(qkv=ones(1, 3, 3, 4, 16)) -> ValueError: from the first token's on, the sequence of qkv with
packed(cos_k=ones(2, 8)) -> ValueError: cos_k and sin_k must be given together
packed(cos_k=ones(3, 8), sin_k=ones(3, 8)) -> ValueError: got (3, 8) on ... and (2, 8) on
packed(cos_k=ones(2, 8), sin_k=ones(2, 4)) -> ValueError: cos and sin must have one shape
packed(cos_k=ones(2, 8).int(), sin_k=ones(2, 8).int()) -> TypeError: cos must be one of
packed(cos_k=ones(2, 8), sin_k=ones(2, 8, requires_grad=True)) -> ValueError: have a gradient
kv(kv=ones(1, 2, 3, 4, 16)) -> ValueError: kv must have shape [b, s, 2, h, d]
kv(kv=None) -> TypeError: kv must be a torch.Tensor, got NoneType
kv(kv=ones(1, 2, 2, 4, 16, requires_grad=True)) -> ValueError: a leaf that requires a gradient
kv(kv=ones(1, 2, 2, 4, 16).double()) -> TypeError: kv is ... the kernel does not compute

hf(unsqueeze_dim=3) -> ValueError: unsqueeze_dim must be 1 or 2, got 3
hf(cos=ones(5, 16)) -> ValueError: cos must have shape [1 or b, s, d2] with an even d2
hf(sin=ones(1, 5, 7)) -> ValueError: sin must have shape
hf(sin=None) -> ValueError: sin must have shape ... got NoneType
hf(q=[1.0]) -> TypeError: q must be a torch.Tensor, got list
hf(q=ones(5, 16), k=ones(5, 16)) -> ValueError: must have 4 dimensions
hf(cos=ones(3, 5, 16), sin=ones(3, 5, 16)) -> ValueError: 1 or b=2
"""


def entries(table: str) -> list[tuple[str, str, str]]:
    """The call, the exception and a pattern of its message, of each entry of a table."""
    lines = table.replace("\n    ->", " ->").split("\n")
    parts = [re.fullmatch(r"(.*) -> (\w+): (.*)", line).groups() for line in lines if line]
    return [
        (call, error, re.escape(text).replace(re.escape("..."), ".*"))
        for call, error, text in parts
    ]


WITHOUT_A_GPU = """
import torch, rope_triton
t, freqs = torch.ones(2, 1, 1, 4), torch.ones(2, 1, 1, 4)
print(rope_triton.apply_rotary_pos_emb(t, freqs, fused=False).shape)
rope_triton.apply_rotary_pos_emb(t, freqs, fused=True)
"""


def test_no_gpu_and_no_interpreter_is_an_error():
    environment = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", WITHOUT_A_GPU]
    root = Path(rope_triton.__file__).parents[1]
    python = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True)
    assert python.stdout == "torch.Size([2, 1, 1, 4])\n"
    assert python.returncode == 1
    message = python.stderr.splitlines()[-1]
    assert message.startswith("ValueError: a tensor is on cpu and Triton finds no GPU here: pass")
    for way_out in ("fused=False", "TRITON_INTERPRET=1"):
        assert way_out in message


class Launched(AssertionError):
    pass


@pytest.fixture
def nothing_launches(monkeypatch):
    def compute(*args, **kwargs):
        raise Launched

    monkeypatch.setattr(launch, "run", compute)
    monkeypatch.setattr(rope_triton.reference, "rotate", compute)


def rotations(fused: bool) -> dict:
    """Name in the table -> the function with arguments of a valid call, some of them changed."""
    fused = {"fused": fused}
    angles = dict(t=ones(4, 2, 3, 8), freqs=ones(6, 1, 1, 8), **fused)
    packed = dict(t=ones(4, 3, 8), tensor_format="thd", cu_seqlens=zeros(2).int())
    qk = dict(q=ones(5, 2, 4, 8), k=ones(5, 2, 2, 8), freqs=ones(5, 1, 1, 8), **fused)
    qkv = dict(q_freqs=ones(40, 1, 1, 24), k_freqs=ones(40, 1, 1, 24))
    qkv |= dict(qkv=ones(2, 2, 2, 144), qkv_split_arg_list=[96, 24, 24])
    tables = dict(cos=ones(12, 12), sin=ones(12, 12))
    attention = dict(x=ones(2, 3, 5, 24), cos=ones(5, 12), sin=ones(5, 12), **fused)
    valid = {
        "angles": (rope_triton.apply_rotary_pos_emb, angles),
        "packed": (rope_triton.apply_rotary_pos_emb, angles | packed),
        "qk": (rope_triton.apply_qk_rotary_pos_emb, qk),
        "qkv": (rope_triton.apply_fused_qkv_rotary_pos_emb, qkv),
        "tables": (rope_triton.apply_rotary_emb, tables | {"x": ones(2, 3, 3, 24)} | fused),
        "qk_tables": (
            rope_triton.apply_qk_rotary_emb,
            tables | {"q": ones(2, 3, 3, 24), "k": ones(2, 3, 1, 24)},
        ),
        "attention": (rope_triton.rotary_embedding, attention),
    }

    return {name: changed(*call) for name, call in valid.items()}


def changed(function, arguments):
    return lambda **changes: function(**(arguments | changes))


both_paths = pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])


@both_paths
def test_the_guard_sees_valid_calls(fused, device, nothing_launches):
    with torch.device(device):
        for call in rotations(fused).values():
            with pytest.raises(Launched):
                call()


@both_paths
@pytest.mark.parametrize(("call", "error", "message"), entries(ROTATIONS))
def test_rotations(call, error, message, fused, device, nothing_launches):
    names = {"ones": ones, "zeros": zeros, "float8": torch.float8_e4m3fnuz}
    with torch.device(device), pytest.raises((TypeError, ValueError), match=message) as caught:
        eval(call, names | rotations(fused))
    assert caught.typename == error


@pytest.mark.parametrize(("call", "error", "message"), entries(INTEGRATIONS))
def test_integrations(call, error, message, device, nothing_launches):
    with torch.device(device):
        tables = dict(cos=ones(2, 8), sin=ones(2, 8))
        qkv, kv = dict(qkv=ones(1, 2, 3, 4, 16)), dict(kv=ones(1, 2, 2, 4, 16))
        heads = dict(q=ones(2, 4, 5, 16), k=ones(2, 2, 5, 16))
        flat = dict(positions=torch.arange(4), query=ones(4, 64), key=ones(4, 32), head_size=16)
        valid = {
            "vllm": (vllm.rotary_embedding, flat | dict(cos_sin_cache=ones(5, 16), is_neox=True)),
            "packed": (flash_attention.apply_rotary_emb_qkv_, tables | qkv),
            "kv": (flash_attention.apply_rotary_emb_kv_, tables | kv),
            "hf": (
                transformers.apply_rotary_pos_emb,
                heads | dict(cos=ones(1, 5, 16), sin=ones(1, 5, 16)),
            ),
        }
        names = {name: changed(*valid[name]) for name in valid}
        for call_on_valid in names.values():
            with pytest.raises(Launched):
                call_on_valid()
        with pytest.raises((TypeError, ValueError), match=message) as caught:
            eval(call, names | {"ones": ones})
    assert caught.typename == error
    assert "fused=False" not in str(caught.value)  # these functions have no such argument


CONFIG = {
    **{"hidden_size": 4096, "num_attention_heads": 32, "rope_theta": 10000.0},
    "max_position_embeddings": 4096,
}
TYPES = {"full_attention": {"rope_type": "default", "rope_theta": 1e6}}
TYPES = {"head_dim": 256, "rope_parameters": TYPES | {"sliding_attention": {"rope_theta": 1e4}}}


def scaled(**scaling):
    return {**CONFIG, "rope_scaling": scaling}


def without(key, **scaling):
    return {name: value for name, value in scaled(**scaling).items() if name != key and value}


@pytest.mark.parametrize(("call", "error", "message"), entries(FREQUENCIES))
def test_frequencies(call, error, message):
    names = dict(P=torch.arange(4), P3=torch.zeros(3, 1, 4, dtype=torch.int64), CONFIG=CONFIG)
    names |= dict(INV_FREQ=scalings.unscaled(16, 10000.0).inv_freq, TYPES=TYPES, math=math)
    names |= dict(rotary_angles=rotary_angles, mrope_angles=mrope_angles, scaled=scaled)
    names |= dict(from_config=frequencies_from_config, without=without)
    names |= vars(scalings) | {"RotaryPositionEmbedding": RotaryPositionEmbedding}
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        eval(call, names)
    assert caught.typename == error
