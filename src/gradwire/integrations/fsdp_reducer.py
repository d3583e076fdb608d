"""One half of a two-phase reduction: each rank keeps the mean of its own shard."""

from __future__ import annotations

from torch import Tensor

from gradwire.codecs.base import build
from gradwire.comm.base import Collective, Steps
from gradwire.errors import SpecError
from gradwire.key import Key
from gradwire.reduce.base import Part, Slot, State
from gradwire.reduce.two_phase import reduce_scatter
from gradwire.spec import AllReduce, Float, ReducerSpec, TwoPhase


class ScatterReducer:
    """Averages a bucket that holds one shard of its parameters after the other.

    Its slots are those of rank 0's shard, then rank 1's, and so on. What is
    lost on the way is owed as usual; there is no second rounding.

    Args:
        spec: How shards travel; plain floats too.

    Raises:
        SpecError: A reducer that has no such half.
    """

    def __init__(self, spec: ReducerSpec) -> None:
        if isinstance(spec, AllReduce):
            spec = TwoPhase(Float(spec.format), feedback=False)
        if not isinstance(spec, TwoPhase):
            allowed = (
                "none, bf16, or one that ends in two_phase, such as int8: others move no shards"
            )
            raise SpecError("reducer of a sharded model", spec.id, allowed)
        self.spec = spec
        self._codec = build(spec.codec)

    def part(self, slots: tuple[Slot, ...], world_size: int) -> Part:
        """See `Reducer.part`."""
        each = len(slots) // world_size
        owned = [slots[each * rank : each * (rank + 1)] for rank in range(world_size)]
        return Part.of(slots, tuple(Part.of(shard).segments for shard in owned))

    def reduce(
        self, x: Tensor, part: Part, state: State, key: Key, group: Collective, out: Tensor
    ) -> Steps[None]:
        """See `Reducer.reduce`; of `out` only the own shard is written."""
        if group.world_size == 1:
            part.copy(x, out)
            return
        residual = state.residual if self.spec.feedback else None
        yield from reduce_scatter(self._codec, x, part.shards, key, residual, group, out)
