"""MessageTransport: every message is a flow of its own."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Hashable

from gradwire.sim.gate import Done, Gate, Limits
from gradwire.sim.schedules import Message, Phase
from gradwire.sim.transport import Wire, Wiring


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
            self._wiring.deliver(targets[0], wire, arrived)
            progress.left[source][number] -= 1
            self._advance(progress, source)

        def arrived() -> None:
            for target in targets:
                progress.left[target][number] -= 1
                self._advance(progress, target)

        self._wiring.start(links, num_bytes, wire, sent)


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
