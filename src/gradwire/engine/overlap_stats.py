"""What a step of the cross-iteration engine cost, as plain data. No torch here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from gradwire.timeline import ratio
from gradwire.units import format_bytes, format_seconds


@dataclass(frozen=True, slots=True)
class LayerStep:
    """One layer in one step; times count from the start of backward.

    Attributes:
        name: Name of the layer.
        numel: Values in its gradient.
        bits: Bits per value of one payload.
        ready_s: When its gradient was there.
        due_s: When the next forward would have needed it without any waiting.
        wait_s: How long the next forward waited for it.
        transfers: Start and end of each exchange.
        sent_bytes: Bytes this rank handed to the network.
        received_bytes: Bytes this rank took from the network.
        codec_s: How long encoding and decoding kept a core busy.
    """

    name: str
    numel: int
    bits: float
    ready_s: float
    due_s: float
    wait_s: float
    transfers: tuple[tuple[float, float], ...] = ()
    sent_bytes: int = 0
    received_bytes: int = 0
    codec_s: float = 0.0


@dataclass(frozen=True, slots=True)
class OverlapStep:
    """One step: a backward pass and the forward pass after it.

    Attributes:
        step: Its number, counted from 0.
        layers: Its layers, in order of use.
        overlap_s: How long transfers ran under computation.
        wait_s: How long computation was idle for gradients.
        step_s: From the start of its backward to that of the next.
        gradient_norm: Norm of the averaged gradient, not finite where that is not.
        relative_error: Norm of what this rank did not send over that of what
            it owed; estimated from a sample, None where not measured.

    Example:
        >>> layer = LayerStep("fc", 100, 4.0, 0.1, 0.3, 0.1, ((0.1, 0.4),), 50, 50)
        >>> OverlapStep(0, (layer,), 0.2, 0.1, 0.5, 1.0).row
        2.0
    """

    step: int
    layers: tuple[LayerStep, ...]
    overlap_s: float
    wait_s: float
    step_s: float
    gradient_norm: float
    relative_error: float | None = None

    @property
    def row(self) -> float | None:
        """Overlap over wait; infinite without wait, None where nothing was sent."""
        return ratio(self.overlap_s, self.wait_s)

    @property
    def sent_bytes(self) -> int:
        """Bytes this rank handed to the network."""
        return sum(layer.sent_bytes for layer in self.layers)

    @property
    def received_bytes(self) -> int:
        """Bytes this rank took from the network."""
        return sum(layer.received_bytes for layer in self.layers)

    @property
    def bits(self) -> float:
        """Bits per value of one payload, over all layers."""
        numel = sum(layer.numel for layer in self.layers)
        return sum(layer.bits * layer.numel for layer in self.layers) / max(1, numel)

    @property
    def is_finite(self) -> bool:
        """Whether the averaged gradient was finite."""
        return math.isfinite(self.gradient_norm)

    def scalars(self) -> dict[str, float]:
        """Return the numbers a logger wants, by name.

        Example:
            >>> sorted(OverlapStep(0, (), 0.0, 0.0, 0.0, 0.0).scalars())[:3]
            ['gradwire/bits', 'gradwire/gradient_norm', 'gradwire/overlap_s']
        """
        values = {
            "gradwire/sent_bytes": float(self.sent_bytes),
            "gradwire/received_bytes": float(self.received_bytes),
            "gradwire/overlap_s": self.overlap_s,
            "gradwire/wait_s": self.wait_s,
            "gradwire/step_s": self.step_s,
            "gradwire/bits": self.bits,
            "gradwire/gradient_norm": self.gradient_norm,
        }
        if self.row is not None and math.isfinite(self.row):
            values["gradwire/row"] = self.row
        if self.relative_error is not None:
            values["gradwire/relative_error"] = self.relative_error
        return values


@dataclass(frozen=True, slots=True)
class OverlapStats:
    """What `Overlap.stats` returns.

    Attributes:
        steps_done: Steps so far, since the very start if the state was loaded.
        recent: The latest whole steps, oldest first.
        dense: Parameters that are not compressed, and why.
        residual_bytes: Memory the residual takes.
    """

    steps_done: int
    recent: tuple[OverlapStep, ...]
    dense: Mapping[str, str]
    residual_bytes: int

    def summary(self) -> str:
        """Say in one line what a step sends, and how much of it is hidden.

        Example:
            >>> OverlapStats(0, (), {}, 0).summary()
            'no whole step has been made yet'
        """
        if not self.recent:
            return "no whole step has been made yet"
        sent, overlap_s, wait_s, step_s, bits = (
            median(getattr(s, name) for s in self.recent)
            for name in ("sent_bytes", "overlap_s", "wait_s", "step_s", "bits")
        )
        return (
            f"{format_bytes(sent)} sent a step in {bits:.1f} bits; {format_seconds(overlap_s)}"
            f" hidden, {format_seconds(wait_s)} waited of {format_seconds(step_s)}"
        )
