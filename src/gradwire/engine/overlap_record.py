"""StepRecord: what the training thread did in one step, as it happens."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gradwire.engine.overlap_exchange import Traffic
from gradwire.engine.overlap_layers import Layer
from gradwire.engine.overlap_stats import LayerStep, OverlapStep
from gradwire.engine.overlap_turn import Turn
from gradwire.timeline import Kind, Span, Timeline


@dataclass(slots=True)
class StepRecord:
    """One step, from the start of its backward to that of the next.

    Attributes:
        step: Its number.
        rank: This rank.
        start_s: When its backward began.
        turns: The gradients that became ready in it.
        ready_s: When, by index of the layer.
        due_s: When forward came to each layer, less what it had waited before.
        wait_s: How long forward waited for each layer.
    """

    step: int
    rank: int
    start_s: float
    turns: list[Turn] = field(default_factory=list)
    ready_s: dict[int, float] = field(default_factory=dict)
    due_s: dict[int, float] = field(default_factory=dict)
    wait_s: dict[int, float] = field(default_factory=dict)
    _spans: list[tuple[Kind, str, float, float]] = field(default_factory=list)
    _open: tuple[Kind, str, float] | None = None
    _waited_s: float = 0.0

    def open(self, kind: Kind, layer: str, since_s: float | None = None) -> None:
        """Begin to do something; what was done before ends here."""
        now_s = self.shut()
        self._open = (kind, layer, now_s if since_s is None else since_s)

    def shut(self) -> float:
        """End what is being done, and return the time."""
        now_s = time.perf_counter()
        if self._open is not None:
            self._spans.append((*self._open, now_s))
            self._open = None
        return now_s

    def ready(self, layer: Layer, turn: Turn) -> None:
        """Note that backward has come past a layer."""
        self.turns.append(turn)
        now_s = self.shut()
        if self._spans and self._spans[-1][0] == "backward":
            _, _, start_s, end_s = self._spans.pop()
            self._spans.append(("backward", layer.name, start_s, end_s))
        self.ready_s[layer.index] = now_s - self.start_s
        self._open = ("backward", "", now_s)

    def due(self, layer: Layer) -> float:
        """Note that forward has come to a layer, and return the time."""
        now_s = self.shut()
        self.due_s.setdefault(layer.index, now_s - self.start_s - self._waited_s)
        return now_s

    def waited(self, layer: Layer, since_s: float) -> None:
        """Note that forward has waited for a layer until now."""
        now_s = time.perf_counter()
        self._spans.append(("wait", layer.name, since_s, now_s))
        self._waited_s += now_s - since_s
        self.wait_s[layer.index] = self.wait_s.get(layer.index, 0.0) + now_s - since_s

    def timeline(self, end_s: float) -> Timeline:
        """Return everything this rank did in the step."""
        spans = [
            Span(self.rank, kind, layer, start - self.start_s, end - self.start_s)
            for kind, layer, start, end in self._spans
        ]
        for turn in self.turns:
            spans += self._communication(turn)
        return Timeline(tuple(spans), end_s - self.start_s)

    def _communication(self, turn: Turn) -> Iterable[Span]:
        exchange = turn.exchange
        if exchange is None:
            return
        name, bits = turn.layer.name, exchange.scheme.bits
        for kind, start, end in tuple(exchange.codec_spans):
            yield Span(self.rank, kind, name, start - self.start_s, end - self.start_s)
        for t in tuple(exchange.traffic):
            start, end = t.start_s - self.start_s, t.end_s - self.start_s
            yield Span(self.rank, "transfer", name, start, end, t.sent_bytes, bits)

    def summary(self, order: Sequence[Layer], timeline: Timeline) -> OverlapStep:
        """Return the step's numbers, with its layers in order of use."""
        turns = {turn.layer.index: turn for turn in self.turns}
        measured = [t.exchange.measured for t in self.turns if t.exchange is not None]
        owed = sum(m.losses.square for m in measured if m.losses is not None)
        kept = sum(m.kept_square for m in measured)
        return OverlapStep(
            step=self.step,
            layers=tuple(self._layer(turns[x.index]) for x in order if x.index in turns),
            overlap_s=timeline.overlap_s(self.rank),
            wait_s=timeline.wait_s(self.rank),
            step_s=timeline.step_s,
            gradient_norm=sum(m.norm**2 for m in measured) ** 0.5,
            relative_error=(kept / owed) ** 0.5 if owed > 0 else None,
        )

    def _layer(self, turn: Turn) -> LayerStep:
        index, exchange = turn.layer.index, turn.exchange
        traffic: tuple[Traffic, ...] = tuple(exchange.traffic) if exchange else ()
        ready_s = self.ready_s.get(index, 0.0)
        return LayerStep(
            name=turn.layer.name,
            numel=turn.layer.buffer.numel(),
            bits=exchange.scheme.bits if exchange else 0.0,
            ready_s=ready_s,
            due_s=self.due_s.get(index, ready_s),
            wait_s=self.wait_s.get(index, 0.0),
            transfers=tuple((t.start_s - self.start_s, t.end_s - self.start_s) for t in traffic),
            sent_bytes=sum(t.sent_bytes for t in traffic),
            received_bytes=sum(t.received_bytes for t in traffic),
            codec_s=exchange.codec_s if exchange else 0.0,
        )
