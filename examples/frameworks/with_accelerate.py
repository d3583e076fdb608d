"""Accelerate: attach after `prepare`; `save_state` and `load_state` carry what is owed.

    torchrun --standalone --nproc-per-node 2 with_accelerate.py
"""

from __future__ import annotations

import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gradwire.integrations.accelerate as gradwire_accelerate


def train(accelerator: Accelerator, folder: str | None) -> tuple[float, int]:
    """Train one epoch, with gradwire if there is a folder; return the loss and the steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 4))
    x = torch.randn(2048, 32)
    loader = DataLoader(TensorDataset(x, x[:, :4].sin()), batch_size=32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if folder:
        sync = gradwire_accelerate.attach(accelerator, model, "int4")  # the one line
    loss = torch.zeros(())
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    if not folder:
        return loss.item(), 0
    accelerator.save_state(folder)
    accelerator.load_state(folder)
    return loss.item(), sync.stats().steps_done


accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
plain, _ = train(accelerator, None)
place = [tempfile.mkdtemp()]
broadcast_object_list(place)
ours, steps = train(accelerator, place[0])
accelerator.print(f"{steps} compressed steps of 2 micro-batches each")
accelerator.print(f"loss within 2 % of Accelerate's own: {abs(ours - plain) < 0.02 * plain}")
accelerator.end_training()
