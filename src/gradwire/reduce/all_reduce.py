"""Plain floats, summed on the wire."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.comm.base import Collective, Steps
from gradwire.key import Key
from gradwire.reduce.base import REDUCERS, Part, Slot, State
from gradwire.spec import AllReduce


@REDUCERS.register("all_reduce")
class AllReduceReducer:
    """Sums in float32 and divides by the number of ranks.

    float32 is exact averaging, and sums in place where the parameters lie one
    after the other. bfloat16 halves the bytes; its two roundings, of each
    rank's values and of their sum, are given up, since there is no feedback.

    Args:
        spec: The parameters.
    """

    def __init__(self, spec: AllReduce) -> None:
        self.spec = spec

    def part(self, slots: tuple[Slot, ...], world_size: int) -> Part:
        """See `Reducer.part`."""
        return Part.of(slots)

    def reduce(
        self, x: Tensor, part: Part, state: State, key: Key, group: Collective, out: Tensor
    ) -> Steps[None]:
        """See `Reducer.reduce`."""
        if group.world_size == 1 or not part.slots:
            part.copy(x, out)
            return
        targets = part.values(out)
        if self.spec.format == "float32" and part.run is not None:
            part.copy(x, out)
            (total,) = targets
            yield from group.all_reduce(total, group.world_size)
            return
        wire = torch.cat(part.values(x))
        if self.spec.format == "bfloat16":
            wire = wire.to(torch.bfloat16)
        yield from group.all_reduce(wire, group.world_size)
        mean = wire.to(out.dtype)
        means = torch.split(mean, [target.numel() for target in targets])
        for target, values in zip(targets, means, strict=True):
            target.copy_(values)
