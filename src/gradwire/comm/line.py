"""Line: one connection to one rank, whose packets leave by priority.

A message is cut into packets as it leaves, so that a more urgent one that
comes later overtakes it. Little is handed to the kernel ahead of time: what
has been handed over cannot be overtaken any more.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from gradwire.comm.inbox import Inbox
from gradwire.comm.shaped import Port

BYE, ACK, PING, PONG = -1, -2, -3, -4
"""Tags of notes that carry nothing."""

_HEADER = struct.Struct("<qqqd")
_LEAST_PACKET, _FIRST_PACKET, _MOST_PACKET = 1 << 14, 1 << 16, 1 << 18
_PACKET_S = 0.002
"""A packet takes about so long: that is what an urgent message waits for."""

_QUEUED_S = 0.004
"""TCP fills every queue on its way, some tens of milliseconds long, and what waits there
cannot be overtaken. So no more is given to it than so long a queue and a round trip hold."""
_LEAST_BUFFER, _MOST_BUFFER = 1 << 14, 1 << 23

_FORGET = 1.02
"""How fast a round trip may grow: most notes wait behind our own gradients."""

_FEW_SEGMENTS = 1 << 13
_UNSENT_BYTES = 1 << 15
"""Bytes that the kernel may hold ahead of what the network has taken."""


class Message(NamedTuple):
    """Bytes on their way to one rank; compared by urgency, then by age."""

    priority: float
    serial: int
    tag: int
    data: memoryview
    offset: int
    sent: Callable[[], None]


class Line:
    """Sends to and receives from one rank, from two threads of its own.

    Args:
        peer: The rank at the other end.
        connection: A connected stream socket; closed with the line.
        port: Makes packets last as long as on a link, or None.
        meter: Told start, end and bytes of each packet sent.
        broken: Called once, with what went wrong.

    Example:
        >>> import queue
        >>> ends, done = socket.socketpair(), queue.SimpleQueue()
        >>> lines = [Line(1 - r, ends[r], None, lambda *_: None, done.put) for r in (0, 1)]
        >>> box = bytearray(5)
        >>> lines[0].send(7, memoryview(b"hello"), 0.0, lambda: None)
        >>> lines[1].receive(7, memoryview(box), lambda: done.put(bytes(box)))
        >>> done.get(timeout=10)
        b'hello'
        >>> for line in lines:
        ...     line.stop()
    """

    def __init__(
        self,
        peer: int,
        connection: socket.socket,
        port: Port | None,
        meter: Callable[[float, float, int], None],
        broken: Callable[[str], None],
    ) -> None:
        self.peer = peer
        self.has_left = False
        self.acknowledged = threading.Event()
        self.answered = threading.Event()
        self.trip_s = float("inf")
        self._socket = connection
        self._port = port
        self._meter = meter
        self._broken = broken
        self._changed = threading.Condition()
        self._queue: list[Message] = []
        self._serial = itertools.count()
        self._is_stopping = False
        self._pinged_s = 0.0
        self._packet_bytes = _FIRST_PACKET
        self._inbox = Inbox()
        self.receive = self._inbox.expect
        _prepare(connection)
        self._threads = [
            threading.Thread(target=self._guarded, args=(run,), name=name, daemon=True)
            for run, name in (
                (self._send_packets, f"gradwire-send-{peer}"),
                (self._receive_packets, f"gradwire-receive-{peer}"),
            )
        ]
        for thread in self._threads:
            thread.start()

    def send(self, tag: int, data: memoryview, priority: float, sent: Callable[[], None]) -> None:
        """Send bytes under a tag; lower priorities leave first.

        Args:
            tag: Names the message; negative ones are notes.
            data: The bytes; unchanged until `sent` is called.
            priority: What is lower leaves first.
            sent: Called when the last byte was handed to the network.
        """
        with self._changed:
            heapq.heappush(self._queue, Message(priority, next(self._serial), tag, data, 0, sent))
            self._changed.notify()

    def note(self, tag: int, priority: float) -> None:
        """Send a message that carries nothing: `BYE`, or `PING` to measure latency."""
        if tag == PING:
            self.answered.clear()
            self._pinged_s = time.perf_counter()
        self.send(tag, memoryview(b""), priority, _nothing)

    def stop(self) -> None:
        """End the connection and the threads. Can be called twice."""
        self.cut()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        self._socket.close()

    def cut(self) -> None:
        """Break the connection, so that both ends notice; the threads end by themselves."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        with contextlib.suppress(OSError):  # the other end may have been quicker
            self._socket.shutdown(socket.SHUT_RDWR)

    def set_rate(self, bytes_per_s: float, lines: int = 1) -> None:
        """Choose the size of packets, and what may be under way, for a link of this rate.

        Args:
            bytes_per_s: Of the link.
            lines: How many share it.
        """
        wanted = int(bytes_per_s * _PACKET_S)
        self._packet_bytes = min(max(wanted, _LEAST_PACKET), _MOST_PACKET)
        if self._port is None and math.isfinite(self.trip_s):
            under_way = int(bytes_per_s / lines * (self.trip_s + _QUEUED_S))
            size = min(max(under_way, _LEAST_BUFFER), _MOST_BUFFER)
            with contextlib.suppress(OSError):  # the connection may have ended
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except (OSError, ValueError) as error:
            if not self._is_stopping:
                self._broken(f"rank {self.peer}: {error}")

    def _send_packets(self) -> None:
        while (message := self._next()) is not None:
            start_s = time.perf_counter()
            size = min(len(message.data) - message.offset, self._packet_bytes)
            departed_s = self._depart(size)
            header = _HEADER.pack(message.tag, message.offset, size, departed_s)
            data = message.data[message.offset : message.offset + size]
            try:
                _send_whole(self._socket, header, data)
            except OSError:
                if self.has_left and message.tag < 0:
                    return  # nobody is left to read a note
                raise
            self._meter(start_s, time.perf_counter(), size)
            if message.offset + size < len(message.data):
                with self._changed:
                    heapq.heappush(self._queue, message._replace(offset=message.offset + size))
            else:
                message.sent()
            del message, data  # an idle thread keeps no tensor alive

    def _next(self) -> Message | None:
        with self._changed:
            while not self._queue and not self._is_stopping:
                self._changed.wait()
            return None if self._is_stopping else heapq.heappop(self._queue)

    def _depart(self, size: int) -> float:
        if self._port is None:
            return 0.0
        departed_s = self._port.send(time.monotonic(), size)
        # Until its first byte leaves: waking up late then leaves no gap before the next.
        begun_s = departed_s - size / self._port.link.rate_bytes_per_s
        time.sleep(max(0.0, begun_s - time.monotonic()))
        return departed_s

    def _receive_packets(self) -> None:
        header = bytearray(_HEADER.size)
        while _receive_whole(self._socket, memoryview(header)):
            tag, offset, size, departed_s = _HEADER.unpack(header)
            if tag >= 0:
                self._receive_packet(tag, offset, size, departed_s)
            else:
                self._arrive(departed_s, 0)
                self._noted(tag)
        self.acknowledged.set()  # whoever ends the stream has read it to its end
        if not self._is_stopping and not self.has_left:
            self._broken(f"rank {self.peer}: connection closed by peer")

    def _receive_packet(self, tag: int, offset: int, size: int, departed_s: float) -> None:
        box, place = self._inbox.place(tag, offset, size)
        _await(self._socket, size)
        if not _receive_whole(self._socket, place):
            raise ConnectionError("connection closed by peer in the middle of a packet")
        self._arrive(departed_s, size)
        self._inbox.filled(tag, offset, place, box)

    def _arrive(self, departed_s: float, size: int) -> None:
        if self._port is not None:
            due_s = self._port.receive(departed_s, size)
            time.sleep(max(0.0, due_s - time.monotonic()))

    def _noted(self, tag: int) -> None:
        if tag == PING:
            self.note(PONG, float("-inf"))
        elif tag == PONG:
            trip_s = time.perf_counter() - self._pinged_s
            self.trip_s = min(self.trip_s * _FORGET, trip_s)
            self.answered.set()
        elif tag == BYE:
            self.has_left = True
            self.note(ACK, float("inf"))
            self._broken("")
        else:
            self.acknowledged.set()


