"""Updates: an optimiser's own step, on the parameters of one layer at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradwire.errors import SpecError

Groups = tuple[dict[str, Any], ...]
"""Hyper-parameters of each group, as they were when the user called `step()`."""


class Updater:
    """Runs an optimiser on some of its parameters, as if it had been run on all.

    Optimisers that treat each parameter by itself end with the same bits.

    Args:
        optimizer: The user's own; stays in use, with its state.

    Raises:
        SpecError: It needs a closure, or has hooks around its step.

    Example:
        >>> p = nn.Parameter(torch.ones(1))
        >>> optimizer = torch.optim.SGD([p], lr=0.5)
        >>> updater = Updater(optimizer)
        >>> groups = updater.groups()
        >>> optimizer.param_groups[0]["lr"] = 9.0  # a scheduler goes on
        >>> updater.update(groups, [p], [torch.ones(1)])
        >>> p.item()
        0.5
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise SpecError("optimizer", "LBFGS", "one whose step takes no closure")
        self.optimizer = optimizer
        self._places = {
            id(p): number
            for number, group in enumerate(optimizer.param_groups)
            for p in group["params"]
        }
        self._frozen = [
            p for g in optimizer.param_groups for p in g["params"] if not p.requires_grad
        ]
        step: Any = type(optimizer).step
        # Without PyTorch's profiling and hooks, which are meant for a whole step.
        self._step: Callable[..., object] = step.__wrapped__ if hasattr(step, "hooked") else step
        self.check()

    def check(self) -> None:
        """Refuse what came to the optimiser since.

        Raises:
            SpecError: Hooks around its step, or new parameters.
        """
        optimizer = self.optimizer
        if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:  # noqa: SLF001 - no public way to read them
            raise SpecError(
                "step hooks of the optimizer",
                "set",
                "unset: layers are updated one by one; work after the step needs synchronize()",
            )
        if getattr(optimizer, "found_inf", None) is not None:
            raise SpecError(
                "GradScaler", "used", "possible: gradients have left already; use bfloat16"
            )
        held = [id(p) for group in optimizer.param_groups for p in group["params"]]
        if held != list(self._places):
            raise SpecError(
                "parameters of the optimizer",
                f"{len(held)}, {len(set(held) - set(self._places))} of them new",
                f"{len(self._places)}, the same as when overlap was called: call it after changes",
            )
        if any(p.grad is not None for p in self._frozen):
            raise SpecError(
                "frozen parameters",
                "unfrozen",
                "as they were when overlap was called: call it after",
            )

    def groups(self) -> Groups:
        """Return copies of the hyper-parameters that are in force."""
        return tuple(
            {
                k: v.clone() if isinstance(v, Tensor) else v
                for k, v in group.items()
                if k != "params"
            }
            for group in self.optimizer.param_groups
        )

    def update(
        self, groups: Groups, parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor]
    ) -> None:
        """Run the optimiser's step on these parameters alone.

        Raises:
            SpecError: The optimiser keeps state among its hyper-parameters.
        """
        chosen: dict[int, dict[str, Any]] = {}
        for p in parameters:
            number = self._places[id(p)]
            chosen.setdefault(number, {**groups[number], "params": []})["params"].append(p)
        optimizer = self.optimizer
        kept_groups, kept = optimizer.param_groups, [p.grad for p in parameters]
        try:
            for p, gradient in zip(parameters, gradients, strict=True):
                p.grad = gradient
            optimizer.param_groups = [chosen[number] for number in sorted(chosen)]
            self._step(optimizer)
        finally:
            optimizer.param_groups = kept_groups
            for p, gradient_before in zip(parameters, kept, strict=True):
                p.grad = gradient_before
        for number, group in chosen.items():
            if changed := [k for k, v in groups[number].items() if group[k] is not v]:
                raise SpecError(
                    f"{type(optimizer).__name__}.param_groups",
                    ", ".join(changed),
                    "left alone by step(): an optimizer that keeps state there treats"
                    " parameters together, and cannot be run layer by layer",
                )
