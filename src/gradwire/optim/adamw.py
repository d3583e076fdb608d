"""AdamW over compressed momenta."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.optim.adamw import adamw
from torch.optim.optimizer import ParamsT

from gradwire.comm.base import Mailbox
from gradwire.engine.stats import StepStats
from gradwire.optim.base import MomentumOptimizer
from gradwire.optim.exchange import ExchangeOptions
from gradwire.optim.moments import Update, direction
from gradwire.optim.warmup import Warmup
from gradwire.plan import Plan
from gradwire.spec import ReducerSpec


class AdamW(MomentumOptimizer):
    """AdamW that exchanges compressed momenta once its variance has settled.

    Until then it is `torch.optim.AdamW` over averaged gradients. From then on
    the variance stays as it is; each rank moves the common momentum towards
    its own gradient, and the mean of these momenta, encoded by the plan with
    error feedback, is the new common one. Parameters that the plan does not
    compress stay with plain AdamW.

    Args:
        params: Parameters or parameter groups of a module that is the same on
            every rank; named ones (`model.named_parameters()`) let rules of the
            plan match names.
        lr: Learning rate.
        betas: Decay of momentum and variance; `betas[0] ** 2 < betas[1]`.
        eps: Added to the root of the variance.
        weight_decay: Decoupled, as in `torch.optim.AdamW`.
        plan: Whatever `gradwire.attach` takes, such as `"sign"` or `"int4"`.
        warmup_steps: Length of the warm-up; at least so long if
            `variance_tolerance` is given too. None takes the plan's, and leaves
            it to the variance if that has none.
        variance_tolerance: Warm-up ends once the variance's norm has changed
            by this share or less within `1 / (1 - betas[1])` steps; 0.04 where
            neither is given.
        variance_interval: After warm-up every so many steps, gradients travel in
            float32 and renew the variance. None freezes it.
        group: A process group, None for the default one, or a mailbox, which
            is closed with the optimiser.
        check_every: Compare the parameters of all ranks every so many steps.
        on_step: Called with each step's `StepStats` when the next one begins.

    Raises:
        SpecError: A setting is out of range.
        RankMismatchError: Ranks differ in settings, plan or parameters.

    Source:
        Tang et al., 1-bit Adam (ICML 2021); for renewed variances Lu et al.,
        0/1 Adam (ICLR 2023).

    Example:
        >>> import torch
        >>> from gradwire.comm.local import run_ranks
        >>> def train(mailbox):
        ...     weight = torch.nn.Parameter(torch.ones(64, 32))
        ...     optimizer = AdamW([weight], plan="sign", warmup_steps=1, group=mailbox)
        ...     for _ in range(3):
        ...         weight.grad = torch.full((64, 32), 1.0 + mailbox.rank)
        ...         optimizer.step()
        ...     optimizer.close()
        ...     return round(weight.mean().item(), 4)
        >>> run_ranks(2, train)
        [0.997, 0.997]
    """

    def __init__(  # noqa: PLR0913 - all but the first five by keyword
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        plan: Plan | ReducerSpec | str | Path | None = None,
        warmup_steps: int | None = None,
        variance_tolerance: float | None = None,
        variance_interval: int | None = None,
        group: dist.ProcessGroup | Mailbox | None = None,
        check_every: int = 0,
        on_step: Callable[[StepStats], None] | None = None,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        warmup = Warmup(warmup_steps, variance_tolerance, variance_interval)
        super().__init__(
            params, defaults, warmup, ExchangeOptions(plan, group, check_every, on_step)
        )

    def _update_exact(self, group: dict[str, Any], means: list[tuple[Update, Tensor]]) -> None:
        states = [update.state for update, _ in means]
        beta1, beta2 = group["betas"]
        adamw(
            [update.parameter for update, _ in means],
            [mean for _, mean in means],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
        for state in states:
            state["variance_step"] += 1

    def _update_warm(self, update: Update) -> None:
        lr, decay = float(update.group["lr"]), update.group["weight_decay"]
        update.parameter.mul_(1 - lr * decay).add_(direction(update), alpha=-lr)
