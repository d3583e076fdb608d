"""Ranks as processes of this machine, joined by Gloo, for a measurement."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import (
    ProcessExitedException,
    ProcessRaisedException,
    start_processes,
)

from gradwire.errors import CollectiveError

T = TypeVar("T")


def run_processes(world_size: int, body: Callable[..., T], *arguments: Any) -> T:  # noqa: ANN401 - of the body
    """Run a function on every rank of a fresh group; return rank 0's result.

    Args:
        world_size: Number of processes; they end with this one.
        body: A function of a module, which can be found by name there.
        arguments: What it is called with; can be pickled, as can its result.

    Raises:
        CollectiveError: A rank failed; the message holds what it raised.
    """
    with tempfile.TemporaryDirectory(prefix="gradwire-") as folder:
        try:
            start_processes(  # type: ignore[no-untyped-call]
                _serve,
                (world_size, folder, body, arguments),
                nprocs=world_size,
                daemon=True,
                start_method="spawn",
            )
        except (ProcessRaisedException, ProcessExitedException) as error:
            last = str(error).strip().splitlines()[-1]
            raise CollectiveError("measure", getattr(error, "error_index", 0), last) from error
        result: T = pickle.loads((Path(folder) / "result").read_bytes())  # noqa: S301 - our own
        return result


def _serve(
    rank: int, world_size: int, folder: str, body: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size))
    torch.set_num_threads(max(1, torch.get_num_threads() // world_size))
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
    try:
        result = body(*arguments)
        if rank == 0:
            (Path(folder) / "result").write_bytes(pickle.dumps(result))
        dist.barrier()
    finally:
        dist.destroy_process_group()
