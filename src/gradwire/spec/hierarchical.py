"""The spec of hierarchical reduction: what travels inside and between nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

from gradwire.errors import SpecError
from gradwire.layout import GROUP, Stretch, shard, shard_numels
from gradwire.spec.base import REDUCER_SPECS, Entry, ReducerSpec, Transfer
from gradwire.spec.codecs import Float
from gradwire.spec.fields import check_whole
from gradwire.spec.reducers import LowRank, spread_and_collect


@REDUCER_SPECS.register("hierarchical")
@dataclass(frozen=True, slots=True)
class Hierarchical:
    """Plain floats inside a node, an inner reducer between nodes.

    Ranks of a node are numbered one after the other. Each sums its shard of
    the node's gradients, averages it with the ranks of the same place in the
    other nodes, and tells the result to its node. So what crosses the slow
    link is a node's payload once, not that of each of its ranks.

    Attributes:
        inner: How nodes combine their sums.
        ranks_per_node: How many ranks share a node; one node holds all of them
            if there are no more. None until `gradwire.attach` finds it.
        format: How values travel inside a node.

    Example:
        >>> from gradwire.spec import AllReduce
        >>> spec = Hierarchical(AllReduce(), ranks_per_node=2)
        >>> within, between = spec.by_level([Entry(0, (1024,))], world_size=4, rank=0)
        >>> within.sent_bytes, between.sent_bytes
        (4096, 2048)
    """

    id: ClassVar[str] = "hierarchical"
    inner: ReducerSpec
    ranks_per_node: int | None = None
    format: Literal["float32", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        is_spec = isinstance(self.inner, ReducerSpec) and not isinstance(self.inner, type)
        if not is_spec or isinstance(self.inner, (LowRank, Hierarchical)):
            allowed = "a reducer spec that works on shards of parameters, such as TwoPhase(...)"
            raise SpecError("Hierarchical.inner", self.inner, allowed)
        if getattr(self.inner, "is_float", False):
            allowed = "one whose sums are formed by ranks: back ends sum over all of them"
            raise SpecError("Hierarchical.inner", self.inner, allowed)
        if self.ranks_per_node is not None:
            check_whole("Hierarchical.ranks_per_node", self.ranks_per_node, 1)
        if self.format not in ("float32", "bfloat16"):
            raise SpecError("Hierarchical.format", self.format, "one of: float32, bfloat16")

    @property
    def feedback(self) -> bool:
        """Whether what was not sent in one step is owed in the next."""
        return self.inner.feedback

    @property
    def within_codec(self) -> Float:
        """How values travel inside a node."""
        return Float(self.format)

    def grid(self, world_size: int) -> tuple[int, int]:
        """Return the number of ranks in a node, and of nodes.

        Raises:
            SpecError: The ranks do not fill their nodes, or it is not known how
                many make one.
        """
        field = "Hierarchical.ranks_per_node"
        if self.ranks_per_node is None:
            allowed = (
                "known: name a number, pass attach(mesh=...), or start the ranks with torchrun,"
                " which sets LOCAL_WORLD_SIZE"
            )
            raise SpecError(field, None, allowed)
        local = min(self.ranks_per_node, world_size)
        if world_size % local:
            raise SpecError(field, local, f"a divisor of the {world_size} ranks: nodes are alike")
        return local, world_size // local

    def owned(self, entries: Sequence[Entry], place: int, local: int) -> list[Stretch]:
        """Return the stretch of each entry that a node's rank `place` sums."""
        size = self._block_size
        return [shard(e.numel, size, place, local, e.stream) for e in entries]

    @property
    def _block_size(self) -> int:
        size: int = getattr(getattr(self.inner, "codec", self.inner), "block_size", GROUP)
        return size

    def owned_entries(self, entries: Sequence[Entry], place: int, local: int) -> list[Entry]:
        """Return what a node's rank `place` combines with other nodes."""
        cuts = self.owned(entries, place, local)
        return [Entry(e.stream, (c.numel,)) for e, c in zip(entries, cuts, strict=True) if c.numel]

    def exchanges_between(self, nodes: int) -> int:
        """Return how many exchanges between nodes there are; all ranks take part in each."""
        return len(self.inner.transfers([Entry(0, (1,))], nodes, 0))

    def transfers(
        self, entries: Sequence[Entry], world_size: int, rank: int
    ) -> tuple[Transfer, ...]:
        """Return the reduce-scatter in the node, the inner exchanges, and the all-gather."""
        within = self.within(entries, world_size, rank)
        return (*within[:1], *self.between(entries, world_size, rank), *within[1:])

    def within(self, entries: Sequence[Entry], world_size: int, rank: int) -> tuple[Transfer, ...]:
        """Return the exchanges inside a node."""
        local, _ = self.grid(world_size)
        if local == 1:
            return ()
        moved = spread_and_collect(self.within_bytes(entries, local), rank % local)
        return Transfer(*moved), Transfer(*reversed(moved))

    def within_bytes(self, entries: Sequence[Entry], local: int) -> tuple[int, ...]:
        """Return the size of the shard of each rank of a node, inside it."""
        return _within_bytes(self.within_codec, self._block_size, tuple(entries), local)

    def between(self, entries: Sequence[Entry], world_size: int, rank: int) -> tuple[Transfer, ...]:
        """Return the exchanges between nodes."""
        local, nodes = self.grid(world_size)
        node, place = divmod(rank, local)
        own = self.owned_entries(entries, place, local)
        if not own:
            return (Transfer(0, 0),) * self.exchanges_between(nodes)
        return self.inner.transfers(own, nodes, node)

    def by_level(
        self, entries: Sequence[Entry], world_size: int, rank: int
    ) -> tuple[Transfer, Transfer]:
        """Return everything that travels inside the node, and between nodes."""
        levels = (f(entries, world_size, rank) for f in (self.within, self.between))
        within, between = (
            Transfer(sum(t.sent_bytes for t in level), sum(t.received_bytes for t in level))
            for level in levels
        )
        return within, between


@lru_cache(maxsize=256)
def _within_bytes(
    codec: Float, block_size: int, entries: tuple[Entry, ...], local: int
) -> tuple[int, ...]:
    rows = [shard_numels(e.numel, block_size, local, e.stream) for e in entries]
    numels = zip(*rows, strict=True) if rows else [()] * local
    return tuple(codec.num_bytes(n) for n in numels)
