"""HAGC: picks the reducer of each bucket from measured costs.

The rule is one sentence: of the assignments that are close to the fastest, take
the most exact. Fast is what trains fast: the time of a step times the steps that
what is lost makes necessary, which may not be more than allowed. Close is 5 % for
float32 and bfloat16, so that compression must win by more than that, and 1 % among
lossy ones, on a link somewhat slower than measured too.
"""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gradwire.errors import SpecError
from gradwire.plan import DENSE, Plan, Rule
from gradwire.planner.errors import Errors, Losses
from gradwire.planner.levels import two_level_candidates
from gradwire.planner.search import ADVANTAGE, EVEN, Option, Search, takes
from gradwire.planner.step import Prediction, Setting, predict, predict_plain
from gradwire.spec import Auto, ReducerSpec, parse_reducer
from gradwire.units import format_seconds
from gradwire.workload import BUCKET_BYTES, Bucket

CANDIDATES = (
    *("none", "bf16", "fp16", "int8", "fp8", "int6"),
    *("nearest5", "int4", "nearest4", "nearest3", "int2", "sign"),
    *("int8@broadcast", "int6@broadcast", "nearest4@broadcast", "nearest3@broadcast"),
    *("int2@broadcast", "sign@broadcast", "topk:0.01", "low_rank:1"),
)
"""Short names of what is tried, unless told otherwise."""

PLAIN = ("none", "bf16")
"""What is kept unless compression wins by more than `ADVANTAGE`."""

HYSTERESIS = 0.05
"""By what share of a step another plan must win against the one in use."""

_SHOWN = 0.0005
"""Harm from which on it is told."""

CAPS_BYTES = tuple(mib << 20 for mib in (25, 10, 5, 2, 50))
"""Bucket sizes that are tried: DDP's own, then others."""


