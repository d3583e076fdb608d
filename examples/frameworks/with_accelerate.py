"""Accelerate: attach after `prepare`; `save_state` and `load_state` carry what is owed.

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

import gradwire.integrations.accelerate as gradwire_accelerate


def replicas_equal(model: nn.Module) -> bool:
    """Compare the parameters of all ranks, bit by bit."""
    mine = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    everyone: list[bytes | None] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return set(everyone) == {mine}


def train(accelerator: Accelerator, folder: str | None) -> tuple[float, int, bool]:
    """Train one epoch, with gradwire if there is a folder; return loss, steps and equality."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 4))
    x = torch.randn(2048, 32)
    loader = DataLoader(TensorDataset(x, x[:, :4].sin()), batch_size=32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if folder:
        sync = gradwire_accelerate.attach(accelerator, model, "int4")  # the one line

    def epoch() -> float:
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        return loss.item()

    loss = epoch()
    if not folder:
        return loss, 0, replicas_equal(model)
    steps = sync.stats().steps_done
    accelerator.save_state(folder)
    straight = epoch()
    accelerator.load_state(folder)
    accelerator.print(f"resumed bit for bit: {epoch() == straight}")
    return loss, steps, replicas_equal(model)


accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
plain, _, _ = train(accelerator, None)
place = [tempfile.mkdtemp()]
broadcast_object_list(place)
ours, steps, equal = train(accelerator, place[0])
accelerator.print(f"{steps} compressed steps of 2 micro-batches each")
accelerator.print(f"replicas equal: {equal}")
accelerator.print(f"loss within 2 % of Accelerate's own: {abs(ours - plain) < 0.02 * plain}")
accelerator.end_training()
