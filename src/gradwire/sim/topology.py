"""Fabric: the links of a cluster, and which of them a message crosses."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Protocol

from gradwire.hardware import Hardware
from gradwire.sim.base import Cluster
from gradwire.sim.schedules import Exchange, Message, Phase, Ring


class Port(Protocol):
    """Finds a link of a rank."""

    def __call__(self, rank: int, *, is_out: bool) -> int:
        """Return the link's number."""


_COUNTED_RANKS = 64
"""Above it, exchanges over many hops are not counted pair by pair."""


class Fabric:
    """Links by number, with a name and a rate each; made as messages need them.

    Args:
        cluster: Ranks and topology.
        hardware: Rates and latencies, within a node and between nodes.

    Example:
        >>> from gradwire.hardware import Device, LinkSpeed
        >>> speed = LinkSpeed(1e-5, 1e9)
        >>> fabric = Fabric(Cluster(4), Hardware(Device(), {}, speed, speed))
        >>> [fabric.names[link] for link in fabric.route(0, 3)]
        ['node0>', '>node3']
    """

    def __init__(self, cluster: Cluster, hardware: Hardware) -> None:
        self.cluster = cluster
        self.names: list[str] = []
        self.rates: list[float] = []
        self._numbers: dict[str, int] = {}
        self._within = hardware.within
        usual = (hardware.between.bandwidth_bytes_per_s,) * cluster.nodes
        self._node_rates = list(cluster.rates_bytes_per_s or usual)
        self._grid = _grid(cluster.nodes) if cluster.topology == "torus" else (1, cluster.nodes)
        self.route = cache(self._route)

    def change(self, node: int, rate_bytes_per_s: float) -> list[int]:
        """Give a node another rate, and return its links."""
        self._node_rates[node] = rate_bytes_per_s
        changed = []
        for name, link in self._numbers.items():
            owners = _nodes(name)
            if node in owners:
                self.rates[link] = min(self._node_rates[n] for n in owners)
                changed.append(link)
        return changed

    def _route(self, source: int, target: int) -> tuple[int, ...]:
        """Return the links from one rank to another, in order."""
        a, b = self.cluster.node(source), self.cluster.node(target)
        if a == b:
            return self._own_port(source, is_out=True), self._own_port(target, is_out=False)
        if self.cluster.topology in ("star", "tree"):
            first = self._interface(source, is_out=True)
            return first, *self._spine(a, b), self._interface(target, is_out=False)
        return tuple(self._edge(x, y) for x, y in self._hops(a, b))

    def add(self, name: str, rate: float) -> int:
        """Return the number of something else that flows share, made if it is new."""
        return self._link(name, rate)

    def _link(self, name: str, rate: float) -> int:
        if name not in self._numbers:
            self._numbers[name] = len(self.names)
            self.names.append(name)
            self.rates.append(rate)
        return self._numbers[name]

    def _port(self, owner: str, rate: float, *, is_out: bool) -> int:
        """Return a port's way out or in, which are one link at half duplex."""
        if not self.cluster.is_full_duplex:
            return self._link(owner, rate)
        return self._link(f"{owner}>" if is_out else f">{owner}", rate)

    def _own_port(self, rank: int, *, is_out: bool) -> int:
        return self._port(f"rank{rank}", self._within.bandwidth_bytes_per_s, is_out=is_out)

    def _interface(self, rank: int, *, is_out: bool) -> int:
        cluster, node = self.cluster, self.cluster.node(rank)
        number = rank % cluster.ranks_per_node % cluster.interfaces
        owner = f"node{node}" + (f".{number}" if cluster.interfaces > 1 else "")
        return self._port(owner, self._node_rates[node], is_out=is_out)

    def _edge(self, source: int, target: int) -> int:
        if not self.cluster.is_full_duplex:
            source, target = sorted((source, target))
        rate = min(self._node_rates[source], self._node_rates[target])
        return self._link(f"node{source}>node{target}", rate)

    def _spine(self, source: int, target: int) -> tuple[int, ...]:
        a, b = self._leaf(source), self._leaf(target)
        return () if a == b else (self._uplink(a, is_out=True), self._uplink(b, is_out=False))

    def _leaf(self, node: int) -> int:
        is_tree = self.cluster.topology == "tree"
        return node // self.cluster.nodes_per_leaf if is_tree else 0

    def _uplink(self, leaf: int, *, is_out: bool) -> int:
        cluster, size = self.cluster, self.cluster.nodes_per_leaf
        rate = sum(self._node_rates[leaf * size : (leaf + 1) * size]) * cluster.interfaces
        return self._port(f"leaf{leaf}", rate / cluster.oversubscription, is_out=is_out)

    def _hops(self, source: int, target: int) -> Iterator[tuple[int, int]]:
        """Return the edges a message crosses, along rows first, the short way round."""
        if self.cluster.topology == "mesh":
            yield source, target
            return
        columns = self._grid[1]
        place, goal = [*divmod(source, columns)], divmod(target, columns)
        for axis in (1, 0):
            size = self._grid[axis]
            ahead = (goal[axis] - place[axis]) % size
            step = 1 if 2 * ahead <= size else -1
            while place[axis] != goal[axis]:
                before = place[0] * columns + place[1]
                place[axis] = (place[axis] + step) % size
                yield before, place[0] * columns + place[1]

    def loads(self, messages: Iterable[Message]) -> dict[int, float]:
        """Return the bytes that cross each link."""
        out: defaultdict[int, float] = defaultdict(float)
        for source, targets, num_bytes in messages:
            for link in dict.fromkeys(n for t in targets for n in self.route(source, t)):
                out[link] += num_bytes
        return out

    def loads_of(self, phase: Phase) -> dict[int, float]:
        """Return the bytes that cross each link in a whole phase.

        An exchange of more than 64 ranks over a ring, mesh or torus counts as
        if everyone owned as much as the average.
        """
        if isinstance(phase, Exchange) and self.cluster.topology in ("star", "tree"):
            return self._switched(phase)
        if isinstance(phase, Exchange) and self.cluster.ranks > _COUNTED_RANKS:
            return self._averaged(phase)
        return self.loads(phase.totals())

    def _switched(self, phase: Exchange) -> dict[int, float]:
        """Add up an exchange through switches rank by rank, not pair by pair."""
        out: defaultdict[int, float] = defaultdict(float)
        ports: tuple[Port, ...] = (self._own_port, self._interface, self._rank_uplink)
        for group in phase.groups:
            places = [(0, self.cluster.node(r), self._leaf(self.cluster.node(r))) for r in group]
            sums: list[defaultdict[int, list[float]]] = [
                defaultdict(lambda: [0.0, 0.0]) for _ in ports
            ]
            for rank, place in zip(group, places, strict=True):
                for level, name in zip(sums, place, strict=True):
                    level[name][0] += phase.sizes[rank]
                    level[name][1] += 1
            total, count = sums[0][0]
            for rank, (_, node, leaf) in zip(group, places, strict=True):
                own, near, around = phase.sizes[rank], sums[1][node], sums[2][leaf]
                others = (
                    (near[0] - own, near[1] - 1),
                    (total - near[0], count - near[1]),
                    (total - around[0], count - around[1]),
                )
                for port, (owned, ranks) in zip(ports, others, strict=True):
                    moved = owned, own * ranks
                    for is_out, num_bytes in zip(
                        (phase.is_to_owner, not phase.is_to_owner), moved, strict=True
                    ):
                        if num_bytes:
                            out[port(rank, is_out=is_out)] += num_bytes * phase.fraction
        return out

    def _rank_uplink(self, rank: int, *, is_out: bool) -> int:
        return self._uplink(self._leaf(self.cluster.node(rank)), is_out=is_out)

    def _averaged(self, phase: Exchange) -> dict[int, float]:
        """Count what crosses the first node's links: all places are alike."""
        cluster, group = self.cluster, phase.groups[0]
        pairs = len(phase.groups) * len(group) * (len(group) - 1)
        per_pair = sum(map(phase.sent_bytes, range(cluster.ranks))) / pairs
        rows, columns = self._grid
        out: defaultdict[int, float] = defaultdict(float)
        for target in group:
            for a, b in self._hops(0, cluster.node(target)):
                (r, c), (s, d) = divmod(a, columns), divmod(b, columns)
                beside = (s - r) % rows * columns + (d - c) % columns
                out[self._edge(0, beside)] += per_pair * cluster.ranks_per_node
        return out

    def seconds(self, phase: Phase) -> float:
        """Return how long the link takes that takes longest, where nodes are alike."""
        is_switched = self.cluster.topology in ("star", "tree") and self.cluster.is_full_duplex
        if is_switched and isinstance(phase, Ring) and len(phase.groups) == 1:
            sent = phase.laps * (sum(phase.sizes) - min(phase.sizes)) * phase.fraction
            ends = {(0, 1), (self.cluster.ranks - 2, self.cluster.ranks - 1), phase.span}
            return max(sent / self.rates[link] for a, b in ends for link in self.route(a, b))
        if is_switched and isinstance(phase, Exchange):
            if len(phase.groups) == 1:
                return self._world_seconds(phase) * phase.fraction
            return self._group_seconds(phase)
        loads = self.loads_of(phase)
        return max((load / self.rates[link] for link, load in loads.items()), default=0.0)

    def _world_seconds(self, phase: Exchange) -> float:
        """Look at the links of each rank, node and leaf, one sum for each."""
        cluster, sizes = self.cluster, phase.sizes
        total, ranks, each = sum(sizes), cluster.ranks, cluster.ranks_per_node
        owned = _sums(sizes, each)
        rate = self._node_rates[0] * cluster.interfaces
        busiest = max(each * (total - min(owned)), (ranks - each) * max(owned)) / rate
        if each > 1:
            most = max(max(owned) - min(sizes), (each - 1) * max(sizes))
            busiest = max(busiest, most / self._within.bandwidth_bytes_per_s)
        if cluster.topology == "tree":
            size = cluster.nodes_per_leaf * each
            for leaf, inside in enumerate(_sums(sizes, size)):
                count = min(size, ranks - leaf * size)
                most = max(count * (total - inside), (ranks - count) * inside)
                busiest = max(busiest, most / self.rates[self._uplink(leaf, is_out=True)])
        return busiest

    def _group_seconds(self, phase: Exchange) -> float:
        """Look at the first node alone: within it, or between it and the others."""
        cluster = self.cluster
        first = range(cluster.ranks_per_node)
        moved = [(phase.sent_bytes(r), phase.received_bytes(r)) for r in first]
        if cluster.node(phase.span[1]) == cluster.node(phase.span[0]):
            return max(map(max, moved)) / self._within.bandwidth_bytes_per_s
        most = max(sum(sent for sent, _ in moved), sum(received for _, received in moved))
        seconds = most / (self._node_rates[0] * cluster.interfaces)
        if cluster.topology == "tree" and cluster.nodes > cluster.nodes_per_leaf:
            inside = cluster.nodes_per_leaf
            beyond = inside * most * (cluster.nodes - inside) / (cluster.nodes - 1)
            seconds = max(seconds, beyond / self.rates[self._uplink(0, is_out=True)])
        return seconds


def _sums(sizes: Sequence[float], count: int) -> Sequence[float]:
    if count == 1:
        return sizes
    return [sum(sizes[first : first + count]) for first in range(0, len(sizes), count)]


def _nodes(name: str) -> list[int]:
    ends = [part.split(".")[0] for part in name.split(">")]
    return [int(end.removeprefix("node")) for end in ends if end.startswith("node")]


def _grid(nodes: int) -> tuple[int, int]:
    rows = next(n for n in range(math.isqrt(nodes), 0, -1) if nodes % n == 0)
    return rows, nodes // rows
