"""Schemes: which reducers a layer goes through now, cut into chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gradwire.engine.chunks import cut
from gradwire.engine.layout import Layouts
from gradwire.engine.overlap_layers import Layer
from gradwire.plan import DENSE, Assignment, Parameter
from gradwire.reduce.base import Part, Reducer, Slot
from gradwire.spec import AllReduce, ReducerSpec, sent_bytes


@dataclass(frozen=True, slots=True)
class Scheme:
    """What is done with one layer's gradient.

    Attributes:
        chunks: Pieces of its parameters, each with its reducer, in order.
        owing: Parameters that have a residual.
        paying: Those of them whose reducer has no feedback now: they pay at once.
        bits: Bits per value of one payload, on average.
    """

    chunks: tuple[tuple[Reducer, Part], ...]
    owing: tuple[Slot, ...]
    paying: tuple[Slot, ...]
    bits: float


class Schemes:
    """Makes schemes when they are first needed, and follows a controller.

    Args:
        parameters: All parameters.
        assignments: Their reducers, at first.
        offsets: Their places in the residual.
        world_size: Number of ranks.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        assignments: Mapping[str, Assignment],
        offsets: Mapping[str, int],
        world_size: int,
    ) -> None:
        self._parameters = {p.name: p for p in parameters}
        self._specs = {name: a.reducer for name, a in assignments.items()}
        self._open = {name for name, a in assignments.items() if a.reducer != DENSE}
        self._offsets = offsets
        self._world_size = world_size
        self._known: dict[tuple[int, tuple[ReducerSpec, ...]], Scheme] = {}

    def of(self, layer: Layer, *, all_dense: bool) -> Scheme:
        """Return what is done with a layer now.

        Args:
            layer: The layer.
            all_dense: Whether the plan's warm-up is still on.
        """
        specs = tuple(DENSE if all_dense else self._specs[name] for name in layer.names)
        scheme = self._known.get((layer.index, specs))
        if scheme is None:
            scheme = self._make(layer, specs)
            self._known[layer.index, specs] = scheme
        return scheme

    def change(self, layer: Layer, spec: ReducerSpec) -> None:
        """Use another reducer for what the plan compresses of a layer."""
        for name in self._open.intersection(layer.names):
            entry = self._parameters[name].entry
            size, dense = (sent_bytes(s, [entry], self._world_size) for s in (spec, DENSE))
            chosen = DENSE if self._world_size > 1 and size >= dense else spec
            if chosen.feedback and name not in self._offsets:
                chosen = replace(chosen, feedback=False)  # type: ignore[type-var]
            self._specs[name] = chosen

    def current(self) -> dict[str, ReducerSpec]:
        """Return the reducer of each parameter."""
        return dict(self._specs)

    def restore(self, specs: Mapping[str, ReducerSpec]) -> None:
        """Use reducers that `current` returned."""
        self._specs.update(specs)

    def _make(self, layer: Layer, specs: tuple[ReducerSpec, ...]) -> Scheme:
        assignments = {n: Assignment(s) for n, s in zip(layer.names, specs, strict=True)}
        parameters = [self._parameters[name] for name in layer.names]
        layouts = Layouts(parameters, assignments, self._offsets, self._world_size)
        layout = layouts.of(layer.names, layer.buffer.numel(), all_dense=False)
        owing = {
            slot: reducer.spec.feedback
            for reducer, part in layout.parts
            for slot in part.slots
            if slot.name in self._offsets
        }
        bits = sum(payload_bits(reducer.spec, part) for reducer, part in layout.parts)
        return Scheme(
            tuple((reducer, c) for reducer, part in layout.parts for c in cut(reducer.spec, part)),
            tuple(owing),
            tuple(slot for slot, feedback in owing.items() if not feedback),
            bits / max(1, layer.buffer.numel()),
        )


def payload_bits(spec: ReducerSpec, part: Part) -> float:
    """Return the size of one rank's encoded gradient, in bits."""
    numel = sum(e.numel for e in part.entries)
    codec = getattr(spec, "codec", None)
    if codec is not None:
        return 8.0 * float(codec.num_bytes([e.numel for e in part.entries]))
    if isinstance(spec, AllReduce):
        return numel * (32.0 if spec.format == "float32" else 16.0)
    return 8.0 * sum(t.sent_bytes for t in spec.transfers(part.entries, 2, 0))
