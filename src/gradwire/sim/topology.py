"""Fabric: the links of a cluster, and which of them a message crosses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from gradwire.hardware import Hardware
from gradwire.sim.base import Cluster


class Fabric:
    """Links by number, with a name and a rate each.

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
        self._between = hardware.between
        usual = (hardware.between.bandwidth_bytes_per_s,) * cluster.nodes
        self._node_rates = list(cluster.rates_bytes_per_s or usual)
        self._shape = _grid(cluster.nodes)
        self.route = cache(self._route)

    def latency_s(self, source: int, target: int) -> float:
        """Return the time a small message takes between two ranks."""
        same = self.cluster.node(source) == self.cluster.node(target)
        return (self._within if same else self._between).latency_s

    def _link(self, name: str, rate: float) -> int:
        if name not in self._numbers:
            self._numbers[name] = len(self.names)
            self.names.append(name)
            self.rates.append(rate)
        return self._numbers[name]

    def node_rate(self, node: int) -> float:
        """Return the rate of each of a node's interfaces."""
        return self._node_rates[node]

    def _port(self, owner: str, rate: float, *, is_out: bool) -> int:
        """Return a port's way out or in, which are one link at half duplex."""
        if not self.cluster.is_full_duplex:
            return self._link(owner, rate)
        return self._link(f"{owner}>" if is_out else f">{owner}", rate)

    def _interface(self, rank: int, *, is_out: bool) -> int:
        cluster, node = self.cluster, self.cluster.node(rank)
        number = rank % cluster.ranks_per_node % cluster.interfaces
        owner = f"node{node}" + (f".{number}" if cluster.interfaces > 1 else "")
        return self._port(owner, self.node_rate(node), is_out=is_out)

    def _edge(self, source: int, target: int) -> int:
        rate = min(self.node_rate(source), self.node_rate(target))
        if not self.cluster.is_full_duplex:
            source, target = sorted((source, target))
        return self._link(f"node{source}>node{target}", rate)

    def _route(self, source: int, target: int) -> tuple[int, ...]:
        """Return the links from one rank to another, in order."""
        cluster = self.cluster
        a, b = cluster.node(source), cluster.node(target)
        if a == b:
            rate = self._within.bandwidth_bytes_per_s
            return (
                self._port(f"rank{source}", rate, is_out=True),
                self._port(f"rank{target}", rate, is_out=False),
            )
        if cluster.topology in ("star", "tree"):
            ends = (self._interface(source, is_out=True), self._interface(target, is_out=False))
            return ends[0], *self._spine(a, b), ends[1]
        return tuple(self._edge(x, y) for x, y in self._hops(a, b))

    def _spine(self, source: int, target: int) -> tuple[int, ...]:
        cluster = self.cluster
        size = cluster.nodes_per_leaf
        leaves = source // size, target // size
        if cluster.topology == "star" or leaves[0] == leaves[1]:
            return ()
        return tuple(
            self._port(f"leaf{leaf}", self.leaf_rate(leaf), is_out=is_out)
            for leaf, is_out in zip(leaves, (True, False), strict=True)
        )

    def leaf_rate(self, leaf: int) -> float:
        """Return the rate of a leaf switch's uplink."""
        cluster, size = self.cluster, self.cluster.nodes_per_leaf
        nodes = range(leaf * size, min((leaf + 1) * size, cluster.nodes))
        return sum(map(self.node_rate, nodes)) * cluster.interfaces / cluster.oversubscription

    def _hops(self, source: int, target: int) -> Iterable[tuple[int, int]]:
        """Return the edges that a message crosses where nodes pass it on."""
        if self.cluster.topology == "mesh":
            return [(source, target)]
        shape = (1, self.cluster.nodes) if self.cluster.topology == "ring" else self._shape
        hops, (row, column) = [], divmod(source, shape[1])
        goal = divmod(target, shape[1])
        for axis, size in ((1, shape[1]), (0, shape[0])):
            place = column if axis else row
            distance = (goal[axis] - place) % size
            step = 1 if distance <= size - distance else -1
            for _ in range(min(distance, size - distance)):
                before = row * shape[1] + column
                if axis:
                    column = (column + step) % size
                else:
                    row = (row + step) % size
                hops.append((before, row * shape[1] + column))
        return hops

    def change(self, node: int, rate_bytes_per_s: float) -> list[tuple[int, float]]:
        """Give a node another rate, and return its links with their new ones."""
        self._node_rates[node] = rate_bytes_per_s
        changed = []
        for name, link in self._numbers.items():
            owners = _nodes(name)
            if node in owners:
                self.rates[link] = min(map(self.node_rate, owners))
                changed.append((link, self.rates[link]))
        return changed


def _nodes(name: str) -> list[int]:
    ends = [part.split(".")[0] for part in name.split(">")]
    return [int(end.removeprefix("node")) for end in ends if end.startswith("node")]


def _grid(nodes: int) -> tuple[int, int]:
    rows = next(n for n in range(math.isqrt(nodes), 0, -1) if nodes % n == 0)
    return rows, nodes // rows


def busiest(loads: Mapping[int, float], rates: Sequence[float]) -> float:
    """Return how long the link takes that takes longest.

    Example:
        >>> busiest({0: 10.0, 1: 30.0}, [1.0, 10.0])
        10.0
    """
    return max((load / rates[link] for link, load in loads.items()), default=0.0)
