"""Choice: what the planner settled on, and why, for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gradwire.plan import Plan
from gradwire.planner.select import Decision
from gradwire.planner.shortlist import Contender
from gradwire.spec import Broadcast, Hierarchical, ReducerSpec, spec_name
from gradwire.units import format_seconds

BUCKETS_MATTER = 0.05
"""By what share of a step other buckets must win to be advised."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The plan in use, what it was chosen from, and what would be faster still.

    Attributes:
        plan: What is used.
        name: Its short name, or `"chosen"` where buckets differ.
        decision: The planner's prediction, with every candidate of each bucket;
            None where there was nothing to plan.
        contenders: The plans that were tried, the best prediction first.
        step_s: Measured time of a step under each of them, by name.
        bucket_cap_mb: The size of buckets that is predicted to be best.
        advice: What to change in the set-up, or None.
        step: The step after which it holds.

    Example:
        >>> print(Choice.without(Plan.of("none"), "one rank exchanges nothing"))
        none: one rank exchanges nothing
    """

    plan: Plan
    name: str
    reason: str
    decision: Decision | None = None
    contenders: tuple[Contender, ...] = ()
    step_s: Mapping[str, float] | None = None
    bucket_cap_mb: int | None = None
    advice: str | None = None
    step: int = 0

    @classmethod
    def without(cls, plan: Plan, reason: str) -> Choice:
        """Return the choice of a plan that nothing was measured for."""
        return cls(plan, name_of(plan), reason)

    @property
    def predicted_s(self) -> float | None:
        """What the planner predicted for a step of the plan in use."""
        return next((c.predicted_s for c in self.contenders if c.plan == self.plan), None)

    def __str__(self) -> str:
        return "; ".join(filter(None, (f"{self.name}: {self.reason}", self.advice)))


def name_of(plan: Plan) -> str:
    """Return the short name of a plan, that of its rule for all others.

    Example:
        >>> name_of(Plan.of("int6")), name_of(Plan.of("int6@broadcast"))
        ('int6', 'int6@broadcast')
    """
    names = list(dict.fromkeys(_short(rule.reducer) for rule in reversed(plan.rules)))
    return " and ".join(names) or "none"


def _short(reducer: ReducerSpec) -> str:
    form = f"@{reducer.id}" if isinstance(reducer, (Broadcast, Hierarchical)) else ""
    return f"{spec_name(reducer)}{form}"


def reason_of(best: Contender, tried: Mapping[str, float], decision: Decision) -> str:
    """Say in one sentence why a contender was taken."""
    others = {name: step_s for name, step_s in tried.items() if name != best.name}
    mine = f"{format_seconds(tried[best.name])} a step measured" if best.name in tried else ""
    if not others:
        return mine or decision.reason
    listed = ", ".join(f"{name} {format_seconds(s)}" for name, s in sorted(others.items()))
    return f"the most exact of the fastest: {mine}, against {listed}"


def advice_of(own: Decision, free: Decision) -> str | None:
    """Say which buckets would be faster, where it is by much.

    Args:
        own: Decided for the buckets there are.
        free: Decided for buckets of any size.
    """
    gain = 1 - free.prediction.step_s / own.prediction.step_s
    if gain <= BUCKETS_MATTER:
        return None
    return (
        f"buckets of {free.bucket_cap_mb} MiB would make a step {gain:.0%} shorter:"
        f" DistributedDataParallel(model, bucket_cap_mb={free.bucket_cap_mb})"
    )
