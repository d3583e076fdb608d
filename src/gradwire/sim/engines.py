"""Engines: when a rank computes, reduces and waits, under DDP, FSDP and overlap."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Protocol

from gradwire.sim.lanes import Done, Rank
from gradwire.sim.stages import Reduction
from gradwire.sim.step import Latch, Step, each
from gradwire.workload import gradient_bytes


class Engine(Protocol):
    """Runs the step of each rank."""

    def run(self, rank: Rank, ended: Done) -> None:
        """Start a rank's step, and call `ended` at its end."""


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
        """Start the reductions of full buckets, and go on with backward."""
        ready = [(b, r) for b in self._ready.get(layer, ()) for r in self._reduced[b]]

        def inline(item: tuple[int, Reduction], then: Done) -> None:
            bucket, reduction = item

            def encoded() -> None:
                self._step.reduce_encoded(rank, reduction, arrived[bucket].count_down)
                then()

            rank.inline(reduction.name, reduction.work_s(0, None), encoded)

        def beside() -> None:
            go_on()  # first, so that the codec finds backward running
            for bucket, reduction in ready:
                if not reduction.is_inline:
                    self._step.reduce(rank, reduction, arrived[bucket].count_down)

        each([item for item in ready if item[1].is_inline], inline, beside)

    def _collect(self, rank: Rank, arrived: list[Latch], ended: Done) -> None:
        start_s = self._step.queue.now_s

        def update() -> None:
            rank.record("wait", "gradients", start_s)
            rank.compute("optimiser", "all", self._step.workload.optimiser_s, ended)

        def copy_out(bucket: int, go_on: Done) -> None:
            copy_s = self._copies_s[bucket] if self._reduced[bucket] else 0.0
            arrived[bucket].wait(lambda: rank.copy(copy_s, go_on))

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
                go_on()
                for reduction in self._scattered[index]:
                    step.reduce(rank, reduction, scattered.count_down)

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
            step.reductions.chunked(layer.name, layer.parameters, step.chunk_bytes)
            for layer in step.workload.layers
        ]

    def run(self, rank: Rank, ended: Done) -> None:
        """See `Engine.run`."""
        step, layers = self._step, self._step.workload.layers
        arrived = [Latch(len(r)) for r in self._reduced]
        per_value_s = step.workload.optimiser_s / max(1, step.workload.numel)

        def back(index: int, go_on: Done) -> None:
            def launch() -> None:
                go_on()
                for chunk in self._reduced[index]:
                    step.reduce(rank, chunk, arrived[index].count_down, index)

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
