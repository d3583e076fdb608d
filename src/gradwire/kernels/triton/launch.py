"""Launches of the dense codecs' kernels.

Each kernel takes its tensors in the same order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradwire.kernels import checks
from gradwire.kernels.triton.tiles import (
    OPTIONS,
    TILE,
    Dense,
    check_alignment,
    chunk_of,
    tiles,
    unit_bytes_of,
)
from gradwire.layout import GROUP

_UNITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def launch_encode(
    kernel: Any,  # noqa: ANN401 - Triton has no type for it
    spec: Dense,
    x: Tensor,
    segments: Tensor,
    residual: Tensor | None,
    gain: float,
    payload: Tensor,
    *more: int,
    chunk: int | None = None,
    **meta: Any,  # noqa: ANN401 - constants of any type
) -> None:
    """Encode stretches in one launch.

    Args:
        kernel: What to launch.
        spec: Says how the payload is laid out.
        x: See `gradwire.kernels.ops`, as for those up to `payload`.
        segments: Likewise.
        residual: Likewise.
        gain: Likewise.
        payload: Likewise.
        more: The kernel's own numbers.
        chunk: Values of a block that are worked on at once.
        meta: The kernel's own constants.

    Raises:
        SpecError: A stretch lies outside of its tensors, or the payload begins
            at no multiple of 16 bytes.
        PayloadError: The payload has another size than the spec says.
    """
    chunk = chunk or chunk_of(spec.block_size)
    blocks = max(1, TILE // chunk)
    plan = tiles(segments, x, residual, spec, blocks * spec.block_size)
    checks.check_size(f"{spec.id}_encode", payload, plan.num_bytes)
    check_alignment("payload", payload)
    if not plan.programs:
        return
    kernel[(plan.programs,)](
        x,
        x if residual is None else residual,
        payload,
        payload.view(torch.float32),
        payload.view(_UNITS[unit_bytes_of(spec)]),
        plan.rows,
        plan.table,
        *plan.paddings,
        gain,
        *more,
        BLOCK=spec.block_size,
        CHUNK=chunk,
        BLOCKS=blocks,
        FEEDBACK=feedback_mode(residual, gain),
        ALIGNED=plan.is_aligned,
        **meta,
        **OPTIONS,
    )


def launch_decode(
    kernel: Any,  # noqa: ANN401 - Triton has no type for it
    spec: Dense,
    payloads: Tensor,
    segments: Tensor,
    divisor: float,
    accumulate: bool,
    out: Tensor,
    tile: int = TILE,
    **meta: Any,  # noqa: ANN401 - constants of any type
) -> None:
    """Decode payloads into their mean in one launch; see `launch_encode`."""
    plan = tiles(segments, out, None, spec, tile)
    checks.check_size(f"{spec.id}_decode", payloads, plan.num_bytes)
    check_alignment("payloads", payloads)
    if not plan.programs:
        return
    unit_bytes = unit_bytes_of(spec)
    kernel[(plan.programs,)](
        payloads.view(torch.float32),
        payloads.view(_UNITS[unit_bytes]),
        out,
        plan.rows,
        plan.table,
        plan.num_bytes // 4,
        plan.num_bytes // unit_bytes,
        payloads.shape[0],
        divisor,
        BLOCK=spec.block_size,
        GROUPS=tile // GROUP,
        ACCUMULATE=accumulate,
        ALIGNED=plan.is_aligned,
        **meta,
        **OPTIONS,
    )


def feedback_mode(residual: Tensor | None, gain: float) -> int:
    """Number what happens to the residual.

    0 is nothing; 1, it is owed; 2, it grows by the gain.

    Example:
        >>> feedback_mode(None, 0.0), feedback_mode(torch.zeros(1), 0.75)
        (0, 2)
    """
    return 0 if residual is None else 2 if gain > 0 else 1
