"""The figures of docs/explanation/published.md, computed anew."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

from gradwire.hardware import Device, Hardware, LinkSpeed
from gradwire.plan import Assignment, Parameter, Plan, Rule
from gradwire.sim import Cluster, EventSimulator, Simulation, simulate
from gradwire.sim.catalogue import Network, find_network
from gradwire.sim.catalogue.transformer import gpt2, llama
from gradwire.sim.compute import SystolicArray, find_device, workload
from gradwire.sim.compute.nodes import find_hardware
from gradwire.spec import AllReduce, Broadcast, LowRank, ReducerSpec, TwoPhase
from gradwire.workload import Layer, Workload

GRANTED = 0.02
"""Share of computation that may be waited for before bits count as not hidden."""
MS = 1e3


@dataclass(frozen=True)
class Bits:
    """A codec of any number of bits, without scales, as the papers count."""

    id: ClassVar[str] = "bits"
    bits: float
    block_size: int = 1

    def num_bytes(self, numels: Sequence[int]) -> int:
        return math.ceil(sum(numels) * self.bits / 8)


class Everywhere(Plan):
    """Uses its one reducer for each parameter, even where it sends more than float32."""

    def assign(self, parameters: Sequence[Parameter], world_size: int) -> dict[str, Assignment]:
        return {p.name: Assignment(self.rules[0].reducer) for p in parameters}


def everywhere(reducer: ReducerSpec) -> Plan:
    return Everywhere((Rule(reducer),))


def links(gbit: float, latency_s: float = 0.0) -> Hardware:
    """Return free encoding, and links of one rate everywhere."""
    link = LinkSpeed(latency_s, gbit * 1.25e8)
    return Hardware(Device("cuda", copy_bytes_per_s=1e18), {}, link, link)


@cache
def resnet50() -> Workload:
    return workload(find_network("resnet50_v1"), SystolicArray(128, 128, 0.94e9), 32)


def broadcast(
    work: Workload, bits: float, ranks: int, gbit: float, piece_bytes: int = 1 << 20
) -> Simulation:
    """Simulate broadcasts that overlap with the next step's forward, front layers first."""
    exact = EventSimulator("alike", chunk_bytes=piece_bytes, in_flight_bytes=piece_bytes)
    plan = everywhere(Broadcast(Bits(bits), feedback=False))
    return simulate(plan, work, links(gbit), Cluster(ranks), engine="overlap", simulator=exact)


def hidden_bits(ranks: int, gbit: float) -> float:
    """Return the most bits whose broadcast costs less than 2 % of the step."""
    work, low, high = resnet50(), 0.5, 16.0
    while high - low > 0.05:
        middle = (low + high) / 2
        if broadcast(work, middle, ranks, gbit).exposed_s <= GRANTED * work.compute_s:
            low = middle
        else:
            high = middle
    return low


def stall_percent(bits: float, ranks: int, gbit: float) -> float:
    """Return the wait over computation."""
    work = resnet50()
    return 100 * broadcast(work, bits, ranks, gbit).exposed_s / work.compute_s


def ring_over_compute(ranks: int, gbit: float) -> float:
    """Return DDP's step with 2 bytes a value, over computation."""
    work, plan = resnet50(), everywhere(AllReduce("bfloat16"))
    step = simulate(plan, work, links(gbit), Cluster(ranks), collective="ring")
    return step.step_s / work.compute_s


def stall_of_buckets_ms(cap_bytes: int) -> float:
    """Return the wait where whole buckets are due with their frontmost layer."""
    work = resnet50()
    held = {b.layer: b.parameters for b in reversed(work.buckets(cap_bytes, cap_bytes))}
    layers = [replace(layer, parameters=held.get(i, ())) for i, layer in enumerate(work.layers)]
    return broadcast(replace(work, layers=tuple(layers)), 2, 8, 10, 1 << 16).exposed_s * MS


