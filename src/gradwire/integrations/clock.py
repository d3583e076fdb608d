"""Clock: when a step's forward pass and buckets were, as DDP's hook sees them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from torch import Tensor

from gradwire.engine.stats import StepStats
from gradwire.plan import Parameter
from gradwire.workload import Layer, Workload, gradient_bytes

_KEPT = 256
"""Steps that are remembered."""
_COPY_PASSES = 2
"""A copy reads and writes."""


@dataclass(slots=True)
class Seen:
    """What one step took, by this process's clock.

    Attributes:
        begin_s: Its first forward pass begins.
        forward_begin_s: Its last one begins; the others are of micro-batches.
        forward_end_s: And ends.
        ready: Names and time of each bucket whose gradients were there.
        stats: What its exchange cost, where it was gradwire's.
    """

    begin_s: float
    forward_begin_s: float
    forward_end_s: float = 0.0
    ready: list[tuple[tuple[str, ...], float]] = field(default_factory=list)
    stats: StepStats | None = None

    @property
    def backward_s(self) -> float:
        """From the end of forward to the last gradient."""
        return self.ready[-1][1] - self.forward_end_s if self.ready else 0.0


class Clock:
    """Notes the steps of this rank, and keeps some gradients when asked to.

    Example:
        >>> clock = Clock()
        >>> clock.forward_begins()
        >>> clock.forward_ends()
        >>> clock.bucket(("w",), is_last=True)
        >>> clock.forward_begins()
        >>> clock.period_s([0]) > 0
        True
    """

    def __init__(self) -> None:
        self.step = 0
        self.samples: dict[str, Tensor] = {}
        self.is_sampling = False
        self._seen: dict[int, Seen] = {}

    def forward_begins(self) -> None:
        """Note the begin of a forward pass."""
        now_s = time.perf_counter()
        seen = self._seen.setdefault(self.step, Seen(now_s, now_s))
        seen.forward_begin_s = now_s

    def forward_ends(self) -> None:
        """Note its end, where backward begins."""
        if self.step in self._seen:
            self._seen[self.step].forward_end_s = time.perf_counter()

    def bucket(self, names: tuple[str, ...], *, is_last: bool) -> None:
        """Note that a bucket's gradients are there; it may begin the step."""
        now_s = time.perf_counter()
        self._seen.setdefault(self.step, Seen(now_s, now_s)).ready.append((names, now_s))
        if is_last:
            self.step += 1
            self._seen.pop(self.step - _KEPT, None)

    def note(self, stats: StepStats) -> None:
        """Take what a step's exchange cost."""
        if stats.step in self._seen:
            self._seen[stats.step].stats = stats

    def restart(self, step: int) -> None:
        """Go on counting from a checkpoint's step."""
        self.step = step
        self._seen.clear()

    def of(self, steps: Sequence[int]) -> list[Seen]:
        """Return what is known of those steps: all of it, or the step is left out."""
        found = [self._seen[s] for s in steps if s in self._seen]
        return [s for s in found if s.ready and s.forward_end_s]

    def periods_s(self, steps: Sequence[int]) -> list[float]:
        """Return the times from the begin of each step to that of the next."""
        seen = self._seen
        return [seen[s + 1].begin_s - seen[s].begin_s for s in steps if s in seen and s + 1 in seen]

    def period_s(self, steps: Sequence[int]) -> float:
        """Return the median of `periods_s`."""
        return median(self.periods_s(steps))


def workload_of(
    seen: Sequence[Seen],
    period_s: float,
    parameters: Mapping[str, Parameter],
    copy_bytes_per_s: float,
) -> Workload:
    """Return the workload that observed steps amount to: a layer for each parameter.

    Times within a bucket are spread by size, and DDP's copies into buckets taken
    out. By how much encoding slowed backward is left in: how much that is
    depends on the model, and the plans that come into question hardly differ in it.

    Args:
        seen: Steps with equal buckets.
        period_s: Time of a whole step.
        parameters: By name.
        copy_bytes_per_s: Bytes read plus written per second by a copy.
    """
    last = seen[-1]
    alike = [s for s in seen if [n for n, _ in s.ready] == [n for n, _ in last.ready]]
    forward_s = median(s.forward_end_s - s.forward_begin_s for s in alike)
    backward_s = median(s.backward_s for s in alike)
    exposed_s = median(s.stats.exposed_s if s.stats is not None else 0.0 for s in alike)
    layers: list[Layer] = []
    reached_s = 0.0
    for index, (names, _) in enumerate(last.ready):
        held = [parameters[n] for n in names]
        num_bytes = gradient_bytes(held)
        ready_s = median(s.ready[index][1] - s.forward_end_s for s in alike)
        took_s = ready_s - reached_s - _COPY_PASSES * num_bytes / copy_bytes_per_s
        reached_s = max(ready_s, reached_s)
        share = max(0.0, took_s) / max(1, num_bytes)
        layers += [Layer(p.name, (p,), 0.0, share * gradient_bytes([p])) for p in held]
    front = layers[-1]
    layers[-1] = Layer(front.name, front.parameters, forward_s, front.backward_s)
    rest_s = max(0.0, period_s - forward_s - backward_s - exposed_s)
    return Workload("observed", tuple(reversed(layers)), rest_s)
