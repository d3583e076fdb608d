"""Trains with `gradwire.attach` until told to stop, or until a rank or line is gone.

    python lab_training.py TIME_LIMIT_S [STOP_FILE]

Writes "step N" after each step, then a hash of the parameters or what went wrong.
"""

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from replicas import assert_replicas_agree, draw, mlp
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 - as everyone calls it

import gradwire


def main(limit_s: float, stop: Path | None) -> None:
    """Train on data that differ by rank and step."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=limit_s))
    rank = dist.get_rank()
    ddp = DDP(mlp(width=64), bucket_cap_mb=0.02)
    sync = gradwire.attach(ddp, "int4")
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    step, is_over = 0, torch.zeros(())
    while not is_over:
        optimizer.zero_grad()
        try:
            ddp(draw(4, 64, seed=100 * step + rank)).square().mean().backward()
        except RuntimeError as error:  # DDP's own, around gradwire's
            _tell(str(error).splitlines()[0])
            os._exit(0)  # the group is broken: no clean-up can be waited for
        optimizer.step()
        step += 1
        _tell(f"step {step}")
        if stop is not None:
            is_over.fill_(stop.exists())
            dist.all_reduce(is_over, dist.ReduceOp.MAX)
    _tell(assert_replicas_agree(ddp))
    sync.close()
    dist.destroy_process_group()


def _tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(float(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
