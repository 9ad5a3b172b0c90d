"""SwiGLU and softmax in Triton: GPU code alone."""

import triton
import triton.language as tl


@triton.jit
def swiglu_forward_kernel(
    y_ptr, gate_ptr, up_ptr, n_columns, gate_step, up_step, blocks, BLOCK: tl.constexpr
):
    """y = silu(gate) * up; a program has a block of a row. y's rows lie one after the other."""
    row, column, inside = _of_program(n_columns, blocks, BLOCK)
    gate = tl.load(gate_ptr + row * gate_step + column, mask=inside).to(tl.float32)
    up = tl.load(up_ptr + row * up_step + column, mask=inside).to(tl.float32)
    y = gate * tl.sigmoid(gate) * up
    tl.store(y_ptr + row * n_columns + column, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def swiglu_backward_kernel(
    dgate_ptr,
    dup_ptr,
    dy_ptr,
    gate_ptr,
    up_ptr,
    n_columns,
    dy_step,
    gate_step,
    up_step,
    blocks,
    BLOCK: tl.constexpr,
):
    row, column, inside = _of_program(n_columns, blocks, BLOCK)
    dy = tl.load(dy_ptr + row * dy_step + column, mask=inside).to(tl.float32)
    gate = tl.load(gate_ptr + row * gate_step + column, mask=inside).to(tl.float32)
    up = tl.load(up_ptr + row * up_step + column, mask=inside).to(tl.float32)
    sigmoid = tl.sigmoid(gate)
    dup = dy * gate * sigmoid
    dgate = dy * up * sigmoid * (1 + gate * (1 - sigmoid))
    at = row * n_columns + column
    tl.store(dgate_ptr + at, dgate.to(dgate_ptr.dtype.element_ty), mask=inside)
    tl.store(dup_ptr + at, dup.to(dup_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _of_program(n_columns, blocks, BLOCK: tl.constexpr):
    """Row and columns of a program, and which of the columns exist."""
    program = tl.program_id(0)
    column = program % blocks * BLOCK + tl.arange(0, BLOCK)
    return (program // blocks).to(tl.int64), column, column < n_columns


@triton.jit
def softmax_forward_kernel(y_ptr, x_ptr, n_columns, BLOCK: tl.constexpr):
    """A program has a row, which it holds whole: each element is loaded once."""
    column = tl.arange(0, BLOCK)
    inside = column < n_columns
    at = tl.program_id(0).to(tl.int64) * n_columns + column
    x = tl.load(x_ptr + at, mask=inside, other=float("-inf")).to(tl.float32)
    power = tl.exp(x - tl.max(x, 0))
    tl.store(y_ptr + at, (power / tl.sum(power, 0)).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def softmax_backward_kernel(dx_ptr, dy_ptr, y_ptr, n_columns, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    inside = column < n_columns
    at = tl.program_id(0).to(tl.int64) * n_columns + column
    y = tl.load(y_ptr + at, mask=inside, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + at, mask=inside, other=0.0).to(tl.float32)
    dx = y * (dy - tl.sum(dy * y, 0))
    tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=inside)
