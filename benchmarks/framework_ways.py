"""Training the same small model through each framework, with gradwire and without."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import gradwire

RANKS, WIDTH, BATCH, STEPS = 2, 768, 64, 14


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


def steps(model: nn.Module, clock: Clock, optimizer: Any = None) -> None:  # noqa: ANN401 - torchft's is none of torch's
    """Train a wrapped model as plain DDP is trained."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
    for _, (x,) in zip(range(STEPS), batches(), strict=False):
        clock.begin()
        optimizer.zero_grad()
        loss_of(model, x).backward()
        optimizer.step()
        clock.end()


def plain(plan: str | None) -> list[float]:
    """Train with DDP alone."""
    ddp = DistributedDataParallel(net())
    sync = gradwire.attach(ddp, plan) if plan else None
    clock = Clock()
    steps(ddp, clock)
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


def ray(plan: str | None) -> list[float]:
    """Train as on a worker of Ray Train, but in the processes of the benchmark."""
    import ray.train.torch  # noqa: PLC0415 - an extra
    from ray.train.v2._internal.execution import train_fn_utils  # noqa: PLC0415

    from gradwire.integrations.ray import prepare_model  # noqa: PLC0415

    rank = dist.get_rank()
    train_fn_utils.set_train_fn_utils(
        train_fn_utils.LocalTrainFnUtils("bench", {}, RANKS, rank, rank, RANKS)
    )
    clock, sync = Clock(), None
    if plan:
        model, sync = prepare_model(net(), plan)
    else:
        model = ray.train.torch.prepare_model(net())
    steps(model, clock)
    if sync:
        sync.close()
    return clock.times


def torchft(plan: str | None) -> list[float]:
    """Train with torchft, each rank a replica."""
    from torchft import Manager, Optimizer, ProcessGroupGloo  # noqa: PLC0415 - an extra
    from torchft.coordination import LighthouseServer  # noqa: PLC0415
    from torchft.ddp import DistributedDataParallel as PlainDDP  # noqa: PLC0415

    from gradwire.integrations.torchft import (  # noqa: PLC0415
        DistributedDataParallel as CompressedDDP,
    )

    rank = dist.get_rank()
    server = LighthouseServer(bind="[::]:0", min_replicas=RANKS) if rank == 0 else None
    address = [server.address() if server else None]
    dist.broadcast_object_list(address)
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    model = net()
    manager = Manager(
        pg=ProcessGroupGloo(),
        load_state_dict=model.load_state_dict,
        state_dict=model.state_dict,
        min_replica_size=RANKS,
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        lighthouse_addr=address[0],
        replica_id=f"replica_{rank}",
        hostname="localhost",
        init_sync=False,
    )
    ddp = CompressedDDP(manager, model, plan) if plan else PlainDDP(manager, model)
    clock = Clock()
    steps(ddp, clock, Optimizer(manager, torch.optim.SGD(ddp.parameters(), lr=0.01)))
    dist.barrier()
    if plan and ddp.exchange.sync:
        ddp.exchange.sync.close()
    manager.shutdown()
    dist.barrier()
    if server:
        server.shutdown()
    return clock.times


WAYS: dict[str, Callable[[str | None], list[float]]] = {
    way.__name__: way for way in (plain, accelerate, fabric, lightning, transformers, ray, torchft)
}
