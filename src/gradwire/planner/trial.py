"""Trial: plans take turns, and are compared by what they took side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from gradwire.planner.search import ADVANTAGE, EVEN
from gradwire.planner.select import PLAIN
from gradwire.planner.shortlist import Contender

_GIVEN_UP = (0.15, 0.08, ADVANTAGE, ADVANTAGE)
"""After each turn: plans slower than the fastest by more than this share are given up.
One turn is certain to about 8 % where several ranks share cores."""

_PLAIN_GIVEN_UP = (0.15, 0.15, 0.10, ADVANTAGE)
"""The same of float32 and bfloat16, against which the others have to prove something."""


class Trial:
    """Compares plans turn by turn.

    Machines get busier and idler in the course of a trial, so a plan is held
    against another by the ratio of their times in each turn, and the median of
    these ratios counts, times the steps that what is lost makes necessary. What is
    lossier than float32 or bfloat16 must have been faster in every turn but one as
    well: else nothing is proven.

    Args:
        contenders: The plans.
        turns: How many turns there are at most.

    Example:
        >>> from gradwire.plan import Plan
        >>> exact, lossy = (Contender(n, Plan.of(n), 1.0, e) for n, e in (("none", 0), ("int6", 4)))
        >>> trial = Trial([exact, lossy])
        >>> for exact_s, lossy_s in ((1.3, 1.2), (1.0, 1.1), (1.4, 1.3), (1.0, 0.9)):
        ...     trial.note({"none": [exact_s], "int6": [lossy_s]})
        >>> trial.best().name
        'none'
    """

    def __init__(self, contenders: Sequence[Contender], turns: int = len(_GIVEN_UP)) -> None:
        self.left = tuple(contenders)
        self._turns: dict[str, list[float]] = {c.name: [] for c in contenders}
        self._count = 0
        self._most = turns

    @property
    def is_over(self) -> bool:
        """Whether further turns would change nothing."""
        return len(self.left) < 2 or self._count == self._most  # noqa: PLR2004 - a comparison

    @property
    def step_s(self) -> dict[str, float]:
        """Median time of a step by plan, of those that were tried."""
        return {name: median(turns) for name, turns in self._turns.items() if turns}

    def note(self, periods_s: Mapping[str, Sequence[float]]) -> None:
        """Take one turn: the times of steps by plan; give up what is far behind."""
        for contender in self.left:
            self._turns[contender.name].append(median(periods_s[contender.name]))
        fastest = self._fastest()
        self.left = tuple(
            c for c in self.left if self._ratio(c, fastest) <= 1 + self._given_up_at(c)
        )
        self._count += 1

    def best(self) -> Contender:
        """Return the most exact of those that are close to the fastest."""
        fastest = self._fastest()
        close = [c for c in self.left if self._is_close(c, fastest)]
        return min(close, key=lambda c: c.error)

    def _given_up_at(self, contender: Contender) -> float:
        return (_PLAIN_GIVEN_UP if contender.name in PLAIN else _GIVEN_UP)[self._count]

    def _fastest(self) -> Contender:
        step_s = self.step_s
        return min(self.left, key=lambda c: (1 + c.harm) * step_s.get(c.name, c.predicted_s))

    def _is_close(self, contender: Contender, fastest: Contender) -> bool:
        if contender is fastest:
            return True
        if contender.name not in PLAIN:
            return self._ratio(contender, fastest) <= 1 + EVEN
        pairs = zip(self._turns[contender.name], self._turns[fastest.name], strict=True)
        won = sum(mine <= theirs for mine, theirs in pairs)
        return won > 1 or self._ratio(contender, fastest) <= 1 + ADVANTAGE

    def _ratio(self, contender: Contender, other: Contender) -> float:
        """Return how much slower one trains than the other, as the median over turns."""
        pairs = zip(self._turns[contender.name], self._turns[other.name], strict=True)
        longer = (1 + contender.harm) / (1 + other.harm)
        return longer * median(mine / theirs for mine, theirs in pairs)
