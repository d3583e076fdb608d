"""Ray Train: `prepare_model` with gradwire attached, and a checkpoint of all workers.

Run: `python with_ray.py`
"""

from __future__ import annotations

import copy
import json
import logging
import os
import tempfile
from pathlib import Path

os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "300")  # for busy machines
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
import torch
import torch.distributed as dist
from ray import train
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from torch import nn

from gradwire.integrations.checkpoint import load_rank, save_rank
from gradwire.integrations.ray import prepare_model


def replicas_equal(model: nn.Module) -> bool:
    """Compare the parameters of all ranks, bit by bit."""
    mine = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    everyone: list[bytes | None] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return set(everyone) == {mine}


def steps(model: nn.Module, seed: int) -> float:
    """Train 20 steps and return the loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    generator = torch.Generator().manual_seed(2 * seed + train.get_context().get_world_rank())
    for _ in range(20):
        x = torch.randn(32, 32, generator=generator)
        loss = nn.functional.mse_loss(model(x), x[:, :4].sin())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def loop(config: dict[str, str]) -> None:
    """Train on one worker, with Ray's own averaging and gradwire's, and resume."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 4))
    plain = steps(train.torch.prepare_model(copy.deepcopy(net)), 0)
    model, sync = prepare_model(net, "int4")  # the one line
    ours = steps(model, 0)
    found = {"plain": plain, "ours": ours, "steps": sync.stats().steps_done}
    with tempfile.TemporaryDirectory() as folder:
        save_rank(sync, folder)  # on every worker: Ray puts their files together
        if train.get_context().get_world_rank() == 0:
            torch.save(model.state_dict(), f"{folder}/model.pt")
        train.report({}, checkpoint=Checkpoint.from_directory(folder))
    dist.barrier()  # until all files are there
    straight = steps(model, 1)
    with train.get_checkpoint().as_directory() as folder:
        load_rank(sync, folder)
        model.load_state_dict(torch.load(f"{folder}/model.pt"))
    found["resumed"] = steps(model, 1) == straight
    found["equal"] = replicas_equal(model)
    if train.get_context().get_world_rank() == 0:
        Path(config["result"]).write_text(json.dumps(found))


if __name__ == "__main__":
    ray.init(num_cpus=2, logging_level=logging.ERROR, log_to_driver=False, include_dashboard=False)
    with tempfile.TemporaryDirectory() as place:
        trainer = TorchTrainer(
            loop,
            train_loop_config={"result": f"{place}/result.json"},
            torch_config=TorchConfig(backend="gloo"),
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=place),
        )
        trainer.fit()
        found = json.loads(Path(place, "result.json").read_text())
    print(f"{found['steps']} compressed steps")
    print(f"replicas equal: {found['equal']}")
    plain, ours = found["plain"], found["ours"]
    print(f"loss within 2 % of Ray's own: {abs(ours - plain) < 0.02 * plain}")
    print(f"resumed bit for bit: {found['resumed']}")
    ray.shutdown()
