"""Inbox: where packets of one rank go, whether they are expected yet or not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Box:
    """Where a message goes, and how much of it is missing."""

    data: memoryview
    missing: int
    arrived: Callable[[], None]


class Inbox:
    """Brings packets to their places; keeps those that nobody has asked for yet.

    Example:
        >>> inbox, data = Inbox(), bytearray(5)
        >>> box, place = inbox.place(7, 0, 5)  # nobody expects it: kept
        >>> place[:] = b"hello"
        >>> inbox.filled(7, 0, place, box)
        >>> inbox.expect(7, memoryview(data), lambda: print(data.decode()))
        hello
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._boxes: dict[int, Box] = {}
        self._early: dict[int, list[tuple[int, memoryview]]] = {}

    def expect(self, tag: int, data: memoryview, arrived: Callable[[], None]) -> None:
        """Fill `data` with the message of a tag, then call `arrived`.

        Raises:
            ValueError: More has come already than fits.
        """
        box = Box(data, len(data), arrived)
        with self._lock:
            self._boxes[tag] = box
            for offset, piece in self._early.pop(tag, ()):
                _copy(box, tag, offset, piece)
            is_full = self._is_full(tag, box)
        if is_full:
            arrived()

    def place(self, tag: int, offset: int, size: int) -> tuple[Box | None, memoryview]:
        """Return where a packet is to be written, and the box that is part of.

        Raises:
            ValueError: It does not fit.
        """
        with self._lock:
            box = self._boxes.get(tag)
        if box is None:
            return None, memoryview(bytearray(size))
        _check_fits(box, tag, offset, size)
        return box, box.data[offset : offset + size]

    def filled(self, tag: int, offset: int, place: memoryview, box: Box | None) -> None:
        """Note that a packet was written where `place` said.

        Raises:
            ValueError: It does not fit what is expected by now.
        """
        with self._lock:
            if box is not None:
                box.missing -= len(place)
            elif (box := self._boxes.get(tag)) is not None:
                _copy(box, tag, offset, place)
            else:
                self._early.setdefault(tag, []).append((offset, place))
            is_full = box is not None and self._is_full(tag, box)
        if is_full and box is not None:
            box.arrived()

    def _is_full(self, tag: int, box: Box) -> bool:
        """Whether a message is complete; then forget its tag. Held: the lock."""
        if box.missing == 0:
            self._boxes.pop(tag, None)
        return box.missing == 0


def _copy(box: Box, tag: int, offset: int, piece: memoryview) -> None:
    _check_fits(box, tag, offset, len(piece))
    box.data[offset : offset + len(piece)] = piece
    box.missing -= len(piece)


def _check_fits(box: Box, tag: int, offset: int, size: int) -> None:
    if offset + size > len(box.data):
        raise ValueError(
            f"tag {tag}: at least {offset + size} bytes sent, {len(box.data)} expected"
        )
