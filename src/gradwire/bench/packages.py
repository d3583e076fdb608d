"""Other packages that average gradients, as modes: torchft and hivemind.

They open connections of their own, which nothing here can slow down or count:
they run in the lab only.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import TCPStore

from gradwire.comm.shaped import Link
from gradwire.demo.exchange import Exchange
from gradwire.errors import CollectiveError, CommandError, SpecError

_TIMEOUT_S = 60.0
_MATCHMAKING_S = 0.5
"""Time hivemind's peers look for each other before they begin; its default is 5."""


def wrap_package(name: str, module: nn.Module, link: Link | None) -> Exchange:
    """Wrap a model so that a package averages its gradients.

    Args:
        name: `"torchft"` or `"hivemind"`.
        module: The model; equal on all ranks.
        link: None in the lab.

    Raises:
        SpecError: A link is to be imitated.
        CommandError: The package is not installed.
    """
    if find_spec(name) is None:
        raise CommandError(f"{name} is not installed: pip install 'gradwire[baselines]'")
    if link is not None:
        raise SpecError(f"mode {name}", "an imitated link", "possible: it needs --lab")
    return _torchft(module) if name == "torchft" else _hivemind(module)


def _own_address() -> str:
    """Return this rank's address on the line to rank 0."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ["MASTER_ADDR"], 1))
        return str(probe.getsockname()[0])


def _from_first(make: Callable[[], str]) -> str:
    """Return what rank 0 makes."""
    made = [make() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(made)
    assert made[0] is not None, "rank 0 has made it"
    return made[0]


class _Quorum(nn.Module):
    """A DDP model of torchft that begins each step as torchft's optimizer does."""

    def __init__(self, manager: Any, ddp: nn.Module) -> None:  # noqa: ANN401 - has no types here
        super().__init__()
        self.manager = manager
        self.ddp = ddp

    def forward(self, inputs: Tensor) -> Tensor:
        """Start the quorum of the step, and run the model."""
        self.manager.start_quorum()
        out: Tensor = self.ddp(inputs)
        return out


def _torchft(module: nn.Module) -> Exchange:
    """Make each rank a replica group of its own, with a lighthouse on rank 0."""
    from torchft.coordination import LighthouseServer  # noqa: PLC0415 - an extra
    from torchft.ddp import DistributedDataParallel  # noqa: PLC0415
    from torchft.manager import Manager  # noqa: PLC0415
    from torchft.process_group import ProcessGroupGloo  # noqa: PLC0415

    ranks, rank, address = dist.get_world_size(), dist.get_rank(), _own_address()
    servers: list[Any] = []

    def lighthouse() -> str:
        servers.append(LighthouseServer(bind="0.0.0.0:0", min_replicas=ranks))
        port = servers[0].address().rpartition(":")[2]
        return f"http://{address}:{port}"

    where = _from_first(lighthouse)
    store = TCPStore(address, 0, is_master=True, wait_for_workers=False)
    kept = [store]  # the manager only remembers where it is
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=_TIMEOUT_S)),
        load_state_dict=lambda _: None,
        state_dict=dict,
        min_replica_size=ranks,
        replica_id=f"rank{rank}",
        store_addr=address,
        store_port=store.port,
        rank=0,
        world_size=1,
        lighthouse_addr=where,
        hostname=address,
        init_sync=False,
    )

    def finish() -> None:
        if not manager.should_commit():
            raise CollectiveError("torchft", rank, "the replica groups did not agree to commit")

    def close() -> None:
        manager.shutdown(wait=False)
        for server in servers:
            server.shutdown()
        kept.clear()

    return Exchange(
        _Quorum(manager, DistributedDataParallel(manager, module)), _none, close, finish
    )


def _hivemind(module: nn.Module) -> Exchange:
    """Make each rank a peer; all of them form one group in each step."""
    import hivemind  # noqa: PLC0415 - an extra
    from hivemind.optim.grad_averager import GradientAverager  # noqa: PLC0415

    ranks, rank = dist.get_world_size(), dist.get_rank()
    peers: list[Any] = []

    def join(first: str | None) -> None:
        known = [first] if first else None
        maddr = f"/ip4/{_own_address()}/tcp/0"
        peers.append(hivemind.DHT(start=True, host_maddrs=[maddr], initial_peers=known))

    def first() -> str:
        join(None)
        return str(peers[0].get_visible_maddrs()[0])

    where = _from_first(first)
    if rank:
        join(where)
    averager = GradientAverager(
        module.parameters(),
        dht=peers[0],
        prefix="gradwire_bench",
        target_group_size=ranks,
        min_group_size=ranks,
        min_matchmaking_time=_MATCHMAKING_S,
        request_timeout=0.8 * _MATCHMAKING_S,
        start=True,
    )

    def finish() -> None:
        averager.accumulate_grads_(batch_size=1)
        group = averager.step(timeout=_TIMEOUT_S)
        if group is None or len(group) != ranks:
            raise CollectiveError("hivemind", rank, f"peers found: {group}, {ranks} expected")
        with averager.use_averaged_gradients():
            averaged = [p.grad for p in module.parameters()]
        for p, gradient in zip(module.parameters(), averaged, strict=True):
            p.grad = gradient  # until the optimiser has run

    def close() -> None:
        averager.shutdown()
        with suppress(EOFError):  # its process may be gone already
            peers[0].shutdown()

    return Exchange(module, _none, close, finish)


def _none() -> int:
    return 0
