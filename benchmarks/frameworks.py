"""Step time through each framework, beside gradwire on plain DDP.

    make bench-frameworks                    2 ranks, interleaved rounds
    make bench-frameworks ARGS="--rounds 9"

Each is run with gradwire and without, which shows what the framework itself adds.
A step is forward, backward and update, from its beginning to its end as the
framework marks them; loading data is not part of it. Ray Train runs plain DDP in
processes of its own, and torchft averages in its own way: neither is here.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import gradwire

RANKS, WIDTH, BATCH, STEPS, SKIPPED = 2, 768, 64, 14, 4
PLAN = "int6"


def net() -> nn.Sequential:
    """Return the model."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    """Return the loss."""
    return model(x).square().mean()


def batches() -> DataLoader[tuple[Tensor, ...]]:
    """Return enough batches for all ranks."""
    return DataLoader(TensorDataset(torch.randn(RANKS * BATCH * STEPS, WIDTH)), batch_size=BATCH)


class Clock:
    """Collects the times of steps, each after a barrier."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def begin(self) -> None:
        """Start a step."""
        dist.barrier()
        self._start = time.perf_counter()

    def end(self) -> None:
        """End it."""
        self.times.append(time.perf_counter() - self._start)


def plain(plan: str | None) -> list[float]:
    """Train with DDP alone."""
    ddp = DistributedDataParallel(net())
    sync = gradwire.attach(ddp, plan) if plan else None
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    clock = Clock()
    for _, (x,) in zip(range(STEPS), batches(), strict=False):
        clock.begin()
        optimizer.zero_grad()
        loss_of(ddp, x).backward()
        optimizer.step()
        clock.end()
    if sync:
        sync.close()
    return clock.times


def accelerate(plan: str | None) -> list[float]:
    """Train with Accelerate."""
    from accelerate import Accelerator  # noqa: PLC0415 - an extra

    import gradwire.integrations.accelerate as gradwire_accelerate  # noqa: PLC0415

    accelerator = Accelerator(cpu=True)
    model = net()
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.01), batches()
    )
    sync = gradwire_accelerate.attach(accelerator, model, plan) if plan else None
    clock = Clock()
    for (x,) in loader:
        clock.begin()
        optimizer.zero_grad()
        accelerator.backward(loss_of(model, x))
        optimizer.step()
        clock.end()
    if sync:
        sync.close()
    return clock.times


def fabric(plan: str | None) -> list[float]:
    """Train with Lightning Fabric."""
    from lightning.fabric import Fabric  # noqa: PLC0415 - an extra

    fabric = Fabric(accelerator="cpu", devices=RANKS, strategy="ddp")
    fabric.launch()
    model = net()
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.01))
    sync = gradwire.attach(model, plan) if plan else None
    clock = Clock()
    for _, (x,) in zip(range(STEPS), batches(), strict=False):
        clock.begin()
        optimizer.zero_grad()
        fabric.backward(loss_of(model, x))
        optimizer.step()
        clock.end()
    if sync:
        sync.close()
    return clock.times


def lightning(plan: str | None) -> list[float]:
    """Train with Lightning's Trainer."""
    from lightning.pytorch import Callback, LightningModule, Trainer  # noqa: PLC0415 - an extra

    from gradwire.integrations.lightning import GradwireStrategy  # noqa: PLC0415

    class Model(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def training_step(self, batch: list[Tensor], _: int) -> Tensor:
            return loss_of(self.net, batch[0])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    class Times(Callback):
        def on_train_batch_start(self, *_: object) -> None:
            clock.begin()

        def on_train_batch_end(self, *_: object) -> None:
            clock.end()

    clock = Clock()
    trainer = Trainer(
        accelerator="cpu",
        devices=RANKS,
        strategy=GradwireStrategy(plan) if plan else "ddp",
        max_steps=STEPS,
        callbacks=[Times()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), batches())
    return clock.times


def transformers(plan: str | None) -> list[float]:
    """Train with Transformers' Trainer."""
    from transformers import (  # noqa: PLC0415 - an extra
        PrinterCallback,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    from gradwire.integrations.transformers import GradwireCallback  # noqa: PLC0415

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"loss": loss_of(self.net, x)}

    class Times(TrainerCallback):
        def on_step_begin(self, *_: object, **__: object) -> None:
            clock.begin()

        def on_step_end(self, *_: object, **__: object) -> None:
            clock.end()

    clock = Clock()
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        optim="sgd",
        max_grad_norm=0.0,
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
        logging_strategy="no",
        save_strategy="no",
    )
    rows = [{"x": row} for row in torch.randn(RANKS * BATCH * STEPS, WIDTH)]
    trainer = Trainer(Model(), arguments, train_dataset=rows)
    trainer.remove_callback(PrinterCallback)
    if plan:
        trainer.add_callback(GradwireCallback(trainer, plan))
    trainer.add_callback(Times())
    trainer.train()
    return clock.times


WAYS: dict[str, Callable[[str | None], list[float]]] = {
    "plain DDP": plain,
    "Accelerate": accelerate,
    "Fabric": fabric,
    "Lightning": lightning,
    "Transformers": transformers,
}


def run(rank: int, folder: str, port: int, rounds: int) -> None:
    """Be one rank: train with each in turn, and print the table on rank 0."""
    warnings.filterwarnings("ignore")
    logging.disable()
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS))
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port), LOCAL_WORLD_SIZE=str(RANKS))
    os.environ["TORCHELASTIC_RUN_ID"] = "bench"  # by this Lightning knows that it was launched
    store = dist.FileStore(f"{folder}/store", RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    kinds = [(name, plan) for name in WAYS for plan in (PLAN, None)]
    times: dict[tuple[str, str | None], list[float]] = {kind: [] for kind in kinds}
    for number in range(rounds + 1):
        first = number % len(kinds)
        for name, plan in kinds[first:] + kinds[:first]:
            seen = statistics.median(WAYS[name](plan)[SKIPPED:])
            if number:  # the first round warms up
                times[name, plan].append(seen)
    if rank == 0:
        print(f"ms a step: median of {rounds} rounds and half the distance of the quartiles")
        print(f"{'':14}{'alone':>15}{'gradwire':>17}{'to gradwire on plain DDP':>27}")
        base = times["plain DDP", PLAN]
        for name in WAYS:
            alone, ours = times[name, None], times[name, PLAN]
            ratios = [a / b for a, b in zip(ours, base, strict=True)]
            print(
                f"{name:14}{1e3 * statistics.median(alone):8.1f} +- {1e3 * spread(alone):3.1f}"
                f"{1e3 * statistics.median(ours):10.1f} +- {1e3 * spread(ours):3.1f}"
                f"{statistics.median(ratios):17.3f} +- {spread(ratios):.3f}"
            )
    dist.destroy_process_group()


def spread(values: list[float]) -> float:
    """Return half the distance between the quartiles."""
    low, _, high = statistics.quantiles(values, n=4)
    return (high - low) / 2


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="at least 2")
    parser.add_argument("--port", type=int, default=29511, help="free on this machine")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(
            run, (folder, options.port, options.rounds), nprocs=RANKS, start_method="spawn"
        )
