"""A training step in closed form, for controllers to drive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gradwire.control.base import Controller, LayerStats, Losses, NetworkStats
from gradwire.control.levels import NORMAL_ERROR
from gradwire.planner.greedy import excess
from gradwire.spec import (
    Broadcast,
    Entry,
    Float,
    Quantize,
    ReducerSpec,
    Sign,
    Sparse,
    sent_bytes,
)

MBIT = 1e6 / 8
VARIANCE = {3: 0.17, 4: 0.032, 5: 0.0069, 6: 0.0016, 7: 3.9e-4, 8: 9.7e-5}


def variance(codec: object) -> float:
    """Relative squared error on normal values, from docs/explanation/codecs.md."""
    match codec:
        case Sign():
            return 0.36
        case Sparse():
            return 0.92
        case Quantize(bits, rounding=rounding):
            of_stochastic = 0.5 if rounding == "nearest" else 1.0
            return {1: 8.5, 2: 0.65}.get(bits) or VARIANCE[bits] * of_stochastic
        case Float():
            return 2.8e-6
    raise AssertionError(codec)


@dataclass
class Step:
    """What happened in one step."""

    stall_s: float
    step_s: float
    sent: int
    changed: Mapping[str, ReducerSpec] | None


@dataclass
class Model:
    """Layers on a link, front first.

    Attributes:
        numels: Values of each layer.
        forward_s: Time of each forward; backward takes twice as long.
        squares: Squared norm of each layer's gradient.
        gap_s: From the end of backward to the next forward: loading data.
        slower: What the link really gives, over what was measured.
        worse: Error that is measured, over what the losses say.
    """

    numels: Sequence[int]
    forward_s: float = 0.003
    squares: Sequence[float] | None = None
    world_size: int = 2
    latency_s: float = 0.0005
    gap_s: float = 0.002
    slower: float = 1.0
    worse: float = 1.0
    start: ReducerSpec = field(default_factory=lambda: Broadcast(Quantize(4)))

    def __post_init__(self) -> None:
        self.names = [f"layer{i}" for i in range(len(self.numels))]
        self.reducers: dict[str, ReducerSpec] = dict.fromkeys(self.names, self.start)
        count = len(self.numels)
        self.ready = [2 * self.forward_s * (count - i) for i in range(count)]
        begin_s = 2 * self.forward_s * count + self.gap_s
        self.due = [begin_s + self.forward_s * i for i in range(count)]
        self.compute_s = 3 * self.forward_s * count + self.gap_s

    def stall_s(self, reducers: Mapping[str, ReducerSpec], rate: float) -> float:
        """How long a step stalls: what its transfers take beyond the windows."""
        *_, (costs, windows) = self._prefixes(reducers, rate)
        return max(0.0, excess(costs, windows))

    def _prefixes(
        self, reducers: Mapping[str, ReducerSpec], rate: float
    ) -> list[tuple[list[float], list[float]]]:
        """Times on the link and windows of each prefix of layers."""
        costs = [
            sent_bytes(reducers[name], [Entry(0, (n,))], self.world_size) / (rate * self.slower)
            for name, n in zip(self.names, self.numels, strict=True)
        ]
        late = self.latency_s * (1 if isinstance(reducers[self.names[0]], Broadcast) else 2)
        windows = [d - r - late for r, d in zip(self.ready, self.due, strict=True)]
        return [(costs[:k], windows[:k]) for k in range(1, len(costs) + 1)]

    def waits_s(self, rate: float) -> list[float]:
        """How long each layer is waited for."""
        stalls = [
            max(0.0, excess(costs, windows))
            for costs, windows in self._prefixes(self.reducers, rate)
        ]
        return [now - before for before, now in zip([0.0, *stalls], stalls, strict=False)]

    @property
    def weights(self) -> list[float]:
        """Squared norm of each layer's gradient."""
        return list(self.squares or map(float, self.numels))

    def relative_error(self) -> float:
        """Norm of what a step does not send, over that of all it owes."""
        pairs = zip(self.names, self.weights, strict=True)
        lost = sum(variance(getattr(self.reducers[n], "codec", None)) * s for n, s in pairs)
        return self.worse * (lost / sum(self.weights)) ** 0.5

    def run(self, controller: Controller, step: int, rates: Sequence[float]) -> Step:
        """Do a step at the rates of each rank, and tell the controller."""
        squares = self.weights
        stall_s = self.stall_s(self.reducers, min(rates))
        sent = sum(
            sent_bytes(self.reducers[name], [Entry(0, (n,))], self.world_size)
            for name, n in zip(self.names, self.numels, strict=True)
        )
        waits = self.waits_s(min(rates))
        layers = [
            LayerStats(name, n, r, d, waits[i], Losses(NORMAL_ERROR * s))
            for i, (name, n, r, d, s) in enumerate(
                zip(self.names, self.numels, self.ready, self.due, squares, strict=True)
            )
        ]
        step_s = self.compute_s + stall_s
        network = NetworkStats(
            self.world_size,
            tuple(rates),
            self.latency_s,
            min(sent / min(rates), self.compute_s),
            stall_s,
            step_s,
            self.relative_error(),
        )
        changed = controller.update(step, layers, network)
        self.reducers.update(changed or {})
        return Step(stall_s, step_s, sent, changed)
