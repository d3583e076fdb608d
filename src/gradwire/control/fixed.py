"""Fixed: the controller that never changes its mind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradwire.control.base import LayerStats, NetworkStats
from gradwire.spec import ReducerSpec


class FixedController:
    """Gives every layer one reducer, at the first step.

    Args:
        reducer: Which one; None keeps what the plan says.

    Example:
        >>> from gradwire.control.base import Losses
        >>> from gradwire.spec import Broadcast, Quantize
        >>> network = NetworkStats(2, (1e6, 1e6), 1e-3, 0.0, 0.0, 0.1, 0.0)
        >>> layers = [LayerStats("fc", 10, 0.0, 0.1, 0.0, Losses(1.0))]
        >>> controller = FixedController(Broadcast(Quantize(4)))
        >>> list(controller.update(0, layers, network)), controller.update(1, layers, network)
        (['fc'], None)
    """

    def __init__(self, reducer: ReducerSpec | None = None) -> None:
        self._reducer = reducer

    def update(
        self, step: int, layers: Sequence[LayerStats], network: NetworkStats
    ) -> Mapping[str, ReducerSpec] | None:
        """See `Controller.update`."""
        if self._reducer is None:
            return None
        chosen = {layer.name: self._reducer for layer in layers}
        self._reducer = None
        return chosen
