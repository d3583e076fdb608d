"""Engines: when a rank computes, reduces and waits, under DDP, FSDP and overlap."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, TypeVar

from gradwire.hardware import Hardware
from gradwire.sim.events import EventQueue
from gradwire.sim.lanes import Done, Rank
from gradwire.sim.reductions import Reduction, Reductions
from gradwire.sim.transport import Transport
from gradwire.timeline import Kind
from gradwire.workload import Workload, gradient_bytes

T = TypeVar("T")

_COPY_PASSES = 2.0
"""A copy reads and writes."""


@dataclass(frozen=True, slots=True)
class Step:
    """What all ranks of a simulated step share.

    Attributes:
        stands_for_all: Whether there is one rank only, which works as long as
            the busiest one would.
        bucket_bytes: Size at which DDP closes a bucket.
        chunk_bytes: Largest piece, as float32, in which the overlap engine sends.
    """

    queue: EventQueue
    workload: Workload
    hardware: Hardware
    reductions: Reductions
    transport: Transport
    stands_for_all: bool
    bucket_bytes: int
    chunk_bytes: int

    def reduce(self, rank: Rank, reduction: Reduction, done: Done, priority: int = 0) -> None:
        """Take a reduction of a rank from stage to stage, and call `done` at its end."""
        _Run(self, rank, reduction, done, priority).work(0)

    def copy_s(self, num_bytes: int) -> float:
        """Return the time of copying gradients into a bucket, or out of it."""
        return _COPY_PASSES * num_bytes / self.hardware.device.copy_bytes_per_s


class _Run:
    """One reduction of one rank under way."""

    def __init__(
        self, step: Step, rank: Rank, reduction: Reduction, done: Done, priority: int
    ) -> None:
        self._step = step
        self._rank = rank
        self._reduction = reduction
        self._done = done
        self._priority = priority

    def work(self, index: int) -> None:
        """Encode or decode, then send."""
        number = None if self._step.stands_for_all else self._rank.number
        work_s = self._reduction.work_s(index, number)
        if index == 0 and self._reduction.is_inline:
            work_s = 0.0  # done by the thread that runs backward
        if work_s > 0:
            kind: Kind = "encode" if index == 0 else "decode"
            self._rank.encode(kind, self._reduction.name, work_s, lambda: self._send(index))
        else:
            self._send(index)

    def _send(self, index: int) -> None:
        phase = self._reduction.stages[index].phase
        if phase is None:
            self._done()
            return
        start_s, rank = self._step.queue.now_s, self._rank

        def arrived() -> None:
            num_bytes = round(phase.sent_bytes(rank.number))
            rank.record("transfer", self._reduction.name, start_s, num_bytes, self._reduction.bits)
            self.work(index + 1)

        key = self._reduction.name, index
        self._step.transport.post(rank.number, key, phase, arrived, self._priority)


class Engine(Protocol):
    """Runs the step of each rank."""

    def run(self, rank: Rank, ended: Done) -> None:
        """Start a rank's step, and call `ended` at its end."""


class Latch:
    """Something that is waited for by at most one.

    Args:
        count: How many things have to happen.

    Example:
        >>> latch, seen = Latch(2), []
        >>> latch.wait(lambda: seen.append("over"))
        >>> latch.count_down(); latch.count_down()
        >>> seen
        ['over']
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._waiter: Done | None = None

    def count_down(self) -> None:
        """Say that one thing has happened."""
        self._count -= 1
        if self._count == 0 and self._waiter is not None:
            self._waiter()

    def wait(self, then: Done) -> None:
        """Call `then` once everything has happened."""
        if self._count <= 0:
            then()
        else:
            self._waiter = then


def each(items: Iterable[T], act: Callable[[T, Done], None], then: Done) -> None:
    """Act on one item after the other, each at the end of the one before.

    Example:
        >>> each("ab", lambda item, go_on: (print(item), go_on()), lambda: print("over"))
        a
        b
        over
    """
    iterator = iter(items)

    def go_on() -> None:
        for item in iterator:
            act(item, go_on)
            return
        then()

    go_on()


class Ddp:
    """Forward, backward with buckets that leave as they fill, then the optimiser.

    Gradients are copied into their bucket during backward, and out of it, in
    the order of buckets, when their mean is there.

    Args:
        step: What ranks share.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        buckets = step.workload.buckets(step.bucket_bytes)
        self._copies_s = [step.copy_s(gradient_bytes(b.parameters)) for b in buckets]
        reduced = [step.reductions.of(f"bucket {b.index}", b.parameters) for b in buckets]
        self._reduced = reduced
        self._ready: dict[int, list[int]] = {}
        for bucket in buckets:
            self._ready.setdefault(bucket.layer, []).append(bucket.index)
        self._order = tuple(reversed(tuple(enumerate(step.workload.layers))))
        is_alone = step.reductions.ranks == 1
        self._copy_in_s = [
            0.0 if is_alone else step.copy_s(gradient_bytes(layer.parameters))
            for layer in step.workload.layers
        ]

    def run(self, rank: Rank, ended: Done) -> None:
        """See `Engine.run`."""
        layers = self._step.workload.layers
        arrived = [Latch(len(r)) for r in self._reduced]

        def backward() -> None:
            each(
                self._order,
                lambda item, go_on: rank.compute(
                    "backward",
                    item[1].name,
                    item[1].backward_s + self._copy_in_s[item[0]],
                    lambda: self._launch(rank, item[0], arrived, go_on),
                ),
                lambda: self._collect(rank, arrived, ended),
            )

        each(
            layers,
            lambda layer, go_on: rank.compute("forward", layer.name, layer.forward_s, go_on),
            backward,
        )

    def _launch(self, rank: Rank, layer: int, arrived: list[Latch], go_on: Done) -> None:
        ready = [(b, r) for b in self._ready.get(layer, ()) for r in self._reduced[b]]

        def start(item: tuple[int, Reduction], then: Done) -> None:
            bucket, reduction = item

            def launch() -> None:
                self._step.reduce(rank, reduction, arrived[bucket].count_down)
                then()

            if reduction.is_inline and reduction.stages[0].work_s:
                rank.inline(reduction.name, reduction.stages[0].work_s, launch)
            else:
                launch()

        each(ready, start, go_on)

    def _collect(self, rank: Rank, arrived: list[Latch], ended: Done) -> None:
        queue, start_s = self._step.queue, self._step.queue.now_s

        def update() -> None:
            rank.record("wait", "gradients", start_s)
            rank.compute("optimiser", "all", self._step.workload.optimiser_s, ended)

        def copy_out(bucket: int, go_on: Done) -> None:
            copy_s = self._copies_s[bucket] if self._reduced[bucket] else 0.0
            arrived[bucket].wait(lambda: queue.after(copy_s, go_on))

        each(range(len(arrived)), copy_out, update)


