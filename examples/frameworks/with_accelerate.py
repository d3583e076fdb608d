"""Accelerate: attach after `prepare`, or a handler; its checkpoints carry what is owed.

Run: `torchrun --standalone --nproc-per-node 2 with_accelerate.py`
"""

from __future__ import annotations

import tempfile

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gradwire.integrations.accelerate import GradwireHandler, attach


def replicas_equal(model: nn.Module) -> bool:
    """Compare the parameters of all ranks, bit by bit."""
    mine = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    everyone: list[bytes | None] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return set(everyone) == {mine}


def train(way: str | None) -> tuple[float, int, bool, bool]:
    """Train one epoch; return loss, compressed steps, equality, and whether it resumes."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 4))
    x = torch.randn(2048, 32)
    loader = DataLoader(TensorDataset(x, x[:, :4].sin()), batch_size=32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    handler = GradwireHandler(plan="int4", bucket_cap_mb=1)
    if way == "handler":
        handler.add_to(accelerator)  # the one line for those who configure
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if way == "attach":
        sync = attach(accelerator, model, "int4")  # the one line for all others

    def epoch() -> float:
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        return loss.item()

    loss = epoch()
    if way is None:
        return loss, 0, replicas_equal(model), True
    sync = handler.sync or sync
    steps = sync.stats().steps_done
    place = [tempfile.mkdtemp()]
    broadcast_object_list(place)
    accelerator.save_state(place[0])
    straight = epoch()
    accelerator.load_state(place[0])
    return loss, steps, replicas_equal(model), epoch() == straight


plain, *_ = train(None)
for way in ("attach", "handler"):
    loss, steps, equal, same = train(way)
    if dist.get_rank() == 0:
        print(f"{way}: {steps} compressed steps of 2 micro-batches each")
        print(f"replicas equal: {equal}")
        print(f"loss within 2 % of Accelerate's own: {abs(loss - plain) < 0.02 * plain}")
        print(f"resumed bit for bit: {same}")
dist.destroy_process_group()
