"""Scheme: what a plan comes to for given parameters, and how one follows another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradwire.engine.feedback import ErrorFeedback
from gradwire.engine.layout import Layouts
from gradwire.errors import StateError
from gradwire.plan import DENSE, Assignment, Parameter, Plan
from gradwire.reduce.base import Reducer, build
from gradwire.spec import ReducerSpec

_ORDERLESS_RANKS = 2
"""So many values have one sum, however a back end orders its additions."""


@dataclass(frozen=True, slots=True)
class Variant:
    """What differs where buckets are not DDP's.

    Attributes:
        assignments: The reducer of each parameter.
        build: Makes the reducer of a spec.
        dense_passes: See `BucketRun`.
        label: Begins the key of `state_dict`, where ranks of several groups
            save to one place.
    """

    assignments: Mapping[str, Assignment]
    build: Callable[[ReducerSpec], Reducer] = build
    dense_passes: int = 2
    label: str = ""


class Place(NamedTuple):
    """Where gradients are averaged.

    Attributes:
        world_size: Number of ranks.
        device: Where gradients live.
        is_summed: Whether the back end has an all-reduce that can be used.
    """

    world_size: int
    device: torch.device
    is_summed: bool = False


class Scheme:
    """Reducers, layouts and residuals of one plan.

    Args:
        plan: Which reducer each parameter uses.
        parameters: All parameters, in the same order on every rank.
        place: Where gradients are averaged.
        variant: How reducers are chosen and made, where it is not the plan alone.

    Example:
        >>> from gradwire.spec import Entry
        >>> weight = Parameter("w", Entry(0, (64, 32)))
        >>> scheme = Scheme(Plan.of("int4"), [weight], Place(2, torch.device("cpu")))
        >>> scheme.feedback.of("w").fill_(3.0).sum().item()
        6144.0
        >>> dense = scheme.followed_by(Plan.of("none"))
        >>> buffer = torch.zeros(2048)
        >>> dense.pay(buffer, ("w",))
        >>> buffer.sum().item()
        6144.0
    """

    def __init__(
        self,
        plan: Plan,
        parameters: Sequence[Parameter],
        place: Place,
        variant: Variant | None = None,
    ) -> None:
        self.plan = plan
        self.variant = variant or Variant(plan.assign(parameters, place.world_size))
        self._parameters = parameters
        self._place = place
        self._is_given = variant is not None
        assignments = self.variant.assignments
        self.is_dense = all(a.reducer == DENSE for a in assignments.values())
        # With more ranks a value's place in the bucket would decide its last bits.
        has_one_sum = place.world_size <= _ORDERLESS_RANKS
        self.is_plain = self.is_dense and has_one_sum and place.is_summed
        self.dense = {n: a.dense_reason for n, a in assignments.items() if a.dense_reason}
        self.feedback = ErrorFeedback(parameters, assignments, place.device)
        offsets = self.feedback.offsets
        self.layouts = Layouts(
            parameters, assignments, offsets, place.world_size, self.variant.build
        )
        self._numel = {p.name: p.entry.numel for p in parameters}
        self._owed: dict[str, Tensor] = {}

    @property
    def is_owing(self) -> bool:
        """Whether something of an earlier plan is still to be paid."""
        return bool(self._owed)

    def followed_by(self, plan: Plan) -> Scheme:
        """Return the scheme of another plan, which takes over what is owed.

        Residuals and warm starts go along by name. What a parameter owes that
        has no residual from now on is paid with its next gradient: see `pay`.
        """
        assert not self._is_given, "a variant's reducers are not the plan's alone"
        after = Scheme(plan, self._parameters, self._place)
        before = self.feedback
        owed = {name: before.of(name) for name in before.offsets} | self._owed
        for name, residual in owed.items():
            if name in after.feedback.offsets:
                after.feedback.of(name).add_(residual.view_as(after.feedback.of(name)))
            else:
                after._owed[name] = residual.clone()
        after.feedback.take_factors(before)
        return after

    def pay(self, buffer: Tensor, names: Sequence[str], *, hold_unused: bool = False) -> None:
        """Add to a bucket's gradients what its parameters owe from an earlier plan.

        Args:
            buffer: The gradients, 1-D.
            names: Its parameters, in order.
            hold_unused: Whether a gradient of zeros means that the parameter
                took no part: its mean is thrown away, so what it owes must wait.
        """
        if not self._owed:
            return
        offset = 0
        for name in names:
            numel = self._numel[name]
            gradient = buffer.narrow(0, offset, numel)
            if name in self._owed and not (hold_unused and not bool(gradient.any())):
                gradient.add_(self._owed.pop(name).view(-1))
            offset += numel

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Return copies of what a checkpoint needs, by kind and parameter name."""
        owed = {name: residual.clone() for name, residual in self._owed.items()}
        return self.feedback.tensors() | ({"owed": owed} if owed else {})

    def load(self, saved: Mapping[str, Any], scale: float | None) -> None:
        """Take over what `tensors` returned: times `scale`, or warm starts only if it is None.

        Raises:
            StateError: A tensor has another shape than the parameter.
        """
        self.feedback.load(saved, scale)
        self._owed = {}
        if scale is not None:
            for name, residual in saved.get("owed", {}).items():
                if residual.numel() != self._numel.get(name):
                    raise StateError(f"what {name!r} owes has {residual.numel()} values")
                self._owed[name] = residual * scale

    def rescale(self, factor: float) -> None:
        """Multiply what is owed, after gradients have changed their unit."""
        self.feedback.rescale(factor)
        for residual in self._owed.values():
            residual.mul_(factor)