@dataclass(frozen=True, slots=True)
class BucketChoice:
    """What one bucket uses, and what else there was.

    Attributes:
        chosen: Short name.
        options: Every candidate, with its costs or why it is none.
        step_s: Time of a step if this bucket alone used another option, by name.
    """

    bucket: Bucket
    chosen: str
    options: tuple[Option, ...]
    step_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Decision:
    """A plan, and why it is this one.

    Attributes:
        plan: What to use.
        setting: Where; its `cap_bytes` is the size of buckets to use.
        prediction: What a step comes to.
        plain_s: The same for DDP without gradwire and 25 MiB buckets.
        reason: Why, in one sentence.
        buckets: By bucket, in the order they become ready; of the newly found
            assignment also where the plan in use stays.
    """

    plan: Plan
    setting: Setting
    prediction: Prediction
    plain_s: float
    reason: str
    buckets: tuple[BucketChoice, ...]

    @property
    def bucket_cap_mb(self) -> int:
        """The advice for DDP's `bucket_cap_mb`, which counts in MiB."""
        return max(1, self.setting.cap_bytes >> 20)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a choice has to keep to.

    Attributes:
        max_harm: By what share training may take more steps to a loss.
        candidates: Short names of what may be used; `"none"` always may, and
            where nodes have several ranks, their hierarchical forms.
        caps_bytes: Bucket sizes that may be used; the first wins where all are even.
    """

    max_harm: float = Auto().max_harm
    candidates: tuple[str, ...] = CANDIDATES
    caps_bytes: tuple[int, ...] = CAPS_BYTES

    def __post_init__(self) -> None:
        if not self.max_harm >= 0:
            raise SpecError("Limits.max_harm", self.max_harm, "at least 0")
        if not self.caps_bytes:
            raise SpecError("Limits.caps_bytes", self.caps_bytes, "at least one size")

    def reducers(self) -> dict[str, ReducerSpec]:
        """Return the candidates by short name, `"none"` first."""
        names = dict.fromkeys(("none", *self.candidates))
        return {name: parse_reducer(name) for name in names}


def select_plan(
    setting: Setting,
    *,
    errors: Errors | None = None,
    limits: Limits | None = None,
    current: Plan | None = None,
    seed: int = 0,
) -> Decision:
    """Choose a plan and the size of buckets for a workload on some hardware.

    Deterministic: equal arguments give an equal plan, so that ranks which share
    them agree.

    Args:
        setting: Workload, hardware and ranks; its `cap_bytes` is not looked at.
        errors: Relative errors measured on the model's own gradients, with feedback.
        limits: What the choice has to keep to.
        current: The plan in use; it stays unless the new one wins by more
            than `HYSTERESIS`.
        seed: Names the random streams of the plan.

    Example:
        >>> from gradwire.hardware import Device, Hardware, Line, LinkSpeed
        >>> from gradwire.workload import Layer, Workload, parameter
        >>> layer = Layer("fc", (parameter("fc.weight", (1000, 1000)),), 0.01, 0.02)
        >>> kernels = {f"{step} int8": Line(1e-5, 1e-10) for step in ("encode", "decode")}
        >>> slow, fast = LinkSpeed(1e-4, 1e7), LinkSpeed(1e-5, 1e11)
        >>> hardware = Hardware(Device(), kernels, within=fast, between=slow)
        >>> work = Workload("tiny", (layer,))
        >>> select_plan(Setting(work, hardware, 2)).plan.rules[0].reducer.codec.bits
        8
        >>> one_node = Setting(work, hardware, 2, ranks_per_node=2)
        >>> select_plan(one_node).plan == Plan.of("none")
        True
    """
    limits = limits or Limits()
    candidates = limits.reducers()
    candidates |= two_level_candidates(candidates, setting.world_size, setting.ranks_per_node)
    searches = [
        Search(replace(setting, cap_bytes=cap), candidates, errors or {}, limits.max_harm)
        for cap in limits.caps_bytes
    ]
    search, chosen, reason = _choose(searches)
    plan = _plan(search, chosen, candidates, seed)
    prediction = predict(plan, search.setting)
    explained = _explain(search, chosen)
    if current is not None and current != plan:
        kept, used = _best(current, searches)
        losses = Losses(errors or {}, setting.workload.parameters)
        harm = losses.of_plan(current, setting.world_size)
        best_s = (1 + losses.of_plan(plan, setting.world_size)) * prediction.step_s
        if harm <= limits.max_harm and (1 + harm) * used.step_s <= (1 + HYSTERESIS) * best_s:
            search, plan, prediction = kept, current, used
            reason = f"the plan in use stays: another would not win more than {HYSTERESIS:.0%}"
    return Decision(
        plan=plan,
        setting=search.setting,
        prediction=prediction,
        plain_s=predict_plain(replace(setting, cap_bytes=BUCKET_BYTES)),
        reason=reason,
        buckets=explained,
    )


def _best(plan: Plan, searches: Sequence[Search]) -> tuple[Search, Prediction]:
    """Return the bucket size at which a plan is fastest."""
    found = [(search, predict(plan, search.setting)) for search in searches]
    return min(found, key=lambda item: item[1].step_s)


def _choose(searches: Sequence[Search]) -> tuple[Search, list[int], str]:
    """Return the search of the best bucket size, and its assignment."""
    found = [(search, c := search.fastest(), search.training_s(c)) for search in searches]
    fastest, chosen, best_s = _first_even(found)
    for name in PLAIN:
        plain = [(s, u, s.training_s(u)) for s in searches if (u := _uniform(s, name)) is not None]
        if not plain:
            continue
        search, uniform, plain_s = _first_even(plain)
        if plain_s <= (1 + ADVANTAGE) * best_s:
            gain = f"nothing is more than {ADVANTAGE:.0%} faster than {name}"
            return search, uniform, f"{gain}: {_times(best_s, plain_s)}"
    exact = fastest.cautious().most_exact(chosen)
    none = min(search.step_s(search.none) for search in searches)
    times, harm = _times(fastest.step_s(exact), none), fastest.harm(exact)
    more = f", for {harm:.1%} more steps" if harm >= _SHOWN else ""
    return fastest, exact, f"the most exact of the fastest: {times}{more}"


def _uniform(search: Search, name: str) -> list[int] | None:
    return search.uniform(name) if name in search.names else None


def _first_even(
    found: Sequence[tuple[Search, list[int], float]],
) -> tuple[Search, list[int], float]:
    """Return the first bucket size that is even with the fastest."""
    best_s = min(step_s for _, _, step_s in found)
    return next(f for f in found if f[2] <= (1 + EVEN) * best_s)


def _times(best_s: float, plain_s: float) -> str:
    return f"{format_seconds(best_s)} a step against {format_seconds(plain_s)}"


def _plan(
    search: Search, chosen: Sequence[int], candidates: Mapping[str, ReducerSpec], seed: int
) -> Plan:
    """Write an assignment as rules: the commonest for all, the others by name."""
    reducers = [candidates[search.names[i]] for i in chosen]
    compressing = [r for r, b in zip(reducers, search.buckets, strict=True) if _any_taken(r, b)]
    common = Counter(compressing or [DENSE]).most_common(1)[0][0]
    exceptions = [
        Rule(reducer, match=glob.escape(p.name))
        for reducer, bucket in zip(reducers, search.buckets, strict=True)
        for p in bucket.parameters
        if reducer != common and takes(common, p)
    ]
    return Plan((*exceptions, Rule(common)), seed)


def _any_taken(reducer: ReducerSpec, bucket: Bucket) -> bool:
    return any(takes(reducer, p) for p in bucket.parameters)


def _explain(search: Search, chosen: Sequence[int]) -> tuple[BucketChoice, ...]:
    choices = []
    for number, (bucket, row) in enumerate(zip(search.buckets, search.table, strict=True)):
        step_s = {
            option.name: search.step_s([*chosen[:number], index, *chosen[number + 1 :]])
            for index, option in enumerate(row)
            if option.costs is not None
        }
        choices.append(BucketChoice(bucket, search.names[chosen[number]], tuple(row), step_s))
    return tuple(choices)
