"""ErrorFeedback: what each parameter still owes, and nothing else."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire.errors import StateError
from gradwire.plan import Assignment, Parameter
from gradwire.reduce.base import State
from gradwire.spec import LowRank


class StateWarning(UserWarning):
    """Part of a checkpoint could not be used; the message says which, and why."""


class ErrorFeedback:
    """The residual of the whole model as one float32 tensor, and its table.

    Its place does not depend on DDP's buckets, so rebuilding them moves
    nothing, and its size never changes.

    Args:
        parameters: All parameters of the plan.
        assignments: Their reducers; only those with feedback get a place.
        device: Where gradients live.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        assignments: Mapping[str, Assignment],
        device: torch.device,
    ) -> None:
        self.offsets: dict[str, int] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._factor_shapes: dict[str, tuple[int, int]] = {}
        total = 0
        for parameter in parameters:
            reducer = assignments[parameter.name].reducer
            if reducer.feedback:
                self.offsets[parameter.name] = total
                self._shapes[parameter.name] = parameter.entry.shape
                total += parameter.entry.numel
            if isinstance(reducer, LowRank) and reducer.warm_start:
                rows, columns = reducer.matrix_shape(parameter.entry.shape)
                rank = min(reducer.matrix_rank, rows, columns)
                self._factor_shapes[parameter.name] = (columns, rank)
        residual = torch.zeros(total, device=device) if total else None
        self.state = State(residual, {})

    @property
    def num_bytes(self) -> int:
        """Memory the residual takes."""
        return 0 if self.state.residual is None else 4 * self.state.residual.numel()

    def of(self, name: str) -> Tensor:
        """Return the residual of one parameter, a view in storage order."""
        assert self.state.residual is not None
        shape = self._shapes[name]
        start = self.offsets[name]
        return self.state.residual[start : start + torch.Size(shape).numel()].view(shape)

    def clear(self) -> None:
        """Forget what is owed."""
        if self.state.residual is not None:
            self.state.residual.zero_()

    def rescale(self, factor: float) -> None:
        """Multiply what is owed, after gradients have changed their unit."""
        if self.state.residual is not None:
            self.state.residual.mul_(factor)

    def take_factors(self, before: ErrorFeedback) -> None:
        """Take over another's warm starts where they have the shape wanted here."""
        for name, factor in before.state.factors.items():
            if self._factor_shapes.get(name) == tuple(factor.shape):
                self.state.factors[name] = factor

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Return copies of residuals and warm starts by parameter name.

        Warm starts that do not exist yet are zeros, so that the keys are the
        same before the first step and after.
        """
        factors = {
            name: self.state.factors.get(name, torch.zeros(shape)).clone()
            for name, shape in self._factor_shapes.items()
        }
        return {
            "residual": {name: self.of(name).clone() for name in self.offsets},
            "factors": factors,
        }

    def load(self, saved: Mapping[str, Any], scale: float | None) -> None:
        """Take over residuals (times `scale`; none if it is None) and warm starts.

        Raises:
            StateError: A tensor has another shape than the parameter.
        """
        self._check_shapes(saved)
        self.clear()
        if scale is not None:
            for name in self.offsets:
                if name in saved["residual"]:
                    self.of(name).copy_(saved["residual"][name]).mul_(scale)
        self.state.factors.clear()
        for name in self._factor_shapes:
            factor = saved["factors"].get(name)
            if factor is not None and bool(factor.any()):
                self.state.factors[name] = factor.to(torch.float32).clone()

    def _check_shapes(self, saved: Mapping[str, Any]) -> None:
        for kind, shapes in (("residual", self._shapes), ("factors", self._factor_shapes)):
            for name, shape in shapes.items():
                tensor = saved[kind].get(name)
                if tensor is not None and tuple(tensor.shape) != tuple(shape):
                    raise StateError(
                        f"{kind} of {name!r} has shape {tuple(tensor.shape)}, the model asks for"
                        f" {tuple(shape)}; load a checkpoint of this model",
                        unexpected=[name],
                    )
                if tensor is not None and not bool(tensor.isfinite().all()):
                    raise StateError(f"{kind} of {name!r} holds NaN or infinity")
        missing = sorted(set(self._shapes) - set(saved["residual"]))
        unexpected = sorted(set(saved["residual"]) - set(self._shapes))
        if missing or unexpected:
            warnings.warn(
                "the checkpoint's plan or model differs: no residual for"
                f" {missing or 'none'}, unused residuals of {unexpected or 'none'}",
                StateWarning,
                stacklevel=4,
            )
