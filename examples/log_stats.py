"""Write what the exchange did to a logger, every few steps."""

from __future__ import annotations

import logging
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.units import format_bytes

WORLD_SIZE = 2
EVERY = 10


def train(rank: int, store_path: str) -> None:
    """Be one of the processes."""
    logging.basicConfig(stream=sys.stdout, format="%(name)s %(message)s", level=logging.INFO)
    log = logging.getLogger(f"rank{rank}")
    store = dist.FileStore(store_path, WORLD_SIZE)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD_SIZE)
    torch.manual_seed(0)
    ddp = DistributedDataParallel(nn.Linear(512, 512))
    sync = gradwire.attach(ddp, "int4")
    for step in range(1, 31):
        ddp(torch.randn(8, 512)).square().mean().backward()
        if rank == 0 and step % EVERY == 0:
            stats = sync.stats()
            log.info(
                "after %d steps: sent %s, %.1fx smaller",
                stats.steps,
                format_bytes(stats.sent_bytes),
                stats.dense_bytes / stats.sent_bytes,
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(train, (f"{folder}/store",), nprocs=WORLD_SIZE, start_method="fork")
