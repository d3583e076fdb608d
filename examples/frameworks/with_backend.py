"""Lightning again, without a line changed in it but the back end's name.

Run: `GRADWIRE_PLAN=int8 torchrun --standalone --nproc-per-node 2 with_backend.py`
"""

from __future__ import annotations

import os
import warnings

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gradwire.integrations import backend  # registers it: the one line

warnings.filterwarnings("ignore")
os.environ.setdefault(backend.PLAN_VARIABLE, "int8")


class Model(LightningModule):
    """A small regression."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 4))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        """Return the loss of a batch."""
        x, y = batch
        self.last = nn.functional.mse_loss(self.net(x), y)
        return self.last

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.2)


def replicas_equal(model: nn.Module) -> bool:
    """Compare the parameters of all ranks, bit by bit."""
    mine = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    everyone: list[bytes | None] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return set(everyone) == {mine}


def train(strategy: DDPStrategy) -> tuple[float, bool]:
    """Train; return the loss, and whether replicas are equal."""
    seed_everything(0, verbose=False)
    x = torch.randn(2048, 32)
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        max_steps=20,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    model = Model()
    trainer.fit(model, DataLoader(TensorDataset(x, x[:, :4].sin()), batch_size=32))
    return model.last.item(), replicas_equal(model)


ours, equal = train(DDPStrategy(process_group_backend="gradwire"))
group = dist.group.WORLD
encoded, sent = group.encoded_calls, group.sent_bytes
plain, _ = train(DDPStrategy(process_group=dist.new_group(backend="gloo")))
if dist.get_rank() == 0:
    print(f"{encoded} all-reduces encoded, {sent} bytes sent")
    print(f"replicas equal: {equal}")
    print(f"loss within 2 % of Gloo's: {abs(ours - plain) < 0.02 * plain}")
