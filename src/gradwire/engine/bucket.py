"""BucketRun: one bucket on its way through reducers, timed and counted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.profiler import record_function

from gradwire.comm.base import Collective, Pending, Steps
from gradwire.comm.record import Recorder
from gradwire.comm.sparse import sparse_all_reduce
from gradwire.comm.torch_collective import DistCollective
from gradwire.engine.checks import Conservation
from gradwire.engine.lane import Entry
from gradwire.engine.layout import Layout
from gradwire.engine.stats import BucketStats
from gradwire.key import Key
from gradwire.plan import DENSE
from gradwire.reduce.base import Part, Reducer, Slot, State
from gradwire.timeline import Kind

Deliver = Callable[[Tensor | None, BaseException | None], None]
"""Takes the mean of a bucket, or what went wrong."""

_SHOWN_NAMES = 4
_SAMPLE = 4096
"""Values of a parameter that error statistics look at."""


def place_of(step: int, index: int, names: Sequence[str]) -> str:
    """Say which bucket of which step it is, and some of its parameters.

    Example:
        >>> place_of(3, 0, ("bias", "weight"))
        'step 3, bucket 0 (bias, weight)'
    """
    more = ", ..." if len(names) > _SHOWN_NAMES else ""
    return f"step {step}, bucket {index} ({', '.join(names[:_SHOWN_NAMES])}{more})"


class Bucket:
    """A bucket as whoever handed it over knows it.

    Args:
        step: Number of the backward pass.
        index: Number of the bucket within it.
        names: Its parameters, in order.
        deliver: Called once with the outcome.

    Example:
        >>> bucket = Bucket(3, 0, ("bias", "weight"), lambda mean, error: print(mean, error))
        >>> str(bucket)
        'step 3, bucket 0 (bias, weight)'
        >>> bucket.settle(None, ValueError("lost"))
        None lost
    """

    def __init__(self, step: int, index: int, names: tuple[str, ...], deliver: Deliver) -> None:
        self.step = step
        self.index = index
        self.names = names
        self._deliver = deliver
        self._lock = threading.Lock()
        self._is_settled = False

    def __str__(self) -> str:
        return place_of(self.step, self.index, self.names)

    def settle(self, mean: Tensor | None, error: BaseException | None) -> None:
        """Tell them the outcome; the first one counts, as one bucket can fail twice."""
        with self._lock:
            is_first, self._is_settled = not self._is_settled, True
        if is_first:
            self._deliver(mean, error)


@dataclass(slots=True, eq=False)
class BucketRun:
    """One bucket of one step.

    Attributes:
        bucket: Which one it is, and who waits for it.
        buffer: Its gradients; replaced by their mean.
        layout: Reducers by part; None for a sparse tensor.
        key: Seed, step and this rank.
        state: Residual and warm starts.
        recorder: Moves this bucket's bytes, and counts them.
        lane: The way into the lane that it is worked on in.
        hold_unused: Whether a gradient of zeros means that the parameter took
            no part, so that what it owes must wait.
        is_plain: Whether the whole plan is dense and the ranks are at most two,
            so that the back end's own all-reduce does, at the cost of DDP
            without a hook.
        is_measured: Whether to estimate the relative error of all parameters.
        is_checked: Whether to verify conservation.
        dense_passes: How often an uncompressed exchange would move the values:
            twice for an all-reduce, once for a reduce-scatter.
    """

    bucket: Bucket
    buffer: Tensor
    layout: Layout | None
    key: Key
    state: State
    recorder: Recorder | DistCollective
    lane: Entry = nullcontext
    hold_unused: bool = False
    is_plain: bool = False
    is_measured: bool = False
    is_checked: bool = False
    dense_passes: int = 2
    done_s: float = 0.0
    is_finite: bool = True
    intervals: list[tuple[float, float]] = field(default_factory=list)
    _stage_s: dict[str, float] = field(default_factory=lambda: {"encode": 0.0, "decode": 0.0})
    _spans: list[tuple[Kind, float, float]] = field(default_factory=list)
    _squares: list[tuple[float, float, float, float]] = field(default_factory=list)
    _mean: Tensor | None = None
    _flat: Tensor | None = None

    def tasks(
        self, collective: Callable[[Recorder | DistCollective], Collective]
    ) -> list[Steps[None]]:
        """Return the bucket's reductions, each with collectives of its own."""
        if self.is_plain and self.buffer.dtype in (torch.float32, torch.float64):
            return [self._timed(self._average_plain())]
        if self.layout is None:
            return [self._timed(self._average_sparse(collective(self.recorder)))]
        if self.buffer.dtype == torch.float64:
            return [self._timed(self._average_double(collective(self.recorder)))]
        parts = self.layout.parts
        return [self._timed(self._reduce(r, p, collective(self.recorder))) for r, p in parts]

    def _values(self) -> Tensor:
        """Return the gradients as float32: the buffer itself where it is that."""
        if self._flat is None:
            self._flat = self.buffer.to(torch.float32)
        return self._flat

    def _average_plain(self) -> Steps[None]:
        assert isinstance(self.recorder, Recorder)
        yield self.recorder.all_reduce(self.buffer)
        self.buffer.div_(self.recorder.world_size)

    def _average_sparse(self, group: Collective) -> Steps[None]:
        total = yield from sparse_all_reduce(self.buffer, group)
        self._mean = total / group.world_size

    def _average_double(self, group: Collective) -> Steps[None]:
        yield from group.all_reduce(self.buffer, group.world_size)

    def _reduce(self, reducer: Reducer, part: Part, group: Collective) -> Steps[None]:
        x = self._values()
        uses_feedback = reducer.spec.feedback and self.state.residual is not None
        held = self._hold(part.slots) if uses_feedback and self.hold_unused else []
        before = self._norms(self._sampled(part.slots)) if uses_feedback else None
        check = None
        if self.is_checked and (uses_feedback or reducer.spec == DENSE):
            check = Conservation(x, part, self.state.residual if uses_feedback else None)
        yield from reducer.reduce(x, part, self.state, self.key, group, x)
        if check is not None:
            yield from check.verify(x, group)
        for slot, residual in held:
            self._residual(slot).add_(residual)
        if before is not None:
            kept = sum(_square(self._residual(slot)) for slot in self._sampled(part.slots))
            self._squares.append((*before, kept))

    def _residual(self, slot: Slot) -> Tensor:
        assert self.state.residual is not None
        return self.state.residual.narrow(0, slot.residual_offset, slot.entry.numel)

    def _hold(self, slots: Sequence[Slot]) -> list[tuple[Slot, Tensor]]:
        """Take out what unused parameters owe: DDP will throw their mean away."""
        held = []
        for slot in slots:
            x = self._values().narrow(0, slot.offset, slot.entry.numel)
            if not bool(x[:64].any()) and not bool(x.any()):
                residual = self._residual(slot)
                held.append((slot, residual.clone()))
                residual.zero_()
        return held

    def _sampled(self, slots: Sequence[Slot]) -> Sequence[Slot]:
        """Return what to estimate norms from: usually the largest parameter only."""
        return slots if self.is_measured else [max(slots, key=lambda s: s.entry.numel)]

    def _norms(self, slots: Sequence[Slot]) -> tuple[float, float, float]:
        """Estimate squared norms of gradient, residual and their sum."""
        pairs = [
            (self._values().narrow(0, s.offset, s.entry.numel), self._residual(s)) for s in slots
        ]
        return (
            sum(_square(x) for x, _ in pairs),
            sum(_square(r) for _, r in pairs),
            sum(_square(x, r) for x, r in pairs),
        )

    def _timed(self, steps: Steps[None]) -> Steps[None]:
        """Run steps under profiler ranges, noting computing time and exchanges."""
        stage: Literal["encode", "decode"] = "encode"
        failure = None
        while True:
            start = time.perf_counter()
            try:
                name = f"gradwire::{stage}##bucket{self.bucket.index}"
                with record_function(name), self.lane():
                    pending = steps.throw(failure) if failure else next(steps)
            except StopIteration:
                return
            finally:
                posted = time.perf_counter()
                self._stage_s[stage] += posted - start
                self._spans.append((stage, start, posted))
            pending.add_done_callback(self._note(posted))
            stage, failure = "decode", None
            try:
                yield pending
            except Exception as error:  # noqa: BLE001 - thrown into the reduction above
                failure = error

    def _note(self, posted: float) -> Callable[[Pending], None]:
        return lambda _: self.intervals.append((posted, time.perf_counter()))

    def finish(self) -> Tensor:
        """Return the mean, in the buffer unless sparse, and see whether it is finite."""
        mean = self._flat if self._mean is None else self._mean
        if mean is None:
            mean = self.buffer
        elif self._mean is None and self._flat is not self.buffer:
            self.buffer.copy_(mean)
            mean = self.buffer
        self._mean = mean
        values = mean.values() if mean.is_sparse else mean
        # A sum of finite values can overflow: only then look at each of them.
        self.is_finite = bool(values.sum().isfinite()) or bool(values.isfinite().all())
        self.done_s = time.perf_counter()
        return mean

    def stats(self, last_ready_s: float) -> BucketStats:
        """Return what the bucket cost, given when the step's last gradient was ready."""
        gradient, carried, owed, kept = (sum(s[i] for s in self._squares) for i in range(4))
        is_measured = self.is_measured and self.is_finite and owed > 0
        counts = self.recorder.take()
        values = self.buffer._values() if self.buffer.is_sparse else self.buffer  # noqa: SLF001 - as it came
        world_size = self.recorder.world_size
        return BucketStats(
            index=self.bucket.index,
            parameters=len(self.bucket.names),
            dense_bytes=self.dense_passes * (world_size - 1) * values.nbytes // world_size,
            sent_bytes=counts.sent_bytes,
            received_bytes=counts.received_bytes,
            encode_s=self._stage_s["encode"],
            exchange_s=union_s(self.intervals),
            decode_s=self._stage_s["decode"],
            exposed_s=max(0.0, self.done_s - last_ready_s),
            relative_error=(kept / owed) ** 0.5 if is_measured else None,
            residual_norm=kept**0.5 if is_measured else None,
            gradient_ratio=(carried / gradient) ** 0.5 if gradient > 0 else None,
            spans=(*self._spans, *(("transfer", *i) for i in self.intervals)),
        )


def union_s(intervals: Sequence[tuple[float, float]]) -> float:
    """Return how long at least one of the intervals was under way.

    Example:
        >>> union_s([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)])
        4.0
    """
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _square(*terms: Tensor) -> float:
    """Estimate the squared norm of a sum of tensors from evenly spaced values."""
    numel = terms[0].numel()
    step = max(1, numel // _SAMPLE)
    sample = sum((t[::step] for t in terms[1:]), start=terms[0][::step])
    return float(sample.square().sum()) * numel / max(1, sample.numel())
