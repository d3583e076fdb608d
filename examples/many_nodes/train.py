"""Training that runs on any number of hosts, and goes on with another number of them.

Run: `torchrun --standalone --nproc-per-node 2 train.py --steps 20`
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.integrations.checkpoint import load_rank, save_rank

SAVED_EVERY = 4
STARTS = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def join() -> tuple[int, int]:
    """Start torch.distributed; return this rank and the number of ranks."""
    store, rank, world_size = next(dist.rendezvous("env://"))
    # torchrun --standalone keeps its store when it restarts ranks, old addresses included.
    store = dist.PrefixStore(f"start{STARTS}", store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    return rank, world_size


def model() -> nn.Sequential:
    """Return the model, the same on all ranks."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512), nn.Linear(512, 8))


def loss(net: nn.Module, seed: int) -> torch.Tensor:
    """Return the loss on one batch."""
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(seed))
    return nn.functional.mse_loss(net(x), x[:, :8].sin())


def make() -> tuple[nn.Module, Callable[[nn.Module], torch.Tensor], torch.optim.Optimizer]:
    """Return what `gradwire measure --model train:make` measures."""
    net = model()
    return net, lambda net: loss(net, 0), torch.optim.SGD(net.parameters(), lr=0.05)


def everywhere(plan: Path | None) -> gradwire.Plan:
    """Return rank 0's plan on all ranks: the file lies on its host only."""
    text = [None]
    if dist.get_rank() == 0:
        text = [gradwire.load_plan(plan).to_json()]
    dist.broadcast_object_list(text)
    return gradwire.Plan.from_json(text[0])


def main() -> None:
    """Train, from the last checkpoint on if there is one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--plan", type=Path, help="of gradwire plan; on rank 0's host")
    parser.add_argument("--folder", type=Path, help="for checkpoints; on a file system of all")
    parser.add_argument("--crash-at", type=int, help="step at which rank 1 dies, once, as a trial")
    options = parser.parse_args()

    rank, world_size = join()
    net = model()
    first, latest = 0, options.folder and options.folder / "latest"
    if latest and latest.exists():
        saved = options.folder / latest.read_text()
        first = int(saved.name.removeprefix("step"))
        net.load_state_dict(torch.load(saved / "model.pt"))
    ddp = DistributedDataParallel(net)
    sync = gradwire.attach(ddp, everywhere(options.plan))
    if first:
        load_rank(sync, saved)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    begin = loss(net, 0).item()
    for step in range(first, options.steps):
        if (step, rank) == (options.crash_at, 1) and STARTS == "0":
            os._exit(1)
        optimizer.zero_grad()
        loss(ddp, step * world_size + rank).backward()
        optimizer.step()
        if options.folder and (step + 1) % SAVED_EVERY == 0:
            saved = options.folder / f"step{step + 1}"
            save_rank(sync, saved)
            if rank == 0:
                torch.save(net.state_dict(), saved / "model.pt")
            dist.barrier()  # all files are there: only now is it the latest
            if rank == 0:
                (options.folder / "new").write_text(saved.name)
                (options.folder / "new").replace(latest)

    mine = b"".join(p.detach().numpy().tobytes() for p in net.parameters())
    everyone: list[bytes | None] = [None] * world_size
    dist.all_gather_object(everyone, mine)
    if rank == 0:
        done, fell = sync.stats().steps_done, loss(net, 0).item() < begin
        print(f"{world_size} ranks, steps {first} to {options.steps}: {done} in all")
        print(f"replicas equal: {set(everyone) == {mine}}, loss fell: {fell}")
        for name, reason in sync.stats().dense.items():
            print(f"float32: {name} ({reason})")
    sync.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
