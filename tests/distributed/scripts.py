"""Run a script as torchrun would, on ranks forked from where frameworks are imported."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import traceback
from pathlib import Path

import torch.distributed as dist

_HOST = "localhost"
_CONTEXT = multiprocessing.get_context("forkserver")


def preload(*modules: str) -> None:
    """Name what the fork server imports, once, before the first script runs."""
    _CONTEXT.set_forkserver_preload(["torch._dynamo", *modules])


def run_script(path: Path, folder: Path, *, world_size: int = 2, timeout_s: float = 100.0) -> str:
    """Run a script on some ranks and return what rank 0 printed.

    Args:
        path: The script.
        folder: Empty; the ranks work in it.
        world_size: Number of ranks, each a process.
        timeout_s: All must be done by then.

    Raises:
        AssertionError: A rank failed or is late; the message is what it printed.
    """
    store = dist.TCPStore(_HOST, 0, is_master=True, wait_for_workers=False)
    ranks = [
        _CONTEXT.Process(target=_run, args=(path, folder, rank, world_size, store.port))
        for rank in range(world_size)
    ]
    started = []
    try:
        for rank in ranks:
            rank.start()  # the first one waits for the fork server's imports
            started.append(rank)
        for rank in ranks:
            rank.join(timeout_s)
        errors = [(folder / f"{rank}.err").read_text() for rank in range(world_size)]
        assert [rank.exitcode for rank in ranks] == [0] * world_size, "\n".join(errors)
    finally:
        for rank in started:
            rank.kill()
    return (folder / "0.out").read_text()


def _run(path: Path, folder: Path, rank: int, world_size: int, port: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        kind = "out" if stream is sys.stdout else "err"
        file = os.open(folder / f"{rank}.{kind}", os.O_WRONLY | os.O_CREAT)
        os.dup2(file, stream.fileno())
    os.chdir(folder)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), GROUP_RANK="0", OMP_NUM_THREADS="1")
    os.environ.update(WORLD_SIZE=str(world_size), LOCAL_WORLD_SIZE=str(world_size))
    os.environ.update(MASTER_ADDR=_HOST, MASTER_PORT=str(port))
    # By these, torch and frameworks know that they were launched, and that the store is there.
    os.environ.update(TORCHELASTIC_RUN_ID="test", TORCHELASTIC_USE_AGENT_STORE="True")
    os.environ.pop("GRADWIRE_PLAN", None)
    sys.argv = [str(path)]
    try:
        runpy.run_path(str(path), run_name="__main__")
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
