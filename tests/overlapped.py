"""Training by overlap, ranks being threads, and the plain training it must equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradwire.comm.shaped import Link
from gradwire.comm.sockets import run_connected
from gradwire.engine.overlap import Overlap, Settings
from gradwire.integrations.overlap import start
from gradwire.plan import Plan, Rule
from gradwire.spec import parse_reducer

Loss = Callable[[nn.Module, int, int], Tensor]


class Ranks:
    """What a test's rank works with."""

    def __init__(self, rank: int, model: nn.Module, optimizer: Any, step: Overlap) -> None:
        self.rank = rank
        self.model = model
        self.optimizer = optimizer
        self.step = step


def everywhere(name: str) -> Plan:
    """Return the plan that uses a reducer on small tensors too."""
    return Plan((Rule(parse_reducer(name), min_numel=1, min_ndim=0),))


def run(
    world_size: int,
    build: Callable[[], tuple[nn.Module, Any]],
    body: Callable[[Ranks], Any],
    plan: str | Plan = "none",
    *,
    link: Link | None = None,
    timeout_s: float = 60.0,
    **settings: Any,
) -> list[Any]:
    """Run `body` on each rank, with models made by `build` one after the other."""
    made = [build() for _ in range(world_size)]
    chosen = everywhere(plan) if isinstance(plan, str) else plan

    def rank_body(mailbox):
        model, optimizer = made[mailbox.rank]
        optimizers = optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]
        step = start(model, optimizers, chosen, mailbox, Settings(**settings))
        result = body(Ranks(mailbox.rank, model, optimizer, step))
        step.close()
        return result

    return run_connected(world_size, rank_body, link=link, timeout_s=timeout_s)


def weights(model: nn.Module) -> list[Tensor]:
    """Copy all parameters."""
    return [p.detach().clone() for p in model.parameters()]


def train(ranks: Ranks, steps: range, loss: Loss, scheduler: Any = None) -> list[Tensor]:
    """Train as a user would, and return the parameters."""
    for i in steps:
        loss(ranks.model, ranks.rank, i).backward()
        ranks.optimizer.step()
        ranks.optimizer.zero_grad()
        if scheduler is not None:
            scheduler.step()
    ranks.step.synchronize()
    return weights(ranks.model)


def plain(
    world_size: int,
    build: Callable[[], tuple[nn.Module, Any]],
    steps: range,
    loss: Loss,
    scheduler: Callable[[Any], Any] | None = None,
) -> list[Tensor]:
    """Train synchronously: sums in rank order, over the number of ranks, then one step."""
    model, optimizer = build()
    schedule = scheduler(optimizer) if scheduler else None
    for i in steps:
        gradients: list[list[Tensor | None]] = []
        for rank in range(world_size):
            optimizer.zero_grad()
            loss(model, rank, i).backward()
            gradients.append([p.grad for p in model.parameters()])
        for p, found in zip(model.parameters(), zip(*gradients, strict=True), strict=True):
            p.grad = mean(found)
        optimizer.step()
        if schedule is not None:
            schedule.step()
    return weights(model)


def mean(gradients: Sequence[Tensor | None]) -> Tensor | None:
    """Average in rank order; no gradient counts as zero unless no rank has one."""
    given = [g for g in gradients if g is not None]
    if not given:
        return None
    total = torch.zeros_like(given[0])
    for g in gradients:
        total = total + (torch.zeros_like(total) if g is None else g)
    return total / len(gradients)


def same(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    """Compare bit by bit."""
    return len(a) == len(b) and all(
        torch.equal(x.view(-1).view(torch.uint8), y.view(-1).view(torch.uint8))
        for x, y in zip(a, b, strict=True)
    )


def draw(*shape: int, seed: int) -> Tensor:
    """Draw values that differ in every entry."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
