"""Measured: what the steps so far say about layers and links, smoothed."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from statistics import median_low
from typing import NamedTuple

from gradwire.control.base import LayerStats, Losses, NetworkStats
from gradwire.control.levels import NORMAL_ERROR, Shares

JUMP = 0.2
"""A bandwidth that moves by more than this is believed at once."""
_RATES = 2
"""A rate is the least of so many: one alone may be a burst into a queue's free room,
and a fall must be believed at once."""
_SETTLED = 2
"""Steps after a plan that were under way before it: ranks agree while they go on."""
_STEPS = 5
"""Times are medians of so many steps, the lower of two: a pause between steps, for an
evaluation or a checkpoint, is no window that comes again."""
_LEAST_WAITS = 2
_WEIGHT = 0.3
"""Of the newest step in a running mean."""
_LEAST_SHARE = 1e-3
_FORGET = 0.02
"""How fast a share may fall. It may rise at once: what a coarse level loses shows only
under it, in what it leaves behind, and the plan must not swing between two levels."""


class _Layer(NamedTuple):
    """What a step showed of one layer, or the medians of some."""

    window_s: float
    codec_s: float
    square: float


class Waits(NamedTuple):
    """How long a step waited for gradients.

    Attributes:
        wait_s: In all.
        rear_s: For other layers than the first, which has no window to miss.
        overlap_s: How long transfers ran under computation.
    """

    wait_s: float
    rear_s: float
    overlap_s: float


class Measured:
    """Medians and means of the latest steps; a bandwidth that jumps starts anew.

    Example:
        >>> measured = Measured()
        >>> layers = [LayerStats("fc", 10, ready_s=0.1, due_s=0.3, wait_s=0.0, losses=Losses(1.0))]
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
        self.shares: tuple[Shares, ...] = ()
        self.count = 0
        self._latency_s = 0.0
        self._layers: list[_Layer] = []
        self._recent: deque[tuple[list[_Layer], tuple[float, float, float]]] = deque(maxlen=_STEPS)
        self._waits: list[Waits] = []
        self._rates: deque[tuple[float, ...]] = deque(maxlen=_RATES)

    @property
    def squares(self) -> tuple[float, ...]:
        """Squared norm of what each layer owes."""
        return tuple(layer.square for layer in self._layers)

    def add(self, layers: Sequence[LayerStats], network: NetworkStats) -> None:
        """Take in one step."""
        names = tuple(layer.name for layer in layers)
        new = [_Layer(x.window_s, x.codec_s, _square(x.losses)) for x in layers]
        shares = tuple(_shares(x.losses) for x in layers)
        if len(network.bandwidth_bytes_per_s) != len(self.bandwidth):
            self._rates.clear()
        self._rates.append(network.bandwidth_bytes_per_s)
        rates = tuple(map(min, zip(*self._rates, strict=True)))
        if names != self.names or len(rates) != len(self.bandwidth):
            self.names, self.bandwidth = names, rates
            self.shares, self.count = shares, 1
            self.relative_error = network.relative_error
            self._recent.clear()
        else:
            self.count += 1
            self.shares = tuple(map(_remember, self.shares, shares))
            self.bandwidth = tuple(map(_follow, self.bandwidth, rates))
            self.relative_error += _WEIGHT * (network.relative_error - self.relative_error)
        self._recent.append((new, (network.step_s, network.wait_s, network.latency_s)))
        by_layer = zip(*(found for found, _ in self._recent), strict=True)
        self._layers = [_Layer(*map(median_low, zip(*x, strict=True))) for x in by_layer]
        totals = zip(*(found for _, found in self._recent), strict=True)
        self.step_s, _, self._latency_s = map(median_low, totals)
        self.compute_s = median_low(step_s - wait_s for _, (step_s, wait_s, _) in self._recent)
        self.numels = tuple(layer.numel for layer in layers)
        rear_s = sum(layer.wait_s for layer in layers[1:])
        self._waits.append(Waits(network.wait_s, rear_s, network.overlap_s))
        if len(self._waits) == _SETTLED + 1:
            self.relative_error = network.relative_error

    def forget_waits(self) -> None:
        """Begin a new mean of waits: they belonged to another plan."""
        self._waits = []

    def waits(self) -> Waits | None:
        """Return mean waits under this plan; None before two steps have shown it."""
        settled = self._waits[_SETTLED:]
        if len(settled) < _LEAST_WAITS:
            return None
        return Waits(*(sum(column) / len(settled) for column in zip(*settled, strict=True)))

    def budgets(self, rate: float, rounds: int) -> list[int]:
        """Return the bytes that fit into each layer's window.

        Windows are made nested, to the safe side: one in front is no wider than
        one behind it.

        Args:
            rate: Bytes per second.
            rounds: Trips one after the other that an exchange takes.
        """
        behind = accumulate((m.window_s for m in reversed(self._layers)), min)
        windows = list(behind)[::-1]
        late = rounds * self._latency_s
        codec = (m.codec_s for m in self._layers)
        return [int(rate * (w - late - c)) for w, c in zip(windows, codec, strict=True)]


def _follow(old: float, new: float) -> float:
    return new if abs(new - old) > JUMP * old else old + _WEIGHT * (new - old)


def _square(losses: Losses) -> float:
    return losses.square or losses.error / NORMAL_ERROR


def _shares(losses: Losses) -> Shares:
    """Return losses over the squared norm; those of normal values where not measured."""
    if not losses.square:
        return Shares()
    found = (x / losses.square for x in (losses.error, *losses[2:]))
    return Shares(*(max(x, _LEAST_SHARE) for x in found))


def _remember(old: Shares, new: Shares) -> Shares:
    return Shares(*(n if n > o else o + _FORGET * (n - o) for o, n in zip(old, new, strict=True)))
