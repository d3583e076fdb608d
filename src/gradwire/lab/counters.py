"""What a network interface has carried, read from the kernel."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from gradwire.errors import SpecError


class InterfaceBytes(NamedTuple):
    """Bytes that an interface has sent and received since it exists.

    Packets that leave in one piece of up to 64 KiB, to be cut into frames
    further down, count with one header: 0.4 % over payload at 1 Gbit/s.

    Example:
        >>> InterfaceBytes(30, 20) - InterfaceBytes(10, 15)
        InterfaceBytes(sent=20, received=5)
    """

    sent: int
    received: int

    def __sub__(self, other: InterfaceBytes) -> InterfaceBytes:
        """Return what was carried since `other` was read."""
        return InterfaceBytes(self.sent - other.sent, self.received - other.received)


def interface_bytes(interface: str = "eth0") -> InterfaceBytes:
    """Return what an interface of the calling thread's namespace has carried.

    A worker of the lab reads its own line with it, before and after a step.

    Args:
        interface: Its name; `"eth0"` in every rank of the lab.

    Raises:
        SpecError: There is no such interface.

    Example:
        >>> interface_bytes("lo").sent >= 0
        True
    """
    row = interface_row(interface)
    return InterfaceBytes(sent=row[8], received=row[0])


def interface_row(interface: str) -> list[int]:
    """Return an interface's row of `/proc/net/dev`: 8 numbers received, 8 sent.

    Raises:
        SpecError: There is no such interface.

    Example:
        >>> len(interface_row("lo"))
        16
    """
    lines = Path("/proc/thread-self/net/dev").read_text(encoding="ascii").splitlines()[2:]
    rows = {name.strip(): row for name, _, row in (line.partition(":") for line in lines)}
    if interface not in rows:
        raise SpecError("interface", interface, f"one of those here: {', '.join(rows)}")
    return [int(number) for number in rows[interface].split()]
