"""Search for what trains fastest, and the most exact that is close to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from gradwire.errors import SpecError
from gradwire.plan import DENSE, Parameter, Rule
from gradwire.planner.cost import Cost
from gradwire.planner.errors import Errors, Losses
from gradwire.planner.step import ORDERLESS_RANKS, Setting
from gradwire.spec import Hierarchical, ReducerSpec
from gradwire.workload import Bucket

ADVANTAGE = 0.05
"""By what share of a step a lossier plan must win against float32 and bfloat16."""

EVEN = 0.01
"""Differences up to this share of a step count as none among plans that are lossy alike."""

_WORTH = 0.001
"""A bucket becomes an exception for no smaller share of a step."""

SLACK = 1.2
"""How much slower than measured a link may turn out without a loss from more exactness."""

_ENCODABLE = ("float32", "bfloat16", "float16", "complex64")
_MAX_EVALUATIONS = 2048


@dataclass(frozen=True, slots=True)
class Option:
    """One candidate for one bucket.

    Attributes:
        name: Short name of the candidate.
        costs: Its reductions; None where it cannot be used.
        error: Relative error on the bucket's own gradients.
        harm: Share by which training takes longer if this bucket alone uses it.
        reason: Why it cannot be used, or None.
    """

    name: str
    costs: tuple[Cost, ...] | None
    error: float = 0.0
    harm: float = 0.0
    reason: str | None = None

    @property
    def sent_bytes(self) -> int:
        """Bytes that a rank sends."""
        return sum(c.sent_bytes for c in self.costs or ())

    @property
    def codec_s(self) -> float:
        """Work of the codec thread."""
        return sum(c.codec_s for c in self.costs or ())

    @property
    def alone_s(self) -> float:
        """Time if nothing else is under way: codec, link and latencies in turn."""
        return sum(c.alone_s for c in self.costs or ())


def takes(reducer: ReducerSpec, parameter: Parameter) -> bool:
    """Return whether a plan gives this reducer to a parameter by default."""
    is_encodable = parameter.dtype in _ENCODABLE and not parameter.is_sparse
    return is_encodable and Rule(reducer).mismatch(parameter) is None


def weigh(
    bucket: Bucket, name: str, reducer: ReducerSpec, setting: Setting, losses: Losses, most: float
) -> Option:
    """Return a candidate for a bucket, or why it is none.

    Args:
        bucket: The gradients.
        name: Short name of the candidate.
        reducer: The candidate.
        setting: Where the plan would run.
        losses: What the candidate loses.
        most: Largest harm allowed.
    """
    taken = [p for p in bucket.parameters if takes(reducer, p)]
    rest = [p for p in bucket.parameters if not takes(reducer, p)]
    dense = setting.cost(DENSE, bucket.parameters)
    if reducer == DENSE:
        return Option(name, (dense,))
    if not taken:
        return Option(name, None, reason="no parameter that a plan compresses")
    error, harm = losses.error(reducer, taken), losses.harm(reducer, taken)
    if harm > most:
        return Option(name, None, error, harm, f"{harm:.1%} more steps, {most:.1%} allowed")
    try:
        costs = [setting.cost(reducer, taken)]
    except SpecError as problem:
        why = f"no speed known: {problem.field} {problem.value!r}"
        return Option(name, None, error, harm, why)
    costs += [setting.cost(DENSE, rest)] if rest else []
    option = Option(name, tuple(costs), error, harm)
    is_flat = not isinstance(reducer, Hierarchical)  # else it is about where bytes go
    if is_flat and setting.world_size > 1 and option.sent_bytes >= dense.sent_bytes:
        return Option(name, None, error, harm, "would not send fewer bytes")
    return option


class Search:
    """Looks for the best option of each bucket, for one size of buckets.

    Args:
        setting: Where the plan would run.
        candidates: Reducers by short name; `"none"` is among them.
        errors: Measured relative errors.
        most: Largest harm allowed, of all buckets together.
    """

    def __init__(
        self,
        setting: Setting,
        candidates: Mapping[str, ReducerSpec],
        errors: Errors,
        most: float,
    ) -> None:
        self.setting = setting
        self._given = (candidates, errors, most)
        self._most = most
        self.buckets = setting.buckets()
        losses = Losses(errors, setting.workload.parameters)
        self.table = [
            [weigh(b, name, r, setting, losses, most) for name, r in candidates.items()]
            for b in self.buckets
        ]
        self.names = list(candidates)
        self._none = self.names.index("none")

    @property
    def none(self) -> list[int]:
        """The assignment that compresses nothing."""
        return [self._none] * len(self.buckets)

    def uniform(self, name: str) -> list[int] | None:
        """Return the assignment of one candidate to every bucket that can use it.

        None where no bucket can.
        """
        index = self.names.index(name)
        chosen = [index if row[index].costs else self._none for row in self.table]
        return chosen if index in chosen else None

    def step_s(self, chosen: Sequence[int]) -> float:
        """Return the time of a step under an assignment."""
        costs = [row[i].costs or () for row, i in zip(self.table, chosen, strict=True)]
        if set(chosen) <= {self._none} and self.setting.world_size <= ORDERLESS_RANKS:
            costs = [(self.setting.plain_cost(b),) for b in self.buckets]
        return self.setting.step_s(self.buckets, costs)

    def harm(self, chosen: Sequence[int]) -> float:
        """Return by what share an assignment makes training take more steps."""
        return sum(row[i].harm for row, i in zip(self.table, chosen, strict=True))

    def training_s(self, chosen: Sequence[int]) -> float:
        """Return what a step counts for on the way to a loss; else infinity."""
        harm = self.harm(chosen)
        return (1 + harm) * self.step_s(chosen) if harm <= self._most else inf

    def fastest(self) -> list[int]:
        """Return the fastest found: the best uniform one, then bucket by bucket."""
        uniform = [c for name in self.names if (c := self.uniform(name)) is not None]
        best = min(uniform, key=self.training_s)
        best_s = self.training_s(best)
        for group in self._groups():
            for index in range(len(self.names)):
                changed = self._changed(best, group, index)
                if changed is None:
                    continue
                training_s = self.training_s(changed)
                if training_s < (1 - _WORTH) * best_s:
                    best, best_s = changed, training_s
        return best

    def cautious(self) -> Search:
        """Return the same search on a link that is slower by `SLACK`."""
        rate = self.setting.link.bandwidth_bytes_per_s
        return Search(self.setting.at(rate / SLACK), *self._given)

    def most_exact(self, chosen: list[int]) -> list[int]:
        """Make buckets more exact, from the first on, as far as it costs no time."""
        limit_s = (1 + EVEN) * self.training_s(chosen)
        for group in self._groups():
            now = self._error(group, chosen[group[0]])
            for index in sorted(range(len(self.names)), key=lambda i: self._error(group, i)):
                changed = self._changed(chosen, group, index)
                if changed is None or self._error(group, index) >= now:
                    continue
                if self.training_s(changed) <= limit_s:
                    chosen = changed
                    break
        return chosen

    def _error(self, group: range, index: int) -> float:
        return max(self.table[b][index].error for b in group)

    def _changed(self, chosen: list[int], group: range, index: int) -> list[int] | None:
        """Return an assignment with one candidate for a group, None if it cannot be used."""
        if any(self.table[b][index].costs is None for b in group):
            return None
        return [index if b in group else i for b, i in enumerate(chosen)]

    def _groups(self) -> list[range]:
        """Cut the buckets into runs that are decided together, fewer where there are many."""
        count = len(self.buckets)
        size = max(1, count * count // _MAX_EVALUATIONS)
        return [range(start, min(start + size, count)) for start in range(0, count, size)]
