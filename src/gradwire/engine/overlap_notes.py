"""Notes of one step: what ranks tell each other at every step, in the background.

A note says which parameters had a gradient, in which order layers were used,
which backward passes were repeated, and what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.comm.base import Collective, Rates, Steps
from gradwire.control.base import LayerStats, Losses, NetworkStats
from gradwire.engine.overlap_layers import Layer
from gradwire.engine.overlap_stats import OverlapStep
from gradwire.errors import RankMismatchError

_LAYER_FIELDS = ("ready_s", "due_s", "wait_s", "codec_s")
_NETWORK_FIELDS = 6
_LOSSES = len(Losses._fields)


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a note's sections, in values."""

    parameters: int
    layers: int

    @property
    def numel(self) -> int:
        """Values of a note."""
        of_layers = 1 + _LOSSES + len(_LAYER_FIELDS) + 1
        return self.parameters + self.layers * of_layers + _NETWORK_FIELDS


class Note:
    """The notes of all ranks for one step.

    Args:
        shape: Sizes of its sections.
        starts: By layer, the number of its first parameter.
        world_size: Number of ranks.
    """

    def __init__(self, shape: Shape, starts: Sequence[int], world_size: int) -> None:
        self._shape = shape
        self._starts = starts
        self._rows = torch.zeros(world_size, shape.numel)
        self.done: Future[None] = Future()
        self.done.set_running_or_notify_cancel()

    def exchange(self, mine: Tensor, group: Collective) -> Steps[None]:
        """Exchange this rank's note for those of all ranks."""
        yield from group.all_gather(self._rows, mine)

    def finish(self, error: BaseException | None) -> None:
        """Tell whoever waits for it."""
        if error is not None:
            self.done.set_exception(error)
        else:
            self.done.set_result(None)

    def compare_repeats(self, step: int, layers: Sequence[Layer], rank: int) -> None:
        """Make sure that no rank has repeated a backward pass alone.

        Raises:
            RankMismatchError: One has.
        """
        dropped = self._section(1 + _LOSSES + len(_LAYER_FIELDS))
        differs = (dropped != dropped[0]).any(dim=0)
        if not bool(differs.any()):
            return
        layer = layers[int(differs.nonzero()[0])]
        counts = {r: int(n) for r, n in enumerate(dropped[:, layer.index].tolist())}
        detail = (
            f"step {step}, layer {layer.name} ({', '.join(layer.names)}): ranks have repeated"
            f" unlike numbers of backward passes: {counts}; repeat one on every rank, or on none"
        )
        raise RankMismatchError("overlap", rank, detail, {r: str(n) for r, n in counts.items()})

    def used(self, layer: Layer) -> list[bool]:
        """Return for each parameter of a layer whether any rank had a gradient."""
        start = self._starts[layer.index]
        own = self._rows[:, start : start + len(layer.parameters)]
        flags: list[bool] = (own > 0).any(dim=0).tolist()
        return flags

    def order(self) -> list[int]:
        """Return the layers in the order in which rank 0 used them."""
        places = self._section(0)[0].tolist()
        return sorted(range(self._shape.layers), key=lambda i: (places[i], i))

    def layers(self, layers: Sequence[Layer]) -> list[LayerStats]:
        """Return what was measured of layers, combined over ranks, in rank 0's order."""
        lost = [self._section(1 + i).double().mean(0).tolist() for i in range(_LOSSES)]
        times = (self._section(1 + _LOSSES + i) for i in range(len(_LAYER_FIELDS)))
        ready, due, wait, codec = times
        columns = zip(
            ready.amax(0).tolist(),
            (ready.amax(0) + (due - ready).amin(0)).tolist(),
            wait.amin(0).tolist(),
            (Losses(*values) for values in zip(*lost, strict=True)),
            codec.amax(0).tolist(),
            strict=True,
        )
        stats = [
            LayerStats(layer.name, layer.buffer.numel(), *values)
            for layer, values in zip(layers, columns, strict=True)
        ]
        return [stats[i] for i in self.order()]

    def network(self) -> NetworkStats | None:
        """Return what was measured of the network; None where some rank has nothing yet."""
        rows = self._rows[:, -_NETWORK_FIELDS:].double()
        bandwidth, latency, overlap, wait, step, error = rows.unbind(dim=1)
        if not bool(torch.isfinite(rows).all()) or not bool((bandwidth > 0).all()):
            return None
        return NetworkStats(
            world_size=len(rows),
            bandwidth_bytes_per_s=tuple(bandwidth.tolist()),
            latency_s=float(latency.max()),
            overlap_s=float(overlap.min()),
            wait_s=float(wait.min()),
            step_s=float(step.max()),
            relative_error=float(error.max()),
        )

    def _section(self, number: int) -> Tensor:
        start = self._shape.parameters + number * self._shape.layers
        return self._rows[:, start : start + self._shape.layers]


def write(
    used: Sequence[bool],
    order: Sequence[Layer],
    losses: Sequence[Losses],
    step: OverlapStep | None,
    rates: Rates,
    shape: Shape,
) -> Tensor:
    """Write this rank's note, float32.

    Args:
        used: For each parameter, whether it had a gradient.
        order: Layers in order of use.
        losses: By layer.
        step: The latest whole step, None before there is one.
        rates: Of this rank's link.
        shape: Sizes of the sections.
    """
    count = shape.layers
    places, dropped = torch.full((count,), float(count)), torch.zeros(count)
    for place, layer in enumerate(order):
        places[layer.index], dropped[layer.index] = place, layer.dropped
    times = torch.zeros(len(_LAYER_FIELDS), count)
    network = [math.nan] * _NETWORK_FIELDS
    if step is not None:
        by_name = {layer.name: layer for layer in step.layers}
        for layer in order:
            found = by_name.get(layer.name)
            if found is not None:
                row = [getattr(found, field) for field in _LAYER_FIELDS]
                times[:, layer.index] = torch.tensor(row)
        network = [
            rates.bandwidth_bytes_per_s or math.nan,
            rates.latency_s if rates.latency_s is not None else math.nan,
            step.overlap_s,
            step.wait_s,
            step.step_s,
            step.relative_error or 0.0,
        ]
    flags = torch.tensor(used, dtype=torch.float32)
    lost = torch.tensor(losses).T.reshape(-1)
    sections = [flags, places, lost, times.view(-1), dropped, torch.tensor(network)]
    return torch.cat([s.to(torch.float32) for s in sections])
