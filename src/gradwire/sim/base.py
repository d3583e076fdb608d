"""Cluster, Simulator, Simulation: what is simulated, and what comes of it."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

from gradwire.errors import SpecError
from gradwire.hardware import Hardware
from gradwire.plan import Plan
from gradwire.spec import check_number, check_whole
from gradwire.timeline import Timeline
from gradwire.workload import BUCKET_BYTES, Workload

Topology = Literal["star", "ring", "tree", "mesh", "torus"]
Engine = Literal["ddp", "fsdp", "overlap"]
Collective = Literal["direct", "ring", "tree", "chain", "multicast", "hierarchical"]
Distribution = Literal["constant", "uniform", "normal", "lognormal", "exponential"]

TOPOLOGIES: tuple[Topology, ...] = ("star", "ring", "tree", "mesh", "torus")
ENGINES: tuple[Engine, ...] = ("ddp", "fsdp", "overlap")
COLLECTIVES: tuple[Collective, ...] = (
    *("direct", "ring", "tree", "chain", "multicast", "hierarchical"),
)
DISTRIBUTIONS: tuple[Distribution, ...] = (
    *("constant", "uniform", "normal", "lognormal", "exponential"),
)


@dataclass(frozen=True, slots=True)
class Trace:
    """Rates of a link that change at given times of the step.

    Attributes:
        times_s: When each rate begins, from the start of the step; ascending.
        rates_bytes_per_s: As many, each above 0. Before the first time the
            link has its usual rate.
    """

    times_s: tuple[float, ...]
    rates_bytes_per_s: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.times_s) != len(self.rates_bytes_per_s):
            raise SpecError("Trace.times_s", self.times_s, "as long as its rates")
        if list(self.times_s) != sorted(self.times_s) or any(t < 0 for t in self.times_s):
            raise SpecError("Trace.times_s", self.times_s, "ascending, from 0 on")
        if any(not rate > 0 for rate in self.rates_bytes_per_s):
            raise SpecError("Trace.rates_bytes_per_s", self.rates_bytes_per_s, "above 0")


@dataclass(frozen=True, slots=True)
class Straggler:
    """Ranks whose computation takes longer, by a factor drawn once for each rank.

    The factor is `1 + scale * x` with `x` from the distribution: 1 (constant),
    uniform on 0 to 1, the magnitude of a standard normal, a standard lognormal
    or a standard exponential variable.

    Attributes:
        ranks: Which ranks; all of them where empty.
    """

    distribution: Distribution = "constant"
    scale: float = 0.0
    ranks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.distribution not in DISTRIBUTIONS:
            raise SpecError(
                "Straggler.distribution", self.distribution, "one of: " + ", ".join(DISTRIBUTIONS)
            )
        check_number("Straggler.scale", self.scale, "a number of at least 0")
        if not self.scale >= 0:
            raise SpecError("Straggler.scale", self.scale, "at least 0")

    def factor(self, rng: random.Random) -> float:
        """Draw a factor."""
        match self.distribution:
            case "constant":
                x = 1.0
            case "uniform":
                x = rng.random()
            case "normal":
                x = abs(rng.gauss())
            case "lognormal":
                x = rng.lognormvariate(0.0, 1.0)
            case "exponential":
                x = rng.expovariate(1.0)
        return 1.0 + self.scale * x


@dataclass(frozen=True, slots=True)
class Cluster:
    """Ranks, the nodes they share, and how nodes are connected.

    Speeds come from `Hardware`: `within` between ranks of one node, `between`
    for each network interface of a node.

    Attributes:
        ranks: Number of ranks; a multiple of `ranks_per_node`.
        ranks_per_node: Consecutive ranks share a node.
        topology: `star`: every node at one ideal switch. `ring`: neighbours are
            connected. `tree`: leaf switches under an ideal spine. `mesh`: a
            line for each pair of nodes. `torus`: a grid as square as possible
            whose edges meet.
        interfaces: Network interfaces of each node; its ranks take turns.
        shared_cores: Cores of the one machine on which all ranks run, as in the
            lab; 0 where each rank has those that it needs.
        nodes_per_leaf: Nodes at each leaf switch of a tree.
        oversubscription: Rate of all nodes of a leaf over that of its uplink.
        is_multicast: Whether switches copy a message to several receivers.
        is_full_duplex: Whether a link carries its rate each way at once.
        rates_bytes_per_s: Rate of each node, where nodes differ; else empty.
        traces: Rates that change, by node.
        stragglers: Ranks that compute more slowly; factors multiply.
        seed: Of the stragglers.

    Example:
        >>> Cluster(ranks=8, ranks_per_node=4).nodes
        2
        >>> Cluster(2, stragglers=(Straggler("constant", 0.5, (1,)),)).slowdowns()
        (1.0, 1.5)
    """

    ranks: int
    ranks_per_node: int = 1
    topology: Topology = "star"
    interfaces: int = 1
    shared_cores: int = 0
    nodes_per_leaf: int = 16
    oversubscription: float = 1.0
    is_multicast: bool = False
    is_full_duplex: bool = True
    rates_bytes_per_s: tuple[float, ...] = ()
    traces: Mapping[int, Trace] = field(default_factory=dict)
    stragglers: tuple[Straggler, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("ranks", "ranks_per_node", "interfaces", "nodes_per_leaf"):
            check_whole(f"Cluster.{name}", getattr(self, name), 1)
        check_whole("Cluster.shared_cores", self.shared_cores, 0)
        if self.ranks % self.ranks_per_node:
            raise SpecError("Cluster.ranks", self.ranks, f"a multiple of {self.ranks_per_node}")
        if self.topology not in TOPOLOGIES:
            raise SpecError("Cluster.topology", self.topology, "one of: " + ", ".join(TOPOLOGIES))
        if not self.oversubscription >= 1:
            raise SpecError("Cluster.oversubscription", self.oversubscription, "at least 1")
        if self.rates_bytes_per_s and len(self.rates_bytes_per_s) != self.nodes:
            raise SpecError(
                "Cluster.rates_bytes_per_s", self.rates_bytes_per_s, f"{self.nodes} rates"
            )
        if any(not rate > 0 for rate in self.rates_bytes_per_s):
            raise SpecError("Cluster.rates_bytes_per_s", self.rates_bytes_per_s, "above 0")
        for node in self.traces:
            check_whole("Cluster.traces", node, 0, self.nodes - 1)
        for rank in (r for s in self.stragglers for r in s.ranks):
            check_whole("Straggler.ranks", rank, 0, self.ranks - 1)

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.ranks // self.ranks_per_node

    def node(self, rank: int) -> int:
        """Return the node of a rank."""
        return rank // self.ranks_per_node

    def slowdowns(self) -> tuple[float, ...]:
        """Draw each rank's factor of computing time, the same ones for a seed."""
        factors = [1.0] * self.ranks
        rng = random.Random(self.seed)  # noqa: S311 - a simulation
        for straggler in self.stragglers:
            for rank in straggler.ranks or range(self.ranks):
                factors[rank] *= straggler.factor(rng)
        return tuple(factors)

    @property
    def is_alike(self) -> bool:
        """Whether every rank computes and sends as fast as every other."""
        return not self.stragglers and not self.traces and len(set(self.rates_bytes_per_s)) <= 1


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a simulated step came to.

    Attributes:
        timeline: What each simulated rank did; rank 0's alone where ranks are
            alike and one stands for all.
        link_bytes: Payload that crossed each link, by its name; empty for more
            than 128 ranks of which one stands for all.
        events: Events that were processed: the cost of the simulation.
        work_s: Computing, encoding and copying of the busiest rank: what its
            step takes of a processor.
    """

    timeline: Timeline
    link_bytes: Mapping[str, float]
    events: int
    ranks: int
    work_s: float = 0.0

    @property
    def step_s(self) -> float:
        """From the start of a step to the start of the next."""
        return self.timeline.step_s

    @property
    def exposed_s(self) -> float:
        """Longest time that a rank's computation was idle for gradients."""
        return max(map(self.timeline.wait_s, self._ranks()), default=0.0)

    @property
    def sent_bytes(self) -> int:
        """Payload of the busiest rank."""
        return max(map(self.timeline.sent_bytes, self._ranks()), default=0)

    def row(self, rank: int = 0) -> float | None:
        """Return overlap over wait of a rank (see `Timeline.row`)."""
        return self.timeline.row(rank)

    def _ranks(self) -> list[int]:
        return sorted({span.rank for span in self.timeline.spans})

    def to_json(self) -> str:
        """Write everything as one JSON object."""
        data: dict[str, Any] = {
            "format": 1,
            "ranks": self.ranks,
            "step_s": self.step_s,
            "exposed_s": self.exposed_s,
            "row": self.row(),
            "sent_bytes": self.sent_bytes,
            "events": self.events,
            "work_s": self.work_s,
            "link_bytes": dict(self.link_bytes),
            "timeline": asdict(self.timeline),
        }
        return json.dumps(data, sort_keys=True)


class Simulator(Protocol):
    """Predicts one training step."""

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
        """Simulate a step in the steady state.

        Args:
            plan: Which reducer each parameter uses.
            workload: Layers, sizes and compute times.
            hardware: Speeds of kernels and links.
            cluster: Ranks and topology.
            engine: `ddp`: every gradient is there before the optimiser.
                `fsdp`: parameters are gathered before each layer, gradients
                scattered. `overlap`: a layer's forward waits for its own
                gradient only.
            bucket_bytes: Size at which DDP closes a bucket.
            collective: How bytes travel. `direct` is gradwire's own exchange;
                `ring` is Gloo's and NCCL's all-reduce, which plain DDP and its
                hooks use, and gradwire for plan `none` with two ranks.
        """
