"""Does a plan follow a link whose rate changes while training runs?

    python benchmarks/follow.py [--plan aqgb] [--rates 1Gbit/s,100Mbit/s,1Gbit/s] [--every 25]

Needs root and iproute2 (ranks live in network namespaces). Prints every step of
the slowest rank: how long it was and waited, the bits of each layer, and the rate
that was measured. The link changes in the middle of a step, as links do.
"""

from __future__ import annotations

import json
import os
import sys

import click

from gradwire.errors import CommandError
from gradwire.lab.netns import Network, missing
from gradwire.units import format_rate, parse_rate

_START_S = 120.0


def _worker(plan: str, name: str, steps: int) -> None:
    import torch  # noqa: PLC0415 - workers only
    import torch.distributed as dist  # noqa: PLC0415

    import gradwire  # noqa: PLC0415
    from gradwire.bench import models  # noqa: PLC0415
    from gradwire.demo.tasks import loss_of  # noqa: PLC0415
    from gradwire.engine.overlap_stats import OverlapStep  # noqa: PLC0415

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    task = models.build(name, rank)
    model = task.model(0)
    optimizer = task.optimiser(model)

    def tell(step: OverlapStep) -> None:
        # A step ends with the forward of the next one: that is what is timed here.
        line = {
            "step": step.step,
            "step_s": step.step_s,
            "wait_s": step.wait_s,
            "overlap_s": step.overlap_s,
            "sent_bytes": step.sent_bytes,
            "bits": [round(layer.bits, 1) for layer in step.layers],
            "error": step.relative_error,
            "rate": engine._mailbox.rates().bandwidth_bytes_per_s,  # noqa: SLF001 - what the controller sees
        }
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()

    engine = gradwire.overlap(model, optimizer, plan, on_step=tell)
    for step in range(steps):
        loss_of(model, *task.batch(rank, ranks, 0, step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    engine.close()
    dist.destroy_process_group()


def _show(outputs: list[str], rates: list[float], every: int) -> None:
    by_rank = [[json.loads(line) for line in text.splitlines()] for text in outputs]
    print(
        f"{'step':>4} {'link':>11} {'ms':>6} {'wait':>6} {'hidden':>6} {'MB':>6}"
        f" {'error':>5} {'measured':>11}  bits by layer, front first"
    )
    for rows in zip(*by_rank, strict=True):
        row = max(rows, key=lambda r: r["wait_s"])
        rate = rates[min(row["step"] // every, len(rates) - 1)]
        error = f"{row['error']:.2f}" if row["error"] is not None else ""
        seen = format_rate(row["rate"]) if row["rate"] else ""
        print(
            f"{row['step']:4} {format_rate(rate):>11} {1e3 * row['step_s']:6.0f}"
            f" {1e3 * row['wait_s']:6.0f} {1e3 * row['overlap_s']:6.0f}"
            f" {row['sent_bytes'] / 1e6:6.2f} {error:>5} {seen:>11}"
            f"  {' '.join(f'{b:g}' for b in row['bits'])}"
        )


@click.command()
@click.option("--plan", default="aqgb", show_default=True)
@click.option("--model", default="accel", show_default=True)
@click.option("--ranks", default=2, show_default=True)
@click.option("--rates", default="1Gbit/s,100Mbit/s,1Gbit/s", show_default=True)
@click.option("--every", default=25, show_default=True, help="Steps at each rate.")
def main(*, plan: str, model: str, ranks: int, rates: str, every: int) -> None:
    """Train over a link that changes, and print every step."""
    numbers = [parse_rate(rate) for rate in rates.split(",")]
    if "RANK" in os.environ:
        _worker(plan, model, every * len(numbers))
        return
    reason = missing()
    if reason is not None:
        raise click.ClickException(reason)
    try:
        with (
            Network(ranks, numbers[0]) as network,
            network.start([sys.executable, *sys.argv]) as workers,
        ):
            for i, rate in enumerate(numbers[1:], 1):
                workers.wait_for(f'"step": {i * every - 2},', timeout_s=_START_S)
                network.limit(rate)
            outputs = workers.wait()
    except CommandError as error:
        raise click.ClickException(str(error)) from error
    _show(outputs, numbers, every)


if __name__ == "__main__":
    main()
