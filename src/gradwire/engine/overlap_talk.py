"""Talk: what ranks tell each other beside gradients, and what follows from it.

All ranks have the notes of step n before they begin step n + 2: by then each
has used gradients that the others sent after their note. Whatever follows from
a note, an order of use or other reducers, takes effect there.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from gradwire.comm.base import RankedMailbox, Steps
from gradwire.comm.channel import Channel
from gradwire.control.base import Controller, Losses
from gradwire.engine.checks import check_replicas, check_steps
from gradwire.engine.overlap_guard import Guard
from gradwire.engine.overlap_layers import Layer, LayerTable
from gradwire.engine.overlap_notes import Note, Shape, write
from gradwire.engine.overlap_stats import OverlapStep
from gradwire.engine.overlap_turn import Turn
from gradwire.engine.worker import Worker
from gradwire.errors import RankMismatchError
from gradwire.spec import ReducerSpec

DELAY = 2
_NOTES, _CHECKS = 1 << 50, 1 << 51
"""First channels of notes and checks; layers use those below."""

_PRIORITY = -1.0
_IDLE = float("inf")
"""Priority of decisions: not needed before the step after next begins."""


class Agreed(NamedTuple):
    """What all ranks take up at the same step.

    Attributes:
        order: Numbers of the layers, in rank 0's order of use.
        reducers: By layer, where a controller has changed them.
    """

    order: list[int]
    reducers: Mapping[str, ReducerSpec]


class Talk:
    """Sends notes and checks, and asks the controller.

    Args:
        mailbox: Connects the ranks.
        worker: What runs exchanges.
        table: The layers.
        controller: Decides on reducers, or None.
        guard: Told where ranks differ.
    """

    def __init__(
        self,
        mailbox: RankedMailbox,
        worker: Worker,
        table: LayerTable,
        controller: Controller | None,
        guard: Guard,
    ) -> None:
        self.last_step: OverlapStep | None = None
        self._mailbox = mailbox
        self._worker = worker
        self._layers = table.layers
        self._controller = controller
        self._guard = guard
        counts = [len(layer.parameters) for layer in table.layers]
        self._starts = [0, *itertools.accumulate(counts)][:-1]
        self._shape = Shape(sum(counts), len(counts))
        self._agreed: dict[int, Future[Agreed]] = {}
        self._has_counted = False
        self._error = 0.0

    def send(
        self, step: int, turns: Sequence[Turn], order: Sequence[Layer], losses: Sequence[Losses]
    ) -> Note:
        """Send this rank's note, and begin to receive those of the others."""
        used = [False] * self._shape.parameters
        for turn in turns:
            start = self._starts[turn.layer.index]
            used[start : start + len(turn.used)] = turn.used
        self._mailbox.ping()
        measured, rates = self._latest(), self._mailbox.rates()
        mine = write(used, order, losses, measured, rates, self._shape)
        note = Note(self._shape, self._starts, self._mailbox.world_size)
        agreed: Future[Agreed] = Future()
        self._agreed[step] = agreed
        number = -1 if measured is None else measured.step

        def settle() -> Steps[None]:
            yield from ()
            agreed.set_result(Agreed(note.order(), self._decide(number, note)))

        def fail(error: BaseException | None) -> None:
            if error is not None:
                agreed.set_exception(error)

        def finish(error: BaseException | None) -> None:
            note.finish(error)
            if error is not None:
                if isinstance(error, RankMismatchError):
                    self._guard.mismatch = error
                    for turn in turns:
                        turn.give_up(error)
                fail(error)
            else:
                self._worker.submit(settle(), fail, _IDLE)

        channel = Channel(self._mailbox.at(_PRIORITY), _NOTES + step)
        self._worker.submit(self._exchange(step, note, mine, channel), finish, _PRIORITY)
        return note

    def _exchange(self, step: int, note: Note, mine: Tensor, channel: Channel) -> Steps[None]:
        yield from note.exchange(mine, channel)
        note.compare_repeats(step, self._layers, self._mailbox.rank)

    def _latest(self) -> OverlapStep | None:
        """Return the latest whole step, with the latest error that was estimated."""
        step = self.last_step
        if step is None:
            return None
        if step.relative_error is not None:
            self._error = step.relative_error
        return replace(step, relative_error=self._error)

    def _decide(self, step: int, note: Note) -> Mapping[str, ReducerSpec]:
        network = note.network() if self._controller is not None else None
        if self._controller is None or network is None:
            return {}
        return self._controller.update(step, note.layers(self._layers), network) or {}

    def agreed(self, step: int) -> Future[Agreed] | None:
        """Return what is to be taken up as a step begins, if anything."""
        return self._agreed.pop(step - DELAY, None)

    def forget(self) -> None:
        """Start again, after a checkpoint was loaded."""
        self._agreed.clear()
        self.last_step = None
        self._has_counted = False

    def count(self, step: int) -> Future[None] | None:
        """Make sure that all ranks are at the same step, once after each start."""
        if self._has_counted:
            return None
        self._has_counted = True
        return self._run(check_steps(step, Channel(self._mailbox, _CHECKS)))

    def check_replicas(self, step: int) -> Future[None]:
        """Compare all parameters of all ranks, bit for bit."""
        parameters = {
            name: p.detach()
            for layer in self._layers
            for name, p in zip(layer.names, layer.parameters, strict=True)
        }
        channel = Channel(self._mailbox, _CHECKS + 1 + step)
        return self._run(check_replicas(parameters, step, channel))

    def _run(self, steps: Steps[None]) -> Future[None]:
        done: Future[None] = Future()

        def finish(error: BaseException | None) -> None:
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(None)

        self._worker.submit(steps, finish, _PRIORITY)
        return done
