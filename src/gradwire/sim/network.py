"""Network: flows that share links max-min fairly, on an event queue."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby

from gradwire.sim.events import EventQueue

Path = tuple[tuple[int, float], ...]
"""Links, and how many bytes cross each for one byte of the flow."""


def max_min(
    paths: Sequence[Path], rates: Mapping[int, float], priorities: Sequence[int] | None = None
) -> list[float]:
    """Return each flow's rate: none can grow but at the cost of a smaller one.

    Progressive filling: all rates grow alike until a link is full, whose flows
    then keep theirs. A link's share only grows as others fill up, so a heap of
    shares that are looked at again when they come up suffices: the cost is
    `O(n log n)` in crossings of flows and links.

    Args:
        paths: Links of each flow; a flow without links is not limited.
        rates: Bytes per second of each link, finite.
        priorities: Flows of a lower number take what they can before the
            others get what is left; None for all alike.

    Source: Bertsekas and Gallager, Data Networks, section 6.5.2.

    Example:
        >>> max_min([((0, 1.0),), ((0, 1.0), (1, 1.0)), ((1, 1.0),)], {0: 2.0, 1: 10.0})
        [1.0, 1.0, 9.0]
    """
    out = [math.inf] * len(paths)
    left = dict(rates)
    order = sorted(range(len(paths)), key=lambda i: priorities[i] if priorities else 0)
    for _, flows in groupby(order, key=lambda i: priorities[i] if priorities else 0):
        _fill(list(flows), paths, left, out)
    return out


def _fill(
    flows: Sequence[int], paths: Sequence[Path], left: dict[int, float], out: list[float]
) -> None:
    weights: dict[int, float] = {}
    crossing: dict[int, list[int]] = {}
    for flow in flows:
        for link, weight in paths[flow]:
            weights[link] = weights.get(link, 0.0) + weight
            crossing.setdefault(link, []).append(flow)
    heap = [(left[link] / weight, link) for link, weight in weights.items()]
    heapq.heapify(heap)
    unset = {flow for flow in flows if paths[flow]}
    while unset:
        share, link = heapq.heappop(heap)
        members = [f for f in crossing[link] if f in unset]
        if not members:
            continue
        now = left[link] / weights[link]
        if now > share and heap and now > heap[0][0]:
            heapq.heappush(heap, (now, link))
            continue
        for flow in members:
            unset.discard(flow)
            out[flow] = now
            for other, weight in paths[flow]:
                left[other] = max(0.0, left[other] - now * weight)
                weights[other] -= weight


class _Flow:
    __slots__ = ("done", "due", "left", "path", "priority", "rate", "since_s")

    def __init__(
        self, path: Path, num_bytes: float, done: Callable[[], None], priority: int
    ) -> None:
        self.path = path
        self.left = num_bytes
        self.done = done
        self.priority = priority
        self.rate = 0.0
        self.since_s = 0.0
        self.due = 0


class Network:
    """Links with rates, and the flows on them.

    When flows come or go, only those are looked at that share links with
    them, directly or through others; and once for all changes of one time.

    Args:
        queue: The clock.
        rates: Bytes per second of each link, by number; infinity for no limit.
            Looked at anew in every sharing: links may be added.

    Example:
        >>> queue, seen = EventQueue(), []
        >>> network = Network(queue, [100.0])
        >>> for name in "ab":
        ...     network.start(((0, 1.0),), 100.0, lambda name=name: seen.append(name))
        >>> queue.run()
        >>> seen, queue.now_s
        (['a', 'b'], 2.0)
    """

    def __init__(self, queue: EventQueue, rates: Sequence[float]) -> None:
        self._queue = queue
        self._rates = rates
        self._flows: defaultdict[int, dict[_Flow, None]] = defaultdict(dict)
        self._changed: dict[int, None] = {}
        self.num_bytes: defaultdict[int, float] = defaultdict(float)

    def start(
        self, path: Path, num_bytes: float, done: Callable[[], None], priority: int = 0
    ) -> None:
        """Send bytes; `done` is called when the last one has left the last link.

        Args:
            path: Links to cross, each once.
            num_bytes: Size.
            done: Called without arguments.
            priority: Flows of a lower number go first.
        """
        for link, weight in path:
            self.num_bytes[link] += weight * num_bytes
        limited = tuple((n, w) for n, w in path if w > 0 and self._rates[n] < math.inf)
        if num_bytes <= 0 or not limited:
            self._queue.after(0.0, done)
            return
        flow = _Flow(limited, num_bytes, done, priority)
        flow.since_s = self._queue.now_s
        for link, _ in limited:
            self._flows[link][flow] = None
        self._mark(n for n, _ in limited)

    def changed(self, link: int) -> None:
        """Share a link anew whose rate has changed."""
        self._mark([link])

    def _mark(self, links: Iterable[int]) -> None:
        if not self._changed:
            self._queue.settle(self._share)
        self._changed.update(dict.fromkeys(links))

    def _affected(self) -> list[_Flow]:
        links, flows = list(self._changed), dict[_Flow, None]()
        seen = set(links)
        for link in links:  # grows as we go
            for flow in self._flows[link]:
                if flow not in flows:
                    flows[flow] = None
                    new = [n for n, _ in flow.path if n not in seen]
                    seen.update(new)
                    links.extend(new)
        self._changed.clear()
        return list(flows)

    def _share(self) -> None:
        flows, now_s = self._affected(), self._queue.now_s
        if not flows:
            return
        links = {n: self._rates[n] for flow in flows for n, _ in flow.path}
        rates = max_min([f.path for f in flows], links, [f.priority for f in flows])
        for flow, rate in zip(flows, rates, strict=True):
            if rate == flow.rate:
                continue
            flow.left -= flow.rate * (now_s - flow.since_s)
            flow.rate, flow.since_s = rate, now_s
            flow.due += 1
            if rate > 0:
                self._queue.after(max(flow.left, 0.0) / rate, self._ending(flow, flow.due))

    def _ending(self, flow: _Flow, due: int) -> Callable[[], None]:
        def end() -> None:
            if flow.due != due:
                return  # its rate has changed since
            for link, _ in flow.path:
                del self._flows[link][flow]
            self._mark(n for n, _ in flow.path)
            flow.done()

        return end
