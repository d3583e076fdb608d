"""Key: the name of a random stream.

Nobody in gradwire stores a generator, and the user's random state is never
touched: noise is a hash of what it is for.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

_MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
_SHARED = -1


def mix(value: int) -> int:
    """Scramble 64 bits (the finaliser of SplitMix64).

    Source:
        Steele, Lea and Flood, Fast splittable pseudorandom number generators
        (OOPSLA 2014).

    Example:
        >>> hex(mix(1))
        '0x5692161d100b05e5'
    """
    z = value & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def name_hash(name: str) -> int:
    """Hash a parameter's name to a signed 64-bit number, equal on every machine.

    Example:
        >>> name_hash("layer.weight") == name_hash("layer.weight")
        True
    """
    return int.from_bytes(
        hashlib.blake2b(name.encode(), digest_size=8).digest(), "little", signed=True
    )


class Key(NamedTuple):
    """Names one random stream of one step.

    The parameter is not part of the key: kernels add the hash of its name, so
    that noise does not depend on how parameters are grouped into buckets.

    Attributes:
        seed: The plan's seed.
        step: Backward passes synchronised so far.
        rank: The encoding rank, or None for a stream that all ranks share.
        part: 0 for the first encoding of a step, 1 for the second stage.

    Example:
        >>> Key(0, 1, 0).stream() == Key(0, 1, 1).stream()
        False
    """

    seed: int
    step: int
    rank: int | None
    part: int = 0

    def stream(self) -> int:
        """Return the stream's number, `0 <= number < 2**63`."""
        rank = _SHARED if self.rank is None else self.rank
        z = mix(self.seed + GOLDEN)
        for field in (self.step, rank, self.part):
            z = mix(z + GOLDEN + field)
        return z >> 1
