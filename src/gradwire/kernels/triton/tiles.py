"""How the stretches of a bucket are dealt out to the programs of one launch.

A tile is what one program works on; it lies inside one stretch. The program
reads its stretch's row from a table on the device, so a bucket takes one
launch, however many parameters it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from gradwire.errors import SpecError
from gradwire.kernels import checks
from gradwire.kernels.checks import Row
from gradwire.layout import ALIGNMENT, align, num_blocks, packed_bytes
from gradwire.spec import FLOAT_BYTES, BitPlanes, Float, Quantize, Sign

TILE = 2048
"""Values that one program works on."""

OPTIONS: dict[str, Any] = {"num_warps": 4, "enable_fp_fusion": False}
"""Of every launch. Fixed: a search would stall the first step, and ranks would find different
winners; a fused multiply-add would round once where the reference rounds twice."""

_T = TypeVar("_T")
Dense = Quantize | Sign | Float | BitPlanes
"""Codecs that send every value."""

_VECTOR = 4
_made = WeakIdKeyDictionary()


class Tiles(NamedTuple):
    """The tiles of one launch over a dense codec's payload.

    Attributes:
        programs: How many.
        rows: int32 `[programs]`: each tile's stretch.
        table: int64 `[stretches, 8]`: first tile, offset, residual offset,
            numel, first block from the parameter's beginning, own stream,
            first scale, first unit of the body.
        is_aligned: Whether all stretches begin at multiples of 16 bytes.
        paddings: Where the padding of scales and of body begins and ends, in bytes.
        num_bytes: Size of the payload.
    """

    programs: int
    rows: Tensor
    table: Tensor
    is_aligned: bool
    paddings: tuple[int, int, int, int]
    num_bytes: int


def chunk_of(block_size: int) -> int:
    """Return how many values of a block are worked on at once: a power of two.

    Example:
        >>> chunk_of(1024), chunk_of(768)
        (1024, 256)
    """
    return min(block_size & -block_size, TILE)


def tiles(
    segments: Tensor,
    x: Tensor,
    residual: Tensor | None,
    spec: Dense,
    tile: int = TILE,
) -> Tiles:
    """Deal out stretches; made once for a table of segments, then kept with it.

    Args:
        segments: See `gradwire.kernels.ops`.
        x: The bucket.
        residual: Or None.
        spec: Says how the payload is laid out.
        tile: Values of a tile.

    Raises:
        SpecError: A stretch lies outside of its tensors.
    """
    limit = None if residual is None else residual.numel()

    def make() -> Tiles:
        rows = checks.check_rows(segments, x, residual, spec.block_size)
        return _deal(rows, x.device, spec, tile)

    return kept(segments, (spec, tile, x.numel(), limit, x.device), make)


def unit_bytes_of(spec: Dense) -> int:
    """Return the size of what a payload's body is made of: words, or floats.

    Example:
        >>> unit_bytes_of(Quantize(3)), unit_bytes_of(Float("bfloat16"))
        (4, 2)
    """
    return FLOAT_BYTES[spec.format] if isinstance(spec, Float) else 4


def kept(owner: Tensor, key: Hashable, make: Callable[[], _T]) -> _T:
    """Return what was made for a tensor as it is now, or make it."""
    made = _made.setdefault(owner, {})
    version = None if owner.is_inference() else owner._version  # noqa: SLF001 - counts writes
    if (version, key) not in made:
        made[version, key] = make()
    result: _T = made[version, key]
    return result


def rows_of(counts: Sequence[int], device: torch.device) -> Tensor:
    """Return the stretch of each tile, int32, of `counts[i]` tiles of stretch `i`.

    Example:
        >>> rows_of([2, 1], torch.device("cpu")).tolist()
        [0, 0, 1]
    """
    owners = torch.arange(len(counts), dtype=torch.int32)
    return owners.repeat_interleave(torch.tensor(counts, dtype=torch.int64)).to(device)


def starts(sizes: Sequence[int]) -> list[int]:
    """Return where each of several sizes begins when laid end to end.

    Example:
        >>> starts([3, 5])
        [0, 3]
    """
    return list(accumulate(sizes, initial=0))[:-1]


def are_aligned(rows: Sequence[Row]) -> bool:
    """Whether stretches begin at multiples of 16 bytes, in bucket and residual."""
    return all((row[0] | row[1]) % _VECTOR == 0 for row in rows)


def check_alignment(name: str, payload: Tensor) -> None:
    """Make sure that a payload begins where 16 bytes can be moved at once.

    Raises:
        SpecError: It does not.
    """
    if payload.data_ptr() % ALIGNMENT:
        raise SpecError(name, payload.data_ptr(), f"at an address that {ALIGNMENT} divides")


def _deal(rows: list[Row], device: torch.device, spec: Dense, tile: int) -> Tiles:
    numels = [row[2] for row in rows]
    scales = [num_blocks(n, spec.block_size) for n in numels]
    tile_counts = [-(-numel // tile) for numel in numels]
    if isinstance(spec, Float):
        units, is_scaled = numels, spec.is_scaled
    else:
        bits = spec.bits if isinstance(spec, Quantize) else 1
        units, is_scaled = [packed_bytes(n, bits) // 4 for n in numels], True
    unit_bytes = unit_bytes_of(spec)
    header = ALIGNMENT if isinstance(spec, BitPlanes) else 0
    scales_end = header + (4 * sum(scales) if is_scaled else 0)
    body = align(scales_end)
    body_end = body + unit_bytes * sum(units)
    columns = (
        starts(tile_counts),
        *([row[i] for row in rows] for i in range(3)),
        [row[3] // spec.block_size for row in rows],
        [row[4] for row in rows],
        [header // 4 + first for first in starts(scales)],
        [body // unit_bytes + first for first in starts(units)],
    )
    return Tiles(
        sum(tile_counts),
        rows_of(tile_counts, device),
        torch.tensor(columns, dtype=torch.int64).T.contiguous().to(device),
        are_aligned(rows),
        (scales_end, body, body_end, align(body_end)),
        spec.num_bytes(numels),
    )
