"""Overlap: gradients leave when ready, and layers wait for their own only."""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any, NamedTuple, NoReturn, TypeVar

import torch

from gradwire.comm.base import RankedMailbox
from gradwire.control.base import NO_LOSSES, Controller
from gradwire.engine.checkpoint import pack, residual_scale, unpack
from gradwire.engine.overlap_clip import Clip
from gradwire.engine.overlap_guard import Guard
from gradwire.engine.overlap_layers import Layer, LayerTable
from gradwire.engine.overlap_record import StepRecord
from gradwire.engine.overlap_send import Sender
from gradwire.engine.overlap_stats import OverlapStats, OverlapStep
from gradwire.engine.overlap_talk import Talk
from gradwire.engine.overlap_turn import Turn
from gradwire.engine.overlap_update import Updater
from gradwire.engine.worker import Worker
from gradwire.errors import GradwireError, SpecError
from gradwire.plan import Plan
from gradwire.spec import ReducerSpec
from gradwire.timeline import Timeline

T = TypeVar("T")
_RECENT_STEPS = 20
_DRAIN_S = 5.0


class Settings(NamedTuple):
    """What `gradwire.overlap` takes besides model, optimiser and plan."""

    controller: Controller | None = None
    check_every: int = 0
    clip_by_last_norm: float | None = None
    on_step: Callable[[OverlapStep], None] | None = None


