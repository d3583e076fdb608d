"""LAMB over compressed momenta."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import ParamsT

from gradwire.comm.base import Mailbox
from gradwire.engine.stats import StepStats
from gradwire.errors import SpecError
from gradwire.optim.base import MomentumOptimizer
from gradwire.optim.exchange import ExchangeOptions
from gradwire.optim.moments import Update, direction, take_gradient
from gradwire.optim.warmup import Warmup
from gradwire.plan import Plan
from gradwire.spec import ReducerSpec


class LAMB(MomentumOptimizer):
    """LAMB that exchanges compressed momenta once its variance has settled.

    The update of a parameter is AdamW's, times the ratio of the norm of the
    parameter to that of the update, the trust ratio. During warm-up each
    parameter's ratios are recorded in a running mean. Once its momentum travels
    compressed, its ratio stays within a range around that mean and changes
    slowly, for the norm of one compressed update says little. Steps of
    `variance_interval` are exact, and record anew.

    Args:
        params: As for `gradwire.optim.AdamW`.
        lr: Learning rate.
        betas: Decay of momentum and variance; `betas[0] ** 2 < betas[1]`.
        eps: Added to the root of the variance.
        weight_decay: Decoupled: part of the update whose norm is taken.
        trust_clip: Least and largest trust ratio.
        trust_beta: Decay of the running mean of trust ratios.
        trust_range: Least and largest trust ratio after warm-up, over the mean.
        trust_change: By which share it may change from one step to the next.
        plan: As for `gradwire.optim.AdamW`, like all that follow.
        warmup_steps: Length of the warm-up.
        variance_tolerance: How quiet the variance must be.
        variance_interval: Steps after which an exact one renews the variance.
        group: The ranks.
        check_every: Compare the parameters of all ranks every so many steps.
        on_step: Called with each step's `StepStats` when the next one begins.

    Raises:
        SpecError: A setting is out of range.
        RankMismatchError: Ranks differ in settings, plan or parameters.

    Source:
        You et al., LAMB (ICLR 2020); Li et al., 1-bit LAMB (HiPC 2022).

    Example:
        >>> import torch
        >>> from gradwire.comm.local import run_ranks
        >>> def train(mailbox):
        ...     weight = torch.nn.Parameter(torch.ones(64, 32))
        ...     optimizer = LAMB([weight], 0.01, plan="sign", warmup_steps=1, group=mailbox)
        ...     for _ in range(3):
        ...         weight.grad = torch.full((64, 32), 1.0 + mailbox.rank)
        ...         optimizer.step()
        ...     optimizer.close()
        ...     return round(weight.mean().item(), 3)
        >>> run_ranks(2, train)
        [0.97, 0.97]
    """

    def __init__(  # noqa: PLR0913 - all but the first five by keyword
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 1e-2,
        *,
        trust_clip: tuple[float, float] = (0.01, 10.0),
        trust_beta: float = 0.9,
        trust_range: tuple[float, float] = (0.5, 4.0),
        trust_change: float = 0.1,
        plan: Plan | ReducerSpec | str | Path | None = None,
        warmup_steps: int | None = None,
        variance_tolerance: float | None = None,
        variance_interval: int | None = None,
        group: dist.ProcessGroup | Mailbox | None = None,
        check_every: int = 0,
        on_step: Callable[[StepStats], None] | None = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "trust_clip": trust_clip,
            "trust_beta": trust_beta,
            "trust_range": trust_range,
            "trust_change": trust_change,
        }
        warmup = Warmup(warmup_steps, variance_tolerance, variance_interval)
        super().__init__(
            params, defaults, warmup, ExchangeOptions(plan, group, check_every, on_step)
        )

    def _check_group(self, group: Mapping[str, Any]) -> None:
        super()._check_group(group)
        least, largest = group["trust_clip"]
        if not 0 < least <= largest:
            raise SpecError("trust_clip", group["trust_clip"], "two numbers in order, above 0")
        least, largest = group["trust_range"]
        if not 0 < least <= 1 <= largest:
            raise SpecError("trust_range", group["trust_range"], "two numbers with 1 between them")
        for key in ("trust_beta", "trust_change"):
            if not 0 <= group[key] < 1:
                raise SpecError(key, group[key], "at least 0 and below 1")

    def _update_exact(self, group: dict[str, Any], means: list[tuple[Update, Tensor]]) -> None:
        for update, mean in means:
            update.state["step"] += 1
            take_gradient(update, mean)
            self._update_warm(update)

    def _update_warm(self, update: Update) -> None:
        p, group, state = update.parameter, update.group, update.state
        change = direction(update).add_(p, alpha=group["weight_decay"])
        ratio = _trust_ratio(p, change, group["trust_clip"])
        if update.is_frozen:
            ratio = _steadied(ratio, group, state)
        else:
            beta = group["trust_beta"]
            state["trust_mean"] = beta * state.get("trust_mean", ratio) + (1 - beta) * ratio
        p.add_(change, alpha=-float(group["lr"]) * ratio)


def _trust_ratio(p: Tensor, change: Tensor, clip: tuple[float, float]) -> float:
    own, other = float(p.norm()), float(change.norm())
    return _clipped(own / other, clip) if own > 0 and other > 0 else 1.0


def _steadied(ratio: float, group: Mapping[str, Any], state: dict[str, Any]) -> float:
    """Keep a trust ratio near the recorded mean, and near its last value."""
    before, change = state.get("trust_factor", 1.0), group["trust_change"]
    factor = _clipped(ratio / state["trust_mean"], group["trust_range"])
    state["trust_factor"] = _clipped(factor, ((1 - change) * before, (1 + change) * before))
    return float(state["trust_factor"] * state["trust_mean"])


def _clipped(value: float, limits: tuple[float, float]) -> float:
    return min(max(value, limits[0]), limits[1])
