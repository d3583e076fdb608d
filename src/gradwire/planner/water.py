"""Water-filling with nested budgets: the continuous optimum of bits by layer.

Minimise `sum(error * 4**-b)` with `sum(size * b)` of the first `k` layers at
most budget `k`, and `floor <= b <= cap`. At the optimum

`b = clip(height - level)`, `height = log4(error / size)`,

with a water level that is constant between tight budgets and never rises from
one layer to the next: front layers, inside more windows, pay a higher price.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

_NO_ERROR = 1e-300
"""Stands for an error of 0, whose logarithm is wanted."""


class Curve(NamedTuple):
    """A layer with error `error * 4**-b` and cost `size * b` at `b` bits."""

    size: float
    error: float
    floor: float
    cap: float


class _Part(NamedTuple):
    """Layers `first` to `last` (exclusive), whose levels lie between two corners.

    `low` and `high` count sorted corners; `used` is what the layers before
    take, whose budget is tight.
    """

    first: int
    last: int
    low: int
    high: int
    used: float


def tighten(budgets: Sequence[float]) -> list[float]:
    """Lower each budget to the least behind it: no prefix can use more.

    Example:
        >>> tighten([5, 3, 4])
        [3, 3, 4]
    """
    return list(accumulate(reversed(budgets), min))[::-1]


def continuous(curves: Sequence[Curve], budgets: Sequence[float]) -> list[float]:
    """Return the bits of each layer at the optimum. Floors must fit.

    Parts are halved at the levels at which layers reach a floor or a cap,
    until none lies in between; then one pass over a stack is enough. That is
    O(L) for each of log2(2 L) rounds.

    Args:
        curves: The layers, front first.
        budgets: Of each prefix.

    Example:
        >>> flat = Curve(size=1.0, error=1.0, floor=0.0, cap=8.0)
        >>> continuous([flat, flat, flat], [1.0, 6.0, 6.5])
        [1.0, 2.75, 2.75]
    """
    rooms = tighten(budgets)
    heights = [0.5 * math.log2(max(c.error, _NO_ERROR) / c.size) for c in curves]
    full = [h - c.cap for h, c in zip(heights, curves, strict=True)]
    dry = [h - c.floor for h, c in zip(heights, curves, strict=True)]
    corners = [-math.inf, *sorted({*full, *dry}), math.inf]
    bits = [c.floor for c in curves]
    parts = [_Part(0, len(curves), 0, len(corners) - 1, 0.0)] if curves else []
    while parts:
        part = parts.pop()
        if part.high - part.low > 1:
            middle = (part.low + part.high) // 2
            parts += _halve(curves, heights, rooms, part, middle, corners[middle])
            continue
        low, high = corners[part.low], corners[part.high]
        layers = range(part.first, part.last)
        for i in layers:
            if full[i] >= high:
                bits[i] = curves[i].cap
        free = [i for i in layers if full[i] <= low and dry[i] >= high]
        _pool(curves, heights, rooms, part, free, bits)
    return bits


def _halve(
    curves: Sequence[Curve],
    heights: Sequence[float],
    rooms: Sequence[float],
    part: _Part,
    corner: int,
    level: float,
) -> list[_Part]:
    """Cut a part where using `level` everywhere overdraws a budget most.

    Up to there levels are at least `level`, behind it at most.
    """
    first, last, low, high, before = part
    used, worst, cut = before, 0.0, first
    for i in range(first, last):
        size, _, floor, cap = curves[i]
        b = heights[i] - level
        used += size * min(max(b, floor), cap)
        if used - rooms[i] > worst:
            worst, cut = used - rooms[i], i + 1
    spent = rooms[cut - 1] if cut > first else before
    parts = (_Part(first, cut, corner, high, before), _Part(cut, last, low, corner, spent))
    return [p for p in parts if p.first < p.last]


def _pool(
    curves: Sequence[Curve],
    heights: Sequence[float],
    rooms: Sequence[float],
    part: _Part,
    free: Sequence[int],
    bits: list[float],
) -> None:
    """Solve for layers whose floors and caps play no part: pool adjacent violators."""
    if not free:
        return
    waiting = set(free)
    used, budgets = part.used, []
    for i in range(part.first, part.last):
        if i in waiting:
            budgets.append(rooms[i] - used)
        else:
            used += curves[i].size * bits[i]
            if budgets:
                budgets[-1] = min(budgets[-1], rooms[i] - used)
    blocks: list[tuple[int, float, float, float]] = []  # layers, size, size * height, room
    before = 0.0
    for i, budget in zip(free, tighten(budgets), strict=True):
        size = curves[i].size
        block = (1, size, size * heights[i], budget - before)
        before = budget
        while blocks and _level(block) > _level(blocks[-1]):
            top = blocks.pop()
            block = (top[0] + block[0], top[1] + block[1], top[2] + block[2], top[3] + block[3])
        blocks.append(block)
    members = iter(free)
    for block in blocks:
        level = _level(block)
        for _ in range(block[0]):
            i = next(members)
            bits[i] = min(max(heights[i] - level, curves[i].floor), curves[i].cap)


def _level(block: tuple[int, float, float, float]) -> float:
    """Return the level at which a block's layers use exactly its room."""
    _, size, moment, room = block
    return (moment - room) / size
