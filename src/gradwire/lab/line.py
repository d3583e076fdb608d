"""The line between a rank and the hub: its rate, its interruption, its counters."""

from __future__ import annotations

import math

from gradwire.lab.counters import InterfaceBytes, interface_bytes
from gradwire.lab.flood import Target
from gradwire.lab.namespace import Namespace

HUB_ADDRESS = "10.77.0.254"
"""IPv4 address of the bridge; rank r has that with r + 1 at its end."""


class Line:
    """A full-duplex line of one rank, limited at both ends.

    `eth0` in the rank's namespace limits what the rank sends, its port in the
    hub what it receives.

    Args:
        hub: The namespace with the bridge.
        rank: Whose line it is.
        mtu: Bytes of payload and IP headers in a frame.

    Example:
        Made by `Network`.
    """

    def __init__(self, hub: Namespace, rank: int, mtu: int) -> None:
        self.rank = rank
        self.rate_bytes_per_s = math.inf
        self.inside = Namespace()
        self.address = f"10.77.0.{rank + 1}"
        self.port = f"port{rank}"
        self._hub = hub
        self._mtu = mtu
        self._netem_s = 0.0

    def connect(self, *, has_devices: bool, netem_s: float) -> None:
        """Make the devices, unless a delay line made them, and bring them up.

        Args:
            has_devices: Whether `eth0` and the port are there.
            netem_s: Time for which the kernel is to hold what the rank sends.
        """
        if not has_devices:
            peer = f"peer name eth0 netns {self.inside.path}"
            self._hub.command(f"ip link add {self.port} type veth {peer}")
        self._hub.command(f"ip link set {self.port} master bridge mtu {self._mtu} up")
        self.inside.without_ipv6()
        self.inside.command("ip link set lo up")
        self.inside.command(f"ip link set eth0 mtu {self._mtu} up")
        self.inside.command(f"ip addr add {self.address}/24 dev eth0")
        # A namespace cannot choose its congestion control, but a route can.
        route = f"10.77.0.0/24 dev eth0 src {self.address} congctl cubic"
        self.inside.command(f"ip route replace {route}")
        self._netem_s = netem_s
        if netem_s:
            self.inside.command(f"tc qdisc add dev eth0 root {self._leaf(netem_s, math.inf)}")

    def limit(self, rate_bytes_per_s: float) -> None:
        """Set the rate; connections live on.

        Between two finite rates HTB's class changes in place. A limit that is
        lifted drops what was queued, and TCP sends it again.

        HTB, because TBF cuts large packets up and starves one direction of
        two. HTB lets one packet overdraw its bucket, so packets of new
        connections are kept below 0.25 ms of the line (3 frames at least).
        """
        self._limit_end(self.inside, "eth0", self._netem_s, rate_bytes_per_s)
        self._limit_end(self._hub, self.port, 0.0, rate_bytes_per_s)
        self.rate_bytes_per_s = rate_bytes_per_s

    def cut(self) -> None:
        """Take the port down, as if the cable were pulled; what was queued is lost."""
        self._hub.command(f"ip link set {self.port} down")

    def restore(self) -> None:
        """Take the port up again."""
        self._hub.command(f"ip link set {self.port} up")

    def carried(self) -> InterfaceBytes:
        """Return what the rank has sent and received."""
        with self.inside.entered():
            return interface_bytes("eth0")

    def target(self, latency_s: float) -> Target:
        """Return what it takes to measure the line."""
        files = self._hub.fileno(), self.inside.fileno()
        addresses = HUB_ADDRESS, self.address
        return Target(*files, *addresses, self.port, self.rate_bytes_per_s, latency_s, self._mtu)

    def _limit_end(self, where: Namespace, device: str, held_s: float, rate: float) -> None:
        was_limited, is_limited = (math.isfinite(r) for r in (self.rate_bytes_per_s, rate))
        if is_limited or was_limited:
            packet = 65536 if math.isinf(rate) else min(max(rate * 0.25e-3, 3 * self._mtu), 65536)
            where.command(f"ip link set dev {device} gso_max_size {int(packet)}")
        if was_limited and not is_limited:
            where.command(f"tc qdisc del dev {device} root")
            if held_s:
                where.command(f"tc qdisc add dev {device} root {self._leaf(held_s, rate)}")
        elif is_limited:
            verb = "change" if was_limited else "add"
            if not was_limited:
                root = "replace" if held_s else "add"
                where.command(f"tc qdisc {root} dev {device} root handle 1: htb default 1")
            where.command(f"tc class {verb} dev {device} parent 1: classid 1:1 {self._htb(rate)}")
            where.command(f"tc qdisc {verb} dev {device} parent 1:1 {self._leaf(held_s, rate)}")

    def _htb(self, rate: float) -> str:
        """Return the class: a bucket of 0.1 ms of the line, 2 frames at least."""
        burst = int(min(max(rate * 0.1e-3, 2 * self._mtu + 200), 65536))
        return f"htb rate {int(rate * 8)}bit burst {burst} cburst {burst} quantum 60000"

    def _leaf(self, held_s: float, rate: float) -> str:
        """Return the queue: 50 ms of the line, and what is on its way where netem holds it."""
        if not held_s:
            return f"bfifo limit {int(min(max(rate * 0.05, 131072), 4 << 20))}"
        packets = 100_000 if math.isinf(rate) else rate * (held_s + 0.05) / self._mtu
        return f"netem delay {round(held_s * 1e6)}us limit {int(max(packets, 1000))}"
