"""Transports: carry out phases on a network, message by message or in bulk."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gradwire.hardware import Hardware, LinkSpeed
from gradwire.sim.base import Cluster
from gradwire.sim.events import EventQueue
from gradwire.sim.network import Network, Path
from gradwire.sim.schedules import Exchange, Message, Phase, Ring, Rounds
from gradwire.sim.topology import Fabric

Done = Callable[[], None]


class Wire(NamedTuple):
    """What the software adds to a phase.

    Attributes:
        round_s: From the departure of a message's last byte until its
            receiver can go on.
        overhead: Time of a byte over that of a byte of payload on the link.
    """

    round_s: float
    overhead: float


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may be under way at once; what waits goes by priority, then age.

    Attributes:
        phases: Of each rank.
        in_flight_bytes: Of each rank; a phase that is larger goes alone.
    """

    phases: int | None = None
    in_flight_bytes: float | None = None


class Gate:
    """Lets phases through within limits.

    Args:
        limits: What may be under way.

    Example:
        >>> gate, seen = Gate(Limits(phases=1)), []
        >>> for name in "ab":
        ...     gate.enter(0, 10.0, lambda name=name: seen.append(name))
        >>> seen
        ['a']
        >>> gate.leave(10.0)
        >>> seen
        ['a', 'b']
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._waiting: list[tuple[int, int, float, Done]] = []
        self._entered = 0
        self._phases = 0
        self._num_bytes = 0.0

    def enter(self, priority: int, num_bytes: float, start: Done) -> None:
        """Call `start` as soon as the limits allow."""
        self._entered += 1
        heapq.heappush(self._waiting, (priority, self._entered, num_bytes, start))
        self._admit()

    def leave(self, num_bytes: float) -> None:
        """Make room: a phase has ended."""
        self._phases -= 1
        self._num_bytes -= num_bytes
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._has_room(self._waiting[0][2]):
            _, _, num_bytes, start = heapq.heappop(self._waiting)
            self._phases += 1
            self._num_bytes += num_bytes
            start()

    def _has_room(self, num_bytes: float) -> bool:
        most, credit = self._limits.phases, self._limits.in_flight_bytes
        if self._phases == 0:
            return True
        if most is not None and self._phases >= most:
            return False
        return credit is None or self._num_bytes + num_bytes <= credit


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
        self._network = Network(wiring.queue, [1.0])
        self._seconds: dict[tuple[Phase, int], float] = {}

    def _path(self, phase: Phase, number: int) -> tuple[Path, float]:
        """Return the one link that stands for all, and the seconds that it takes."""
        seconds = self._seconds.get((phase, number))
        if seconds is None:
            fabric = self._wiring.fabric
            if isinstance(phase, Rounds):
                loads = fabric.loads(phase.messages(number)).items()
                seconds = max((b / fabric.rates[link] for link, b in loads), default=0.0)
            else:
                seconds = fabric.seconds(phase)
            self._seconds[phase, number] = seconds
        return ((0, 1.0),), seconds


class MessageTransport:
    """Carries out every message as a flow of its own.

    A message starts once its sender is done with all earlier rounds and its
    receivers have posted the phase; messages between the same ranks go one after the other,
    as on one connection.

    Args:
        wiring: Links.
        limits: What each rank may have under way.
    """

    def __init__(self, wiring: Wiring, limits: Limits) -> None:
        self._wiring = wiring
        self._gates = [Gate(limits) for _ in range(wiring.cluster.ranks)]
        self._phases: dict[Hashable, _Progress] = {}
        self._lines: defaultdict[tuple[int, tuple[int, ...]], _Connection] = defaultdict(
            _Connection
        )
        self.link_bytes: dict[str, float] = {}

    def post(self, rank: int, key: Hashable, phase: Phase, done: Done, priority: int) -> None:
        """See `Transport.post`."""
        progress = self._phases.get(key)
        if progress is None:
            progress = self._phases[key] = _Progress(phase, self._wiring.wire(phase), priority)
        gate, size = self._gates[rank], phase.sent_bytes(rank)

        def over() -> None:
            gate.leave(size)
            done()

        progress.done[rank] = over
        progress.posted.add(rank)
        gate.enter(priority, size, lambda: self._begin(progress, rank))
        for message in progress.parked.pop(rank, []):
            self._offer(progress, message)

    def _begin(self, progress: _Progress, rank: int) -> None:
        progress.begun.add(rank)
        self._advance(progress, rank)

    def _advance(self, progress: _Progress, rank: int) -> None:
        """Send what a rank can send by now, and see whether its part is over."""
        if rank not in progress.begun or rank not in progress.done:
            return
        for number, message in progress.sendable(rank):
            self._offer(progress, (number, message))
        if progress.is_over(rank):
            progress.done.pop(rank)()

    def _offer(self, progress: _Progress, numbered: tuple[int, Message]) -> None:
        """Start a message when all its receivers are there and its line is free."""
        message = numbered[1]
        absent = [t for t in message.targets if t not in progress.posted]
        if absent:
            progress.parked[absent[0]].append(numbered)
            return
        line = self._lines[message.source, message.targets]
        line.add(progress.priority, lambda: self._start(progress, numbered, line))

    def _start(self, progress: _Progress, numbered: tuple[int, Message], line: _Connection) -> None:
        number, (source, targets, num_bytes) = numbered
        fabric, wire = self._wiring.fabric, progress.wire
        links = dict.fromkeys(link for t in targets for link in fabric.route(source, t))
        for link in links:
            name = fabric.names[link]
            self.link_bytes[name] = self.link_bytes.get(name, 0.0) + num_bytes

        def sent() -> None:
            line.free()
            self._wiring.queue.after(wire.round_s, arrived)
            progress.left[source][number] -= 1
            self._advance(progress, source)

        def arrived() -> None:
            for target in targets:
                progress.left[target][number] -= 1
                self._advance(progress, target)

        path = tuple((link, wire.overhead) for link in links)
        self._wiring.network.start(path, num_bytes, sent)


class _Connection:
    """Messages from one rank to another, one after the other."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, Done]] = []
        self._entered = 0
        self._is_busy = False

    def add(self, priority: int, start: Done) -> None:
        self._entered += 1
        heapq.heappush(self._waiting, (priority, self._entered, start))
        self._next()

    def free(self) -> None:
        self._is_busy = False
        self._next()

    def _next(self) -> None:
        if self._waiting and not self._is_busy:
            self._is_busy = True
            heapq.heappop(self._waiting)[2]()


