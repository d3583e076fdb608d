"""What a controller reads, and what it decides. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gradwire.spec import ReducerSpec


class Losses(NamedTuple):
    """What rounding a gradient loses, as squared norms; what is owed counts to it.

    Attributes:
        error: `A`, where about `A * 4**-bits` is the squared error of rounding
            stochastically to that many bits: two thirds of the sum over blocks
            of their values times their largest magnitude squared.
        square: Of all values; 0 where not measured, then they count as normal.
        sign: What signs and the mean magnitude of a block would lose.
        nearest: What three levels would lose, each value going to the nearest.
        sparse: What all but the largest hundredth would lose.
    """

    error: float
    square: float = 0.0
    sign: float = 0.0
    nearest: float = 0.0
    sparse: float = 0.0


NO_LOSSES = Losses(0.0)


@dataclass(frozen=True, slots=True)
class LayerStats:
    """One layer in one step; times count from the start of backward.

    A layer is what becomes due at once: the parameters of one module. Ranks
    are combined by the latest `ready_s`, the narrowest window after it, and the
    shortest `wait_s`: what one rank alone waits for is another that is behind.

    Attributes:
        name: The layer's name, equal on every rank.
        numel: Values in its gradient.
        ready_s: When its gradient is there.
        due_s: When the next forward would need it if nothing were waited for.
        wait_s: How long the next forward waited for it.
        losses: What rounding it loses.
        codec_s: How long encoding and decoding it takes: of its window, too.

    Example:
        >>> LayerStats("fc", 100, ready_s=0.25, due_s=0.75, wait_s=0.0, losses=Losses(2.0)).window_s
        0.5
    """

    name: str
    numel: int
    ready_s: float
    due_s: float
    wait_s: float
    losses: Losses
    codec_s: float = 0.0

    @property
    def window_s(self) -> float:
        """How long its transfer may take without being waited for."""
        return max(0.0, self.due_s - self.ready_s)


@dataclass(frozen=True, slots=True)
class NetworkStats:
    """The network and the whole step, as all ranks have agreed.

    Attributes:
        world_size: Number of ranks.
        bandwidth_bytes_per_s: Measured payload rate of each rank's link.
        latency_s: From handing over a small message to its arrival.
        overlap_s: How long transfers ran under computation.
        wait_s: How long computation was idle for gradients, on the rank that
            waited least.
        step_s: From the start of one backward pass to the start of the next.
        relative_error: Norm of what was not sent over the norm of what was
            owed; 0 where nothing is lost.

    Example:
        >>> network = NetworkStats(2, (1.25e7, 2.5e7), 1e-3, 0.2, 0.1, 0.5, 0.05)
        >>> network.slowest_bytes_per_s
        12500000.0
    """

    world_size: int
    bandwidth_bytes_per_s: tuple[float, ...]
    latency_s: float
    overlap_s: float
    wait_s: float
    step_s: float
    relative_error: float

    @property
    def slowest_bytes_per_s(self) -> float:
        """The rate of the slowest link."""
        return min(self.bandwidth_bytes_per_s)


class Controller(Protocol):
    """Decides how each layer's gradient travels, from what was measured.

    It is deterministic and sees the same numbers on every rank, so that all
    ranks decide alike without asking each other.
    """

    def update(
        self, step: int, layers: Sequence[LayerStats], network: NetworkStats
    ) -> Mapping[str, ReducerSpec] | None:
        """Return the reducer of each layer from now on, or None to keep them.

        Layers that are not named keep theirs.

        Args:
            step: The step that was measured.
            layers: Its layers, in order of use.
            network: Its network.
        """
