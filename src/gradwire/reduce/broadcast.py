"""Every rank's payload to every other rank."""

from __future__ import annotations

from torch import Tensor

from gradwire.codecs.base import build
from gradwire.comm.base import Collective, Steps
from gradwire.key import Key
from gradwire.reduce.base import REDUCERS, Part, Slot, State
from gradwire.spec import Broadcast


@REDUCERS.register("broadcast")
class BroadcastReducer:
    """Encodes once, exchanges once, and decodes all payloads in one pass.

    Args:
        spec: The parameters.
    """

    def __init__(self, spec: Broadcast) -> None:
        self.spec = spec
        self._codec = build(spec.codec)

    def part(self, slots: tuple[Slot, ...], world_size: int) -> Part:
        """See `Reducer.part`."""
        return Part.of(slots)

    def reduce(
        self, x: Tensor, part: Part, state: State, key: Key, group: Collective, out: Tensor
    ) -> Steps[None]:
        """See `Reducer.reduce`."""
        if group.world_size == 1 or not part.segments.items:
            part.copy(x, out)
            return
        residual = state.residual if self.spec.feedback else None
        payload = self._codec.encode(x, part.segments, key, residual)
        payloads = payload.new_empty(group.world_size, payload.numel())
        yield from group.all_gather(payloads, payload)
        self._codec.decode(payloads, part.segments, out, group.world_size)
