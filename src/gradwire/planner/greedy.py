"""Greedy: whole steps of precision, the most useful first, within nested budgets."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import sub

from gradwire.errors import SpecError
from gradwire.planner.water import Curve, tighten


def excess(costs: Iterable[float], budgets: Iterable[float]) -> float:
    """Return the least amount that every budget must be raised by.

    Example:
        >>> excess([3, 1, 1], [2, 5, 4])
        1
    """
    return max(map(sub, accumulate(costs), budgets), default=0)


def chunks(curves: Sequence[Curve], budgets: Sequence[int]) -> list[int]:
    """Return the best whole bits of chunks of one size; budgets count bits.

    Greedy is exact here: the sets of bits that fit form a polymatroid.

    Raises:
        SpecError: The floors do not fit.

    Example:
        >>> chunks([Curve(1, 16.0, 1, 8), Curve(1, 1.0, 1, 8)], [9, 6])
        [4, 2]
    """
    start = [int(curve.floor) for curve in curves]
    if excess(start, budgets) > 0:
        raise SpecError("budgets", list(budgets)[:8], f"enough for floors of {start[:8]} bits")
    levels = [range(int(c.floor), int(c.cap) + 1) for c in curves]
    slopes = [[-0.75 * c.error * 4.0**-b for b in levels[i][:-1]] for i, c in enumerate(curves)]
    places = [0] * len(curves)
    spend(places, levels, slopes, budgets)
    return [levels[i][place] for i, place in enumerate(places)]


def spend(
    places: list[int],
    costs: Sequence[Sequence[int]],
    slopes: Sequence[Sequence[float]],
    budgets: Sequence[float],
    weights: Sequence[float] | None = None,
) -> None:
    """Take the steps with the largest gain for their cost while they fit.

    O(log L) for each step taken or refused.

    Args:
        places: Of each layer's choice among its costs; changed in place.
        costs: Of each layer's choices, rising.
        slopes: Of each layer's steps: negative gain for cost, rising.
        budgets: Of each prefix.
        weights: What each layer's slopes are multiplied by; None for 1.

    Example:
        >>> places = [0, 0]
        >>> spend(places, [[1, 2], [1, 2]], [[-3.0], [-5.0]], [2, 3])
        >>> places
        [0, 1]
    """
    taken = [row[place] for row, place in zip(costs, places, strict=True)]
    room = tighten(list(map(sub, budgets, accumulate(taken))))
    gains = weights or [1.0] * len(places)
    heap = [
        (row[place] * gains[i], i)
        for i, (row, place) in enumerate(zip(slopes, places, strict=True))
        if place < len(row) and costs[i][place + 1] - taken[i] <= room[i]
    ]
    rooms = Rooms(taken, budgets)
    heapq.heapify(heap)
    while heap:
        i = heap[0][1]
        row, place = costs[i], places[i]
        cost = row[place + 1] - row[place]
        if rooms.after(i) < cost:
            heapq.heappop(heap)  # rooms only shrink, and later steps are no cheaper
            continue
        rooms.take(i, cost)
        places[i] = place = place + 1
        if place < len(slopes[i]):
            heapq.heapreplace(heap, (slopes[i][place] * gains[i], i))
        else:
            heapq.heappop(heap)


class Rooms:
    """What is left of each prefix's budget: a tree of sums and least prefix sums.

    Args:
        costs: Of each layer.
        budgets: Of each prefix.

    Example:
        >>> rooms = Rooms([2, 1], [4, 5])
        >>> rooms.take(0, 1)
        >>> rooms.after(0), rooms.after(1)
        (1, 1)
    """

    def __init__(self, costs: Sequence[float], budgets: Sequence[float]) -> None:
        rises = list(map(sub, map(sub, budgets, (0, *budgets[:-1])), costs))
        self._size = 1 << max(0, len(rises) - 1).bit_length()
        self._sum = [0.0] * self._size + rises + [0.0] * (self._size - len(rises))
        self._least = list(self._sum)
        for node in range(self._size - 1, 0, -1):
            self._join(node)

    def _join(self, node: int) -> None:
        left, right = 2 * node, 2 * node + 1
        first, least = self._sum[left], self._least
        self._sum[node] = first + self._sum[right]
        behind = first + least[right]
        least[node] = least[left] if least[left] < behind else behind  # noqa: FURB136 - twice as fast

    def after(self, index: int) -> float:
        """Return the least room of prefix `index` and all longer ones."""
        sums, leasts = self._sum, self._least
        node = self._size + index
        room: float = sums[node]
        while node > 1:
            if node & 1:
                room += sums[node - 1]
            else:
                behind = sums[node] + leasts[node + 1]
                room = behind if behind < room else room  # noqa: FURB136 - as above
            node >>= 1
        return room

    def take(self, index: int, cost: float) -> None:
        """Use up some of prefix `index` and all longer ones."""
        node = self._size + index
        self._sum[node] -= cost
        self._least[node] = self._sum[node]
        while node > 1:
            node >>= 1
            self._join(node)