class _Progress:
    """How far each rank has come in a phase."""

    def __init__(self, phase: Phase, wire: Wire, priority: int) -> None:
        self.wire = wire
        self.priority = priority
        self.begun: set[int] = set()
        self.done: dict[int, Done] = {}
        self.posted: set[int] = set()
        self.parked: defaultdict[int, list[tuple[int, Message]]] = defaultdict(list)
        rounds = phase.num_rounds
        self._rounds = rounds
        self._sends: defaultdict[int, list[tuple[int, Message]]] = defaultdict(list)
        self.left: defaultdict[int, list[int]] = defaultdict(lambda: [0] * rounds)
        self._reached: defaultdict[int, int] = defaultdict(int)
        for number in range(rounds):
            for message in phase.messages(number):
                self._sends[message.source].append((number, message))
                for rank in (message.source, *message.targets):
                    self.left[rank][number] += 1
        for sends in self._sends.values():
            sends.reverse()

    def sendable(self, rank: int) -> list[tuple[int, Message]]:
        """Take the messages of the first round of which something is left."""
        left, reached = self.left[rank], self._reached[rank]
        while reached < self._rounds and not left[reached]:
            reached += 1
        self._reached[rank] = reached
        sends, out = self._sends[rank], []
        while sends and sends[-1][0] <= reached:
            out.append(sends.pop())
        return out

    def is_over(self, rank: int) -> bool:
        """Whether a rank has sent and received everything."""
        return self._reached[rank] == self._rounds
