"""Two processes train one model over compressed gradients."""

from __future__ import annotations

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire

WORLD_SIZE = 2
STEPS = 100


def train(rank: int, store_path: str) -> None:
    """Be one of the processes."""
    store = dist.FileStore(store_path, WORLD_SIZE)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD_SIZE)

    torch.manual_seed(0)  # the same model on every rank, and other data
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 8))
    teacher = torch.randn(64, 8) / 8
    generator = torch.Generator().manual_seed(rank)

    ddp = DistributedDataParallel(model)
    sync = gradwire.attach(ddp, "int4")
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.02)

    for step in range(STEPS + 1):
        x = torch.randn(256, 64, generator=generator)
        loss = nn.functional.mse_loss(ddp(x), x @ teacher)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 50 == 0:
            print(f"step {step:3}: loss {loss.item():.1f}")

    stats = sync.stats()
    if rank == 0:
        print(f"{stats.dense_bytes / stats.sent_bytes:.1f}x fewer bytes than float32")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(train, (f"{folder}/store",), nprocs=WORLD_SIZE, start_method="fork")
