"""How much of a line does an exchange use? Two ranks, both directions at once.

    python benchmarks/exchange.py [--rate 1Gbit/s] [--rounds 7] [--sizes 1,8,64]

Needs root and iproute2 (ranks live in network namespaces). Each side sends so
many megabytes to the other: by `TorchMailbox.exchange`, by Gloo's
`all_to_all_single` and by its `all_gather`, in turn within each round.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable

import click

from gradwire.errors import CommandError
from gradwire.lab.netns import Network, missing
from gradwire.units import format_rate, parse_rate


def _variants(num_bytes: int) -> dict[str, Callable[[], object]]:
    import torch  # noqa: PLC0415 - workers only
    import torch.distributed as dist  # noqa: PLC0415

    from gradwire.comm.torch_dist import TorchMailbox  # noqa: PLC0415

    mailbox = TorchMailbox(None)
    peer = 1 - mailbox.rank
    data, box = (torch.ones(num_bytes, dtype=torch.uint8) for _ in range(2))
    data2, box2 = (torch.ones(2 * num_bytes, dtype=torch.uint8) for _ in range(2))
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return {
        "TorchMailbox.exchange": lambda: mailbox.exchange(0, {peer: data}, {peer: box}).result(),
        "all_to_all_single": lambda: dist.all_to_all_single(box2, data2),
        "all_gather": lambda: gather(box2, data),
    }


def _worker(sizes: list[int], rounds: int) -> None:
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rows = []
    for num_bytes in sizes:
        variants = _variants(num_bytes)
        seconds: dict[str, list[float]] = {name: [] for name in variants}
        for _ in range(rounds + 1):
            for name, run in variants.items():
                dist.barrier()
                start = time.perf_counter()
                run()
                took_s = torch.tensor([time.perf_counter() - start])
                dist.all_reduce(took_s, dist.ReduceOp.MAX)
                seconds[name].append(took_s.item())
        rows += [(num_bytes, name, times[1:]) for name, times in seconds.items()]
    if dist.get_rank() == 0:
        json.dump(rows, sys.stdout)
    dist.destroy_process_group()


@click.command()
@click.option("--rate", default="1Gbit/s", show_default=True, help="Rate of each rank's line.")
@click.option("--rounds", default=7, show_default=True)
@click.option("--sizes", default="1,8,64", show_default=True, help="MB each side sends.")
def main(rate: str, rounds: int, sizes: str) -> None:
    """Measure the share of a line that two ranks exchanging bytes reach."""
    numbers = [int(float(s) * 1e6) for s in sizes.split(",")]
    if "RANK" in os.environ:
        _worker(numbers, rounds)
        return
    reason = missing()
    if reason is not None:
        raise click.ClickException(reason)
    rate_bytes_per_s = parse_rate(rate)
    try:
        with Network(2, rate_bytes_per_s) as network:
            output = network.run([sys.executable, *sys.argv])[0]
    except CommandError as error:
        raise click.ClickException(str(error)) from error
    print(f"2 ranks, {format_rate(rate_bytes_per_s)} each way, {rounds} rounds, slower rank")
    print(f"{'bytes':>9}  {'':22} {'median s':>9} {'min s':>8} {'max s':>8}  share of line")
    for num_bytes, name, times in json.loads(output):
        median = statistics.median(times)
        share = num_bytes / median / rate_bytes_per_s
        spread = f"{min(times):8.4f} {max(times):8.4f}"
        print(f"{num_bytes:9d}  {name:22} {median:9.4f} {spread}  {share:.3f}")


if __name__ == "__main__":
    main()
