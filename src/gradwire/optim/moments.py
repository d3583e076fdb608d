"""Momentum and variance of a parameter, and the update they make."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Update(NamedTuple):
    """One parameter in one step.

    Attributes:
        name: Its name.
        parameter: What is updated.
        group: Its parameter group.
        gradient: This rank's gradient, or None where only others have one.
        state: Its moments: `step`, `exp_avg`, `exp_avg_sq` as `torch.optim.AdamW`
            has them, and `variance_step`, the updates of `exp_avg_sq` so far.
        is_frozen: Whether its momentum travels, and its variance stays as it is.
        is_warm: Whether it has been through the warm-up, so that it can be frozen.
    """

    name: str
    parameter: Tensor
    group: dict[str, Any]
    gradient: Tensor | None
    state: dict[str, Any]
    is_frozen: bool
    is_warm: bool


def fill(view: Tensor, update: Update) -> None:
    """Write what this rank has to say of a parameter."""
    gradient, (beta1, _) = update.gradient, update.group["betas"]
    if not update.is_frozen:
        view.zero_() if gradient is None else view.copy_(gradient)
    elif gradient is None:
        torch.mul(update.state["exp_avg"], beta1, out=view)
    else:
        torch.lerp(update.state["exp_avg"], gradient, 1 - beta1, out=view)


def take_gradient(update: Update, mean: Tensor) -> None:
    """Move both moments towards an averaged gradient and its square."""
    state, (beta1, beta2) = update.state, update.group["betas"]
    state["exp_avg"].lerp_(mean, 1 - beta1)
    state["exp_avg_sq"].mul_(beta2).addcmul_(mean, mean, value=1 - beta2)
    state["variance_step"] += 1


def direction(update: Update) -> Tensor:
    """Return momentum over root of variance, without bias, within Adam's bound.

    Where a frozen variance has become too small for the momentum, or is 0,
    the bound holds the update: with the variance of the same gradients, no
    exact update reaches it.

    Source:
        Kingma and Ba, Adam (ICLR 2015), section 2.1, for the idea of a bound;
        it follows from the inequality of Cauchy and Schwarz.
    """
    state, (beta1, beta2) = update.state, update.group["betas"]
    correction1 = 1 - beta1 ** float(state["step"])
    correction2 = 1 - beta2 ** state["variance_step"]
    root = (state["exp_avg_sq"].sqrt() / correction2**0.5).add_(update.group["eps"])
    limit = largest_update(beta1, beta2)
    found: Tensor = (state["exp_avg"] / root).div_(correction1).clamp_(-limit, limit)
    return found.nan_to_num_(0.0)  # 0 / 0, where there never was a gradient and eps is 0


def largest_update(beta1: float, beta2: float) -> float:
    """Return the least upper bound of Adam's update over the learning rate.

    Example:
        >>> round(largest_update(0.9, 0.999), 2)
        7.27
    """
    return float((1 - beta1) / math.sqrt((1 - beta2) * (1 - beta1**2 / beta2)))
