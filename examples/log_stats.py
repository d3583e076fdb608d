"""Write what each step sent to a logger: TensorBoard and others take one line."""

from __future__ import annotations

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.integrations.loggers import log_to
from gradwire.units import format_bytes

WORLD_SIZE = 2
EVERY = 10


class Printer:
    """Stands for TensorBoard's SummaryWriter, or a run of Weights & Biases."""

    def log(self, values: dict[str, float], step: int) -> None:
        """Take the numbers of one step."""
        if step % EVERY == 0:
            sent, smaller = values["gradwire/sent_bytes"], values["gradwire/times_smaller"]
            print(f"step {step}: sent {format_bytes(sent)}, {smaller:.1f}x smaller", flush=True)


def train(rank: int, store_path: str) -> None:
    """Be one of the processes."""
    store = dist.FileStore(store_path, WORLD_SIZE)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD_SIZE)
    torch.manual_seed(0)
    ddp = DistributedDataParallel(nn.Linear(512, 512))
    sync = gradwire.attach(ddp, "int4", on_step=log_to(Printer()) if rank == 0 else None)
    for _ in range(30):
        ddp(torch.randn(8, 512)).square().mean().backward()
    if rank == 0:
        stats = sync.stats()
        print(f"{stats.steps_done} steps: sent {format_bytes(stats.sent_bytes)}", flush=True)
    sync.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(train, (f"{folder}/store",), nprocs=WORLD_SIZE, start_method="fork")
