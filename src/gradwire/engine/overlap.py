"""Overlap: gradients leave as they become ready, and layers wait for their own only."""

from __future__ import annotations

import contextlib
import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any, NamedTuple, NoReturn, TypeVar

import torch

from gradwire.comm.channel import Scratch
from gradwire.comm.priority import PriorityMailbox
from gradwire.control.base import Controller
from gradwire.engine.checkpoint import pack, residual_scale, unpack
from gradwire.engine.feedback import ErrorFeedback
from gradwire.engine.overlap_exchange import CHANNELS, LayerExchange
from gradwire.engine.overlap_layers import Layer, LayerTable
from gradwire.engine.overlap_record import StepRecord
from gradwire.engine.overlap_scheme import Schemes
from gradwire.engine.overlap_stats import OverlapStats, OverlapStep
from gradwire.engine.overlap_talk import Talk
from gradwire.engine.overlap_turn import Turn
from gradwire.engine.overlap_update import Updater
from gradwire.engine.worker import Worker
from gradwire.errors import CollectiveError, SpecError
from gradwire.key import Key
from gradwire.plan import Plan
from gradwire.spec import ReducerSpec, reducer_from_dict, to_dict
from gradwire.timeline import Timeline

T = TypeVar("T")
_MEASURED_EVERY = 10
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
        mailbox: PriorityMailbox,
        settings: Settings,
    ) -> None:
        self.plan = plan
        self._layers = table.layers
        self._updaters = updaters
        self._mailbox = mailbox
        self._settings = settings
        parameters = table.parameters
        assignments = plan.assign(parameters, mailbox.world_size)
        self._dense = {n: a.dense_reason for n, a in assignments.items() if a.dense_reason}
        self._feedback = ErrorFeedback(parameters, assignments, torch.device("cpu"))
        offsets = self._feedback.offsets
        self._schemes = Schemes(parameters, assignments, offsets, mailbox.world_size)
        self._scratch = Scratch()
        self._step = 0
        self._is_open = self._is_accumulating = self._is_forward = False
        self._order = list(self._layers)
        self._places = {layer.index: place for place, layer in enumerate(self._order)}
        self._met: dict[int, Layer] = {}
        self._last_marked: dict[int, list[Turn]] = {}
        self._errors = [0.0] * len(self._layers)
        self._record: StepRecord | None = None
        self._backward_s: float | None = None
        self._recent: deque[tuple[OverlapStep, Timeline]] = deque(maxlen=_RECENT_STEPS)
        self._failure: str | None = None
        self._worker = Worker("gradwire-overlap")
        self._under_way: set[Future[None]] = set()
        self._talk = Talk(mailbox, self._worker, table, settings.controller)
        self._closer = weakref.finalize(self, _close, self._worker, mailbox, self._under_way)

    @property
    def rank(self) -> int:
        """This process's number in the group."""
        return self._mailbox.rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._mailbox.world_size

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
                    "allowed: wrap all backward passes but the last in `with step.accumulate():`",
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
            self._guarded("replica check", self._talk.check_replicas(self._step))
        self._begin_step()
        groups = self._updaters[number].groups()
        turns = [layer.turn or self._begin(layer) for layer in layers]
        with torch.no_grad():
            for turn in turns:
                turn.complete()
                if turn.exchange is None:
                    self._start(turn)
        factor = self._factor(number, turns)
        note = self._talk.send(self._step, turns, self._order_met(), self._errors)
        self._track(note.done)
        for turn in turns:
            turn.groups, turn.factor, turn.note = groups, factor, note
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
        for layer in self._order:
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
        return OverlapStats(self._step, steps, dict(self._dense), self._feedback.num_bytes)

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
        return self._schemes.current()

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state: tensors, numbers and strings only.

        Waits until all parameters are up to date. Save it on every rank.
        """
        self.synchronize()
        state = pack(self.rank, self.world_size, self._step, self.plan, self._feedback)
        state[f"rank{self.rank}"] |= {
            "turns": {layer.name: layer.turns for layer in self._layers},
            "reducers": {n: to_dict(spec) for n, spec in self._schemes.current().items()},
        }
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken, on every rank.

        Raises:
            StateError: Not such a state, of another format, or with a tensor of
                another shape or values that are not finite.
        """
        saved = unpack(state, self.rank)
        self.synchronize()
        self._feedback.load(saved, residual_scale(saved, self.rank, self.world_size))
        self._step = int(saved["steps_done"])
        turns = saved.get("turns", {})
        for layer in self._layers:
            layer.turns = int(turns.get(layer.name, self._step))
        self._schemes.restore(
            {n: reducer_from_dict(d) for n, d in saved.get("reducers", {}).items()}
        )
        self._talk.forget()
        self._last_marked.clear()
        self._record = None

    def close(self) -> None:
        """Finish what is under way, stop the threads and disconnect. Can be called twice."""
        if self._closer.alive and self._failure is None:
            with contextlib.suppress(CollectiveError):
                self.synchronize()
        self._closer()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an Overlap holds threads and connections and cannot be pickled or copied;"
            " save its state_dict() instead"
        )

    def _check_usable(self) -> None:
        if not self._closer.alive:
            raise SpecError("overlap", "closed", "open; call gradwire.overlap anew")
        if self._failure is not None:
            raise CollectiveError("overlap", self.rank, f"already broken: {self._failure}")

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
            step = record.summary(self._order, line)
            self._recent.append((step, line))
            self._talk.last_step = step
            for turn in record.turns:
                if turn.exchange is not None:
                    self._errors[turn.layer.index] = turn.exchange.measured.error
            if self._settings.on_step is not None:
                self._settings.on_step(step)
        self._record.open("backward", "", start_s)
        self._follow()

    def _follow(self) -> None:
        """Take up what all ranks have agreed on since."""
        counted = self._talk.count(self._step)
        if counted is not None:
            self._guarded("step check", counted)
        pending = self._talk.agreed(self._step)
        if pending is None:
            return
        agreed = self._guarded(f"step {self._step}, notes", pending)
        self._order = [self._layers[i] for i in agreed.order]
        self._places = {layer.index: place for place, layer in enumerate(self._order)}
        for layer in self._layers:
            if layer.name in agreed.reducers:
                self._schemes.change(layer, agreed.reducers[layer.name])

    def _order_met(self) -> list[Layer]:
        """Return the layers in order of use, then those that were not used."""
        return [*self._met.values(), *(x for x in self._order if x.index not in self._met)]

    def _begin(self, layer: Layer) -> Turn:
        self._begin_step()
        layer.turn = Turn(layer, layer.turns, self._step)
        layer.turns += 1
        return layer.turn

    def _start(self, turn: Turn) -> None:
        """Send a layer's gradient off."""
        layer = turn.layer
        assert self._record is not None, "a step has begun"
        self._record.ready(layer, turn)
        has_controller = self._settings.controller is not None
        turn.exchange = LayerExchange(
            self._schemes.of(layer, all_dense=turn.number < self.plan.warmup_steps),
            layer.buffer,
            Key(self.plan.seed, turn.number, self.rank),
            self._feedback.state,
            [name for name, used in zip(layer.names, turn.used, strict=True) if not used],
            is_measured=has_controller or turn.number % _MEASURED_EVERY == 1,
        )
        self._track(turn.exchange.done)
        place = float(self._places[layer.index])
        number = (turn.number * len(self._layers) + layer.index) * CHANNELS
        mailbox = self._mailbox.at(place)
        turn.exchange.submit(self._worker, mailbox, number, place, self._scratch)

    def _track(self, done: Future[None]) -> None:
        self._under_way.add(done)
        done.add_done_callback(self._under_way.discard)

    def _guarded(self, what: str, done: Future[T]) -> T:
        """Wait for something, and break everything off where that fails."""
        try:
            return done.result(self._mailbox.timeout_s)
        except Exception as error:
            limit = f"nothing came within {self._mailbox.timeout_s:g} s"
            detail = f"{what}: {limit if isinstance(error, TimeoutError) else error}"
            self._failure = self._failure or detail
            self._mailbox.fail(detail)
            if isinstance(error, CollectiveError):
                error.args = (f"{what}: {error}",)
                raise
            raise CollectiveError("overlap", self.rank, detail) from error

    def _drop(self, turn: Turn) -> None:
        """Give up a gradient the user has thrown away."""
        if turn.exchange is not None:
            self._guarded(str(turn), turn.exchange.done)
        turn.layer.turn = None

    def _apply(self, turn: Turn, record: StepRecord | None = None) -> None:
        """Wait for a gradient and update the layer with it."""
        layer, groups = turn.layer, turn.groups
        assert turn.exchange is not None, "marked turns have one"
        assert groups is not None, "as above"
        since_s = time.perf_counter()
        is_late = not turn.exchange.done.done()
        self._guarded(str(turn), turn.exchange.done)
        used = turn.used
        if not all(used):
            assert turn.note is not None, "as above"
            self._guarded(str(turn), turn.note.done)
            used = turn.note.used(layer)
        if record is not None:
            if is_late:
                record.waited(layer, since_s)
            record.open("optimiser", layer.name)
        layer.turn = None
        chosen = [i for i, is_used in enumerate(used) if is_used]
        with torch.no_grad():
            if turn.factor != 1.0:
                layer.buffer.mul_(turn.factor)
            gradients = [layer.views[i].to(layer.parameters[i].dtype) for i in chosen]
            parameters = [layer.parameters[i] for i in chosen]
        if chosen:
            self._updaters[layer.optimizer].update(groups, parameters, gradients)

    def _factor(self, number: int, turns: Sequence[Turn]) -> float:
        """Return what clips the gradient: by the norm of the one before, or its own at first."""
        limit = self._settings.clip_by_last_norm
        if limit is None:
            return 1.0
        total = 0.0
        for turn in self._last_marked.get(number, turns):
            assert turn.exchange is not None, "marked turns have one"
            self._guarded(str(turn), turn.exchange.done)
            total += turn.exchange.measured.norm**2
        self._last_marked[number] = list(turns)
        factor = limit / (math.sqrt(total) + 1e-6)
        return min(1.0, factor) if math.isfinite(factor) else 1.0


def _close(worker: Worker, mailbox: PriorityMailbox, under_way: set[Future[None]]) -> None:
    wait(tuple(under_way), _DRAIN_S)  # the other ranks may need our part of it
    mailbox.close()  # what the worker still waits for then has an outcome
    worker.close()
