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
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
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


def train(replica: int, until: int, lighthouse: str, results: Queue[Any] | None) -> None:
    """Train two models, with torchft's averaging and with gradwire's, for steps made together.

    Without a place for results, crash at the end.
    """
    logging.disable()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 4))
    models = nn.ModuleDict({"plain": net, "ours": copy.deepcopy(net)})
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
    together = 0
    while together < until:
        generator = torch.Generator().manual_seed(2 * manager.current_step() + replica)
        x = torch.randn(32, 32, generator=generator)
        optimizer.zero_grad()  # starts the quorum
        losses = [nn.functional.mse_loss(model(x), x[:, :4].sin()) for model in (plain, ours)]
        for loss in losses:
            loss.backward()
        before = manager.current_step()
        optimizer.step()
        together += manager.current_step() > before and manager.num_participants() == REPLICAS
    if results is None:
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
    results = spawn.Queue()

    def start(replica: int, until: int, *, crashes: bool = False) -> BaseProcess:
        """Start a replica in a process of its own."""
        arguments = (replica, until, server.address(), None if crashes else results)
        process = spawn.Process(target=train, args=arguments, daemon=True)
        process.start()
        return process

    start(0, 2 * TOGETHER)
    start(1, TOGETHER, crashes=True).join()
    start(1, TOGETHER)
    found = sorted(results.get(timeout=120) for _ in range(2))
    server.shutdown()
    (_, one, losses, connections), (_, two, *_) = found
    print(f"replica 1 crashed and came back, replica 0 connected anew: {connections >= MEETINGS}")
    print(f"replicas equal: {one == two}")
    print(f"loss within 5 % of torchft's own: {abs(losses[1] - losses[0]) < 0.05 * losses[0]}")
