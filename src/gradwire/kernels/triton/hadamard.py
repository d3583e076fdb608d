"""The blockwise Walsh-Hadamard transform.

`plain` runs the reference's butterflies and gives its bits. `matrix` is a
product with the 16 x 16 base for every four of them: a block of `16**k` values
is `k` products. It sums in another order, so it agrees to float32 accuracy
only; ranks that use it must all use it.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.forms import form_of
from gradwire.kernels.triton.tiles import OPTIONS

_VALUES = 4096
_STEPS = tl.constexpr(12)


@triton.jit
def _butterflies(x, FIRST: tl.constexpr, BLOCK: tl.constexpr):
    """Add and subtract values FIRST, 2 FIRST ... apart, below BLOCK."""
    N: tl.constexpr = x.shape[0]
    for step in tl.static_range(_STEPS):
        if (1 << step) >= FIRST and (1 << step) < BLOCK:
            pairs = tl.reshape(x, (N // (2 << step), 2, 1 << step))
            a, b = tl.split(tl.permute(pairs, (0, 2, 1)))
            x = tl.reshape(tl.permute(tl.join(a + b, a - b), (0, 2, 1)), (N,))
    return x


@triton.jit
def _base():
    """Return the 16 x 16 base: -1 where an odd number of bits is in both places."""
    i = tl.arange(0, 16)
    both = i[:, None] & i[None, :]
    both = both ^ (both >> 2)
    return (1 - 2 * ((both ^ (both >> 1)) & 1)).to(tl.float32)


@triton.jit
def times_exact(x, other, acc):
    """Return `acc + x @ other` to float32 accuracy, where tf32 holds `other` exactly.

    `x` is split in two, so two products do where any two matrices take three.
    """
    bits = x.to(tl.uint32, bitcast=True)
    high = ((bits + 0x1000) & 0xFFFFE000).to(tl.float32, bitcast=True)
    acc = tl.dot(x - high, other, acc, input_precision="tf32")
    return tl.dot(high, other, acc, input_precision="tf32")


@triton.jit
def _products(x, SIZE: tl.constexpr):
    """Multiply by the base along every four bits of the place in a block of SIZE."""
    N: tl.constexpr = x.shape[0]
    base = _base()
    for digit in tl.static_range(3):
        if (16 << (4 * digit)) <= SIZE:
            across = tl.reshape(x, (N // (16 << (4 * digit)), 16, 1 << (4 * digit)))
            rows = tl.reshape(tl.permute(across, (0, 2, 1)), (N // 16, 16))
            rows = times_exact(rows, base, tl.zeros((N // 16, 16), tl.float32))
            back = tl.reshape(rows, (N // (16 << (4 * digit)), 1 << (4 * digit), 16))
            x = tl.reshape(tl.permute(back, (0, 2, 1)), (N,))
    return x


@triton.jit
def transformed(x, BLOCK: tl.constexpr, WHOLE: tl.constexpr, FORM: tl.constexpr):
    """Transform whole blocks, not normalised; WHOLE is the largest power of 16 in BLOCK."""
    if FORM == "matrix":
        x = _butterflies(_products(x, WHOLE), WHOLE, BLOCK)
    else:
        x = _butterflies(x, 1, BLOCK)
    return x


@triton.jit
def hadamard_kernel(
    x_ptr,
    out_ptr,
    numel,
    scale,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
    VALUES: tl.constexpr,
    FORM: tl.constexpr,
):
    """Transform and normalise whole blocks."""
    index = tl.program_id(0).to(tl.int64) * VALUES + tl.arange(0, VALUES)
    x = tl.load(x_ptr + index, mask=index < numel, other=0.0)
    x = transformed(x, BLOCK, WHOLE, FORM)
    tl.store(out_ptr + index, x * scale, mask=index < numel)


def hadamard(x: Tensor, block_size: int, out: Tensor) -> None:
    """See `gradwire.kernels.reference.hadamard`."""
    if not x.numel():
        return
    hadamard_kernel[(-(-x.numel() // _VALUES),)](
        *(x, out, x.numel(), block_size**-0.5),
        BLOCK=block_size,
        WHOLE=16 ** ((block_size.bit_length() - 1) // 4),
        VALUES=_VALUES,
        FORM=form_of("hadamard"),
        **OPTIONS,
    )