def _nothing() -> None:
    pass


def _prepare(connection: socket.socket) -> None:
    connection.setblocking(True)  # noqa: FBT003 - the socket's own signature
    if connection.family == getattr(socket, "AF_UNIX", None):
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if option is not None:
        connection.setsockopt(socket.IPPROTO_TCP, option, _UNSENT_BYTES)


def _send_whole(connection: socket.socket, header: bytes, data: memoryview) -> None:
    sent = connection.sendmsg([header, data])
    if sent < len(header):
        connection.sendall(header[sent:])
        sent = len(header)
    if sent - len(header) < len(data):
        connection.sendall(data[sent - len(header) :])


def _await(connection: socket.socket, size: int) -> None:
    """Wait until a packet has arrived as a whole, if it is longer than a few segments.

    A thread that reads what there is wakes for each segment of TCP, and waking
    costs more than the segment.
    """
    if size < _FEW_SEGMENTS:
        return
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
    try:
        poll.poll()
    finally:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)


def _receive_whole(connection: socket.socket, data: memoryview) -> bool:
    """Fill `data`; False where the stream ends before its first byte."""
    filled = 0
    while filled < len(data):
        got = connection.recv_into(data[filled:], flags=socket.MSG_WAITALL)
        if got == 0:
            if filled:
                raise ConnectionError("connection closed by peer")
            return False
        filled += got
    return True
