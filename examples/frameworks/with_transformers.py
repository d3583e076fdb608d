"""Transformers: a callback for the Trainer.

Run: `torchrun --standalone --nproc-per-node 2 with_transformers.py`
"""

from __future__ import annotations

import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset
from transformers import PrinterCallback, Trainer, TrainingArguments

from gradwire.integrations.transformers import GradwireCallback

STEPS = 20


class Waves(Dataset):
    """Inputs and their sines."""

    def __init__(self) -> None:
        self.x = torch.randn(4096, 32, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[index], "labels": self.x[index, :4].sin()}


class Model(nn.Module):
    """A small regression as the Trainer likes it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 4))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss."""
        return {"loss": nn.functional.mse_loss(self.net(x), labels)}


def replicas_equal(model: nn.Module) -> bool:
    """Compare the parameters of all ranks, bit by bit."""
    mine = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    everyone: list[bytes | None] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return set(everyone) == {mine}


def trainer(folder: str, steps: int) -> Trainer:
    """Make a trainer that is quiet, and saves at its end."""
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=32,
        gradient_accumulation_steps=2,
        learning_rate=0.01,
        lr_scheduler_type="constant",
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
        logging_strategy="no",
        save_strategy="steps",
        save_steps=steps,
        seed=0,
    )
    made = Trainer(Model(), arguments, train_dataset=Waves())
    made.remove_callback(PrinterCallback)
    return made


def folder() -> str:
    """Return a new folder, the same on all ranks."""
    place = [tempfile.mkdtemp()]
    dist.broadcast_object_list(place)
    return place[0]


_ = TrainingArguments(tempfile.mkdtemp(), use_cpu=True).device  # starts torch.distributed
plain = trainer(folder(), STEPS).train().training_loss
place = folder()
run = trainer(place, STEPS)
callback = GradwireCallback(run, "int4")
run.add_callback(callback)
ours = run.train().training_loss
longer = trainer(place, 2 * STEPS)
resumed = GradwireCallback(longer, "int4")
longer.add_callback(resumed)
longer.train(resume_from_checkpoint=f"{place}/checkpoint-{STEPS}")
straight = trainer(folder(), 2 * STEPS)
straight.add_callback(GradwireCallback(straight, "int4"))
straight.train()
pairs = zip(longer.model.parameters(), straight.model.parameters(), strict=True)
same = all(torch.equal(a, b) for a, b in pairs)
equal = replicas_equal(longer.model)
if run.is_world_process_zero():
    print(f"{callback.sync.stats().steps_done} compressed steps")
    print(f"replicas equal: {equal}")
    print(f"loss within 2 % of the Trainer's own: {abs(ours - plain) < 0.02 * plain}")
    print(f"resumed bit for bit: {same}, {resumed.sync.stats().steps_done} steps in all")
dist.destroy_process_group()
