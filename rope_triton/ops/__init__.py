"""Three dispatch paths, fastest first: eager autograd, operators, torch.func."""

from rope_triton.kernel.plans import Options, QkvOptions
from rope_triton.ops.dispatch import is_plain
from rope_triton.ops.qk import rotate_qk
from rope_triton.ops.qkv import split_qkv
from rope_triton.ops.single import rotate, rotate_by_tables
from rope_triton.ops.table_grad import check_tangents, needs_table_grad, with_table_grad

__all__ = [
    "Options",
    "QkvOptions",
    "check_tangents",
    "is_plain",
    "needs_table_grad",
    "rotate",
    "rotate_by_tables",
    "rotate_qk",
    "split_qkv",
    "with_table_grad",
]