def tied_gpt2(*, with_embedding: bool = True) -> Workload:
    """Return GPT-2 of 124 M parameters with a step of 200 ms, by operations."""
    network = gpt2()
    total = 3 * network.flops()
    layers = []
    for shape in network.layers:
        flops = sum(p.forward(1).flops for p in shape.products)
        parameters = shape.parameters if with_embedding or shape.name != "wte" else ()
        layers.append(Layer(shape.name, parameters, 0.2 * flops / total, 0.4 * flops / total))
    return Workload("gpt2", tuple(layers))


def throughput(network: Network, device: str, batch: int, dtype: str) -> float:
    """Return samples per second of one device that need not communicate."""
    return batch / workload(network, find_device(device), batch, dtype).compute_s


def powersgd_saving_ms() -> float:
    """Return what rank 2 saves on ResNet-18's ring at 16 ranks, nothing overlapped."""
    work = workload(find_network("resnet18"), find_device("v100"), 128, "float32")
    steps = [
        simulate(
            plan,
            work,
            replace(find_hardware("v100"), between=LinkSpeed(5e-5, 1.25e9)),
            Cluster(16),
            collective="ring",
            bucket_bytes=1 << 30,
            simulator=EventSimulator("alike"),
        ).step_s
        for plan in (Plan.of("none"), Plan.of(LowRank(2)))
    ]
    return (steps[0] - steps[1]) * MS


def efficiency(gbit: float, bits: float | None) -> float:
    """Return ResNet-50's scaling on 8 V100 nodes, float32, batch 32; no bits: plain DDP."""
    work = workload(find_network("resnet50"), find_device("v100"), 32, "float32")
    codec = None if bits is None else TwoPhase(Bits(bits), feedback=False)
    plan = Plan.of("none") if codec is None else everywhere(codec)
    hardware = replace(find_hardware("v100"), between=LinkSpeed(1e-5, gbit * 1.25e8))
    step = simulate(plan, work, hardware, Cluster(8))
    return work.compute_s / step.step_s


FIGURES: dict[str, Callable[[], float]] = {
    "forward ms": lambda: resnet50().forward_s * MS,
    "backward ms": lambda: resnet50().backward_s * MS,
    **{
        f"bits N={n} {gbit}G": lambda n=n, gbit=gbit: hidden_bits(n, gbit)
        for n, gbit in ((4, 10), (8, 10), (8, 25), (16, 25), (16, 100))
    },
    "stall N=16 10G": lambda: stall_percent(2, 16, 10),
    **{f"ring N={n} 10G": lambda n=n: ring_over_compute(n, 10) for n in (4, 8, 16)},
    "ring N=16 25G": lambda: ring_over_compute(16, 25),
    **{
        f"wait {bits} bits": lambda bits=bits: broadcast(resnet50(), bits, 8, 10).exposed_s * MS
        for bits in (1, 3, 3.5, 4, 8)
    },
    **{
        f"ROW {bits} bits": lambda bits=bits: broadcast(resnet50(), bits, 8, 10).row() or 0.0
        for bits in (1, 3, 3.5, 4, 8)
    },
    **{f"bucket {mb} MB": lambda mb=mb: stall_of_buckets_ms(mb * 10**6) for mb in (1, 5, 25)},
    "gpt2 tied": lambda: broadcast(tied_gpt2(), 2, 8, 25).exposed_s * MS,
    "gpt2 rest": lambda: broadcast(tied_gpt2(with_embedding=False), 2, 8, 25).exposed_s * MS,
    "resnet50 v100 fp32": lambda: throughput(find_network("resnet50"), "v100", 128, "float32"),
    "resnet50 v100 amp": lambda: throughput(find_network("resnet50"), "v100", 256, "float16"),
    "resnet50 a100 tf32": lambda: throughput(find_network("resnet50"), "a100", 256, "tf32"),
    "resnet50 a100 amp": lambda: throughput(find_network("resnet50"), "a100", 256, "float16"),
    "gpt2 a100": lambda: 1024 * throughput(gpt2(), "a100", 64, "bfloat16"),
    "7b a100": lambda: 2048 * throughput(llama("7b", 2048), "a100", 6, "bfloat16"),
    "7b h100": lambda: 2048 * throughput(llama("7b", 2048), "h100", 6, "bfloat16"),
    "powersgd": powersgd_saving_ms,
}
"""Simulated value by key of the table."""
