"""The few plans that are close enough to the best prediction to be tried."""

from __future__ import annotations

from typing import NamedTuple

from gradwire.errors import SpecError
from gradwire.plan import Plan
from gradwire.planner.errors import NORMAL_ERRORS, Errors, Losses
from gradwire.planner.harm import harm
from gradwire.planner.levels import two_level_candidates
from gradwire.planner.search import takes
from gradwire.planner.select import CANDIDATES, Decision, Limits
from gradwire.planner.step import predict, predict_plain
from gradwire.spec import Auto, ReducerSpec, parse_reducer, spec_name

WITHIN = 0.12
"""Plans predicted to be slower by more than this share than the best are not tried:
predictions are off by 10 % where several ranks share cores."""

PLAIN_WITHIN = 0.25
"""As for float32, the safe side: it is given up by prediction only where it is far behind."""

MOST = 4
"""So many are tried at most."""

_PAIR = 2


def candidates(auto: Auto, world_size: int) -> tuple[str, ...]:
    """Return what is worth measuring: codecs that may keep to the harm allowed.

    A codec that loses twice as much on normal values may still do on others. Low
    rank is none: what it defers is not seen in time. Two ranks may send each other
    all they have: the same bytes as in two phases, rounded once and waited for once.

    Example:
        >>> [name for name in candidates(Auto(), 2) if "int6" in name]
        ['int6', 'int6@broadcast']
        >>> "int6@broadcast" in candidates(Auto(), 4), "topk:0.01" in candidates(Auto(), 4)
        (False, False)
    """
    return tuple(
        name
        for name in CANDIDATES
        if (world_size == _PAIR or "@" not in name) and _least_harm(name) <= auto.max_harm
    )


def _least_harm(name: str) -> float:
    """Return the harm of half the error on normal values."""
    reducer = parse_reducer(name)
    lost = (NORMAL_ERRORS.get(spec_name(reducer), 2.0) / 2) ** 2
    return harm(lost, feedback=getattr(reducer, "feedback", False))


class Contender(NamedTuple):
    """A plan that may turn out the best.

    Attributes:
        predicted_s: Time of a step.
        error: Largest relative error of a bucket's own gradients.
        harm: Share by which training takes more steps.
    """

    name: str
    plan: Plan
    predicted_s: float
    error: float
    harm: float = 0.0

    @property
    def training_s(self) -> float:
        """What a step counts for on the way to a loss."""
        return (1 + self.harm) * self.predicted_s


def shortlist(decision: Decision, errors: Errors, limits: Limits) -> tuple[Contender, ...]:
    """Return the plan that was decided on and its close rivals, the fastest first.

    Rivals use one reducer for everything, each codec in its fastest form, flat or by
    nodes. `none`,
    as the safe side, is among them if it is close, whatever the number of others.

    Args:
        decision: From `select_plan`.
        errors: As it was given.
        limits: As it was given.
    """
    setting = decision.setting
    losses = Losses(errors, setting.workload.parameters)
    step_s = decision.prediction.step_s
    if decision.plan == Plan.of("none", seed=decision.plan.seed):
        step_s = predict_plain(setting)  # as the back end does it by itself
    harm = losses.of_plan(decision.plan, setting.world_size)
    rivals: dict[str, Contender] = {}
    reducers = limits.reducers()
    reducers |= two_level_candidates(reducers, setting.world_size, setting.ranks_per_node)
    for name, reducer in reducers.items():
        rival, codec = _rival(name, reducer, decision, losses), spec_name(reducer)
        if rival is None or rival.harm > limits.max_harm:
            continue
        if codec not in rivals or rival.training_s < rivals[codec].training_s:
            rivals[codec] = rival
    chosen = Contender("chosen", decision.plan, step_s, _error(decision), harm)
    found = {decision.plan: chosen} | {rival.plan: rival for rival in rivals.values()}
    best_s = min(c.training_s for c in found.values())
    close = [c for c in found.values() if c.training_s <= (1 + _within(c)) * best_s]
    close.sort(key=lambda c: c.training_s)
    last = [c for c in close[MOST:] if c.name == "none"]
    return (*close[: MOST - len(last)], *last)


def _within(contender: Contender) -> float:
    return PLAIN_WITHIN if contender.name == "none" else WITHIN


def _rival(name: str, reducer: ReducerSpec, decision: Decision, losses: Losses) -> Contender | None:
    setting = decision.setting
    plan = Plan.of(reducer, seed=decision.plan.seed)
    taken = [p for p in setting.workload.parameters if takes(reducer, p)]
    if not taken:
        return None
    try:
        step_s = predict_plain(setting) if name == "none" else predict(plan, setting).step_s
    except SpecError:  # no speed known, or a broadcast that moves more than it saves
        return None
    harm = losses.of_plan(plan, setting.world_size)
    return Contender(name, plan, step_s, losses.error(reducer, taken), harm)


def _error(decision: Decision) -> float:
    """Return the largest error of a bucket under a decision."""
    chosen = [next(o for o in b.options if o.name == b.chosen) for b in decision.buckets]
    return max((option.error for option in chosen), default=0.0)