class Fsdp:
    """Parameters are gathered before each layer, gradients scattered after it.

    The next layer's parameters are on their way while one computes. Backward
    gathers again, all but the last layer's. Each rank updates its own shard.

    Args:
        step: What ranks share.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        layers = step.workload.layers
        self._gathered = [step.reductions.gathered(y.name, y.parameters) for y in layers]
        self._scattered = [step.reductions.scattered(y.name, y.parameters) for y in layers]

    def run(self, rank: Rank, ended: Done) -> None:
        """See `Engine.run`."""
        step, layers = self._step, self._step.workload.layers
        forward = list(range(len(layers)))
        backward = forward[::-1]
        scattered = Latch(sum(map(len, self._scattered)))

        def run_back(index: int, go_on: Done) -> None:
            def scatter() -> None:
                for reduction in self._scattered[index]:
                    step.reduce(rank, reduction, scattered.count_down)
                go_on()

            layer = layers[index]
            rank.compute("backward", layer.name, layer.backward_s, scatter)

        def collect() -> None:
            start_s = step.queue.now_s
            scattered.wait(lambda: self._update(rank, start_s, ended))

        self._pass(
            rank,
            forward,
            "forward",
            lambda i, go_on: rank.compute("forward", layers[i].name, layers[i].forward_s, go_on),
            lambda: self._pass(rank, backward, "backward", run_back, collect),
        )

    def _update(self, rank: Rank, start_s: float, ended: Done) -> None:
        rank.record("wait", "gradients", start_s)
        share_s = self._step.workload.optimiser_s / self._step.reductions.ranks
        rank.compute("optimiser", "shard", share_s, ended)

    def _pass(
        self,
        rank: Rank,
        order: list[int],
        name: str,
        act: Callable[[int, Done], None],
        then: Done,
    ) -> None:
        """Go through layers, each once its parameters are there; fetch one ahead."""
        step = self._step
        there = {index: Latch(len(self._gathered[index])) for index in order}
        if name == "backward":
            there[order[0]] = Latch(0)
        follower = dict(pairwise(order))

        def fetch(index: int) -> None:
            for reduction in self._gathered[index]:
                step.reduce(rank, reduction.renamed(name), there[index].count_down)

        def go(index: int, go_on: Done) -> None:
            start_s = step.queue.now_s

            def begin() -> None:
                rank.record("wait", step.workload.layers[index].name, start_s)
                if index in follower:
                    fetch(follower[index])
                act(index, go_on)

            there[index].wait(begin)

        if name == "forward":
            fetch(order[0])
        each(order, go, then)


class Overlap:
    """Backward, then the next forward, whose layers wait for their own gradient only.

    Gradients travel in chunks, those of front layers first. The optimiser
    updates each layer just before its forward. A period has no remainder:
    every gradient is needed before the next backward begins.

    Args:
        step: What ranks share.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self._reduced = [
            [
                chunk
                for reduction in step.reductions.of(layer.name, layer.parameters)
                for chunk in reduction.chunks(self._chunks(gradient_bytes(layer.parameters)))
            ]
            for layer in step.workload.layers
        ]

    def _chunks(self, num_bytes: int) -> int:
        return max(1, math.ceil(num_bytes / self._step.chunk_bytes))

    def run(self, rank: Rank, ended: Done) -> None:
        """See `Engine.run`."""
        step, layers = self._step, self._step.workload.layers
        arrived = [Latch(len(r)) for r in self._reduced]
        per_value_s = step.workload.optimiser_s / max(1, step.workload.numel)

        def back(index: int, go_on: Done) -> None:
            def launch() -> None:
                for chunk in self._reduced[index]:
                    step.reduce(rank, chunk, arrived[index].count_down, index)
                go_on()

            rank.compute("backward", layers[index].name, layers[index].backward_s, launch)

        def forth(index: int, go_on: Done) -> None:
            layer, start_s = layers[index], step.queue.now_s
            update_s = per_value_s * sum(p.entry.numel for p in layer.parameters)

            def begin() -> None:
                rank.record("wait", layer.name, start_s)
                rank.compute(
                    "optimiser",
                    layer.name,
                    update_s,
                    lambda: rank.compute("forward", layer.name, layer.forward_s, go_on),
                )

            arrived[index].wait(begin)

        order = range(len(layers))
        each(reversed(order), back, lambda: each(order, forth, ended))
