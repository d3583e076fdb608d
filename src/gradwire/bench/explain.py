"""Says what a plan does with a model: bits by layer, and why. No torch here."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from gradwire.plan import Plan
from gradwire.report.results import ModeResult
from gradwire.spec import AllReduce, Entry, sent_bytes, spec_name
from gradwire.workload import Workload

_FLOAT_BITS = 32
_NAMES = {"none": "float32"}


def explained(mode: ModeResult, workload: Workload, ranks: int) -> ModeResult:
    """Add bits by layer and reasons to a mode whose plan was given, not found.

    Args:
        mode: Unchanged without a plan, and in what it says already.
        workload: The model's layers.
        ranks: How many there are.
    """
    if mode.plan is None or not mode.has_run:
        return mode
    plan = Plan.from_json(mode.plan)
    bits = mode.bits or _bits(plan, workload, ranks)
    return replace(mode, bits=bits, why=mode.why or _reasons(plan, workload, ranks))


def _bits(plan: Plan, workload: Workload, ranks: int) -> dict[str, float]:
    """Return bits a value on the wire: bytes sent over those of float32."""
    assigned = plan.assign(workload.parameters, ranks)
    bits = {}
    for layer in workload.layers:
        pairs = [(assigned[p.name].reducer, [Entry(0, p.entry.shape)]) for p in layer.parameters]
        sent = sum(sent_bytes(reducer, entries, ranks) for reducer, entries in pairs)
        dense = sum(sent_bytes(AllReduce(), entries, ranks) for _, entries in pairs)
        if dense:
            bits[layer.name] = _FLOAT_BITS * sent / dense
    return bits


def _reasons(plan: Plan, workload: Workload, ranks: int) -> tuple[str, ...]:
    assigned = plan.assign(workload.parameters, ranks)
    numels: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for p in workload.parameters:
        reducer, reason = assigned[p.name]
        numels[spec_name(reducer), reason or "as the plan asks"].append(p.entry.numel)
    return tuple(
        f"{_NAMES.get(name, name)} for {_count(sizes)}: {reason}"
        for (name, reason), sizes in numels.items()
    )


def _count(sizes: list[int]) -> str:
    plural = "s" * (len(sizes) > 1)
    return f"{len(sizes)} parameter{plural} of {sum(sizes):,} values together"
