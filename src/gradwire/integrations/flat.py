"""FlatAverager: averages flat tensors, known by size and order only."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import lru_cache

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.comm.base import Mailbox, Steps
from gradwire.comm.channel import Channel, Scratch
from gradwire.comm.record import Recorder
from gradwire.engine.worker import Worker
from gradwire.errors import CollectiveError, SpecError
from gradwire.key import Key, name_hash
from gradwire.plan import DENSE, Parameter, Plan
from gradwire.reduce.base import Part, Reducer, Slot, State, build
from gradwire.spec import Broadcast, Entry, Float, LowRank, Quantize, TwoPhase

_KEPT_PASSES = 8
"""Backward passes that a residual outlives without use: DDP rebuilds its buckets."""

_NO_BACKWARD = -1


def check_flat(plan: Plan) -> Plan:
    """Return the part of a plan that works on flat tensors without names.

    Raises:
        SpecError: All of its rules go by name, or one makes matrices.

    Example:
        >>> check_flat(Plan.of("int4")).rules[0].min_ndim
        0
    """
    rules = tuple(replace(rule, min_ndim=0) for rule in plan.rules if rule.match == "*")
    if plan.rules and not rules:
        allowed = 'with a rule for all names ("*"): a process group sees no names; use attach'
        raise SpecError("plan", [rule.match for rule in plan.rules], allowed)
    for rule in rules:
        if isinstance(rule.reducer, LowRank):
            allowed = "possible without the shapes of parameters; use attach"
            raise SpecError("plan of a process group", rule.reducer, allowed)
    return replace(plan, rules=rules)


@dataclass(slots=True)
class _Place:
    """One call's place among those of a backward pass, and what is owed there."""

    reducer: Reducer
    part: Part
    residual: Tensor | None
    last_pass: int = 0


@dataclass(slots=True)
class _Backward:
    """Which backward pass is under way, and its calls so far."""

    task: int = _NO_BACKWARD
    number: int = 0
    calls: int = 0
    places: dict[tuple[int, int], _Place] = field(default_factory=dict)


class FlatAverager:
    """Starts an encoded average for each tensor that the plan would shrink.

    Args:
        plan: From `check_flat`.
        mailbox: Connects the ranks; closed with the averager.
    """

    def __init__(self, plan: Plan, mailbox: Mailbox) -> None:
        self.calls = 0
        self.sent_bytes = 0
        self._plan = plan
        self._mailbox = mailbox
        self._worker = Worker("gradwire-backend")
        self._scratch = Scratch()
        self._backward = _Backward()
        self._reducer = lru_cache(maxsize=None)(self._choose)

    def start(self, tensor: Tensor, *, is_sum: bool) -> dist.Work | None:
        """Start averaging a tensor in place; None where it is to go as it is.

        All ranks call it in the same order with equal sizes, as any collective.
        """
        place = self._place(tensor.numel())
        if place is None:
            return None
        key = Key(self._plan.seed, self.calls, self._mailbox.rank)
        recorder = Recorder(self._mailbox)
        channel = Channel(recorder, self.calls, self._scratch)
        self.calls += 1
        work = _Work(tensor)

        def average() -> Steps[None]:
            x = tensor.reshape(-1).to(torch.float32)
            state = State(place.residual, {})
            yield from place.reducer.reduce(x, place.part, state, key, channel, x)
            if is_sum:
                x.mul_(channel.world_size)
            if x.data_ptr() != tensor.data_ptr():
                tensor.copy_(x.view(tensor.shape))

        def finish(error: BaseException | None) -> None:
            self.sent_bytes += recorder.take().sent_bytes
            if error is not None:
                self._mailbox.close()  # so that the other ranks notice
                error = CollectiveError("all_reduce", self._mailbox.rank, str(error))
            work.settle(error)

        self._worker.submit(average(), finish)
        return work

    def _place(self, numel: int) -> _Place | None:
        """Return where this call belongs, or None where the tensor goes as it is."""
        reducer = self._reducer(numel)
        task = torch._C._current_graph_task_id()  # noqa: SLF001 - no public way to read it
        if task == _NO_BACKWARD:
            if reducer is None or not _is_unbiased(reducer):
                return None
            return _Place(reducer, _part(reducer, numel, 0, self._mailbox.world_size), None)
        now = self._backward
        if task != now.task:
            now.task, now.number, now.calls = task, now.number + 1, 0
            oldest = now.number - _KEPT_PASSES
            now.places = {k: p for k, p in now.places.items() if p.last_pass >= oldest}
        index, now.calls = now.calls, now.calls + 1
        if reducer is None:
            return None
        place = now.places.get((index, numel))
        if place is None:
            residual = torch.zeros(numel) if reducer.spec.feedback else None
            part = _part(reducer, numel, index, self._mailbox.world_size)
            place = now.places[index, numel] = _Place(reducer, part, residual)
        place.last_pass = now.number
        return place

    def _choose(self, numel: int) -> Reducer | None:
        parameter = Parameter("flat", Entry(0, (numel,)))
        assignment = self._plan.assign([parameter], self._mailbox.world_size)["flat"]
        return None if assignment.reducer == DENSE else build(assignment.reducer)

    def close(self) -> None:
        """Disconnect, and stop the thread."""
        self._mailbox.close()
        self._worker.close()


def _part(reducer: Reducer, numel: int, index: int, world_size: int) -> Part:
    name = f"{index}:{numel}"
    return reducer.part((Slot(name, Entry(name_hash(name), (numel,)), 0, 0),), world_size)


def _is_unbiased(reducer: Reducer) -> bool:
    """Return whether nothing is lost on average when nothing is carried over."""
    codec = reducer.spec.codec if isinstance(reducer.spec, (TwoPhase, Broadcast)) else None
    if isinstance(codec, Quantize):
        return codec.rounding == "stochastic"
    return codec is None or isinstance(codec, Float)


class _Work(dist.Work):
    """An average under way, as `torch.distributed` knows one."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self._tensor = tensor
        self._arrived: torch.futures.Future[BaseException | None] = torch.futures.Future()
        self._result = self._arrived.then(self._unwrap)

    def settle(self, error: BaseException | None) -> None:
        """Tell whoever waits the outcome."""
        self._arrived.set_result(error)

    def _unwrap(self, arrived: torch.futures.Future[BaseException | None]) -> list[Tensor]:
        error = arrived.value()
        if error is not None:
            raise error
        return [self._tensor]

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait; exchanges have a time limit of their own, which is the group's."""
        self._result.wait()
        return True

    def is_completed(self) -> bool:
        """Return whether it is over."""
        return self._result.done()

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """Return the future of the averaged tensor."""
        return self._result

    def result(self) -> list[Tensor]:
        """Return the averaged tensor."""
        return self._result.wait()
