"""Two processes train one model without DDP, communication hidden behind computation."""

from __future__ import annotations

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import gradwire

WORLD_SIZE = 2
STEPS = 100


def train(rank: int, store_path: str) -> None:
    """Be one of the processes."""
    store = dist.FileStore(store_path, WORLD_SIZE)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD_SIZE)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 8))
    teacher = torch.randn(64, 8) / 8
    generator = torch.Generator().manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

    step = gradwire.overlap(model, optimizer, "int4")

    for i in range(STEPS + 1):
        x = torch.randn(256, 64, generator=generator)
        loss = nn.functional.mse_loss(model(x), x @ teacher)
        loss.backward()  # gradients leave as they become ready
        optimizer.step()  # returns at once: layers are updated when they are needed
        optimizer.zero_grad()
        if rank == 0 and i % 50 == 0:
            print(f"step {i:3}: loss {loss.item():.2f}")

    if rank == 0:
        latest = step.stats().recent[-1]
        widths = ", ".join(f"layer {x.name}: {x.bits:.1f} bits" for x in latest.layers)
        print(f"{widths}; {latest.sent_bytes} bytes a step")
    step.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(train, (f"{folder}/store",), nprocs=WORLD_SIZE, start_method="fork")
