"""Lightning Fabric: attach to what `setup` returns.

    torchrun --standalone --nproc-per-node 2 with_fabric.py
"""

from __future__ import annotations

import torch
from lightning.fabric import Fabric
from torch import nn

import gradwire


def train(fabric: Fabric, plan: str | None) -> tuple[float, int]:
    """Train a few steps; return the loss and the synchronised steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 4))
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.2))
    sync = gradwire.attach(model, plan) if plan else None  # the one line
    generator = torch.Generator().manual_seed(fabric.global_rank)
    for step in range(40):
        x = torch.randn(32, 32, generator=generator)
        with fabric.no_backward_sync(model, enabled=step % 2 == 0):
            loss = nn.functional.mse_loss(model(x), x[:, :4].sin())
            fabric.backward(loss)
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
    return loss.item(), sync.stats().steps_done if sync else 0


fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
plain, _ = train(fabric, None)
ours, steps = train(fabric, "int4")
fabric.print(f"{steps} compressed steps of 2 micro-batches each")
fabric.print(f"loss within 2 % of Fabric's own: {abs(ours - plain) < 0.02 * plain}")
