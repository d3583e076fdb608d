"""Synchronizer: runs a plan on the buckets of each backward pass, in order."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor

from gradwire.comm.base import Collective, Mailbox, Steps, SummingMailbox
from gradwire.comm.record import Recorder
from gradwire.comm.torch_collective import DistCollective, DistGroup
from gradwire.engine.bucket import Bucket, BucketRun, Deliver, union_s
from gradwire.engine.channels import Channels
from gradwire.engine.checkpoint import pack, residual_scale, unpack
from gradwire.engine.checks import check_replicas, check_steps, refuse_float8
from gradwire.engine.history import History
from gradwire.engine.lane import Lane
from gradwire.engine.pilot import Pilot
from gradwire.engine.scheme import Place, Scheme, Variant
from gradwire.engine.stats import BucketStats, Stats, StepStats
from gradwire.engine.worker import Worker
from gradwire.errors import CollectiveError, SpecError
from gradwire.key import Key
from gradwire.plan import Parameter, Plan
from gradwire.planner.choice import Choice
from gradwire.spec import check_number

_MEASURED_EVERY = 10


@dataclass(slots=True)
class _Step:
    """A backward pass under way."""

    number: int
    runs: list[BucketRun] = field(default_factory=list)
    unfinished: int = 0
    last_ready_s: float | None = None


class Synchronizer:
    """Averages gradients over ranks by a plan; made by `gradwire.attach`.

    Args:
        plan: Which reducer each parameter uses.
        parameters: All parameters, in the same order on every rank.
        mailbox: Connects the ranks; closed with the synchronizer.
        device: Where gradients live.
        group: Carries the gradients where the mailbox cannot; closed with the
            synchronizer.
        hold_unused: Whether a gradient of zeros means an unused parameter.
        check_every: Verify conservation and replicas every so many steps; 0
            for never.
        on_step: Called with the statistics of each step, on the thread that
            runs backward, when the next one begins.
        replicas: Returns the parameters' values, for the check.
        forwards: Returns how many forward passes there were, for `stats`.
        variant: How reducers are chosen and made, where it is not the plan alone.
        pilot: Chooses further plans; None keeps this one.
    """

    def __init__(  # noqa: PLR0913 - all but the first three by keyword
        self,
        plan: Plan,
        parameters: Sequence[Parameter],
        mailbox: Mailbox,
        *,
        device: torch.device | None = None,
        group: DistGroup | None = None,
        hold_unused: bool = False,
        check_every: int = 0,
        on_step: Callable[[StepStats], None] | None = None,
        replicas: Callable[[], Mapping[str, Tensor]] | None = None,
        forwards: Callable[[], int | None] | None = None,
        variant: Variant | None = None,
        pilot: Pilot | None = None,
    ) -> None:
        if check_every < 0:
            raise SpecError("check_every", check_every, "at least 0")
        self._mailbox = mailbox
        self._dist_group = group
        self._lane = Lane(device or torch.device("cpu"))
        self._hold_unused = hold_unused
        self._check_every = check_every
        self._replicas = replicas or dict
        self._forwards = forwards or (lambda: None)
        is_summed = isinstance(mailbox, SummingMailbox) and group is None
        place = Place(mailbox.world_size, self._lane.device, is_summed)
        self._scheme = Scheme(plan, parameters, place, variant)
        refuse_float8(self._scheme.variant.assignments, group)
        self._next_plan: Plan | None = None
        self._pilot = pilot
        self._steps_done = 0
        self._channels = Channels(mailbox)
        self._has_agreed = False
        self._current: _Step | None = None
        notes = [pilot.note] if pilot is not None else []
        self._history = History([*notes, *([on_step] if on_step is not None else [])])
        self._failure: str | None = None
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._worker = Worker("gradwire-engine")
        self._closer = weakref.finalize(self, _close, self._worker, mailbox, group)

    @property
    def rank(self) -> int:
        """This process's number in the group."""
        return self._mailbox.rank

    @property
    def plan(self) -> Plan:
        """The plan in use, or agreed on for the next step; equal on all ranks."""
        return self._agreed or self._scheme.plan

    @property
    def _agreed(self) -> Plan | None:
        """The plan to take in the next step, if it is another."""
        return (self._pilot.switch.plan if self._pilot is not None else None) or self._next_plan

    @property
    def decision(self) -> Choice | None:
        """Why this plan, on rank 0; None where it was given."""
        return None if self._pilot is None else self._pilot.decision

    def replan(self, plan: Plan) -> None:
        """Use another plan from the next backward pass on.

        What is owed goes along by parameter; where the new plan keeps no
        residual, it is paid with the next gradient. Every rank must call
        this before the same step, with the same plan.
        """
        self._next_plan = plan

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._mailbox.world_size

    def reduce(
        self,
        index: int,
        buffer: Tensor,
        names: tuple[str, ...],
        deliver: Deliver,
        *,
        is_last: bool,
    ) -> None:
        """Start averaging a bucket; returns at once.

        Once something has gone wrong, this and every later bucket fails, and
        the ranks are disconnected so that the others notice.

        Args:
            index: Number of the bucket within its backward pass.
            buffer: Its gradients, 1-D, or a sparse tensor; the mean replaces them.
            names: Its parameters, in order.
            deliver: Called once with the mean or with what went wrong, as a
                rule on another thread.
            is_last: Whether the backward pass has no further bucket.
        """
        bucket = Bucket(self._steps_done, index, names, deliver)
        try:
            self._check_usable()
            self._start(bucket, buffer, is_last=is_last)
        except BaseException as error:
            self._fail(bucket, error)
            if not isinstance(error, Exception):
                raise

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise SpecError("synchronizer", "used in a forked process", "used where it was made")
        if not self._closer.alive:
            raise SpecError("synchronizer", "closed", "open; attach a new DDP wrapper")
        if self._failure is not None:
            raise CollectiveError("reduce", self.rank, f"already broken: {self._failure}")

    def _start(self, bucket: Bucket, buffer: Tensor, *, is_last: bool) -> None:
        step = self._begin_step()
        self._check_usable()  # the callback may have closed it
        run = self._run(bucket, buffer)
        tasks = run.tasks(self._group)
        if self._is_checked(step.number) and not step.runs:
            tasks.append(check_replicas(self._replicas(), step.number, self._channels.next()))
        if self._pilot is not None and not step.runs:
            tasks += self._pilot.switch.tasks(step.number)
        if not self._has_agreed:
            self._has_agreed = True
            # First, as exchanges are waited for in order, and the others may never end.
            tasks.insert(0, check_steps(step.number, self._channels.agreement()))
        with self._lock:
            step.runs.append(run)
            step.unfinished += 1
            if is_last:
                self._mark_last(step)
        left = max(1, len(tasks))

        def finish(error: BaseException | None) -> None:  # on the worker's thread only
            nonlocal left
            left -= 1
            if error is not None:
                self._fail(bucket, error)
            elif left == 0:
                self._finish(step, run)

        for task in tasks or [_nothing()]:
            self._worker.submit(task, finish)

    @property
    def is_left_to_backend(self) -> bool:
        """Whether the next bucket may be averaged by DDP itself; then call `pass_by`.

        So where a pilot has settled on sending everything as it is, for then
        nothing that gradwire adds can pay. From time to time a step takes the
        usual way, in which costs are measured and ranks talk.
        """
        if self._pilot is None or self._next_plan is not None or self._current is not None:
            return False
        is_usable = self._closer.alive and self._failure is None
        return is_usable and self._pilot.leaves(self._steps_done, self._scheme)

    def pass_by(self, sizes: Sequence[tuple[int, int]]) -> None:
        """Count a backward pass whose buckets DDP averages itself.

        Args:
            sizes: Parameters and bytes of each bucket.
        """
        self._begin_step()
        share = 2 * (self.world_size - 1) / self.world_size
        buckets = tuple(
            BucketStats(i, count, *3 * (round(share * num_bytes),), 0.0, 0.0, 0.0, 0.0)
            for i, (count, num_bytes) in enumerate(sizes)
        )
        step = StepStats(self._steps_done, buckets, 0.0, 0.0, is_finite=True)
        self._current = None
        self._steps_done += 1
        self._history.add(step)

    @property
    def steps_done(self) -> int:
        """Number of backward passes so far, or of the one under way."""
        return self._steps_done

    @property
    def begins_step(self) -> bool:
        """Whether the next bucket will be the first of its backward pass."""
        return self._current is None

    def reduce_next(self, buffer: Tensor, names: tuple[str, ...], deliver: Deliver) -> None:
        """Start averaging a bucket that nobody numbered; `end_backward` ends the step."""
        index = 0 if self._current is None else len(self._current.runs)
        self.reduce(index, buffer, names, deliver, is_last=False)

    def end_backward(self) -> None:
        """Say that the last bucket had no successor, where that was not known before."""
        step = self._current
        if step is None:
            return
        with self._lock:
            self._mark_last(step)
            is_over = step.unfinished == 0
        if is_over:
            self._end_step(step)

    def _mark_last(self, step: _Step) -> None:
        step.last_ready_s = time.perf_counter()
        self._current = None
        self._steps_done += 1

    def _begin_step(self) -> _Step:
        if self._current is None:
            self._current = _Step(self._steps_done)
            self._channels.begin(self._steps_done)
            self._history.report()
            self._follow()
        return self._current

    def _follow(self) -> None:
        """Take the plan that is due; nothing of the last step is under way any more."""
        plan = self._pilot.switch.take() if self._pilot is not None else None
        plan, self._next_plan = plan or self._next_plan, None
        if plan is not None:
            self._scheme = self._scheme.followed_by(plan)

    def _run(self, bucket: Bucket, buffer: Tensor) -> BucketRun:
        layout = None
        if not buffer.is_sparse:
            is_warmup = bucket.step < self._scheme.plan.warmup_steps
            self._scheme.pay(buffer, bucket.names, hold_unused=self._hold_unused)
            layout = self._scheme.layouts.of(bucket.names, buffer.numel(), all_dense=is_warmup)
        return BucketRun(
            bucket=bucket,
            buffer=buffer,
            layout=layout,
            key=Key(self._scheme.plan.seed, bucket.step, self.rank),
            state=self._scheme.feedback.state,
            recorder=self._recorder(),
            lane=self._lane.fork(buffer),
            hold_unused=self._hold_unused,
            is_plain=self._scheme.is_plain and not buffer.is_sparse,
            is_measured=bucket.step % _MEASURED_EVERY == 1,
            is_checked=self._is_checked(bucket.step),
            dense_passes=self._scheme.variant.dense_passes,
        )

    def _is_checked(self, step: int) -> bool:
        return self._check_every > 0 and step % self._check_every == 0

    def _recorder(self) -> Recorder | DistCollective:
        return self._dist_group.collective() if self._dist_group else Recorder(self._mailbox)

    def _group(self, recorder: Recorder | DistCollective) -> Collective:
        return recorder if isinstance(recorder, DistCollective) else self._channels.next(recorder)

    def _finish(self, step: _Step, run: BucketRun) -> None:
        try:
            self._check_usable()
            with run.lane():
                mean = run.finish()
            with self._lock:
                step.unfinished -= 1
                is_over = step.last_ready_s is not None and step.unfinished == 0
            if is_over:
                self._end_step(step)
        except Exception as error:  # noqa: BLE001 - reaches the caller through the bucket
            self._fail(run.bucket, error)
        else:
            with run.lane():  # whoever waits, waits for what this lane has queued
                run.bucket.settle(mean, None)

    def _end_step(self, step: _Step) -> None:
        assert step.last_ready_s is not None
        ready = step.last_ready_s
        buckets = tuple(r.stats(ready) for r in sorted(step.runs, key=lambda r: r.bucket.index))
        is_finite = all(r.is_finite for r in step.runs)
        if not is_finite:
            # A loop with loss scaling throws this step away: what it left
            # behind refers to gradients that are never applied.
            self._scheme.feedback.clear()
        exposed_s = max((b.exposed_s for b in buckets), default=0.0)
        wire_s = union_s([i for r in step.runs for i in r.intervals])
        self._history.add(StepStats(step.number, buckets, exposed_s, wire_s, is_finite))

    def _fail(self, bucket: Bucket, error: BaseException) -> None:
        """Fail a bucket, and disconnect so that the other ranks notice at once."""
        if isinstance(error, CollectiveError):
            error.args = (f"{bucket}: {error}",)
            failure = error
        else:
            detail = f"{bucket}: {type(error).__name__}: {error}"
            failure = CollectiveError("reduce", self.rank, detail)
            failure.__cause__ = error
        if self._failure is None:
            self._failure = str(failure)  # not the error itself: its frames hold tensors
            self._mailbox.close()
        bucket.settle(None, failure)

    def stats(self) -> Stats:
        """Return what the latest steps cost, and what is not compressed."""
        return Stats(
            steps_done=self._steps_done,
            forwards=self._forwards(),
            recent=tuple(self._history.recent),
            dense=dict(self._scheme.dense),
            residual_bytes=self._scheme.feedback.num_bytes,
            sent_bytes=self._history.sent_bytes,
            dense_bytes=self._history.dense_bytes,
            planned=None if self.decision is None else str(self.decision),
        )

    def rescale(self, factor: float) -> None:
        """Multiply what is owed, when gradients change their unit (a loss scale).

        Args:
            factor: New unit over old; above 0.

        Raises:
            SpecError: The factor is not above 0 and finite.
        """
        check_number("rescale factor", factor, "above 0 and finite")
        if not 0 < factor < float("inf"):
            raise SpecError("rescale factor", factor, "above 0 and finite")
        self._scheme.rescale(factor)

    def gather_objects(self, value: object) -> list[object]:
        """Return every rank's value, by rank; blocking, between steps."""
        return self._mailbox.gather_objects(value)

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state: tensors, numbers and strings only.

        The key carries the rank, because `torch.distributed.checkpoint` keeps
        one copy of equal keys. Save it on every rank.
        """
        scheme = self._scheme
        return pack(
            self.rank,
            self.world_size,
            self._steps_done,
            scheme.plan,
            scheme.tensors(),
            scheme.variant.label,
            self._agreed,
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken.

        Residuals are this rank's own. Those of another rank are not used (a
        warning says so); when the world has grown, they are scaled so that the
        same mean stays owed; when it has shrunk, they are dropped.

        Raises:
            StateError: Not such a state, of another format, or with a tensor of
                another shape or values that are not finite.
        """
        saved = unpack(state, self.rank, self._scheme.variant.label)
        self._next_plan = None
        if self._pilot is not None:
            # Its own choice goes on: another one would give other bits.
            self._scheme = self._scheme.followed_by(Plan.from_json(saved["plan"]))
            if "next_plan" in saved:
                self._next_plan = Plan.from_json(saved["next_plan"])
        self._scheme.load(saved, residual_scale(saved, self.rank, self.world_size))
        self._steps_done = int(saved["steps_done"])
        self._has_agreed = False
        if self._pilot is not None:
            self._pilot.resume(self._next_plan or self._scheme.plan, self._steps_done)

    def close(self) -> None:
        """Stop the threads and disconnect. Can be called twice.

        DDP keeps its hook: to train on, wrap the model anew.
        """
        self._closer()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Synchronizer holds threads and connections and cannot be pickled or copied;"
            " save its state_dict() instead"
        )


def _close(worker: Worker, mailbox: Mailbox, group: DistGroup | None) -> None:
    mailbox.close()  # first: what the worker waits for then has an outcome
    worker.close()
    if group is not None:
        group.close()


def _nothing() -> Steps[None]:
    return
    yield
