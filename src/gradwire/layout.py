"""How parameters are cut into blocks and shards: plain arithmetic on sizes.

A result must not depend on which bucket a parameter travels in, because DDP
rebuilds its buckets and a resumed run starts with other ones. So blocks and
shards are cut inside each parameter, never across two.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

ALIGNMENT = 16
"""Every section of a payload starts at a multiple of this many bytes."""

GROUP = 256
"""Values packed together: 32 rows of 8 lanes. Block sizes are multiples of it."""


class Stretch(NamedTuple):
    """A run of values inside one parameter.

    Attributes:
        start: First value, counted from the parameter's beginning. A multiple
            of the block size.
        numel: How many values.
    """

    start: int
    numel: int


def align(num_bytes: int) -> int:
    """Round up to the next multiple of `ALIGNMENT`.

    Example:
        >>> align(17)
        32
    """
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def num_blocks(numel: int, block_size: int) -> int:
    """Count the blocks of one stretch.

    Example:
        >>> num_blocks(257, 256)
        2
    """
    return -(-numel // block_size)


def shard(numel: int, block_size: int, index: int, world_size: int, turn: int = 0) -> Stretch:
    """Return the part of a parameter that rank `index` owns.

    Blocks are dealt out evenly; ranks that get one block more start at `turn`
    (a hash of the name), so that many small parameters do not all land on
    rank 0.

    Args:
        numel: Values in the parameter.
        block_size: Values in a block; shards begin at block boundaries.
        index: Rank of the owner.
        world_size: Number of ranks.
        turn: Any integer.

    Example:
        >>> [shard(1000, 256, r, 2).numel for r in (0, 1)]
        [512, 488]
    """
    blocks = num_blocks(numel, block_size)
    position = (index + turn) % world_size
    first, last = blocks * position // world_size, blocks * (position + 1) // world_size
    start, end = first * block_size, min(last * block_size, numel)
    return Stretch(start, max(end - start, 0))


def shard_numels(numel: int, block_size: int, world_size: int, turn: int = 0) -> list[int]:
    """Return how many values of a parameter each rank owns (see `shard`).

    Example:
        >>> shard_numels(1000, 256, 2)
        [512, 488]
    """
    blocks, ranks = num_blocks(numel, block_size), range(world_size)
    cuts = [*(blocks * r // world_size * block_size for r in ranks), numel]
    numels = [end - start for start, end in pairwise(cuts)]
    first = turn % world_size
    return numels[first:] + numels[:first]


def packed_bytes(numel: int, bits: int) -> int:
    """Return the size of `numel` codes of `bits` bits in the packed layout.

    A full group of 256 codes takes exactly `32 * bits` bytes. The last group
    keeps only the rows it needs, rounded up to one word a lane (32 bytes).

    Example:
        >>> packed_bytes(256, 3), packed_bytes(257, 3)
        (96, 128)
    """
    full, tail = divmod(numel, GROUP)
    rows = -(-tail // 8)
    return 32 * bits * full + 32 * -(-rows * bits // 32)
