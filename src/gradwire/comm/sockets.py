"""Connections between ranks: TCP, or pairs within one process."""

from __future__ import annotations

import os
import secrets
import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from gradwire.comm.base import Mailbox
from gradwire.comm.priority import PriorityMailbox
from gradwire.comm.shaped import Link
from gradwire.errors import CollectiveError

T = TypeVar("T")
_SECRET_BYTES = 16
_GREETING = struct.Struct(f"<q{_SECRET_BYTES}s")
_INTERFACES = "GLOO_SOCKET_IFNAME"


def connect(mailbox: Mailbox, timeout_s: float = 300.0) -> dict[int, socket.socket]:
    """Connect this rank with every other one by TCP. A collective call.

    The address is that of the interface that `GLOO_SOCKET_IFNAME` names, or
    else of the host's name, or else loopback: the same choice as Gloo's.

    Args:
        mailbox: On which ranks tell each other where they listen.
        timeout_s: Limit of each connection.

    Raises:
        CollectiveError: A rank cannot be reached.
    """
    found: dict[int, socket.socket] = {}
    rank = mailbox.rank
    server = _listen(mailbox.world_size)
    with server:
        server.settimeout(timeout_s)
        address = (server.family.value, server.getsockname()[:2], secrets.token_bytes(16))
        everyone: list[tuple[int, tuple[str, int], bytes]] = mailbox.gather_objects(address)  # type: ignore[assignment]
        secret = everyone[0][2]
        try:
            for peer in range(rank):
                family, where, _ = everyone[peer]
                found[peer] = _reach(family, where, timeout_s)
                found[peer].sendall(_GREETING.pack(rank, secret))
            while len(found) < mailbox.world_size - 1:
                connection, _ = server.accept()
                connection.settimeout(timeout_s)
                data = connection.recv(_GREETING.size, socket.MSG_WAITALL)
                if len(data) < _GREETING.size or _GREETING.unpack(data)[1] != secret:
                    connection.close()  # a stranger
                    continue
                found[_GREETING.unpack(data)[0]] = connection
        except OSError as error:
            for connection in found.values():
                connection.close()
            places = ", ".join(f"rank {r}: {w[0]}:{w[1]}" for r, (_, w, _) in enumerate(everyone))
            detail = f"{error}; {places}; {_INTERFACES} names the interface to use"
            raise CollectiveError("connect", rank, detail) from error
    return found


def _reach(family: int, where: tuple[str, int], timeout_s: float) -> socket.socket:
    connection = socket.socket(socket.AddressFamily(family))
    connection.settimeout(timeout_s)
    connection.connect(where)
    return connection


def _listen(backlog: int) -> socket.socket:
    """Listen where other ranks can reach this one."""
    problem: OSError | None = None
    for family, host in _addresses():
        server = socket.socket(family)
        try:
            server.bind((host, 0))
            server.listen(backlog)
        except OSError as error:
            server.close()
            problem = error
        else:
            return server
    raise CollectiveError("connect", -1, f"no address to listen on: {problem}")


def _addresses() -> list[tuple[socket.AddressFamily, str]]:
    name = os.environ.get(_INTERFACES, "").split(",")[0]
    if name:
        return [(socket.AF_INET, _address_of(name))]
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        found = []  # a host without an address of its own: everything is local
    return [*((f, str(a[0])) for f, _, _, _, a in found), (socket.AF_INET, "127.0.0.1")]


def _address_of(interface: str) -> str:
    """Return the IPv4 address of a network interface."""
    import fcntl  # noqa: PLC0415 - not on every system

    get_address = 0x8915  # SIOCGIFADDR of <linux/sockios.h>
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            request = struct.pack("256s", interface.encode()[:15])
            answer = fcntl.ioctl(probe.fileno(), get_address, request)
        except OSError as error:
            detail = f"interface {interface!r} of {_INTERFACES} has no IPv4 address: {error}"
            raise CollectiveError("connect", -1, detail) from error
    return socket.inet_ntoa(answer[20:24])


def run_connected(
    world_size: int,
    body: Callable[[PriorityMailbox], T],
    *,
    link: Link | None = None,
    timeout_s: float = 60.0,
) -> list[T]:
    """Run `body` once for each rank, in threads, and return the results by rank.

    Example:
        >>> run_connected(2, lambda mailbox: mailbox.gather_objects(mailbox.rank))
        [[0, 1], [0, 1]]
    """
    ends: list[dict[int, socket.socket]] = [{} for _ in range(world_size)]
    for a in range(world_size):
        for b in range(a):
            ends[a][b], ends[b][a] = socket.socketpair()
    mailboxes = [PriorityMailbox(r, ends[r], link, timeout_s) for r in range(world_size)]

    def closing(rank: int) -> T:
        try:
            return body(mailboxes[rank])
        except BaseException as error:
            mailboxes[rank].fail(f"rank {rank} raised {type(error).__name__}: {error}")
            raise

    try:
        with ThreadPoolExecutor(world_size) as pool:
            return list(pool.map(closing, range(world_size)))
    finally:
        with ThreadPoolExecutor(world_size) as pool:
            list(pool.map(PriorityMailbox.close, mailboxes))
