"""Measured: what the steps so far say about layers and links, smoothed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from gradwire.control.base import LayerStats, NetworkStats

JUMP = 0.2
"""A bandwidth that moves by more than this is believed at once."""
_FIRST = 2
"""The step under a plan that is the first to show its error."""
_WEIGHT = 0.3
"""Of the newest step in a running mean."""


class _Layer(NamedTuple):
    """Running means of one layer."""

    ready_s: float
    due_s: float
    error: float


class Measured:
    """Running means over steps; a bandwidth that jumps replaces its mean.

    Example:
        >>> measured = Measured()
        >>> layers = [LayerStats("fc", 10, ready_s=0.1, due_s=0.3, wait_s=0.0, error=1.0)]
        >>> measured.add(layers, NetworkStats(2, (1e6, 1e6), 0.01, 0.0, 0.0, 0.5, 0.2))
        >>> measured.budgets(1e6, rounds=1)
        [189999]
    """

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self.numels: tuple[int, ...] = ()
        self.bandwidth: tuple[float, ...] = ()
        self.relative_error = 0.0
        self.step_s = 0.0
        self.compute_s = 0.0
        self._latency_s = 0.0
        self._layers: list[_Layer] = []
        self._waits: list[tuple[float, float]] = []

    @property
    def errors(self) -> tuple[float, ...]:
        """`A` of each layer."""
        return tuple(layer.error for layer in self._layers)

    def add(self, layers: Sequence[LayerStats], network: NetworkStats) -> None:
        """Take in one step."""
        names = tuple(layer.name for layer in layers)
        new = [_Layer(layer.ready_s, layer.due_s, layer.error) for layer in layers]
        rates = network.bandwidth_bytes_per_s
        if names != self.names or len(rates) != len(self.bandwidth):
            self.names, self._layers, self.bandwidth = names, new, rates
            self.relative_error, self._latency_s = network.relative_error, network.latency_s
            self.step_s, self.compute_s = network.step_s, network.step_s - network.wait_s
        else:
            pairs = zip(self._layers, new, strict=True)
            self._layers = [_Layer(*map(_mean, old, now)) for old, now in pairs]
            self.bandwidth = tuple(map(_follow, self.bandwidth, rates))
            self.relative_error = _mean(self.relative_error, network.relative_error)
            self.step_s = _mean(self.step_s, network.step_s)
            self.compute_s = _mean(self.compute_s, network.step_s - network.wait_s)
            self._latency_s = _mean(self._latency_s, network.latency_s)
        self.numels = tuple(layer.numel for layer in layers)
        self._waits.append((network.wait_s, network.overlap_s))
        if len(self._waits) == _FIRST:
            self.relative_error = network.relative_error

    def forget_waits(self) -> None:
        """Begin a new mean of waits: they belonged to another plan."""
        self._waits = []

    def waits(self) -> tuple[float, float] | None:
        """Return mean wait and overlap under this plan; None after less than two steps.

        A plan takes effect between two steps, so the first one is left out.
        """
        settled = self._waits[1:]
        if not settled:
            return None
        wait, overlap = map(sum, zip(*settled, strict=True))
        return wait / len(settled), overlap / len(settled)

    def budgets(self, rate: float, rounds: int) -> list[int]:
        """Return the bytes that fit into each layer's window.

        Windows are made nested, to the safe side: a layer in front is ready no
        earlier than one behind it, and one behind due no earlier.

        Args:
            rate: Bytes per second.
            rounds: Trips one after the other that an exchange takes.
        """
        ready = list(accumulate((m.ready_s for m in reversed(self._layers)), max))[::-1]
        due = list(accumulate((m.due_s for m in reversed(self._layers)), min))[::-1]
        late = rounds * self._latency_s
        return [int(rate * (d - r - late)) for r, d in zip(ready, due, strict=True)]


def _mean(old: float, new: float) -> float:
    return old + _WEIGHT * (new - old)


def _follow(old: float, new: float) -> float:
    return new if abs(new - old) > JUMP * old else _mean(old, new)
