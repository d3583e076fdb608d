"""Turn: one layer's gradient of one step, from backward to the update."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradwire.engine.overlap_exchange import LayerExchange
from gradwire.engine.overlap_layers import Layer
from gradwire.engine.overlap_notes import Note
from gradwire.engine.overlap_update import Groups

_SAMPLED = 16


@dataclass(slots=True, eq=False)
class Turn:
    """What is known of a gradient until the layer has been updated with it.

    Attributes:
        layer: Whose it is.
        number: How many the layer had before.
        step: Number of the step it began in.
        seen: By place of the parameter: its `grad` when it was taken, and
            how often that had been changed until then.
        sample: A few values of the first one taken, as they were.
        used: By place of the parameter: whether it has a gradient here.
        exchange: Under way from the moment the gradient is complete.
        groups: Hyper-parameters to update it with; None before `step()`.
        factor: What to multiply the mean with.
        note: Which parameters have a gradient on any rank.
    """

    layer: Layer
    number: int
    step: int
    seen: dict[int, tuple[Tensor, int]] = field(default_factory=dict)
    sample: Tensor | None = None
    used: list[bool] = field(default_factory=list)
    exchange: LayerExchange | None = None
    groups: Groups | None = None
    factor: float = 1.0
    note: Note | None = None

    def __post_init__(self) -> None:
        self.used = [False] * len(self.layer.parameters)

    def __str__(self) -> str:
        return f"step {self.step}, layer {self.layer.name}"

    @property
    def is_marked(self) -> bool:
        """Whether the user has called `step()`, so that an update is due."""
        return self.groups is not None

    def take(self, place: int) -> None:
        """Copy a gradient into the layer's memory, unless it lies there already."""
        gradient = self.layer.parameters[place].grad
        assert gradient is not None, "hooks run once it is there"
        if not self.layer.holds(gradient, place):
            self.layer.views[place].copy_(gradient.detach())
        if not self.seen:
            self.sample = _sample(gradient)
        self.seen[place] = (gradient, gradient._version)  # noqa: SLF001 - no public way to read it
        self.used[place] = True

    @property
    def is_complete(self) -> bool:
        """Whether every parameter has its gradient."""
        return len(self.seen) == len(self.layer.parameters)

    def complete(self) -> None:
        """Fill in what has accumulated before, or zeros; leave out what was thrown away."""
        for i, p in enumerate(self.layer.parameters):
            if i in self.seen:
                self.used[i] = p.grad is not None
            elif p.grad is not None:
                self.take(i)
            else:
                self.layer.views[i].zero_()

    def give_up(self, error: Exception) -> None:
        """Wait no longer for what other ranks do not send; on the worker's thread only."""
        if self.exchange is not None and not self.exchange.done.done():
            self.exchange.done.set_exception(error)

    def changed(self) -> str | None:
        """Return a parameter whose gradient the user has changed since, if any.

        Not every change counts as a version (a GradScaler's does not), so some
        values are compared, too.
        """
        for i, (gradient, version) in self.seen.items():
            now = self.layer.parameters[i].grad
            sample, self.sample = self.sample, None
            if sample is not None and now is not None and not torch.equal(_sample(now), sample):
                return self.layer.names[i]
            if now is not None and (now is not gradient or now._version != version):  # noqa: SLF001
                return self.layer.names[i]
        return None


def _sample(values: Tensor) -> Tensor:
    """Copy a few values, as bytes: NaN is equal to itself then."""
    flat = values.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // _SAMPLED)].clone().view(torch.uint8)
