"""Hardware and workloads with round numbers."""

from __future__ import annotations

from gradwire.hardware import Device, Hardware, Line, LinkSpeed
from gradwire.planner.step import Setting
from gradwire.units import parse_rate
from gradwire.workload import Layer, Workload, parameter

NAMES = (
    *("none", "bf16", "fp16", "fp8", *(f"int{b}" for b in range(8, 1, -1)), "sign"),
    *(f"nearest{b}" for b in range(8, 2, -1)),
)
GOODPUT = 0.946
"""Share of a line's rate that TCP carries as payload: 1448 of 1530 bytes."""


def hardware(link, *, encode=1 / 4e9, decode=1 / 8e9, interference=0.0, names=NAMES):
    kernels = {}
    for name in names:
        kernels[f"encode {name}"] = Line(0.0, encode)
        kernels[f"decode {name}"] = Line(0.0, decode)
    return Hardware(Device(interference=interference), kernels, link, link)


def accel():
    """12 matrices, 10.9 M values, 100 ms forward, 200 ms backward, as measured: 323 ms."""
    layers = tuple(
        Layer(f"l{i}", (parameter(f"l{i}.weight", (953, 953)),), 0.1 / 12, 0.2 / 12)
        for i in range(12)
    )
    return Workload("accel", layers, optimiser_s=0.023)


def accel_setting(rate, world_size, cap_mib=25, latency_s=5e-4):
    link = LinkSpeed(latency_s, parse_rate(rate) * GOODPUT)
    return Setting(accel(), hardware(link), world_size, cap_bytes=cap_mib << 20)
