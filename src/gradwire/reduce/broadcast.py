"""Every rank's payload to every other rank."""

from __future__ import annotations

from torch import Tensor

from gradwire.codecs.base import build
from gradwire.codecs.mixed import decode_mean
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
        self._codecs = [build(codec) for codec in spec.senders or (spec.codec,)]

    def part(self, slots: tuple[Slot, ...], world_size: int) -> Part:
        """See `Reducer.part`.

        Raises:
            SpecError: The spec names senders of another number of ranks.
        """
        self.spec.codecs(world_size)
        return Part.of(slots)

    def reduce(
        self, x: Tensor, part: Part, state: State, key: Key, group: Collective, out: Tensor
    ) -> Steps[None]:
        """See `Reducer.reduce`."""
        segments, codecs = part.segments, self._codecs
        if group.world_size == 1 or not segments.items:
            part.copy(x, out)
            return
        residual = state.residual if self.spec.feedback else None
        own = codecs[group.rank if self.spec.senders else 0]
        payload = own.encode(x, segments, key, residual)
        if self.spec.senders is None:
            rows = payload.new_empty(group.world_size, payload.numel())
            yield from group.all_gather(rows, payload)
            own.decode(rows, segments, out, group.world_size)
            return
        sizes = [codec.spec.num_bytes(segments.numels) for codec in codecs]
        payloads = [
            payload if codec is own else payload.new_empty(size)
            for codec, size in zip(codecs, sizes, strict=True)
        ]
        yield from group.all_to_all(payloads, [payload] * group.world_size)
        decode_mean(codecs, payloads, segments, out)
