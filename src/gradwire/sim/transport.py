"""Transports: carry out phases on the links of a cluster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import NamedTuple, Protocol

from gradwire.hardware import Hardware, LinkSpeed
from gradwire.sim.base import Cluster
from gradwire.sim.events import EventQueue
from gradwire.sim.gate import Done, Gate, Limits
from gradwire.sim.network import Network, Path
from gradwire.sim.schedules import Exchange, Phase, Ring, Rounds
from gradwire.sim.topology import Fabric

_COUNTED_RANKS = 128
"""Of more ranks that are alike, bytes by link are not added up: it would take longer."""


class Wire(NamedTuple):
    """What the software adds to a phase.

    Attributes:
        round_s: From the departure of a message's last byte until its
            receiver can go on.
        overhead: Time of a byte over that of a byte of payload on the link.
    """

    round_s: float
    overhead: float


class Transport(Protocol):
    """Carries out phases."""

    link_bytes: dict[str, float]

    def post(self, rank: int, key: Hashable, phase: Phase, done: Done, priority: int) -> None:
        """Take part in a phase, and hear when this rank's part of it is over.

        Args:
            rank: Who.
            key: Names the phase, alike on all ranks.
            phase: What travels.
            done: Called without arguments.
            priority: A lower number goes first.
        """


class Wiring:
    """The links of a cluster on a clock, and what software adds to them.

    Args:
        queue: The clock.
        cluster: Ranks and topology.
        hardware: Speeds of links and of the back end's collectives.
    """

    def __init__(self, queue: EventQueue, cluster: Cluster, hardware: Hardware) -> None:
        self.queue = queue
        self.cluster = cluster
        self.fabric = Fabric(cluster, hardware)
        self.network = Network(queue, self.fabric.rates)
        self._hardware = hardware
        for node, trace in cluster.traces.items():
            for time_s, rate in zip(trace.times_s, trace.rates_bytes_per_s, strict=True):
                queue.at(time_s, self._change(node, rate))

    def _change(self, node: int, rate: float) -> Done:
        def change() -> None:
            for link in self.fabric.change(node, rate):
                self.network.changed(link)

        return change

    def wire(self, phase: Phase) -> Wire:
        """Return the measured cost of a kind of phase, or the link's latency."""
        first, last = phase.span
        is_within = self.cluster.node(first) == self.cluster.node(last)
        link = self._hardware.within if is_within else self._hardware.between
        return _calibrated(phase, link)


def _calibrated(phase: Phase, link: LinkSpeed) -> Wire:
    name = {Ring: "all_reduce", Exchange: "exchange"}.get(type(phase))
    line = link.collectives.get(name) if name and link.ranks > 1 else None
    if line is None:
        return Wire(link.latency_s, 1.0)
    others = link.ranks - 1
    is_ring = isinstance(phase, Ring)
    rounds = 2 * others if is_ring else 1
    bytes_each = 2 * others / link.ranks if is_ring else 1.0
    overhead = line.s_per_byte * link.bandwidth_bytes_per_s / bytes_each
    return Wire(line.fixed_s / rounds, max(1.0, overhead))


class BulkTransport:
    """Carries out each phase as one flow over all links that it uses.

    Its messages advance in step, as they do where ranks are alike; it begins
    once every rank has posted it. A phase costs two events and a look at each
    link, however many messages it has.

    Args:
        wiring: Links.
        limits: What may be under way.
        ranks: How many post each phase.
    """

    def __init__(self, wiring: Wiring, limits: Limits, ranks: int) -> None:
        self._wiring = wiring
        self._gate = Gate(limits)
        self._ranks = ranks
        self._posted: defaultdict[Hashable, list[Done]] = defaultdict(list)
        self._network = wiring.network
        self._loads: dict[tuple[Phase, int], dict[int, float]] = {}
        self.link_bytes: dict[str, float] = {}

    def post(self, rank: int, key: Hashable, phase: Phase, done: Done, priority: int) -> None:
        """See `Transport.post`."""
        waiting = self._posted[key]
        waiting.append(done)
        if len(waiting) < self._ranks:
            return
        del self._posted[key]
        size = phase.sent_bytes(rank)
        self._gate.enter(priority, size, lambda: self._run(phase, 0, size, waiting))

    def _run(self, phase: Phase, number: int, size: float, waiting: Sequence[Done]) -> None:
        """Run a round of written out messages, or a phase whose rounds are alike at once."""
        is_last = not isinstance(phase, Rounds) or number + 1 >= phase.num_rounds
        rounds = 1 if isinstance(phase, Rounds) else phase.num_rounds
        wire = self._wiring.wire(phase)
        path, num_bytes = self._path(phase, number)
        queue = self._wiring.queue

        def arrive() -> None:
            if not is_last:
                self._run(phase, number + 1, size, waiting)
                return
            for done in waiting:
                done()

        def sent() -> None:
            if is_last:
                self._gate.leave(size)
            queue.after(rounds * wire.round_s, arrive)

        loaded = tuple((link, weight * wire.overhead) for link, weight in path)
        self._network.start(loaded, num_bytes, sent)

    def _path(self, phase: Phase, number: int) -> tuple[Path, float]:
        """Return the links, and the bytes that cross the busiest of them."""
        fabric = self._wiring.fabric
        loads = self._loads.get((phase, number))
        if loads is None:
            is_written = isinstance(phase, Rounds)
            loads = fabric.loads(phase.messages(number)) if is_written else fabric.loads_of(phase)
            self._loads[phase, number] = loads
        for link, load in loads.items():
            name = fabric.names[link]
            self.link_bytes[name] = self.link_bytes.get(name, 0.0) + load
        most = max(loads.values(), default=0.0)
        return tuple((link, load / most) for link, load in loads.items() if load), most


class AlikeTransport(BulkTransport):
    """Carries out phases for one rank that stands for all.

    All that counts of the links is how long the slowest one takes.
    """

    def __init__(self, wiring: Wiring, limits: Limits) -> None:
        super().__init__(wiring, limits, 1)
        self._network = Network(wiring.queue, [1.0, 1.0])  # within a node, and between nodes
        self._seconds: dict[tuple[Phase, int], float] = {}
        self._is_counted = wiring.cluster.ranks <= _COUNTED_RANKS

    def _path(self, phase: Phase, number: int) -> tuple[Path, float]:
        """Return the link that stands for all of its kind, and the seconds that it takes."""
        if self._is_counted:
            super()._path(phase, number)
        seconds = self._seconds.get((phase, number))
        if seconds is None:
            fabric = self._wiring.fabric
            if isinstance(phase, Rounds):
                loads = fabric.loads(phase.messages(number)).items()
                seconds = max((b / fabric.rates[link] for link, b in loads), default=0.0)
            else:
                seconds = fabric.seconds(phase)
            self._seconds[phase, number] = seconds
        first, last = map(self._wiring.cluster.node, phase.span)
        return ((int(first != last), 1.0),), seconds
