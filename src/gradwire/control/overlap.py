"""AQGB's controller: spends exactly the time that computation hides on precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gradwire.control.base import LayerStats, NetworkStats
from gradwire.control.levels import (
    SPARSE_DENSITY,
    Exchange,
    codec,
    reducer,
)
from gradwire.control.measured import JUMP, Measured
from gradwire.control.progress import Schedule, schedule_of
from gradwire.control.ways import LEAST, Ways
from gradwire.planner.bits import Allocation, Demand, solve
from gradwire.planner.greedy import excess
from gradwire.planner.harm import harm
from gradwire.spec import Broadcast, CodecSpec, ReducerSpec, Sparse
from gradwire.spec.adaptive import Adaptive

_ROUNDS: dict[Exchange, int] = {"broadcast": 1, "two_phase": 2}
_WAIT_HIGH, _WAIT_LOW = 0.02, 0.005
_BUSY = 0.95
_LESS, _MORE = 0.85, 1.01
_MARGINS = (0.4, 1.0)
_MOST_STRICT = 0.25
_EARLY = (1, 2, 4, 8)  # the first plans know little
_PAYS = 0.02
"""A change must lower the time to a loss by this part."""
_FINER = 8.0  # a plan that loses so much less is taken, too

Bits = tuple[int | None, ...]
"""The level of each layer; None for a sparse payload."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A plan for the steps to come, and what is expected of it.

    Attributes:
        exchange: `"broadcast"` or `"two_phase"`.
        bits: The level of each layer, one tuple for each sender, or one for all.
        floor: Least bits that training asked for.
        stall_s: Wait that could not be hidden.
        error: `harm` of what is lost, times the squared norms of layers.
        margin: Factor on budgets, from the waits that were measured.
    """

    exchange: Exchange
    bits: tuple[Bits, ...]
    floor: int
    stall_s: float
    error: float
    margin: float


class OverlapController:
    """Chooses each layer's bits so that its transfer just fits into its window.

    It solves anew every `settings.every` steps, or at once where a link's
    bandwidth moved by more than a fifth. What was waited in spite of a plan
    shrinks the budgets of the next, what was not used enlarges them. It keeps
    its plan unless another is worth the change: the time to a loss is taken to
    grow with the step and with 1 + `harm` of what is lost.

    Args:
        settings: What may be chosen.

    Example:
        >>> from gradwire.control.base import Losses
        >>> controller = OverlapController(Adaptive(reducer="broadcast"))
        >>> network = NetworkStats(2, (1e6, 1e6), 0.0, 0.0, 0.0, 0.5, 0.1)
        >>> layers = [LayerStats("fc", 100_000, 0.1, due_s=0.2, wait_s=0.0, losses=Losses(1.0))]
        >>> controller.update(0, layers, network)["fc"].codec.bits
        4
        >>> controller.update(1, layers, network) is None
        True
    """

    def __init__(self, settings: Adaptive | None = None) -> None:
        self.settings = settings or Adaptive()
        self.decision: Decision | None = None
        self._schedule: Schedule = schedule_of(self.settings)
        self._measured = Measured()
        self._ways = Ways(self.settings, self._measured)
        self._reducers: dict[str, ReducerSpec] = {}
        self._solved: tuple[int, tuple[float, ...], tuple[str, ...]] | None = None
        self._margin = 1.0
        self._strictness = 1.0

    def update(
        self, step: int, layers: Sequence[LayerStats], network: NetworkStats
    ) -> Mapping[str, ReducerSpec] | None:
        """See `Controller.update`.

        Raises:
            SpecError: Broadcast was asked for and would move more than a
                bfloat16 all-reduce even at the floor.
        """
        if network.world_size == 1 or not layers:
            return None
        measured = self._measured
        measured.add(layers, network)
        if not self._is_due(step):
            return None
        floor = self._floor(step)
        self._learn_from_waits()
        if self._solved is None or self._solved[2] != measured.names:
            self._reducers = {}
        self._solved = (step, measured.bandwidth, measured.names)
        ways = self._ways.exchanges(floor, network.world_size)
        # A stall that latency forces is worth filling: higher floors are tried, too.
        tried = [
            self._decide(way, least, floor, network.world_size)
            for way in ways
            for least in self._ways.floors(floor)
            if least == floor or self._ways.is_below_bf16(way, least, network.world_size)
        ]
        fine = [d for d in tried if self._is_fine(d)] or [min(tried, key=lambda d: d.error)]
        best = min(fine, key=self._time)
        now = self.decision
        is_kept = now is not None and now.floor == floor and self._keeps(best, network.world_size)
        if is_kept:
            return None
        self.decision = best
        measured.forget_waits()
        chosen = self._reducers_of(best)
        changed = {n: spec for n, spec in chosen.items() if self._reducers.get(n) != spec}
        self._reducers = chosen
        return changed or None

    def _floor(self, step: int) -> int:
        """Ask the schedule, once the present plan has shown its error."""
        if self.decision is not None and self._measured.waits() is None:
            return self.decision.floor
        self._learn_from_error()
        return self._schedule.floor(step, self._measured.relative_error)

    def _is_due(self, step: int) -> bool:
        if self._solved is None:
            return True
        last, _, names = self._solved
        measured = self._measured
        if names != measured.names or self._has_moved() or measured.count in _EARLY:
            return True
        return self._unforeseen() > _WAIT_HIGH or step - last >= self.settings.every

    def _has_moved(self) -> bool:
        """Whether a link is no longer what the present plan was solved for."""
        rates = self._solved[1] if self._solved else ()
        if len(rates) != len(self._measured.bandwidth):
            return False
        pairs = zip(rates, self._measured.bandwidth, strict=True)
        return any(abs(now - then) > JUMP * then for then, now in pairs)

    def _unforeseen(self) -> float:
        """Return the share of the step that was waited against expectation, 0 before it shows.

        What the first layer waits is no sign of narrow budgets: it has none.
        """
        waits = self._measured.waits()
        if waits is None or self.decision is None:
            return 0.0
        wait_s = min(waits.wait_s - self.decision.stall_s, waits.rear_s)
        return wait_s / max(self._measured.step_s, LEAST)

    def _learn_from_waits(self) -> None:
        waits = self._measured.waits()
        if waits is None:
            return
        if self._has_moved():  # that explains them
            self._measured.forget_waits()
            return
        if (unforeseen := self._unforeseen()) > _WAIT_HIGH:
            self._margin = max(_MARGINS[0], self._margin * _LESS)
        elif unforeseen < _WAIT_LOW and waits.overlap_s < _BUSY * self._measured.step_s:
            self._margin = min(_MARGINS[1], self._margin * _MORE)
        self._measured.forget_waits()

    def _learn_from_error(self) -> None:
        """Ask less of plans where more is lost than was expected of them."""
        bound, found = self.settings.error_bound, self._measured.relative_error
        if found > bound:
            self._strictness = max(_MOST_STRICT, self._strictness * bound / found)
        else:
            self._strictness = min(1.0, self._strictness * _MORE)

    def _decide(self, exchange: Exchange, least: int, floor: int, world_size: int) -> Decision:
        """Solve for one exchange and least bits, for each link that differs."""
        demands = self._ways.demands(exchange, least, world_size)
        rates = self._ways.rates(exchange)
        found = {rate: self._solve(demands, rate, exchange) for rate in sorted(set(rates))}
        solved = [found[rate] for rate in rates]
        return Decision(
            exchange,
            tuple(tuple(o.bits for o in a.options) for a in solved),
            floor,
            max(a.excess / (rate * self._margin) for a, rate in zip(solved, rates, strict=True)),
            sum(a.error for a in solved) / len(solved),
            self._margin,
        )

    def _solve(self, demands: Sequence[Demand], rate: float, exchange: Exchange) -> Allocation:
        rate *= self._margin
        budgets = self._measured.budgets(rate, _ROUNDS[exchange])
        worth = self._square() / max(self._measured.compute_s, 1e-9) / rate
        return solve(demands, budgets, worth, self._most_error(), self._ways.weights(exchange))

    def _most_error(self) -> float:
        """Return the error of all layers that the bound stands for."""
        bound = (self.settings.error_bound * self._strictness) ** 2
        return harm(bound, feedback=self.settings.feedback) * self._square()

    def _is_fine(self, decision: Decision) -> bool:
        """Whether a decision keeps the bound, where floors do not go by other rules."""
        is_bounded = self.settings.schedule == "error_bounded"
        return not is_bounded or decision.error <= self._most_error()

    def _square(self) -> float:
        """Return the squared norm of what all layers owe."""
        return max(sum(self._measured.squares), LEAST)

    def _time(self, decision: Decision) -> float:
        """Return how long training takes, up to a factor that all decisions share."""
        compute_s = max(self._measured.compute_s, 1e-9)
        return (compute_s + decision.stall_s) * (1 + decision.error / self._square())

    def _keeps(self, best: Decision, world_size: int) -> bool:
        """Whether the present decision is nearly as good, with what is known now."""
        now = self.decision
        assert now is not None
        if len(now.bits) != len(best.bits) or len(now.bits[0]) != len(best.bits[0]):
            return False
        found = [
            self._ways.demands(now.exchange, f, world_size) for f in self._ways.floors(now.floor)
        ]
        weights, rates = self._ways.weights(now.exchange), self._ways.rates(now.exchange)
        if len(rates) != len(now.bits):  # links have begun, or ceased, to differ
            rates = [min(rates)] * len(now.bits)
        stall_s, error = 0.0, 0.0
        for bits, rate in zip(now.bits, rates, strict=True):
            ways = [
                {o.bits: o for d in same for o in (*d.options, *d.reliefs)}
                for same in zip(*found, strict=True)
            ]
            if any(b not in way for b, way in zip(bits, ways, strict=True)):
                return False  # others have become better in cost and error
            chosen = [way[b] for b, way in zip(bits, ways, strict=True)]
            budgets = self._measured.budgets(rate * self._margin, _ROUNDS[now.exchange])
            over = excess((o.cost for o in chosen), budgets)
            stall_s = max(stall_s, over / (rate * self._margin))
            lost = sum(o.error * w for o, w in zip(chosen, weights, strict=True))
            error += lost / len(rates)
        same = Decision(now.exchange, now.bits, now.floor, stall_s, error, self._margin)
        is_worse = self._is_fine(best) and not self._is_fine(same)
        if is_worse or self._time(same) > (1 + _PAYS) * self._time(best):
            return False
        return same.error <= _FINER * best.error or self._time(best) > self._time(same)

    def _reducers_of(self, decision: Decision) -> dict[str, ReducerSpec]:
        return {
            name: self._reducer(decision.exchange, [bits[i] for bits in decision.bits])
            for i, name in enumerate(self._measured.names)
        }

    def _reducer(self, exchange: Exchange, bits: Sequence[int | None]) -> ReducerSpec:
        feedback, force = self.settings.feedback, self.settings.force
        codecs: list[CodecSpec] = [
            Sparse(SPARSE_DENSITY) if b is None else codec(b, feedback=feedback) for b in bits
        ]
        if len(set(codecs)) == 1:
            return reducer(codecs[0], exchange, feedback=feedback, force=force)
        return Broadcast(codecs[0], feedback, tuple(codecs), force)
