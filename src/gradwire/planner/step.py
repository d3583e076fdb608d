"""Predicted time of a training step under a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gradwire.hardware import Hardware, LinkSpeed
from gradwire.plan import DENSE, Assignment, Parameter, Plan
from gradwire.planner.cost import Cost, Job, Overlap, overlap, reduction_cost, ring_cost
from gradwire.spec import ReducerSpec, check_whole
from gradwire.workload import BUCKET_BYTES, Bucket, Workload, gradient_bytes

ORDERLESS_RANKS = 2
"""So few values have one sum in any order: an all-dense plan leaves it to the back end."""


_COPY_PASSES = 2
"""A copy reads and writes."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a plan would run.

    Attributes:
        world_size: Number of ranks.
        ranks_per_node: How many of them share a node; one node if not fewer
            than `world_size`.
        cap_bytes: Size at which a bucket closes (DDP's `bucket_cap_mb`).
    """

    workload: Workload
    hardware: Hardware
    world_size: int
    ranks_per_node: int = 1
    cap_bytes: int = BUCKET_BYTES

    def __post_init__(self) -> None:
        check_whole("world_size", self.world_size, 1)
        check_whole("ranks_per_node", self.ranks_per_node, 1)
        check_whole("cap_bytes", self.cap_bytes, 1)

    @property
    def link(self) -> LinkSpeed:
        """The slowest level that a flat exchange crosses."""
        is_one_node = self.ranks_per_node >= self.world_size
        return self.hardware.within if is_one_node else self.hardware.between

    def at(self, bandwidth_bytes_per_s: float) -> Setting:
        """Return the same setting with another link speed, for search."""
        link = replace(self.link, bandwidth_bytes_per_s=bandwidth_bytes_per_s, collectives={})
        return replace(self, hardware=replace(self.hardware, within=link, between=link))

    def buckets(self) -> tuple[Bucket, ...]:
        """Return the buckets DDP would make."""
        return self.workload.buckets(self.cap_bytes)

    def cost(self, reducer: ReducerSpec, parameters: Sequence[Parameter]) -> Cost:
        """Return what one reduction of these parameters costs."""
        entries = [p.entry for p in parameters]
        return reduction_cost(reducer, entries, self.world_size, self.hardware, self.link)

    def plain_cost(self, bucket: Bucket) -> Cost:
        """Return what plain DDP pays for a bucket."""
        return ring_cost(gradient_bytes(bucket.parameters), self.world_size, self.link)

    def overlap(self, buckets: Sequence[Bucket], costs: Sequence[tuple[Cost, ...]]) -> Overlap:
        """Run the reductions of each bucket beside the backward pass.

        That copies gradients into their bucket, and at its end out of it again.
        """
        jobs, copied_s, copy_s = [], 0.0, 0.0
        for bucket, parts in zip(buckets, costs, strict=True):
            copy_s = self._copy_s(bucket)
            copied_s += copy_s
            jobs.append(Job(bucket.ready_s + copied_s, parts))
        backward_s = self.workload.backward_s + copied_s
        run = overlap(jobs, backward_s, self.hardware.device.interference)
        return replace(run, backward_s=run.backward_s + copied_s, done_s=run.done_s + copy_s)

    def _copy_s(self, bucket: Bucket) -> float:
        num_bytes = _COPY_PASSES * gradient_bytes(bucket.parameters)
        is_alone = self.world_size == 1
        return 0.0 if is_alone else num_bytes / self.hardware.device.copy_bytes_per_s

    def step_s(self, buckets: Sequence[Bucket], costs: Sequence[tuple[Cost, ...]]) -> float:
        """Return the time of a step whose buckets cost that."""
        work = self.workload
        return work.forward_s + self.overlap(buckets, costs).end_s + work.optimiser_s


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a step comes to.

    Attributes:
        step_s: From its start to the start of the next.
        exposed_s: The part of it that communication and its computation add.
        codec_s: Work of the codec thread.
        link_s: How long the link is occupied.
        sent_bytes: Bytes that a rank sends.
    """

    step_s: float
    exposed_s: float
    codec_s: float
    link_s: float
    sent_bytes: int


def predict(plan: Plan, setting: Setting) -> Prediction:
    """Predict the time of a step under a plan.

    Example:
        >>> from gradwire.hardware import Device
        >>> from gradwire.workload import Layer, parameter
        >>> layer = Layer("fc", (parameter("fc.weight", (500, 500)),), 1.0, 2.0)
        >>> link = LinkSpeed(0.25, 1e6)
        >>> hardware = Hardware(Device(), {}, link, link)
        >>> setting = Setting(Workload("w", (layer,)), hardware, 2)
        >>> round(predict(Plan.of("none"), setting).step_s, 2)
        4.5
    """
    assignments = plan.assign(setting.workload.parameters, setting.world_size)
    buckets = setting.buckets()
    costs = plan_costs(assignments, setting, buckets)
    run = setting.overlap(buckets, costs)
    work = setting.workload
    return Prediction(
        step_s=work.forward_s + run.end_s + work.optimiser_s,
        exposed_s=run.end_s - work.backward_s,
        codec_s=run.codec_s,
        link_s=run.link_s,
        sent_bytes=sum(c.sent_bytes for parts in costs for c in parts),
    )


def predict_plain(setting: Setting) -> float:
    """Return the time of a step of DDP without gradwire.

    Example:
        >>> from gradwire.hardware import Device
        >>> from gradwire.workload import Layer, parameter
        >>> layer = Layer("fc", (parameter("fc.weight", (500, 500)),), 1.0, 2.0)
        >>> link = LinkSpeed(0.0, 1e6)
        >>> hardware = Hardware(Device(), {}, link, link)
        >>> round(predict_plain(Setting(Workload("w", (layer,)), hardware, 4)), 2)
        4.5
    """
    buckets = setting.buckets()
    return setting.step_s(buckets, [(setting.plain_cost(b),) for b in buckets])


def plan_costs(
    assignments: Mapping[str, Assignment], setting: Setting, buckets: Sequence[Bucket]
) -> list[tuple[Cost, ...]]:
    """Return the reductions of each bucket: one for each reducer in it."""
    is_dense = all(a.reducer == DENSE for a in assignments.values())
    if is_dense and setting.world_size <= ORDERLESS_RANKS:
        return [(setting.plain_cost(bucket),) for bucket in buckets]
    costs = []
    for bucket in buckets:
        parts: dict[ReducerSpec, list[Parameter]] = {}
        for p in bucket.parameters:
            parts.setdefault(assignments[p.name].reducer, []).append(p)
        costs.append(tuple(setting.cost(r, ps) for r, ps in parts.items()))
    return costs
