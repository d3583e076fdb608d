"""`simulate`, and the two simulators behind it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from gradwire.errors import SpecError
from gradwire.hardware import Hardware
from gradwire.plan import Plan
from gradwire.sim.base import (
    COLLECTIVES,
    ENGINES,
    Cluster,
    Collective,
    Engine,
    Simulation,
    Simulator,
)
from gradwire.sim.engines import Ddp, Fsdp, Overlap
from gradwire.sim.engines import Engine as Runner
from gradwire.sim.events import EventQueue
from gradwire.sim.gate import Limits
from gradwire.sim.lanes import Rank
from gradwire.sim.messages import MessageTransport
from gradwire.sim.reductions import Reductions
from gradwire.sim.step import Step
from gradwire.sim.transport import AlikeTransport, BulkTransport, Transport, Wiring
from gradwire.spec import Hierarchical, check_whole
from gradwire.timeline import Timeline
from gradwire.workload import BUCKET_BYTES, Workload

Detail = Literal["messages", "phases", "alike"]
DETAILS: tuple[Detail, ...] = ("messages", "phases", "alike")

CHUNK_BYTES = 1 << 21
"""Largest piece, as float32, in which the overlap engine sends."""

IN_FLIGHT_BYTES = 4 << 20
"""Encoded bytes that the overlap engine has under way on each rank at most."""

_GLOO_THREADS = 2
"""Collectives that Gloo runs at once. Source: ProcessGroupGloo.hpp, Options::threads."""

_FEW_RANKS = 8
"""So many ranks are simulated message by message unless told otherwise."""

_ENGINES: dict[Engine, Callable[[Step], Runner]] = {
    "ddp": Ddp,
    "fsdp": Fsdp,
    "overlap": Overlap,
}


@dataclass(frozen=True, slots=True)
class EventSimulator:
    """Simulates every rank on one clock.

    Attributes:
        detail: `messages`: every message is a flow of its own. `phases`: all
            messages of a collective advance in step, and it begins when every
            rank has come to it. `alike`: one rank stands for all.
        chunk_bytes: Largest piece, as float32, in which the overlap engine sends.
        in_flight_bytes: Encoded bytes that it has under way on each rank at most.

    Example:
        >>> EventSimulator("phases").detail
        'phases'
    """

    detail: Detail = "messages"
    chunk_bytes: int = CHUNK_BYTES
    in_flight_bytes: int = IN_FLIGHT_BYTES

    def __post_init__(self) -> None:
        if self.detail not in DETAILS:
            raise SpecError("EventSimulator.detail", self.detail, "one of: " + ", ".join(DETAILS))
        check_whole("EventSimulator.chunk_bytes", self.chunk_bytes, 1)
        check_whole("EventSimulator.in_flight_bytes", self.in_flight_bytes, 1)

    def run(
        self,
        plan: Plan,
        workload: Workload,
        hardware: Hardware,
        cluster: Cluster,
        engine: Engine = "ddp",
        bucket_bytes: int = BUCKET_BYTES,
        collective: Collective = "direct",
    ) -> Simulation:
        """See `Simulator.run`.

        Raises:
            SpecError: No such engine or collective, or one that this cluster
                or plan cannot have.
        """
        if engine not in ENGINES:
            raise SpecError("engine", engine, "one of: " + ", ".join(ENGINES))
        if collective not in COLLECTIVES:
            raise SpecError("collective", collective, "one of: " + ", ".join(COLLECTIVES))
        check_whole("bucket_bytes", bucket_bytes, 1)
        if self.detail == "alike" and not cluster.is_alike:
            raise SpecError("EventSimulator.detail", self.detail, "possible where ranks differ")
        if self.detail != "messages" and cluster.shared_cores:
            raise SpecError("EventSimulator.detail", self.detail, "messages where cores are shared")
        queue = EventQueue()
        wiring = Wiring(queue, cluster, hardware)
        assignments = plan.assign(workload.parameters, cluster.ranks)
        has_levels = collective == "hierarchical" or any(
            isinstance(a.reducer, Hierarchical) for a in assignments.values()
        )
        limits = self._limits(engine, hardware, collective, has_levels=has_levels)
        transport = self._transport(wiring, limits)
        step = Step(
            queue=queue,
            workload=workload,
            hardware=hardware,
            reductions=Reductions(assignments, hardware, cluster, collective),
            transport=transport,
            stands_for_all=self.detail == "alike",
            bucket_bytes=bucket_bytes,
            chunk_bytes=self.chunk_bytes,
        )
        timeline, work_s = _run(step, _ENGINES[engine](step), wiring)
        return Simulation(timeline, transport.link_bytes, queue.processed, cluster.ranks, work_s)

    def _limits(
        self, engine: Engine, hardware: Hardware, collective: Collective, *, has_levels: bool
    ) -> Limits:
        """Return what each rank may have under way.

        A back end runs its own collectives in order; gradwire's exchanges
        follow each other on each connection.
        """
        is_in_order = self.detail != "messages" and not has_levels
        if collective == "ring" and engine != "overlap":
            return Limits(_GLOO_THREADS if hardware.device.kind == "cpu" else 1)
        credit = self.in_flight_bytes if engine == "overlap" else None
        return Limits(1 if is_in_order else None, credit)

    def _transport(self, wiring: Wiring, limits: Limits) -> Transport:
        match self.detail:
            case "messages":
                return MessageTransport(wiring, limits)
            case "phases":
                return BulkTransport(wiring, limits, wiring.cluster.ranks)
            case "alike":
                return AlikeTransport(wiring, limits)


def _run(step: Step, engine: Runner, wiring: Wiring) -> tuple[Timeline, float]:
    """Run all ranks, or the one that stands for them, to the end of the step."""
    queue, cluster = step.queue, wiring.cluster
    # Where cores are shared, it is seen how much codec and backward delay each other.
    chi = 0.0 if cluster.shared_cores else step.hardware.device.interference
    slowdowns = cluster.slowdowns()[: 1 if step.stands_for_all else None]
    ranks = [Rank(n, queue, wiring.threads(n), factor, chi) for n, factor in enumerate(slowdowns)]
    ends: list[float] = []
    with _uncollected():
        for rank in ranks:
            engine.run(rank, lambda: ends.append(queue.now_s))
        queue.run()
    assert len(ends) == len(ranks), "every rank comes to the end of its step"
    timeline = Timeline(tuple(span for rank in ranks for span in rank.spans), max(ends))
    return timeline, max(rank.work_s for rank in ranks)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Stop the garbage collector: all that a step makes lives until its end.

    With a million spans it would spend more time looking through them than
    the simulation takes.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def choose(cluster: Cluster) -> EventSimulator:
    """Return the most exact simulator that a cluster of this size lets run quickly.

    Example:
        >>> choose(Cluster(4)).detail, choose(Cluster(1024)).detail
        ('messages', 'alike')
    """
    if cluster.ranks <= _FEW_RANKS or cluster.shared_cores:
        return EventSimulator("messages")
    return EventSimulator("alike" if cluster.is_alike else "phases")


def simulate(  # noqa: PLR0913 - all but the first four by keyword
    plan: Plan,
    workload: Workload,
    hardware: Hardware,
    cluster: Cluster,
    *,
    engine: Engine = "ddp",
    bucket_bytes: int = BUCKET_BYTES,
    collective: Collective = "direct",
    simulator: Simulator | None = None,
) -> Simulation:
    """Predict one training step.

    Args:
        plan: Which reducer each parameter uses.
        workload: Layers, sizes and compute times.
        hardware: Speeds of kernels and links.
        cluster: Ranks and topology.
        engine: `ddp`, `fsdp` or `overlap` (see `Simulator.run`).
        bucket_bytes: Size at which DDP closes a bucket.
        collective: How bytes travel: `direct` is gradwire's own exchange,
            `ring` the all-reduce of Gloo and NCCL.
        simulator: None chooses by the size of the cluster.

    Raises:
        SpecError: No such engine or collective, or one that this cluster or
            plan cannot have.

    Example:
        >>> from gradwire.hardware import Device, LinkSpeed
        >>> from gradwire.workload import Layer, parameter
        >>> link = LinkSpeed(latency_s=0.0, bandwidth_bytes_per_s=4e6)
        >>> hardware = Hardware(Device(copy_bytes_per_s=1e12), {}, link, link)
        >>> layer = Layer("fc", (parameter("fc.weight", (1000, 1000)),), 0.1, 0.2)
        >>> step = simulate(Plan.of("none"), Workload("one", (layer,)), hardware, Cluster(2))
        >>> round(step.step_s, 2), round(step.exposed_s, 2), step.sent_bytes
        (1.3, 1.0, 4000000)
    """
    chosen = simulator or choose(cluster)
    return chosen.run(plan, workload, hardware, cluster, engine, bucket_bytes, collective)
