"""What does the hook itself cost? Plain DDP against `attach(ddp, "none")`, on loopback.

    python benchmarks/hook_overhead.py [--rounds 15] [--steps 10] [--plan none]

Two ranks on one machine train the demo's text model (10.9 million parameters) in
buckets of 5 MB, beside PyTorch's own `allreduce_hook`. All move the same float32
values; what differs is the way through the hook, the worker thread and the
mailbox. Each round runs so many steps of each, beginning with another one each
time; a step lasts as long as on the slower rank.
"""

from __future__ import annotations

import cProfile
import json
import os
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

BATCH = 8


def _step_s(ddp: object, optimiser: object, task: object, steps: int) -> tuple[float, float]:
    import torch  # noqa: PLC0415 - workers only
    import torch.distributed as dist  # noqa: PLC0415

    from gradwire.demo.tasks import loss_of  # noqa: PLC0415

    inputs, targets = task.batch(dist.get_rank(), 2, 0, 0)  # type: ignore[attr-defined]
    dist.barrier()
    start, start_cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        optimiser.zero_grad()  # type: ignore[attr-defined]
        loss_of(ddp, inputs, targets).backward()  # type: ignore[arg-type]
        optimiser.step()  # type: ignore[attr-defined]
    took_s = torch.tensor([(time.perf_counter() - start) / steps])
    cpu_s = torch.tensor([(time.process_time() - start_cpu) / steps])
    dist.all_reduce(took_s, dist.ReduceOp.MAX)
    dist.all_reduce(cpu_s)
    return took_s.item(), cpu_s.item() / 2


def _worker(rank: int, store: str, rounds: int, steps: int, plan: str, profile: str) -> None:
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks  # noqa: PLC0415
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

    import gradwire  # noqa: PLC0415
    from gradwire.demo import tasks  # noqa: PLC0415

    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
    task = tasks.build("text", BATCH)
    ours = f"attach {plan}"
    names = ["plain DDP", "allreduce_hook", ours]
    models = {n: DistributedDataParallel(task.model(0), bucket_cap_mb=5) for n in names}
    runs = {n: (ddp, task.optimiser(ddp), task) for n, ddp in models.items()}
    models["allreduce_hook"].register_comm_hook(None, default_hooks.allreduce_hook)
    sync = gradwire.attach(models[ours], plan)
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for number in range(rounds + 1):
        for turn in range(len(names)):
            name = names[(number + turn) % len(names)]
            took_s = _step_s(*runs[name], steps)
            if number:
                seconds[name].append(took_s)
    if rank == 0:
        print(json.dumps(seconds))
        print(sync.stats().summary(), file=sys.stderr)
    if profile and rank == 0:
        profiler = cProfile.Profile()
        profiler.runcall(_step_s, *runs[ours], 5 * steps)
        pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(15)
    elif profile:
        _step_s(*runs[ours], 5 * steps)
    sync.close()
    dist.destroy_process_group()


@click.command()
@click.option("--rounds", default=15, show_default=True)
@click.option("--steps", default=10, show_default=True, help="Steps in a round.")
@click.option("--plan", default="none", show_default=True)
@click.option("--profile", is_flag=True, help="Print where the main thread of rank 0 spends time.")
def main(rounds: int, steps: int, plan: str, *, profile: bool) -> None:
    """Measure the hook's overhead on a line without limit."""
    if "HOOK_OVERHEAD_RANK" in os.environ:
        rank, store = int(os.environ["HOOK_OVERHEAD_RANK"]), os.environ["HOOK_OVERHEAD_STORE"]
        _worker(rank, store, rounds, steps, plan, "yes" if profile else "")
        return
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen(  # noqa: S603 - this script
                [sys.executable, *sys.argv],
                stdout=subprocess.PIPE,
                text=True,
                env={
                    **os.environ,
                    "HOOK_OVERHEAD_RANK": str(rank),
                    "HOOK_OVERHEAD_STORE": str(Path(folder) / "store"),
                },
            )
            for rank in range(2)
        ]
        outputs = [rank.communicate()[0] for rank in ranks]
    seconds = json.loads(outputs[0])
    print(f"2 ranks, text model, {BATCH} windows a rank, {rounds} rounds of {steps} steps")
    print(f"{'':34} {'median ms':>10} {'min':>8} {'max':>8}")
    for kind, what in enumerate(("step", "CPU time of a rank")):
        for name, pairs in seconds.items():
            values = [pair[kind] * 1e3 for pair in pairs]
            spread = f"{min(values):8.2f} {max(values):8.2f}"
            print(f"{what + ', ' + name:34} {statistics.median(values):10.2f} {spread}")
        plain = [pair[kind] for pair in seconds["plain DDP"]]
        for name, pairs in list(seconds.items())[1:]:
            ratios = [pair[kind] / a for a, pair in zip(plain, pairs, strict=True)]
            spread = f"{min(ratios):8.3f} {max(ratios):8.3f}"
            print(f"{what + ', ' + name + ', ratio':34} {statistics.median(ratios):10.3f} {spread}")


if __name__ == "__main__":
    main()
