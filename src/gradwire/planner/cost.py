"""Cost of a reduction: codec, link, and what backward hides.

A reduction is a row of stages: work of the codec thread, then a transfer.
All reductions of a rank share one codec thread and one link, each of which
serves whoever came first; what ends after backward is exposed.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gradwire.errors import SpecError
from gradwire.hardware import Hardware, Line, LinkSpeed
from gradwire.sim.closed_form import ring_all_reduce_s
from gradwire.spec import (
    AllReduce,
    Broadcast,
    CodecSpec,
    Entry,
    Float,
    LowRank,
    ReducerSpec,
    Transfer,
    TwoPhase,
    codec_name,
)

_ITEM_BYTES = 4


class Stage(NamedTuple):
    """Work of the codec thread, and the transfer that follows it.

    Attributes:
        codec_s: Encoding and decoding before the transfer.
        link_s: How long the transfer occupies the link.
        latency_s: From the departure of its last byte to that byte's arrival.
        num_bytes: Bytes that this rank sends.
    """

    codec_s: float
    link_s: float = 0.0
    latency_s: float = 0.0
    num_bytes: int = 0


class Cost(NamedTuple):
    """What one reduction costs.

    Attributes:
        stages: In turn; the last one has no transfer.

    Example:
        >>> Cost((Stage(1.0, 2.0, 0.5, 100), Stage(1.0))).alone_s
        4.5
    """

    stages: tuple[Stage, ...]

    @property
    def codec_s(self) -> float:
        """Time of encoding and decoding."""
        return sum(stage.codec_s for stage in self.stages)

    @property
    def link_s(self) -> float:
        """How long the link is occupied."""
        return sum(stage.link_s for stage in self.stages)

    @property
    def alone_s(self) -> float:
        """Time from its start to its end if nothing else is under way."""
        return self.codec_s + self.link_s + sum(stage.latency_s for stage in self.stages)

    @property
    def sent_bytes(self) -> int:
        """Bytes that this rank sends."""
        return sum(stage.num_bytes for stage in self.stages)


class Job(NamedTuple):
    """The reductions of one bucket, and when its gradients are there."""

    ready_s: float
    costs: tuple[Cost, ...]


@dataclass(frozen=True, slots=True)
class Overlap:
    """What a step's reductions come to beside its backward pass.

    Attributes:
        backward_s: Length of the backward pass, slowed by what ran beside it.
        done_s: When the last mean is there, from the start of backward.
        codec_s: Work of the codec thread.
        link_s: How long the link was occupied.
    """

    backward_s: float
    done_s: float
    codec_s: float
    link_s: float

    @property
    def end_s(self) -> float:
        """When the optimiser can begin, from the start of backward."""
        return max(self.backward_s, self.done_s)


def overlap(jobs: Sequence[Job], backward_s: float, interference: float = 0.0) -> Overlap:
    """Run jobs on one codec thread and one link beside a backward pass.

    Both serve whoever came first. While the codec thread works beside
    backward, backward falls behind by `interference` times that work, and so do the
    gradients it has not made yet.

    Args:
        jobs: The buckets of a step.
        backward_s: Length of the backward pass by itself.
        interference: Share of the codec's work that lengthens backward (chi).

    Example:
        >>> job = Job(1.0, (Cost((Stage(0.5, 2.0, 0.0, 8), Stage(0.25))),))
        >>> overlap([job], backward_s=2.0).end_s
        3.75
    """
    queue = [
        (job.ready_s, number, 0, 0.0, cost.stages)
        for number, (job, cost) in enumerate((job, c) for job in jobs for c in job.costs)
    ]
    heapq.heapify(queue)
    codec_free_s = link_free_s = late_s = done_s = codec_s = link_s = 0.0
    while queue:
        now_s, number, index, known_late_s, stages = heapq.heappop(queue)
        if index == 0 and known_late_s < late_s:
            later_s = now_s + late_s - known_late_s
            heapq.heappush(queue, (later_s, number, 0, late_s, stages))
            continue
        stage = stages[index]
        start_s = max(now_s, codec_free_s)
        codec_free_s = start_s + stage.codec_s
        late_s += interference * max(0.0, min(codec_free_s, backward_s + late_s) - start_s)
        codec_s += stage.codec_s
        link_s += stage.link_s
        if index + 1 == len(stages):
            done_s = max(done_s, codec_free_s)
            continue
        link_free_s = max(codec_free_s, link_free_s) + stage.link_s
        arrival_s = link_free_s + stage.latency_s
        heapq.heappush(queue, (arrival_s, number, index + 1, late_s, stages))
    return Overlap(backward_s + late_s, done_s, codec_s, link_s)


def reduction_cost(
    reducer: ReducerSpec,
    entries: Sequence[Entry],
    world_size: int,
    hardware: Hardware,
    link: LinkSpeed,
) -> Cost:
    """Return what a reduction costs one rank.

    Every pass over the values is counted once: two-phase encodes all, decodes
    one payload's worth (`world_size` payloads of its own shard), encodes its
    shard again, and decodes all.

    Args:
        reducer: How ranks combine the values.
        entries: The parameters.
        world_size: Number of ranks.
        hardware: Speeds of the codecs.
        link: The level of the network it crosses.

    Raises:
        SpecError: The speed of its codec was not measured, or there is no
            model of this reducer.
    """
    if world_size == 1 or not entries:
        return Cost((Stage(0.0),))
    passes = _passes(reducer, _ITEM_BYTES * sum(e.numel for e in entries), world_size, hardware)
    transfers = reducer.transfers(entries, world_size, 0)
    return _interleave(passes, transfers, link)


def ring_cost(num_bytes: int, world_size: int, link: LinkSpeed) -> Cost:
    """Return what the back end's own all-reduce costs, as plain DDP uses it.

    The measured line where the link was measured with so many ranks; else a
    ring: `2 (N - 1)` trips and `2 (N - 1) / N` times the bytes.

    Example:
        >>> ring_cost(1000, 4, LinkSpeed(0.5, 1000.0)).alone_s
        4.5
    """
    if world_size == 1:
        return Cost((Stage(0.0),))
    sent_bytes = 2 * (world_size - 1) * num_bytes // world_size
    line = link.collectives.get("all_reduce")
    if line is None or link.ranks != world_size:
        latency_s = ring_all_reduce_s(0.0, world_size, link)
        whole_s = ring_all_reduce_s(num_bytes, world_size, link)
    else:
        latency_s, whole_s = line.fixed_s, line.time_s(num_bytes)
    return Cost((Stage(0.0, whole_s - latency_s, latency_s, sent_bytes), Stage(0.0)))


def _interleave(passes: Sequence[float], transfers: Sequence[Transfer], link: LinkSpeed) -> Cost:
    assert len(passes) == len(transfers) + 1, "work before, between and after the transfers"
    stages = [
        Stage(
            codec_s,
            max(t.sent_bytes, t.received_bytes) / link.bandwidth_bytes_per_s,
            link.latency_s,
            t.sent_bytes,
        )
        for codec_s, t in zip(passes, transfers, strict=False)
    ]
    return Cost((*stages, Stage(passes[-1])))


def _passes(
    reducer: ReducerSpec, num_bytes: int, world_size: int, hardware: Hardware
) -> tuple[float, ...]:
    """Return the codec's work before, between and after the transfers."""
    shard_bytes = num_bytes / world_size
    match reducer:
        case AllReduce():
            if reducer.format == "float32":
                return (0.0, _sum_line(hardware).time_s(num_bytes), 0.0)
            line = _Lines(hardware, Float(reducer.format))
            summed_s = line.decode.time_s(num_bytes)
            rounded_s = line.encode.time_s(shard_bytes)
            return (line.encode.time_s(num_bytes), summed_s + rounded_s, summed_s)
        case TwoPhase():
            first, second = _Lines(hardware, reducer.codec), _Lines(hardware, reducer.mean_codec)
            calls = world_size - 1  # one for each shard
            return (
                first.encode.time_s(num_bytes) + calls * first.encode.fixed_s,
                first.decode.time_s(num_bytes) + second.encode.time_s(shard_bytes),
                second.decode.time_s(num_bytes) + calls * second.decode.fixed_s,
            )
        case Broadcast():
            line = _Lines(hardware, reducer.codec)
            return (line.encode.time_s(num_bytes), line.decode.time_s(world_size * num_bytes))
        case LowRank():
            # One product before the sum of P, one between, one after that of Q.
            name = f"encode low_rank:{reducer.matrix_rank}"
            third_s = _line(hardware, name).time_s(num_bytes) / 3
            return (third_s, 0.0, third_s, 0.0, third_s)
        case _:
            raise SpecError("reducer", reducer.id, "one whose cost can be predicted")


class _Lines:
    """Measured speeds of one codec."""

    def __init__(self, hardware: Hardware, codec: CodecSpec) -> None:
        name = codec_name(codec)
        self.encode = _line(hardware, f"encode {name}")
        self.decode = _line(hardware, f"decode {name}")


def _sum_line(hardware: Hardware) -> Line:
    """Return the time of adding float32: as measured, or that of copying as much."""
    device = hardware.device
    copied = Line(device.launch_s, 2 / device.copy_bytes_per_s)
    return hardware.kernels.get("decode none", copied)


def _line(hardware: Hardware, name: str) -> Line:
    line = hardware.kernels.get(name)
    if line is None:
        known = ", ".join(sorted(hardware.kernels)) or "none at all"
        raise SpecError("kernel", name, f"measured; known are {known}")
    return line
