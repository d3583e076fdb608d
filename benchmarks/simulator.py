"""How long does a simulated step take, and how does that grow?

    python benchmarks/simulator.py [--ranks 64,256,1024] [--gradients 161]

Each gradient travels by itself in 4 bits. `alike` simulates one rank that stands
for all; `phases` simulates every rank, with an event for each thing it does.
"""

from __future__ import annotations

import math
import time

import click

from gradwire.hardware import Device, Hardware, LinkSpeed
from gradwire.plan import Plan
from gradwire.sim import Cluster, EventSimulator
from gradwire.workload import Layer, Workload, parameter

_SIDE = 400


@click.command()
@click.option("--ranks", default="64,256,1024", show_default=True)
@click.option("--gradients", default=161, show_default=True)
@click.option("--plan", default="int4", show_default=True)
def main(ranks: str, gradients: int, plan: str) -> None:
    """Print seconds, events, and seconds for each `n log2 n` of the events."""
    layers = tuple(
        Layer(f"layer{i}", (parameter(f"w{i}", (_SIDE, _SIDE)),), 1e-4, 2e-4)
        for i in range(gradients)
    )
    within, between = LinkSpeed(5e-6, 1e11), LinkSpeed(5e-5, 1.25e9)
    hardware = Hardware(Device("cuda", copy_bytes_per_s=1e12), {}, within, between)
    names = ("time / s", "CPU / s", "events", "ns / n log n")
    print("{:>6} {:<8} {:>9} {:>8} {:>9} {:>13}".format("ranks", "detail", *names))
    for count in map(int, ranks.split(",")):
        for simulator in (EventSimulator("alike"), EventSimulator("phases")):
            wall_s, cpu_s = time.perf_counter(), time.process_time()
            step = simulator.run(
                Plan.of(plan), Workload("grid", layers), hardware, Cluster(count), bucket_bytes=1
            )
            wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
            unit = step.events * math.log2(step.events)
            print(
                f"{count:>6} {simulator.detail:<8} {wall_s:>9.2f} {cpu_s:>8.2f}"
                f" {step.events:>9} {cpu_s / unit * 1e9:>13.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