class Overlap:
    """Averages and applies gradients layer by layer; made by `gradwire.overlap`.

    Everything but encoding and transfers runs on the thread that trains.

    Args:
        plan: Which reducer each parameter uses, at first.
        table: The layers.
        updaters: The optimisers, by number.
        mailbox: Connects the ranks; closed with this.
        settings: See there.
    """

    def __init__(
        self,
        plan: Plan,
        table: LayerTable,
        updaters: Sequence[Updater],
        mailbox: RankedMailbox,
        settings: Settings,
    ) -> None:
        self.plan = plan
        self._layers = table.layers
        self._updaters = updaters
        self._mailbox = mailbox
        self._settings = settings
        self._worker = Worker("gradwire-overlap")
        self._sender = Sender(
            plan,
            table,
            self._worker,
            mailbox,
            is_controlled=settings.controller is not None,
        )
        self._step = 0
        self._is_open = self._is_accumulating = self._is_forward = False
        self._met: dict[int, Layer] = {}
        self._losses = [NO_LOSSES] * len(self._layers)
        self._record: StepRecord | None = None
        self._backward_s: float | None = None
        self._recent: deque[tuple[OverlapStep, Timeline]] = deque(maxlen=_RECENT_STEPS)
        self._guard = Guard(mailbox)
        self._clip = Clip(settings.clip_by_last_norm, self._guard)
        self._talk = Talk(mailbox, self._worker, table, settings.controller, self._guard)
        under_way, self._pid = self._sender.under_way, os.getpid()
        self._closer = weakref.finalize(self, _close, self._pid, self._worker, mailbox, under_way)

    @property
    def rank(self) -> int:
        """This process's number in the group."""
        return self._mailbox.rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._mailbox.world_size

    def incoming(self, layer: Layer, place: int, gradient: torch.Tensor) -> torch.Tensor | None:
        """Put a gradient that is about to be accumulated into the layer's memory.

        Returns:
            A tensor that shares this memory, for the parameter to keep: nothing is
            allocated or copied again. None where it must be accumulated as usual.
        """
        if self._is_accumulating or torch.is_grad_enabled() or not layer.accepts(gradient, place):
            return None
        view = layer.views[place]
        view.copy_(gradient)
        return view.data  # changes of its own are counted apart from ours

    def gradient(self, layer: Layer, place: int) -> None:
        """Take a gradient that was just accumulated; send the layer's when complete.

        Raises:
            SpecError: It is sparse, came twice, or came before the layer was
                updated with the one before.
            CollectiveError: Something has failed before.
        """
        if self._is_accumulating:
            return
        self._check_usable()
        name, gradient = layer.names[place], layer.parameters[place].grad
        if layer.turn is not None and layer.turn.is_marked:
            raise SpecError(
                f"gradient of {name}",
                "ready before the parameter was updated",
                "allowed: it is used outside the forward of its module;"
                " call synchronize() on what overlap returned before that",
            )
        if layer.turn is not None and place in layer.turn.seen:
            if layer.turn.seen[place][0] is gradient:
                raise SpecError(
                    f"gradient of {name}",
                    "accumulated twice",
                    "allowed: wrap all backward passes but the last in `with step.accumulate():`;"
                    " to repeat one on all ranks, call zero_grad(set_to_none=True) before",
                )
            self._drop(layer.turn)
        turn = layer.turn or self._begin(layer)
        with torch.no_grad():
            turn.take(place)
        if turn.is_complete:
            self._start(turn)

    def mark(self, number: int) -> None:
        """Note that the user has called an optimiser's `step()`, and return at once.

        Raises:
            SpecError: The user has changed gradients, or the optimiser.
            CollectiveError: Something has failed before.
        """
        if self._is_accumulating:
            raise SpecError("optimizer.step()", "called within accumulate()", "called after it")
        self._check_usable()
        self._updaters[number].check()
        layers = [layer for layer in self._layers if layer.optimizer == number]
        self._refuse_changes(layers)
        for layer in layers:
            if layer.turn is not None and layer.turn.is_marked:
                self._apply(layer.turn)  # it was not used in this step
        if self._settings.check_every and self._step % self._settings.check_every == 0:
            self.synchronize()
            self._guard.wait("replica check", self._talk.check_replicas(self._step))
        self._begin_step()
        groups = self._updaters[number].groups()
        turns = [layer.turn or self._begin(layer) for layer in layers]
        with torch.no_grad():
            for turn in turns:
                turn.complete()
                if turn.exchange is None:
                    self._start(turn)
        factor = self._clip.factor(number, turns)
        note = self._talk.send(self._step, turns, self._order_met(), self._losses)
        self._sender.track(note.done)
        for turn in turns:
            turn.groups, turn.factor, turn.note = groups, factor, note
            turn.seen.clear()  # memory of gradients that have been copied
            for p in turn.layer.parameters:
                p.grad = None
        if self._record is not None:
            self._record.shut()
        self._step += 1
        self._is_open, self._backward_s = False, None
        self._is_forward = False

    def need(self, layers: Iterable[Layer], *, is_training: bool) -> None:
        """Wait for layers that are about to be used, and update them.

        Args:
            layers: What a module needs.
            is_training: Whether gradients are enabled; otherwise everything
                is waited for, as modules may then use others' parameters.

        Raises:
            CollectiveError: An exchange has failed; says which layer's.
        """
        if not is_training:
            self.synchronize()
            return
        record = None if self._is_open else self._record
        if not self._is_forward:
            self._is_forward = True
            self._met.clear()
        for layer in layers:
            self._met.setdefault(layer.index, layer)
            if record is not None:
                record.due(layer)
            if layer.turn is not None and layer.turn.is_marked:
                self._apply(layer.turn, record)
            if record is not None:
                record.open("forward", layer.name)

    def forward_ended(self) -> None:
        """Note that the model's forward is over: backward is to begin."""
        if not self._is_open and torch.is_grad_enabled():
            self._backward_s = time.perf_counter() if self._record is None else self._record.shut()

    def met(self, layer: Layer) -> bool:
        """Whether a layer was waited for since the latest `step()`."""
        return layer.index in self._met

    def synchronize(self) -> None:
        """Wait until all parameters are up to date.

        Call it before reading parameters between steps. Checkpoints and
        evaluation need no call.

        Raises:
            CollectiveError: An exchange has failed; says which layer's.
        """
        for layer in self._sender.order:
            if layer.turn is not None and layer.turn.is_marked:
                self._apply(layer.turn)

    @contextlib.contextmanager
    def accumulate(self) -> Iterator[None]:
        """Keep gradients here within this context: all micro-batches but the last."""
        before, self._is_accumulating = self._is_accumulating, True
        try:
            yield
        finally:
            self._is_accumulating = before

    def stats(self) -> OverlapStats:
        """Return what the latest whole steps cost, and what is not compressed."""
        steps = tuple(step for step, _ in self._recent)
        return OverlapStats(
            self._step, steps, dict(self._sender.dense), self._sender.feedback.num_bytes
        )

    def timeline(self) -> Timeline:
        """Return what this rank did in the latest whole step.

        Raises:
            SpecError: There was none yet: a step ends when the next begins.
        """
        if not self._recent:
            raise SpecError("whole steps", 0, "at least 1; a step ends when the next begins")
        return self._recent[-1][1]

    def reducers(self) -> Mapping[str, ReducerSpec]:
        """Return the reducer that each parameter uses now."""
        return self._sender.reducers()

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state: tensors, numbers and strings only.

        Waits until all parameters are up to date. Save it on every rank.
        """
        self.synchronize()
        feedback = self._sender.feedback
        state = pack(self.rank, self.world_size, self._step, self.plan, feedback.tensors())
        state[f"rank{self.rank}"] |= self._sender.state()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken, on every rank.

        Raises:
            StateError: Not such a state, of another format, or with a tensor of
                another shape or values that are not finite.
        """
        saved = unpack(state, self.rank)
        self.synchronize()
        self._sender.load(saved, residual_scale(saved, self.rank, self.world_size))
        self._step = int(saved["steps_done"])
        self._talk.forget()
        self._clip.forget()
        self._record = None

    def close(self) -> None:
        """Finish what is under way, stop the threads and disconnect. Can be called twice."""
        is_usable = self._closer.alive and self._guard.failure is None
        if is_usable and os.getpid() == self._pid:
            with contextlib.suppress(GradwireError):  # whoever trains was told before
                self.synchronize()
        self._closer()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an Overlap holds threads and connections and cannot be pickled or copied;"
            " save its state_dict() instead"
        )

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise SpecError("overlap", "used in a forked process", "used where it was made")
        self._guard.check()
        if not self._closer.alive:
            raise SpecError("overlap", "closed", "open; call gradwire.overlap anew")

    def _refuse_changes(self, layers: Sequence[Layer]) -> None:
        """Refuse gradients that were clipped or scaled here: they are on their way already."""
        for layer in layers:
            changed = layer.turn.changed() if layer.turn is not None else None
            if changed is not None:
                raise SpecError(
                    f"gradient of {changed}",
                    "changed after backward",
                    "left alone, as it has left already: clip by overlap(..., clip_by_last_norm=),"
                    " and use bfloat16 in place of a GradScaler",
                )

    def _begin_step(self) -> None:
        if self._is_open:
            return
        now_s = time.perf_counter()
        start_s = self._backward_s or now_s
        record, self._record = self._record, StepRecord(self._step, self.rank, start_s)
        self._is_open = True
        if record is not None:
            line = record.timeline(start_s)
            step = record.summary(self._sender.order, line)
            self._recent.append((step, line))
            self._talk.last_step = step
            for turn in record.turns:
                if turn.exchange is not None and turn.exchange.measured.losses is not None:
                    self._losses[turn.layer.index] = turn.exchange.measured.losses
            if self._settings.on_step is not None:
                self._settings.on_step(step)
        self._record.open("backward", "", start_s)
        self._follow()

    def _follow(self) -> None:
        """Take up what all ranks have agreed on since."""
        counted = self._talk.count(self._step)
        if counted is not None:
            self._guard.wait("step check", counted)
        pending = self._talk.agreed(self._step)
        if pending is None:
            return
        agreed = self._guard.wait(f"step {self._step}, notes", pending)
        self._sender.follow(agreed.order, agreed.reducers)

    def _order_met(self) -> list[Layer]:
        """Return the layers in order of use, then those that were not used."""
        return [*self._met.values(), *(x for x in self._sender.order if x.index not in self._met)]

    def _begin(self, layer: Layer) -> Turn:
        self._begin_step()
        layer.turn = Turn(layer, layer.turns, self._step)
        layer.turns += 1
        return layer.turn

    def _start(self, turn: Turn) -> None:
        """Send a layer's gradient off."""
        assert self._record is not None, "a step has begun"
        self._record.ready(turn.layer, turn)
        self._sender.send(turn)

    def _drop(self, turn: Turn) -> None:
        """Give up a gradient the user has thrown away."""
        if turn.exchange is None:
            turn.layer.turns -= 1  # it has not left: the next one takes its place
        else:
            turn.layer.dropped += 1
            self._guard.wait(str(turn), turn.exchange.done)
        turn.layer.turn = None

    def _apply(self, turn: Turn, record: StepRecord | None = None) -> None:
        """Wait for a gradient and update the layer with it."""
        self._check_usable()
        layer, groups = turn.layer, turn.groups
        assert turn.exchange is not None, "marked turns have one"
        assert groups is not None, "as above"
        since_s = time.perf_counter()
        is_late = not turn.exchange.done.done()
        self._guard.wait(str(turn), turn.exchange.done)
        used = turn.used
        if not all(used):
            assert turn.note is not None, "as above"
            self._guard.wait(str(turn), turn.note.done)
            used = turn.note.used(layer)
        if record is not None:
            if is_late:
                record.waited(layer, since_s)
            record.open("optimiser", layer.name)
        layer.turn = None
        chosen = [i for i, is_used in enumerate(used) if is_used]
        with torch.no_grad():
            if turn.factor != 1.0:
                layer.mean.mul_(turn.factor)
            gradients = [layer.means[i].to(layer.parameters[i].dtype) for i in chosen]
            parameters = [layer.parameters[i] for i in chosen]
        if chosen:
            self._updaters[layer.optimizer].update(groups, parameters, gradients)


def _close(pid: int, worker: Worker, mailbox: RankedMailbox, under_way: set[Future[None]]) -> None:
    if os.getpid() != pid:
        return  # a forked child has neither the threads nor a say
    wait(tuple(under_way), _DRAIN_S)  # the other ranks may need our part of it
    mailbox.close()  # what the worker still waits for then has an outcome
    worker.close()
