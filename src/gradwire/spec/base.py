"""What every spec is, and the registries of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

from gradwire.registry import Registry


class Entry(NamedTuple):
    """One parameter as the wire sees it.

    Attributes:
        stream: Hash of the parameter's name.
        shape: Sizes in storage order (outermost stride first).
    """

    stream: int
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


class Transfer(NamedTuple):
    """One exchange with the other ranks, as one rank sees it."""

    sent_bytes: int
    received_bytes: int


@runtime_checkable
class CodecSpec(Protocol):
    """Parameters of a codec; a frozen dataclass."""

    id: ClassVar[str]

    @property
    def block_size(self) -> int:
        """Values that share a scale; shards begin at its multiples."""

    def num_bytes(self, numels: Sequence[int]) -> int:
        """Size of the payload of stretches with these many values each."""


@runtime_checkable
class ReducerSpec(Protocol):
    """Parameters of a reducer; a frozen dataclass."""

    id: ClassVar[str]

    @property
    def feedback(self) -> bool:
        """Whether what was not sent in one step is owed in the next."""

    def transfers(
        self, entries: Sequence[Entry], world_size: int, rank: int
    ) -> tuple[Transfer, ...]:
        """Return every exchange of one reduction, in order."""


CODEC_SPECS: Registry[type[CodecSpec]] = Registry("codec_specs")
REDUCER_SPECS: Registry[type[ReducerSpec]] = Registry("reducer_specs")
