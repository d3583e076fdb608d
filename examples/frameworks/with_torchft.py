"""torchft: two replicas, of which one crashes and comes back.

Run: `python with_torchft.py`
"""

from __future__ import annotations

import copy
import hashlib
import logging
import multiprocessing
import os
from datetime import timedelta
from enum import Enum
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchft import Manager, Optimizer, ProcessGroupGloo
from torchft.coordination import LighthouseServer
from torchft.ddp import DistributedDataParallel as PlainDDP

from gradwire.integrations.torchft import DistributedDataParallel

TOGETHER, REPLICAS, MEETINGS = 6, 2, 3
LIMIT = timedelta(seconds=60)


class Role(Enum):
    """What a replica does."""

    STAYS = "replica 0, which trains on alone when the other one has crashed"
    CRASHES = "replica 1, until it crashes"
    RETURNS = "replica 1, which joins again once replica 0 has trained alone"


def train(
    role: Role, lighthouse: str, crashed: Event, was_alone: Event, results: Queue[Any]
) -> None:
    """Train two models, with torchft's averaging and with gradwire's."""
    logging.disable()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 4))
    replica = 0 if role is Role.STAYS else 1
    models = nn.ModuleDict({"plain": net, "ours": copy.deepcopy(net)})
    if role is Role.RETURNS:
        was_alone.wait()
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=LIMIT),
        load_state_dict=models.load_state_dict,
        state_dict=models.state_dict,
        min_replica_size=1,
        timeout=LIMIT,
        quorum_timeout=LIMIT,
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        lighthouse_addr=lighthouse,
        replica_id=f"replica_{replica}",
        hostname="localhost",
        init_sync=False,
    )
    plain = PlainDDP(manager, models["plain"])
    ours = DistributedDataParallel(manager, models["ours"], "int4")  # the one line
    optimizer = Optimizer(manager, torch.optim.SGD(models.parameters(), lr=0.1))
    together, meets_again = 0, role is not Role.STAYS
    while not (meets_again and together == TOGETHER):
        generator = torch.Generator().manual_seed(2 * manager.current_step() + replica)
        x = torch.randn(32, 32, generator=generator)
        optimizer.zero_grad()  # starts the quorum
        losses = [nn.functional.mse_loss(model(x), x[:, :4].sin()) for model in (plain, ours)]
        for loss in losses:
            loss.backward()
        before = manager.current_step()
        optimizer.step()
        if manager.current_step() == before:
            continue
        if manager.num_participants() == REPLICAS:
            together += 1
        elif crashed.is_set() and not meets_again:
            together, meets_again = 0, True
            was_alone.set()
    if role is Role.CRASHES:
        os._exit(1)
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in models.parameters()))
    connections = ours.exchange.connections
    results.put((replica, digest.hexdigest(), [loss.item() for loss in losses], connections))
    results.close()
    results.join_thread()
    os._exit(0)  # the other replica may still be saying good-bye


if __name__ == "__main__":
    server = LighthouseServer(
        bind="[::]:0", min_replicas=1, join_timeout_ms=10_000, heartbeat_timeout_ms=8_000
    )
    spawn = multiprocessing.get_context("spawn")
    crashed, was_alone, results = spawn.Event(), spawn.Event(), spawn.Queue()
    shared = server.address(), crashed, was_alone, results
    processes = {role: spawn.Process(target=train, args=(role, *shared)) for role in Role}
    for process in processes.values():
        process.start()
    processes[Role.CRASHES].join()
    crashed.set()
    found = sorted(results.get(timeout=120) for _ in range(2))
    server.shutdown()
    (_, one, losses, connections), (_, two, *_) = found
    print(f"replica 1 crashed and came back, replica 0 connected anew: {connections >= MEETINGS}")
    print(f"replicas equal: {one == two}")
    print(f"loss within 5 % of torchft's own: {abs(losses[1] - losses[0]) < 0.05 * losses[0]}")
