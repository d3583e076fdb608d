"""Plain floats inside a node, an inner reducer between nodes."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from gradwire.codecs.base import Segments
from gradwire.codecs.base import build as build_codec
from gradwire.comm.base import Collective, Steps
from gradwire.comm.subgroup import Subgroup
from gradwire.key import Key
from gradwire.layout import Stretch
from gradwire.reduce.base import REDUCERS, Part, Slot, State, build
from gradwire.reduce.two_phase import reduce_scatter
from gradwire.spec import Entry, Hierarchical


@REDUCERS.register("hierarchical")
class HierarchicalReducer:
    """Sums shards in their node, reduces sums between nodes, gathers in the node.

    The inner reducer sees sums of nodes, not means: what it does not send is
    then in the unit of one rank's gradient, and belongs to the rank that owns
    the shard in its node. That rank owes for its shard only; with bfloat16
    inside nodes, every rank also owes what its own roundings took.

    Args:
        spec: The parameters.
    """

    def __init__(self, spec: Hierarchical) -> None:
        self.spec = spec
        self._within = build_codec(spec.within_codec)
        self._inner = build(spec.inner)

    def part(self, slots: tuple[Slot, ...], world_size: int) -> Part:
        """See `Reducer.part`; shards and inner parts are those of the ranks of a node."""
        local, nodes = self.spec.grid(world_size)
        entries = [slot.entry for slot in slots]
        cuts = [
            list(zip(slots, self.spec.owned(entries, place, local), strict=True))
            for place in range(local)
        ]
        return replace(
            Part.of(slots, tuple(Segments.of([s.segment(c) for s, c in cut]) for cut in cuts)),
            inner=tuple(
                self._inner.part(tuple(_piece(s, c) for s, c in cut if c.numel), nodes)
                for cut in cuts
            ),
        )

    def reduce(
        self, x: Tensor, part: Part, state: State, key: Key, group: Collective, out: Tensor
    ) -> Steps[None]:
        """See `Reducer.reduce`."""
        local, nodes = self.spec.grid(group.world_size)
        node, place = divmod(group.rank, local)
        in_node = Subgroup(group, range(node * local, (node + 1) * local))
        rail = Subgroup(group, range(place, group.world_size, local))
        is_rounded = self.spec.feedback and self.spec.format != "float32"
        residual = state.residual if is_rounded else None
        if local == 1:
            part.copy(x, out)
        else:
            yield from reduce_scatter(
                self._within, x, part.shards, key, residual, in_node, out, divisor=1.0
            )
        if part.inner[place].slots:
            yield from self._inner.reduce(out, part.inner[place], state, key, rail, out)
        else:
            nothing = [out[:0]] * nodes
            for _ in range(self.spec.exchanges_between(nodes)):
                yield from rail.all_to_all(nothing, nothing)
        if local > 1:
            yield from self._gather(part, key, residual, in_node, out)

    def _gather(
        self, part: Part, key: Key, residual: Tensor | None, group: Collective, out: Tensor
    ) -> Steps[None]:
        """Tell all ranks of a node its sums, which become means on arrival.

        The owners of a shard in all nodes round alike, and each owes its share.
        """
        codec, own = self._within, part.shards[group.rank]
        total = codec.encode(out, own, key, residual, 1.0 if residual is not None else 0.0)
        sizes = [codec.spec.num_bytes(shard.numels) for shard in part.shards]
        totals = [total if r == group.rank else total.new_empty(n) for r, n in enumerate(sizes)]
        yield from group.all_to_all(totals, [total] * group.world_size)
        for payload, shard in zip(totals, part.shards, strict=True):
            codec.decode(payload[None], shard, out, group.world_size)


def _piece(slot: Slot, cut: Stretch) -> Slot:
    """Return a stretch of a parameter as the parameter that the inner reducer sees."""
    return Slot(
        slot.name,
        Entry(slot.entry.stream, (cut.numel,)),
        slot.offset + cut.start,
        slot.residual_offset + cut.start,
    )
