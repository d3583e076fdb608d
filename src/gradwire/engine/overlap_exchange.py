"""LayerExchange: one layer's gradient on its way through its reducers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.profiler import record_function

from gradwire.comm.base import Mailbox, Pending, Steps
from gradwire.comm.channel import Channel, Scratch
from gradwire.control.base import NO_LOSSES, Losses
from gradwire.engine.overlap_layers import Layer
from gradwire.engine.overlap_scheme import Scheme
from gradwire.engine.worker import Worker
from gradwire.key import Key
from gradwire.layout import GROUP
from gradwire.plan import DENSE
from gradwire.reduce.base import Part, Reducer, Slot, State
from gradwire.timeline import Kind

CHANNELS = 1 << 12
"""Channels of one layer and step: most chunks it may have."""

_ONE_TRIP_NUMEL = 4096
"""Up to so many values, latency weighs more than bytes."""

_SAMPLED_BLOCKS = 64
_SPARSE = 100
"""One in so many values is sent by the sparse level."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """One exchange: when it was under way, and its bytes."""

    start_s: float
    end_s: float
    sent_bytes: int
    received_bytes: int


@dataclass(slots=True)
class Measured:
    """What one exchange has shown of a layer.

    Attributes:
        norm: Norm of the mean.
        losses: What rounding it would lose, estimated from a sample; None where
            that was left out.
        kept_square: Squared norm of what is owed still, of that sample.
    """

    norm: float = 0.0
    losses: Losses | None = None
    kept_square: float = 0.0


class LayerExchange:
    """Averages a layer's gradient, chunk by chunk, on the worker's thread.

    Args:
        scheme: Reducers and chunks.
        layer: Its gradient stays as it is; the mean goes beside it.
        key: Seed, turn and this rank.
        state: Residual and warm starts.
        held: Parameters without a gradient here: what they owe must wait.
        is_measured: Whether to estimate errors.
    """

    def __init__(
        self,
        scheme: Scheme,
        layer: Layer,
        key: Key,
        state: State,
        held: Sequence[str],
        *,
        is_measured: bool,
    ) -> None:
        self.scheme = scheme
        self.done: Future[None] = Future()
        self.done.set_running_or_notify_cancel()
        self.started_s = time.perf_counter()
        self.traffic: list[Traffic] = []
        self.codec_s = 0.0  # of a core: what a span took may be others' work
        self.codec_spans: list[tuple[Kind, float, float]] = []
        self.measured = Measured()
        self._values = layer.buffer
        self._mean = layer.mean
        self._key = key
        self._state = state
        self._held = [slot for slot in scheme.owing if slot.name in held]
        self._kept: list[Tensor] = []
        self._is_measured = is_measured
        self._left = len(scheme.chunks) + 1

    def submit(
        self, worker: Worker, mailbox: Mailbox, number: int, priority: float, scratch: Scratch
    ) -> None:
        """Start; `done` tells the end.

        Args:
            worker: What runs it.
            mailbox: Connects the ranks.
            number: Of the first of `CHANNELS` channels to use.
            priority: What is lower goes first.
            scratch: Buffers of the worker's thread.
        """
        traced = _Traced(mailbox, self.traffic)
        worker.submit(self._prepare(), self._finish_one, priority)
        for i, (reducer, part) in enumerate(self.scheme.chunks):
            channel = Channel(traced, number + i, scratch)
            worker.submit(
                self._timed(self._reduce(reducer, part, channel)), self._finish_one, priority
            )

    def _residual(self, slot: Slot) -> Tensor:
        assert self._state.residual is not None
        return self._state.residual.narrow(0, slot.residual_offset, slot.entry.numel)

    def _own(self, slot: Slot) -> Tensor:
        return self._values.narrow(0, slot.offset, slot.entry.numel)

    def _prepare(self) -> Steps[None]:
        """Put aside what unused parameters owe, pay what no feedback will carry on."""
        yield from ()
        for slot in self._held:
            self._kept.append(self._residual(slot).clone())
            self._residual(slot).zero_()
        if self.scheme.paying:
            self._values = self._mean.copy_(self._values)
        for slot in self.scheme.paying:
            self._own(slot).add_(self._residual(slot))
            self._residual(slot).zero_()
        if self._is_measured:
            self.measured.losses = self._estimate()

    def _estimate(self) -> Losses:
        """Return what rounding would lose of all parameters with feedback."""
        total = NO_LOSSES
        for slot in self.scheme.owing:
            blocks = _sample(self._own(slot)) + _sample(self._residual(slot))
            scale = slot.entry.numel / max(1, blocks.numel())
            pairs = zip(total, _losses(blocks), strict=True)
            total = Losses(*(old + scale * new for old, new in pairs))
        return total

    def _reduce(self, reducer: Reducer, part: Part, channel: Channel) -> Steps[None]:
        x, mean = self._values, self._mean
        if reducer.spec == DENSE and part.run is not None and channel.world_size > 1:
            start, end = part.run
            if end - start <= _ONE_TRIP_NUMEL:
                yield from _average_in_one_trip(x[start:end], channel, mean[start:end])
                return
        yield from reducer.reduce(x, part, self._state, self._key, channel, mean)

    def _timed(self, steps: Steps[None]) -> Steps[None]:
        """Run steps under profiler ranges, noting computing time."""
        stage: Kind = "encode"
        failure: Exception | None = None
        while True:
            start, used = time.perf_counter(), time.thread_time()
            try:
                with record_function(f"gradwire::{stage}"):
                    pending = steps.throw(failure) if failure else next(steps)
            except StopIteration:
                return
            finally:
                self.codec_spans.append((stage, start, time.perf_counter()))
                self.codec_s += time.thread_time() - used
            stage, failure = "decode", None
            try:
                yield pending
            except Exception as error:  # noqa: BLE001 - thrown into the reduction above
                failure = error

    def _finish_one(self, error: BaseException | None) -> None:
        """Count a finished task; runs on the worker's thread only."""
        self._left -= 1
        if self.done.done():
            return
        try:
            if error is None and self._left == 0:
                self._finish()
        except Exception as failure:  # noqa: BLE001 - reaches whoever waits
            error = failure
        if error is not None:
            self.done.set_exception(error)
        elif self._left == 0:
            self.done.set_result(None)

    def _finish(self) -> None:
        self.measured.norm = float(torch.linalg.vector_norm(self._mean))
        if self._is_measured:
            for slot in self.scheme.owing:
                blocks = _sample(self._residual(slot))
                scale = slot.entry.numel / max(1, blocks.numel())
                self.measured.kept_square += scale * float(blocks.square().sum())
        for slot, kept in zip(self._held, self._kept, strict=True):
            self._residual(slot).add_(kept)


