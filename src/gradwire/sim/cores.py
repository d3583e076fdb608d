"""Cores: a machine's processor time, shared by the threads of all its ranks."""

from __future__ import annotations

from gradwire.sim.gate import Done
from gradwire.sim.lanes import Work
from gradwire.sim.network import Network, Path
from gradwire.sim.topology import Fabric


class Cores:
    """Shares cores as links are shared: a thread's work takes one core at most.

    What carries messages takes part in it: a message is a flow of processor
    time as well, which is as fast as links and cores let it be.

    Args:
        network: What shares; its flows are seconds here.
        fabric: Whose links the cores are added to.
        count: How many cores.

    Example:
        >>> from gradwire.hardware import Device, Hardware, LinkSpeed
        >>> from gradwire.sim.base import Cluster
        >>> from gradwire.sim.events import EventQueue
        >>> speed = LinkSpeed(0.0, 1e9)
        >>> queue, fabric = EventQueue(), Fabric(Cluster(3), Hardware(Device(), {}, speed, speed))
        >>> cores = Cores(Network(queue, fabric.rates), fabric, 2)
        >>> for rank in range(3):
        ...     cores.thread(f"rank {rank}")(1.0, lambda: None)
        >>> queue.run()
        >>> round(queue.now_s, 3)
        1.5
    """

    def __init__(self, network: Network, fabric: Fabric, count: int) -> None:
        self._network = network
        self._fabric = fabric
        self._cores = fabric.add("cores", float(count))

    def thread(self, name: str) -> Work:
        """Return a thread: what it is given at the same time shares one core."""
        path = (self._fabric.add(name, 1.0), 1.0), (self._cores, 1.0)

        def work(seconds: float, then: Done) -> None:
            self._network.start(path, seconds, then)

        return work

    def carried(self, path: Path, s_per_byte: float) -> Path:
        """Return the path of a flow of processor time that carries bytes over links."""
        return *((link, weight / s_per_byte) for link, weight in path), (self._cores, 1.0)
