"""Clip: scales gradients by a norm that is one step old."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gradwire.engine.overlap_guard import Guard
from gradwire.engine.overlap_turn import Turn

_TINY = 1e-6  # as in torch.nn.utils.clip_grad_norm_


class Clip:
    """Bounds the norm of gradients without waiting for all of them.

    Args:
        limit: Largest norm, or None for no clipping.
        guard: Waits for exchanges.
    """

    def __init__(self, limit: float | None, guard: Guard) -> None:
        self._limit = limit
        self._guard = guard
        self._last: dict[int, list[Turn]] = {}

    def forget(self) -> None:
        """Begin anew, with the next gradient's own norm."""
        self._last.clear()

    def factor(self, number: int, turns: Sequence[Turn]) -> float:
        """Return what to multiply an optimiser's gradients with.

        The norm is that of its gradients before; at first their own, which
        must be waited for.
        """
        if self._limit is None:
            return 1.0
        total = 0.0
        for turn in self._last.get(number, turns):
            assert turn.exchange is not None, "they were sent"
            self._guard.wait(str(turn), turn.exchange.done)
            total += turn.exchange.measured.norm**2
        self._last[number] = list(turns)
        factor = self._limit / (math.sqrt(total) + _TINY)
        return min(1.0, factor) if math.isfinite(factor) else 1.0
