"""Warmup: for how long gradients travel as they are, and when they do so again."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from gradwire.errors import SpecError, StateError
from gradwire.spec import check_number, check_whole
from gradwire.spec.fields import check_switch

DEFAULT_TOLERANCE = 0.04
"""1-bit Adam's own rule: freeze once the norm has changed by less within a window.

Source:
    Tang et al., 1-bit Adam (ICML 2021): a ratio of at least 0.96 to the norm of
    `1 / (1 - beta2)` steps ago.
"""


class Warmup:
    """Counts steps and watches the variance until it has settled.

    Args:
        steps: Least number of steps; None leaves it to the variance alone.
        tolerance: The variance has settled once its norm, compared with that
            of one window ago, has changed by this share or less. None does not
            look at it, unless `steps` is None too: then 0.04.
        interval: After warm-up every so many steps are exact again; None for never.

    Raises:
        SpecError: One of them is out of range.

    Example:
        >>> warmup = Warmup(2, None, None)
        >>> for _ in range(2):
        ...     warmup.advance(lambda: 1.0, window=10)
        >>> warmup.is_settled, warmup.is_over
        (True, False)
        >>> warmup.end()
        >>> warmup.is_over, warmup.ended_at
        (True, 2)
    """

    def __init__(self, steps: int | None, tolerance: float | None, interval: int | None) -> None:
        if steps is not None:
            check_whole("warmup_steps", steps, 1)
        if tolerance is not None:
            check_number("variance_tolerance", tolerance, "above 0")
            if not 0 < tolerance < math.inf:
                raise SpecError("variance_tolerance", tolerance, "above 0 and finite")
        if interval is not None:
            check_whole("variance_interval", interval, 2)
        self._is_default = steps is None and tolerance is None
        self._steps = steps or 1
        self._tolerance = DEFAULT_TOLERANCE if self._is_default else tolerance
        self._interval = interval
        self.steps_done = 0
        self.ended_at = 0
        self._norm = 0.0
        self._is_quiet = self._tolerance is None

    def __repr__(self) -> str:
        return f"Warmup({self._steps}, {self._tolerance}, {self._interval})"

    def follow(self, plan_steps: int) -> None:
        """Take over the length that a plan has, where no other rule was given."""
        if self._is_default and plan_steps:
            self._steps, self._tolerance, self._is_quiet = plan_steps, None, True

    @property
    def is_over(self) -> bool:
        """Whether momenta may travel now."""
        return self.ended_at > 0

    @property
    def is_settled(self) -> bool:
        """Whether this rank thinks that warm-up should end."""
        return self.steps_done >= self._steps and self._is_quiet

    @property
    def is_refresh(self) -> bool:
        """Whether the next step renews the variance of all parameters."""
        if self._interval is None or not self.is_over:
            return False
        return (self.steps_done - self.ended_at + 1) % self._interval == 0

    def end(self) -> None:
        """End it with the steps done so far; all ranks do so at once."""
        self.ended_at = self.ended_at or self.steps_done

    def advance(self, norm: Callable[[], float], window: int) -> None:
        """Count a step.

        Args:
            norm: Measures the variance; called where it is needed only.
            window: Steps after which to compare it.
        """
        self.steps_done += 1
        if self._tolerance is None or self.is_over or self.steps_done % window:
            return
        before, self._norm = self._norm, norm()
        self._is_quiet = before > 0 and abs(self._norm / before - 1) <= self._tolerance

    def state_dict(self) -> dict[str, Any]:
        """Return what it has counted and seen."""
        return {
            "steps_done": self.steps_done,
            "ended_at": self.ended_at,
            "norm": self._norm,
            "is_quiet": self._is_quiet,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken.

        Raises:
            StateError: Not such a state.
        """
        try:
            for key in ("steps_done", "ended_at"):
                check_whole(key, state[key], 0)
            check_number("norm", state["norm"], "a number")
            check_switch("is_quiet", state["is_quiet"])
        except (KeyError, TypeError, SpecError) as error:
            raise StateError(f"broken state of a warm-up: {error}") from None
        is_possible = state["ended_at"] <= state["steps_done"] and 0 <= state["norm"] < math.inf
        if not is_possible:
            raise StateError(f"broken state of a warm-up: no warm-up has {dict(state)}")
        self.steps_done, self.ended_at = state["steps_done"], state["ended_at"]
        self._norm = state["norm"]
        # A run that goes on with another rule counts by that one.
        self._is_quiet = state["is_quiet"] or self._tolerance is None
