"""Exchange momenta of one bit a value, after a warm-up with plain AdamW."""

from __future__ import annotations

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from gradwire.optim import AdamW
from gradwire.units import format_bytes

WORLD_SIZE = 2
WARMUP_STEPS = 20


def train(rank: int, store_path: str) -> None:
    """Be one of the processes."""
    store = dist.FileStore(store_path, WORLD_SIZE)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD_SIZE)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 1))
    optimizer = AdamW(model.named_parameters(), lr=1e-3, plan="sign", warmup_steps=WARMUP_STEPS)
    torch.manual_seed(rank)  # from here on each rank has data of its own
    first = last = 0.0
    for step in range(100):
        x = torch.randn(32, 256)
        loss = (model(x) - x[:, :1]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first, last = first or loss.item(), loss.item()
        if rank == 0 and step in (WARMUP_STEPS - 1, WARMUP_STEPS):
            sent = optimizer.stats().recent[-1].sent_bytes
            print(f"step {step}: sent {format_bytes(sent)}", flush=True)
    if rank == 0:
        fell = last < first / 2
        print(f"loss fell to less than half: {fell}", flush=True)
    optimizer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(train, (f"{folder}/store",), nprocs=WORLD_SIZE, start_method="fork")
