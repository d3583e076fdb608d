"""What tests of the optimisers share: threads as ranks that train a small net."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from replicas import draw
from torch import Tensor, nn

from gradwire.comm.local import LocalMailbox, run_ranks
from gradwire.optim.base import MomentumOptimizer

WIDTH = 32
TEACHER = draw(WIDTH, 8, seed=99)


def net() -> nn.Sequential:
    """Return a net with two weights that plans compress; drawn without the global generator."""
    model = nn.Sequential(nn.Linear(WIDTH, 48), nn.Tanh(), nn.Linear(48, 8, bias=False))
    model.append(nn.Linear(8, 8))
    with torch.no_grad():
        for seed, p in enumerate(model.parameters()):
            p.copy_(draw(*p.shape, seed=seed) * 0.15)
    return model.requires_grad_(requires_grad=True)


def loss_of(model: nn.Module, seed: int, rows: int = 16) -> Tensor:
    """Return how far the net is from what it is to learn, on drawn data."""
    x = draw(rows, WIDTH, seed=seed)
    return (model(x) - torch.tanh(x @ TEACHER)).square().mean()


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: range, rank: int, world: int
) -> None:
    """Train on data that differ by rank and step."""
    for i in steps:
        optimizer.zero_grad()
        loss_of(model, seed=1 + i * world + rank).backward()
        optimizer.step()


def averaged(models: list[nn.Module], step: int) -> list[Tensor]:
    """Return the mean gradient of one step, summed in the order of ranks."""
    gradients = []
    for rank, model in enumerate(models):
        loss = loss_of(model, seed=1 + step * len(models) + rank)
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
    return [sum(g[1:], g[0]) / len(models) for g in zip(*gradients, strict=True)]


def on_ranks(
    world: int, make: Callable[..., MomentumOptimizer], body: Callable[..., Any]
) -> list[Any]:
    """Run `body(model, optimizer, rank)` on each rank, after `make(model, mailbox)`."""

    def run(mailbox: LocalMailbox) -> Any:
        model = net()
        optimizer = make(model, mailbox)
        try:
            return body(model, optimizer, mailbox.rank)
        finally:
            optimizer.close()

    return run_ranks(world, run)


def values(model: nn.Module) -> list[Tensor]:
    """Return copies of a model's parameters."""
    return [p.detach().clone() for p in model.parameters()]


def same(some: list[Tensor], others: list[Tensor]) -> bool:
    """Compare bit for bit."""
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))
