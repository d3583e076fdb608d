"""What `gradwire measure` has found, as tables."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.console import Group
from rich.table import Table
from rich.text import Text

from gradwire.hardware import Device, Hardware, Line, LinkSpeed
from gradwire.units import format_bytes, format_rate, format_seconds
from gradwire.workload import Workload, gradient_bytes

SHAKY = 0.2
"""Measurements that scatter by more than this share are called so."""

_STEPS = ("encode", "decode")


def render_hardware(hardware: Hardware) -> Group:
    """Return device, kernels and links for printing on a rich console.

    Example:
        >>> link = LinkSpeed(1e-3, 1e8, ranks=2)
        >>> group = render_hardware(Hardware(Device(), {"encode int4": Line(0, 1e-9)}, link, link))
        >>> len(group.renderables)
        4
    """
    return Group(
        Text(_device(hardware.device)),
        _kernels(hardware),
        _links(hardware),
        Text("\n".join(f"- {note}" for note in _notes(hardware)), "dim"),
    )


def _device(device: Device) -> str:
    has = ", ".join(device.capabilities) or "nothing special"
    return (
        f"{device.name} ({device.kind}, {device.cores} cores): {has}\n"
        f"copies {format_bytes(device.copy_bytes_per_s)}/s, reads "
        f"{format_bytes(device.read_bytes_per_s)}/s, launches a kernel in "
        f"{format_seconds(device.launch_s)}; {device.interference:.0%} of compression time "
        "lengthens a backward pass beside it"
    )


def _kernels(hardware: Hardware) -> Table:
    table = Table(title="Codecs, by bytes of float32", title_justify="left", title_style="")
    table.add_column("", no_wrap=True)
    for heading in ("encode", "fixed", "decode", "fixed", "scatter"):
        table.add_column(heading, justify="right")
    parts = {key: key.partition(" ") for key in hardware.kernels}
    for name in dict.fromkeys(codec for step, _, codec in parts.values() if step in _STEPS):
        found = [hardware.kernels.get(f"{step} {name}") for step in _STEPS]
        cells = [cell for line in found for cell in _cells(line)]
        scatter = max(line.spread for line in found if line is not None)
        table.add_row(name, *cells, f"{scatter:.0%}")
    for key, line in hardware.kernels.items():
        if parts[key][0] not in _STEPS:  # one form of a kernel, such as `hadamard, matrix`
            table.add_row(key, *_cells(line), "", "", f"{line.spread:.0%}")
    return table


def _cells(line: Line | None) -> tuple[str, str]:
    if line is None:
        return "-", "-"
    rate = 1 / line.s_per_byte if line.s_per_byte else math.inf
    return f"{format_bytes(rate)}/s", format_seconds(line.fixed_s)


def _links(hardware: Hardware) -> Table:
    table = Table(title="Links", title_justify="left", title_style="")
    for heading in ("level", "ranks", "collective", "rate", "latency", "scatter"):
        table.add_column(heading, justify="right" if heading != "level" else "left")
    levels = {"all ranks": hardware.within}
    if hardware.within != hardware.between:
        levels = {"in a node": hardware.within, "between nodes": hardware.between}
    for level, link in levels.items():
        for cells in _rows(link):
            table.add_row(level, *cells)
    return table


def _rows(link: LinkSpeed) -> Iterator[tuple[str, ...]]:
    if not link.ranks:
        yield "-", "not measured", "-", "-", "-"
        return
    lines = link.collectives or {
        "exchange": Line(link.latency_s, 1 / link.bandwidth_bytes_per_s, link.spread)
    }
    for name, line in lines.items():
        rate = 1 / line.s_per_byte if line.s_per_byte else math.inf
        yield (
            str(link.ranks),
            name,
            format_rate(rate),
            format_seconds(line.fixed_s),
            (f"{line.spread:.0%}"),
        )


def _notes(hardware: Hardware) -> Iterator[str]:
    shaky = sorted(name for name, line in hardware.kernels.items() if line.spread > SHAKY)
    if shaky:
        yield (
            f"{len(shaky)} of {len(hardware.kernels)} lines scatter by more than {SHAKY:.0%}: "
            "close other programs, or measure with --thorough"
        )
    yield "exchange: the rate at which a rank sends to all others at once, and receives as much"
    yield "all_reduce: by bytes of the tensor; it moves up to twice as many"


def render_workload(work: Workload) -> Table:
    """Return the layers of a workload for printing on a rich console."""
    total = format_bytes(gradient_bytes(work.parameters))
    title = (
        f"{work.name}: {work.numel:,} parameters, {total} of gradients; forward "
        f"{format_seconds(work.forward_s)}, backward {format_seconds(work.backward_s)}, "
        f"optimiser {format_seconds(work.optimiser_s)}"
    )
    table = Table(title=title, title_justify="left", title_style="")
    table.add_column("layer", no_wrap=True)
    for heading in ("gradients", "forward", "backward", "ready"):
        table.add_column(heading, justify="right")
    for layer, ready_s in zip(work.layers, work.ready_s(), strict=True):
        size = format_bytes(gradient_bytes(layer.parameters))
        times = (layer.forward_s, layer.backward_s, ready_s)
        table.add_row(layer.name, size, *(format_seconds(t) for t in times))
    return table
