"""AutoPilot: observes, decides, tries, settles, looks again."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from math import inf
from statistics import median
from typing import NamedTuple, TypeVar

from torch import Tensor

from gradwire.comm.base import Mailbox
from gradwire.engine.scheme import Scheme
from gradwire.engine.stats import StepStats
from gradwire.engine.switch import Order, Switch
from gradwire.hardware import Hardware
from gradwire.integrations.clock import Clock, workload_of
from gradwire.integrations.machine import Machine
from gradwire.measure.errors import measure_errors
from gradwire.plan import DENSE, Parameter, Plan
from gradwire.planner.choice import Choice, advice_of, name_of, reason_of
from gradwire.planner.drift import DRIFT, drifted, moved
from gradwire.planner.select import CAPS_BYTES, Decision, Limits, select_plan
from gradwire.planner.shortlist import Contender, candidates, shortlist
from gradwire.planner.step import Setting
from gradwire.planner.trial import Trial
from gradwire.spec import parse_reducer

WARMUP_STEPS = 2
"""DDP rebuilds its buckets after the first step."""

_WINDOW = 3
"""Steps of a look at the costs."""

Orders = Generator[Order, None, None]
Errors = dict[str, dict[str, float]]
_T = TypeVar("_T")


class Task(NamedTuple):
    """What the planner has to know of the model.

    Attributes:
        parameters: All that are exchanged.
        cap_bytes: Size of DDP's buckets.
        world_size: Number of ranks.
        may_leave: Whether DDP may average by itself where nothing is compressed.
    """

    parameters: Sequence[Parameter]
    cap_bytes: int
    world_size: int
    may_leave: bool = True


class AutoPilot:
    """Chooses the plan on rank 0, and follows it on all ranks.

    The first steps run the default plan: at worst encoding costs a few steps
    some time, while float32 over a slow link costs seconds each. Then the
    planner predicts, the closest plans are tried for some steps each, and the
    most exact of the fastest stays.

    Args:
        plan: The plan to begin with; its `auto` says how to choose.
        task: The model.
        machine: Speeds; the same on all ranks.
        mailbox: Connects the ranks.
    """

    def __init__(self, plan: Plan, task: Task, machine: Machine, mailbox: Mailbox) -> None:
        assert plan.auto is not None
        self._plan = plan
        self._auto = plan.auto
        self._task = task
        self._names = candidates(plan.auto, task.world_size)
        self._machine = machine
        self.clock = Clock() if mailbox.rank == 0 else None
        self.switch = Switch(mailbox, self._lead if self.clock is not None else None)
        self.decision: Choice | None = None
        self._orders = self._course()
        self._step = 0
        self._planner: ThreadPoolExecutor | None = None
        self._observed: tuple[float, float] | None = None

    def note(self, stats: StepStats) -> None:
        """See `Pilot.note`."""
        if self.clock is not None:
            self.clock.note(stats)

    def resume(self, plan: Plan, step: int) -> None:
        """See `Pilot.resume`."""
        self._plan = plan
        self.switch.restart(step)
        if self.clock is not None:
            self.clock.restart(step)
        self._orders = self._course() if plan.auto is not None else self._watch(None)
        self.decision = Choice.without(plan, "from the checkpoint")

    def leaves(self, step: int, scheme: Scheme) -> bool:
        """See `Pilot.leaves`."""
        is_quiet = self.switch.plan is None and not self.switch.speaks(step)
        is_free = self._task.may_leave and scheme.is_dense and not scheme.is_owing
        return is_quiet and is_free

    def _lead(self, step: int) -> Order:
        self._step = step
        order = next(self._orders)
        if order.plan is not None:
            self._plan = order.plan
        return order

    def _course(self) -> Orders:
        """Say what to do, from the first step on; each turn begins in a step of its own."""
        assert self.clock is not None
        yield Order(None, WARMUP_STEPS + self._auto.observed_steps - 1)
        self.clock.is_sampling = True
        yield Order(None, 1)
        while not self._is_observed:
            yield Order(None, 1)
        self.clock.is_sampling = False
        steps = range(self._step - self._auto.observed_steps, self._step)
        errors = self._submit(_errors, dict(self.clock.samples), self._names)
        self.clock.samples.clear()
        yield from _until(errors)
        self._observed = self._costs(steps)
        yield from self._choose(steps, self._machine.hardware, errors.result(), None)
        yield from self._watch(errors.result())

    @property
    def _is_observed(self) -> bool:
        """Whether the steps had a forward pass here, and gradients to learn from.

        They have none within Join after this rank's last input, and a loss
        scale that is still too large makes them infinite.
        """
        assert self.clock is not None
        steps = range(self._step - self._auto.observed_steps, self._step)
        peaks = [float(x.abs().max()) for x in self.clock.samples.values() if x.numel()]
        return bool(self.clock.of(steps)) and 0 < sum(peaks) < inf

    def _choose(
        self,
        steps: range,
        hardware: Hardware,
        errors: Errors | None,
        current: Plan | None,
    ) -> Orders:
        """Plan in the background, try what is close, and settle."""
        assert self.clock is not None
        while not self.clock.of(steps):  # as above
            yield Order(None, 1)
            steps = range(self._step - len(steps), self._step)
        setting = self._setting(steps, hardware)
        limits = Limits(
            self._auto.max_harm,
            self._names,
            (self._task.cap_bytes,),
        )
        planning = self._submit(_decide, setting, errors or {}, limits, current)
        yield from _until(planning)
        own, free, close = planning.result()
        trial = Trial(close, self._auto.turns)
        yield from self._try(trial)
        best = trial.best()
        self.decision = Choice(
            plan=best.plan,
            name=name_of(best.plan),
            reason=reason_of(best, trial.step_s, own),
            decision=own,
            contenders=close,
            step_s=trial.step_s,
            bucket_cap_mb=free.bucket_cap_mb,
            advice=advice_of(own, free),
            step=self._step,
        )
        yield Order(best.plan, WARMUP_STEPS)

    def _try(self, trial: Trial) -> Orders:
        """Let plans take turns until it is clear which are the fastest."""
        assert self.clock is not None
        steps = self._auto.tried_steps
        while not trial.is_over:
            turn: dict[str, list[float]] = {}
            for contender in trial.left:
                yield Order(replace(contender.plan, auto=self._auto), steps + WARMUP_STEPS)
                turn[contender.name] = self.clock.periods_s(range(self._step - steps, self._step))
            trial.note(turn)

    def _setting(self, steps: range, hardware: Hardware) -> Setting:
        assert self.clock is not None
        device = hardware.device
        work = workload_of(
            self.clock.of(steps),
            self.clock.period_s(steps),
            {p.name: p for p in self._task.parameters},
            device.copy_bytes_per_s,
        )
        hardware = replace(hardware, device=replace(device, interference=0.0))
        ranks = self._machine.ranks_per_node
        return Setting(work, hardware, self._task.world_size, ranks, self._task.cap_bytes)

    def _watch(self, errors: Errors | None) -> Orders:
        """Look at the costs from time to time; choose anew where they have moved."""
        yield Order(None, WARMUP_STEPS)
        while True:
            is_left = self._is_left
            look = self._look_at_periods() if is_left else self._look_at_costs()
            steps, hardware = yield from look
            yield from self._choose(steps, hardware, errors, None if is_left else self._plan)
            self._machine = self._machine._replace(hardware=hardware)

    @property
    def _is_left(self) -> bool:
        """Whether the plan in use is left to DDP."""
        assigned = self._plan.assign(self._task.parameters, self._task.world_size)
        return self._task.may_leave and all(a.reducer == DENSE for a in assigned.values())

    def _look_at_costs(self) -> Generator[Order, None, tuple[range, Hardware]]:
        """Return once what steps cost has moved, twice in a row: no passing disturbance."""
        before: tuple[float, float] | None = None
        has_moved = False
        while True:
            for _ in range(_WINDOW):
                yield Order(None, 1)
            steps = range(self._step - _WINDOW, self._step)
            costs = self._costs(steps)
            before = before or costs
            hardware = moved(self._machine.hardware, before, costs)
            is_moved = bool(drifted(self._machine.hardware, hardware))
            if is_moved and has_moved:
                return steps, hardware
            has_moved = is_moved
            yield Order(None, self._auto.watched_steps)

    def _look_at_periods(self) -> Generator[Order, None, tuple[range, Hardware]]:
        """Return once steps that DDP averages take longer, twice in a row.

        What they cost is not known then, so the default plan runs for some
        steps, and is compared with what it cost when it was observed.
        """
        assert self.clock is not None
        usual_s, has_moved = 0.0, False
        while True:
            yield Order(None, self._auto.watched_steps)
            period_s = self.clock.period_s(
                range(self._step - self._auto.watched_steps + 1, self._step)
            )
            usual_s = usual_s or period_s
            is_moved = period_s > (1 + DRIFT) * usual_s
            if is_moved and has_moved and self._observed is not None:
                plain, count = self._plan, self._auto.observed_steps
                yield Order(Plan.of(self._auto, seed=plain.seed), WARMUP_STEPS + count)
                steps = range(self._step - count, self._step)
                hardware = moved(self._machine.hardware, self._observed, self._costs(steps))
                if drifted(self._machine.hardware, hardware):
                    self._observed = self._costs(steps)
                    return steps, hardware
                usual_s, is_moved = 0.0, False
                yield Order(plain, WARMUP_STEPS)
            has_moved = is_moved

    def _costs(self, steps: range) -> tuple[float, float]:
        """Return seconds of link and codec per step."""
        assert self.clock is not None
        stats = [s.stats for s in self.clock.of(steps) if s.stats is not None]
        if not stats:
            return 0.0, 0.0
        wire_s = median(s.wire_s for s in stats)
        return wire_s, median(sum(b.encode_s + b.decode_s for b in s.buckets) for s in stats)

    def _submit(self, call: Callable[..., _T], *args: object) -> Future[_T]:
        if self._planner is None:
            self._planner = ThreadPoolExecutor(1, "gradwire-planner")
        return self._planner.submit(call, *args)


def _until(work: Future[_T]) -> Orders:
    """Say that nothing changes until work in the background is done."""
    while not work.done():
        yield Order(None, 1)


def _errors(samples: dict[str, Tensor], names: Sequence[str]) -> Errors:
    return measure_errors(samples, [parse_reducer(name) for name in names])


def _decide(
    setting: Setting, errors: Errors, limits: Limits, current: Plan | None
) -> tuple[Decision, Decision, tuple[Contender, ...]]:
    """Decide for the buckets there are, and for buckets of any size; list what is close."""
    own = select_plan(setting, errors=errors, limits=limits, current=current)
    caps = tuple(dict.fromkeys((setting.cap_bytes, *CAPS_BYTES)))
    free = select_plan(setting, errors=errors, limits=replace(limits, caps_bytes=caps))
    if current is not None and own.plan == current:
        return own, free, (Contender("kept", current, own.prediction.step_s, 0.0),)
    return own, free, shortlist(own, errors, limits)
