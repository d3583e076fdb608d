"""Sender: starts the exchange of each layer, with its place among the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import torch

from gradwire.comm.base import RankedMailbox
from gradwire.comm.channel import Scratch
from gradwire.engine.feedback import ErrorFeedback
from gradwire.engine.overlap_exchange import CHANNELS, LayerExchange
from gradwire.engine.overlap_layers import LayerTable
from gradwire.engine.overlap_scheme import Schemes
from gradwire.engine.overlap_turn import Turn
from gradwire.engine.worker import Worker
from gradwire.key import Key
from gradwire.plan import Plan
from gradwire.spec import ReducerSpec, reducer_from_dict, to_dict

_MEASURED_EVERY = 10
_FOLLOWED_EVERY = 4
"""Turns between two estimates of errors, without a controller and with one: an estimate
takes as long as encoding does, and errors change over tens of steps."""
_ATTEMPTS = 8


class Sender:
    """Sends gradients off, front layers first.

    Attributes:
        order: Layers in order of use.
        feedback: What each parameter owes.
        under_way: Exchanges that are not done.
        dense: Parameters that are not compressed, and why.

    Args:
        plan: Which reducer each parameter uses, at first.
        table: The layers.
        worker: What runs exchanges.
        mailbox: Connects the ranks.
        is_controlled: Whether a controller asks for errors.
    """

    def __init__(
        self,
        plan: Plan,
        table: LayerTable,
        worker: Worker,
        mailbox: RankedMailbox,
        *,
        is_controlled: bool,
    ) -> None:
        parameters = table.parameters
        assignments = plan.assign(parameters, mailbox.world_size)
        self.order = list(table.layers)
        self.feedback = ErrorFeedback(parameters, assignments, torch.device("cpu"))
        self.under_way: set[Future[None]] = set()
        self.dense = {n: a.dense_reason for n, a in assignments.items() if a.dense_reason}
        self._plan = plan
        self._layers = table.layers
        self._worker = worker
        self._mailbox = mailbox
        self._measured_every = _FOLLOWED_EVERY if is_controlled else _MEASURED_EVERY
        offsets = self.feedback.offsets
        self._schemes = Schemes(parameters, assignments, offsets, mailbox.world_size)
        self._scratch = Scratch()
        self._places = {layer.index: place for place, layer in enumerate(self.order)}

    def send(self, turn: Turn) -> None:
        """Send a layer's gradient off."""
        layer = turn.layer
        turn.exchange = LayerExchange(
            self._schemes.of(layer, all_dense=turn.number < self._plan.warmup_steps),
            layer,
            Key(self._plan.seed, turn.number, self._mailbox.rank),
            self.feedback.state,
            [name for name, used in zip(layer.names, turn.used, strict=True) if not used],
            is_measured=turn.number == 0 or turn.number % self._measured_every == 1,
        )
        self.track(turn.exchange.done)
        place = float(self._places[layer.index])
        # A rank that repeats a backward pass alone must not meet the others' next step.
        attempt = turn.number * _ATTEMPTS + layer.dropped % _ATTEMPTS
        number = (attempt * len(self._layers) + layer.index) * CHANNELS
        mailbox = self._mailbox.at(place)
        turn.exchange.submit(self._worker, mailbox, number, place, self._scratch)

    def track(self, done: Future[None]) -> None:
        """See to it that `close` waits for something."""
        self.under_way.add(done)
        done.add_done_callback(self.under_way.discard)

    def follow(self, order: Sequence[int], reducers: Mapping[str, ReducerSpec]) -> None:
        """Use another order, and other reducers where they are named."""
        self.order = [self._layers[i] for i in order]
        self._places = {layer.index: place for place, layer in enumerate(self.order)}
        for layer in self._layers:
            if layer.name in reducers:
                self._schemes.change(layer, reducers[layer.name])

    def reducers(self) -> dict[str, ReducerSpec]:
        """Return the reducer that each parameter uses now."""
        return self._schemes.current()

    def state(self) -> dict[str, Any]:
        """Return what to save beside residuals."""
        return {
            "turns": {layer.name: layer.turns for layer in self._layers},
            "reducers": {name: to_dict(spec) for name, spec in self.reducers().items()},
        }

    def load(self, saved: Mapping[str, Any], scale: float | None) -> None:
        """Take over a saved state, its residuals times `scale`."""
        self.feedback.load(saved, scale)
        turns = saved.get("turns", {})
        for layer in self._layers:
            layer.turns = int(turns.get(layer.name, saved["steps_done"]))
            layer.dropped = 0
        reducers = saved.get("reducers", {})
        self._schemes.restore({name: reducer_from_dict(d) for name, d in reducers.items()})
