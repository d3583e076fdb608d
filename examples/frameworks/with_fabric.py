"""Lightning Fabric: attach to what `setup` returns.

Run: `torchrun --standalone --nproc-per-node 2 with_fabric.py`
"""

from __future__ import annotations

import tempfile

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from torch import nn

import gradwire
from gradwire.integrations.checkpoint import EveryRank


def replicas_equal(model: nn.Module) -> bool:
    """Compare the parameters of all ranks, bit by bit."""
    mine = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    everyone: list[bytes | None] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return set(everyone) == {mine}


def train(fabric: Fabric, plan: str | None) -> tuple[float, int, bool, bool]:
    """Train a few steps; return the loss, the synchronised steps, equality, and how it resumes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 4))
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.2))
    if plan:
        sync = gradwire.attach(model, plan)  # the one line

    def steps(first: int) -> float:
        generator = torch.Generator().manual_seed(2 * first + fabric.global_rank)
        for step in range(40):
            x = torch.randn(32, 32, generator=generator)
            with fabric.no_backward_sync(model, enabled=step % 2 == 0):
                loss = nn.functional.mse_loss(model(x), x[:, :4].sin())
                fabric.backward(loss)
            if step % 2:
                optimizer.step()
                optimizer.zero_grad()
        return loss.item()

    loss = steps(0)
    if not plan:
        return loss, 0, replicas_equal(model), True
    done = sync.stats().steps_done
    state = {"model": model, "optimizer": optimizer, "gradwire": EveryRank(sync)}
    path = fabric.broadcast(f"{tempfile.mkdtemp()}/all.ckpt")
    fabric.save(path, state)
    straight = steps(1)
    fabric.load(path, state)
    return loss, done, replicas_equal(model), steps(1) == straight


fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
plain, *_ = train(fabric, None)
ours, done, equal, same = train(fabric, "int4")
fabric.print(f"{done} compressed steps of 2 micro-batches each")
fabric.print(f"replicas equal: {equal}")
fabric.print(f"loss within 2 % of Fabric's own: {abs(ours - plain) < 0.02 * plain}")
fabric.print(f"resumed bit for bit: {same}")
