"""Transports: carry out phases on the links of a cluster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple, Protocol

from gradwire.hardware import Hardware, Line, LinkSpeed
from gradwire.sim.base import Cluster
from gradwire.sim.cores import Cores
from gradwire.sim.events import EventQueue
from gradwire.sim.gate import Done, Gate, Limits
from gradwire.sim.lanes import Work
from gradwire.sim.network import Network, Path
from gradwire.sim.schedules import Exchange, Phase, Ring, Rounds
from gradwire.sim.topology import Fabric

_COUNTED_RANKS = 128
"""Of more ranks that are alike, bytes by link are not added up: it would take longer."""
_NO_WORK = Line(0.0, 0.0)


class Wire(NamedTuple):
    """What the software adds to a phase.

    Attributes:
        round_s: From the departure of a message's last byte until its
            receiver can go on.
        overhead: Time of a byte over that of a byte of payload on the link.
        work_s: Processor time of a message at its receiver, part of `round_s`.
        work_s_per_byte: Processor time of a byte, of sender and receiver.
    """

    round_s: float
    overhead: float
    work_s: float = 0.0
    work_s_per_byte: float = 0.0


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
        count = cluster.shared_cores
        self.cores = Cores(self.network, self.fabric, count) if count else None
        for node, trace in cluster.traces.items():
            for time_s, rate in zip(trace.times_s, trace.rates_bytes_per_s, strict=True):
                queue.at(time_s, self._change(node, rate))

    def _change(self, node: int, rate: float) -> Done:
        def change() -> None:
            for link in self.fabric.change(node, rate):
                self.network.changed(link)

        return change

    def threads(self, rank: int) -> tuple[Work, Work]:
        """Return a rank's threads: the one that computes, and the one that encodes."""
        if self.cores is None:
            return self.queue.after, self.queue.after
        return self.cores.thread(f"rank{rank} computes"), self.cores.thread(f"rank{rank} encodes")

    def start(self, links: Iterable[int], num_bytes: float, wire: Wire, sent: Done) -> None:
        """Send a message over links, with what it takes of the cores."""
        path = tuple((link, wire.overhead) for link in links)
        if self.cores is None or not wire.work_s_per_byte:
            self.network.start(path, num_bytes, sent)
            return
        carried = self.cores.carried(path, wire.work_s_per_byte)
        self.network.start(carried, num_bytes * wire.work_s_per_byte, sent)

    def deliver(self, rank: int, wire: Wire, arrived: Done) -> None:
        """Take a message whose last byte has been sent from the link to its receiver."""
        if self.cores is None or not wire.work_s:
            self.queue.after(wire.round_s, arrived)
            return
        thread = self.cores.thread(f"rank{rank} receives")
        self.queue.after(wire.round_s - wire.work_s, lambda: thread(wire.work_s, arrived))

    def wire(self, phase: Phase) -> Wire:
        """Return the measured cost of a kind of phase, or the link's latency."""
        first, last = phase.span
        is_within = self.cluster.node(first) == self.cluster.node(last)
        link = self._hardware.within if is_within else self._hardware.between
        return _calibrated(phase, link)


def _calibrated(phase: Phase, link: LinkSpeed) -> Wire:
    name = {Ring: "all_reduce", Exchange: "exchange"}.get(type(phase), "")
    line = link.collectives.get(name) if link.ranks > 1 else None
    if line is None:
        return Wire(link.latency_s, 1.0)
    others = link.ranks - 1
    is_ring = isinstance(phase, Ring)
    rounds = 2 * others if is_ring else 1
    bytes_each = 2 * others / link.ranks if is_ring else 1.0
    overhead = line.s_per_byte * link.bandwidth_bytes_per_s / bytes_each
    round_s = line.fixed_s / rounds
    work = link.processor.get(name, _NO_WORK)
    messages = rounds if is_ring else others
    return Wire(
        round_s,
        max(1.0, overhead),
        min(round_s, work.fixed_s / messages),
        work.s_per_byte / bytes_each,
    )


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