class _Traced:
    """A mailbox that notes each exchange once it is done."""

    def __init__(self, mailbox: Mailbox, log: list[Traffic]) -> None:
        self._mailbox = mailbox
        self._log = log
        self.rank = mailbox.rank
        self.world_size = mailbox.world_size
        self.gather_objects = mailbox.gather_objects
        self.close = mailbox.close

    def exchange(
        self, tag: int, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]
    ) -> Pending:
        """See `Mailbox.exchange`."""
        sent = sum(x.nbytes for x in sends.values())
        received = sum(x.nbytes for x in receives.values())
        start_s = time.perf_counter()
        pending = self._mailbox.exchange(tag, sends, receives)
        pending.add_done_callback(
            lambda _: self._log.append(Traffic(start_s, time.perf_counter(), sent, received))
        )
        return pending


def _average_in_one_trip(values: Tensor, group: Channel, out: Tensor) -> Steps[None]:
    """Average like `Collective.all_reduce`, to the same bits, by one exchange."""
    rows = values.new_empty(group.world_size, values.numel())
    yield from group.all_gather(rows, values)
    total = rows[0]
    for row in rows[1:]:
        total += row
    torch.div(total, group.world_size, out=out)


def _losses(blocks: Tensor) -> Losses:
    """Return what rounding blocks of values would lose, `[blocks, numel]`."""
    sizes = blocks.abs()
    peaks = sizes.amax(1, keepdim=True)
    square = sizes.square().sum()
    numel = blocks.shape[1]
    largest = sizes.flatten().topk(max(1, blocks.numel() // _SPARSE)).values
    values = torch.stack(
        [
            2 / 3 * numel * peaks.square().sum(),
            square,
            square - sizes.sum(1).square().sum() / numel,
            torch.minimum(sizes, peaks - sizes).square().sum(),
            square - largest.square().sum(),
        ]
    )
    return Losses(*values.tolist())


def _sample(values: Tensor) -> Tensor:
    """View some blocks of a tensor, evenly spaced, `[blocks, numel]`."""
    blocks = values.numel() // GROUP
    if blocks == 0:
        return values.view(1, -1)
    step = max(1, blocks // _SAMPLED_BLOCKS)
    return values[: blocks * GROUP].view(blocks, GROUP)[::step]
