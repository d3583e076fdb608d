"""Step time through each framework, beside gradwire on plain DDP.

    make bench-frameworks                    2 ranks, interleaved rounds
    make bench-frameworks ARGS="--rounds 9 --ways accelerate,ray"

Each is run with gradwire and without, which shows what the framework itself adds.
A step is forward, backward and update, from its beginning to its end as the
framework marks them; loading data is not part of it. Ray Train's model is prepared
as on its workers, but in the benchmark's processes. torchft asks for a quorum in
every step, so its steps are longer with gradwire and without.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from framework_ways import RANKS, WAYS

PLAN, SKIPPED = "int6", 4


def run(rank: int, options: argparse.Namespace, port: int) -> None:
    """Be one rank: train with each in turn; print and store the times on rank 0."""
    warnings.filterwarnings("ignore")
    logging.disable()
    os.environ.setdefault("RUST_LOG", "off")  # what torchft tells of each step
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS))
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    # As torchrun sets them, by which frameworks know that they were launched.
    os.environ.update(LOCAL_WORLD_SIZE=str(RANKS), TORCHELASTIC_RUN_ID="bench")
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    dist.init_process_group("gloo")
    ways = list(dict.fromkeys(["plain", *options.ways.split(",")]))
    kinds = [(name, plan) for name in ways for plan in (PLAN, None)]
    times: dict[str, list[float]] = {_label(*kind): [] for kind in kinds}
    for number in range(options.rounds + 1):
        first = number % len(kinds)
        for name, plan in kinds[first:] + kinds[:first]:
            seen = statistics.median(WAYS[name](plan)[SKIPPED:])
            if number:  # the first round warms up
                times[_label(name, plan)].append(seen)
    if rank == 0:
        show(ways, times)
        if options.out:
            stored = json.loads(options.out.read_text()) if options.out.exists() else {}
            stored[",".join(ways)] = {"plan": PLAN, "step_s": times}
            options.out.write_text(json.dumps(stored, indent=1) + "\n")
    dist.destroy_process_group()


def _label(name: str, plan: str | None) -> str:
    return name if plan is None else f"{name} {plan}"


def show(ways: list[str], times: dict[str, list[float]]) -> None:
    """Print medians, spreads, and ratios within rounds."""
    rounds = len(times["plain"])
    print(f"ms a step: median of {rounds} rounds and half the distance of the quartiles")
    print(f"{'':14}{'alone':>15}{'gradwire':>17}{'to gradwire on plain DDP':>27}")
    for name in ways:
        alone, ours = times[name], times[_label(name, PLAN)]
        ratios = [a / b for a, b in zip(ours, times[_label("plain", PLAN)], strict=True)]
        print(
            f"{name:14}{1e3 * statistics.median(alone):8.1f} +- {1e3 * spread(alone):3.1f}"
            f"{1e3 * statistics.median(ours):10.1f} +- {1e3 * spread(ours):3.1f}"
            f"{statistics.median(ratios):17.3f} +- {spread(ratios):.3f}"
        )


def spread(values: list[float]) -> float:
    """Return half the distance between the quartiles."""
    low, _, high = statistics.quantiles(values, n=4)
    return (high - low) / 2


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="at least 2")
    parser.add_argument("--ways", default=",".join(WAYS), help="which, besides plain DDP")
    parser.add_argument("--out", type=Path, help="a JSON file to add the times to")
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    arguments = (parser.parse_args(), store.port)
    mp.start_processes(run, arguments, nprocs=RANKS, start_method="spawn")
