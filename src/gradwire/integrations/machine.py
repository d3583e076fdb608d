"""The speeds that a plan is made from: of a machine, and of its links."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from gradwire.comm.base import Mailbox
from gradwire.hardware import Hardware
from gradwire.measure import cache
from gradwire.measure.device import measure_device
from gradwire.measure.interference import measure_interference
from gradwire.measure.kernels import measure_kernels
from gradwire.measure.links import measure_links
from gradwire.spec import ReducerSpec, spec_name

_LINKS_S = 0.8
_INTERFERENCE_S = 0.2
_KERNEL_S = 0.003
_SIZES_BYTES = tuple(1 << power for power in (16, 20, 22))


class Machine(NamedTuple):
    """What was measured, and where from.

    Attributes:
        ranks_per_node: How many consecutive ranks share a node.
        source: Where the codecs' speeds come from, for the explanation.
    """

    hardware: Hardware
    ranks_per_node: int
    source: str


def find_machine(mailbox: Mailbox, specs: Sequence[ReducerSpec], *, is_kept: bool) -> Machine:
    """Return rank 0's speeds of codecs and links, in about two seconds.

    Collective. Codecs come from rank 0's cache where it knows them; else all
    ranks measure at the same time, as in training. Links are always
    measured: networks change more often than machines.

    Args:
        mailbox: Connects the ranks.
        specs: Reducers whose codecs have to be known.
        is_kept: Whether to write what was measured to the cache.
    """
    hosts = tuple(str(host) for host in mailbox.gather_objects(platform.node()))
    place = cache.Machine.here(hosts, mailbox.world_size, "gloo")
    known = cache.load(place).hardware if mailbox.rank == 0 else None
    if known is not None and any(f"encode {spec_name(s)}" not in known.kernels for s in specs):
        known = None
    cached = mailbox.gather_objects(None if known is None else known.to_json())[0]
    local = _ranks_per_node(mailbox.world_size)
    links = measure_links(mailbox, ranks_per_node=local, budget_s=_LINKS_S)
    if isinstance(cached, str):
        hardware = Hardware.from_json(cached)
        found = replace(hardware, within=links.within, between=links.between)
        return Machine(found, local, "the cache")
    cpu = torch.device("cpu")
    device = replace(measure_device(cpu), interference=measure_interference(cpu, _INTERFERENCE_S))
    kernels = measure_kernels(specs, cpu, sizes_bytes=_SIZES_BYTES, budget_s=_KERNEL_S)
    measured = Hardware(device, kernels, *links, place.fingerprint())
    first = mailbox.gather_objects(measured.to_json())[0]
    if is_kept and mailbox.rank == 0:
        cache.keep(measured, place)
    return Machine(Hardware.from_json(str(first)), local, "a measurement at attach")


def _ranks_per_node(world_size: int) -> int:
    """Return what the launcher says; one node where it says nothing that fits."""
    text = os.environ.get("LOCAL_WORLD_SIZE", "")
    local = int(text) if text.isdecimal() else world_size
    return local if 1 <= local <= world_size and world_size % local == 0 else world_size
