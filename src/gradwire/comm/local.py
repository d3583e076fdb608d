"""Ranks as threads of one process: a mailbox for tests, docs and notebooks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from torch import Tensor

from gradwire.comm.base import Pending
from gradwire.errors import CollectiveError

T = TypeVar("T")


class _Office:
    """What the ranks share: letters that wait for their receiver, and the reverse."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.lock = threading.Lock()
        self.letters: dict[tuple[int, int, int], tuple[Tensor, Callable[[], None]]] = {}
        self.boxes: dict[tuple[int, int, int], tuple[Tensor, Callable[[], None]]] = {}
        self.objects: list[object] = [None] * world_size
        self.barrier = threading.Barrier(world_size)


class LocalMailbox:
    """One rank of a group of threads.

    Args:
        office: Shared by the ranks; made by `run_ranks`.
        rank: This thread's number.

    Example:
        >>> run_ranks(2, lambda mailbox: mailbox.gather_objects(mailbox.rank))
        [[0, 1], [0, 1]]
    """

    def __init__(self, office: _Office, rank: int) -> None:
        self._office = office
        self.rank = rank
        self.world_size = office.world_size

    def exchange(
        self, tag: int, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]
    ) -> Pending:
        """See `Mailbox.exchange`."""
        pending = Pending()
        left = len(sends) + len(receives)
        if left == 0:
            pending.set_result(None)
            return pending
        counter = threading.Lock()

        def arrived() -> None:
            nonlocal left
            with counter:
                left -= 1
                finished = left == 0
            if finished:
                pending.set_result(None)

        for source, box in receives.items():
            self._match((source, self.rank, tag), box, arrived, is_letter=False)
        for target, letter in sends.items():
            self._match((self.rank, target, tag), letter, arrived, is_letter=True)
        return pending

    def _match(
        self,
        address: tuple[int, int, int],
        tensor: Tensor,
        arrived: Callable[[], None],
        *,
        is_letter: bool,
    ) -> None:
        office = self._office
        mine, theirs = (
            (office.letters, office.boxes) if is_letter else (office.boxes, office.letters)
        )
        with office.lock:
            other = theirs.pop(address, None)
            if other is None:
                assert address not in mine, f"tag used twice: {address}"
                mine[address] = (tensor, arrived)
                return
        letter, box = (tensor, other[0]) if is_letter else (other[0], tensor)
        if letter.numel() != box.numel() or letter.dtype != box.dtype:
            raise CollectiveError(
                "exchange", self.rank, f"{letter.numel()} values sent, {box.numel()} expected"
            )
        box.copy_(letter)
        arrived()
        other[1]()

    def gather_objects(self, value: object) -> list[object]:
        """See `Mailbox.gather_objects`."""
        self._office.objects[self.rank] = value
        self._office.barrier.wait()
        values = list(self._office.objects)
        self._office.barrier.wait()
        return values

    def close(self) -> None:
        """Nothing to stop."""


def run_ranks(world_size: int, body: Callable[[LocalMailbox], T]) -> list[T]:
    """Run `body` once for each rank, in threads, and return the results by rank.

    Example:
        >>> run_ranks(3, lambda mailbox: mailbox.rank)
        [0, 1, 2]
    """
    office = _Office(world_size)

    def guarded(rank: int) -> T:
        try:
            return body(LocalMailbox(office, rank))
        except BaseException:
            office.barrier.abort()
            raise

    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(guarded, range(world_size)))
