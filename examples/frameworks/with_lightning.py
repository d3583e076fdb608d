"""Lightning: a strategy, or a callback beside the plain `ddp` strategy.

Run: `torchrun --standalone --nproc-per-node 2 with_lightning.py`
"""

from __future__ import annotations

import tempfile
import warnings

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gradwire.integrations.lightning import GradwireCallback, GradwireStrategy

warnings.filterwarnings("ignore")
STEPS = 20


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


def train(
    *callbacks: GradwireCallback,
    strategy: object = "ddp",
    steps: int = STEPS,
    resume: str | None = None,
) -> Trainer:
    """Train, and return the trainer."""
    seed_everything(0, verbose=False)
    x = torch.randn(64, 32)  # one batch a rank, as Lightning resumes at an epoch's start
    loader = DataLoader(TensorDataset(x, x[:, :4].sin()), batch_size=32)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        max_steps=steps,
        callbacks=list(callbacks),
        enable_checkpointing=False,
        **quiet,
    )
    trainer.fit(Model(), loader, ckpt_path=resume)
    return trainer


plain = train().lightning_module.last.item()
strategy, callback = GradwireStrategy("int4"), GradwireCallback("int4")
trainers = [train(strategy=strategy), train(callback)]
ours = trainers[0].lightning_module.last.item()
folder = trainers[0].strategy.broadcast(tempfile.mkdtemp())
for name, trainer in zip(("strategy", "callback"), trainers, strict=True):
    trainer.save_checkpoint(f"{folder}/{name}.ckpt")
again = GradwireStrategy("int4"), GradwireCallback("int4")
resumed = [
    train(strategy=again[0], steps=2 * STEPS, resume=f"{folder}/strategy.ckpt"),
    train(again[1], steps=2 * STEPS, resume=f"{folder}/callback.ckpt"),
]
straight = train(GradwireCallback("int4"), steps=2 * STEPS).lightning_module.last.item()
same = [trainer.lightning_module.last.item() == straight for trainer in resumed]
equal = all(replicas_equal(trainer.lightning_module) for trainer in resumed)
if trainers[0].is_global_zero:
    for name, user in (("strategy", strategy), ("callback", callback)):
        print(f"{name}: {user.sync.stats().steps_done} compressed steps")
    print(f"replicas equal: {equal}")
    print(f"loss within 2 % of Lightning's own: {abs(ours - plain) < 0.02 * plain}")
    steps = [user.sync.stats().steps_done for user in again]
    print(f"resumed bit for bit: {same}, {steps} steps in all")
