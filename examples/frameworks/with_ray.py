"""Ray Train: `prepare_model` with gradwire attached.

    python with_ray.py
"""

from __future__ import annotations

import logging
import tempfile

import ray
import torch
from ray import train
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from torch import nn

from gradwire.integrations.ray import prepare_model


def loop(config: dict[str, str | None]) -> None:
    """Train on one worker."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 4))
    if config["plan"]:
        model, sync = prepare_model(model, config["plan"])  # the one line
    else:
        model = train.torch.prepare_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    generator = torch.Generator().manual_seed(train.get_context().get_world_rank())
    for _ in range(20):
        x = torch.randn(32, 32, generator=generator)
        loss = nn.functional.mse_loss(model(x), x[:, :4].sin())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    train.report({"loss": loss.item(), "steps": sync.stats().steps_done if config["plan"] else 0})


def run(plan: str | None, folder: str) -> dict[str, float]:
    """Train on two workers and return what the first reported."""
    trainer = TorchTrainer(
        loop,
        train_loop_config={"plan": plan},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=folder, name=plan or "plain"),
    )
    return trainer.fit().metrics


if __name__ == "__main__":
    ray.init(num_cpus=3, logging_level=logging.ERROR, log_to_driver=False, include_dashboard=False)
    with tempfile.TemporaryDirectory() as place:
        plain, ours = run(None, place), run("int4", place)
    print(f"{ours['steps']} compressed steps")
    print(f"loss within 2 % of Ray's own: {abs(ours['loss'] - plain['loss']) < 0.02 * plain['loss']}")
    ray.shutdown()
