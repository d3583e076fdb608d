"""Clusters, links and workloads that the simulator's tests share."""

from __future__ import annotations

from gradwire.hardware import Device, Hardware, LinkSpeed
from gradwire.sim.base import Cluster
from gradwire.sim.events import EventQueue
from gradwire.sim.gate import Limits
from gradwire.sim.messages import MessageTransport
from gradwire.sim.transport import BulkTransport, Wiring
from gradwire.workload import Layer, Workload, parameter

LINK = LinkSpeed(latency_s=0.5, bandwidth_bytes_per_s=100.0)
FAST = LinkSpeed(latency_s=0.25, bandwidth_bytes_per_s=400.0)


def hardware(within=FAST, between=LINK, kernels=None, interference=0.0):
    """Speeds with codecs and copies that take no time unless given."""
    device = Device(copy_bytes_per_s=1e30, interference=interference)
    return Hardware(device, kernels or {}, within, between)


def layers(*times, numel=1000):
    """A workload of square-less layers with these forward and backward times."""
    return Workload(
        "layers",
        tuple(
            Layer(f"l{i}", (parameter(f"w{i}", (numel // 10, 10)),), forward_s, backward_s)
            for i, (forward_s, backward_s) in enumerate(times)
        ),
    )


def phases_s(phases, cluster, *, in_bulk=False, speeds=None):
    """Run phases one after the other on all ranks; return time and link bytes."""
    queue = EventQueue()
    wiring = Wiring(queue, cluster, speeds or hardware())
    ranks = cluster.ranks
    make = (lambda: BulkTransport(wiring, Limits(), ranks)) if in_bulk else None
    transport = make() if make else MessageTransport(wiring, Limits())
    ends = []

    def go(rank, index):
        if index == len(phases):
            ends.append(queue.now_s)
            return
        transport.post(rank, index, phases[index], lambda: go(rank, index + 1), 0)

    for rank in range(ranks):
        go(rank, 0)
    queue.run()
    assert len(ends) == ranks
    return max(ends), transport.link_bytes


def star(ranks, **options):
    """Ranks of a node each at one switch."""
    return Cluster(ranks, **options)
