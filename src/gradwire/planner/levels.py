"""What two levels of the network cost, and which reducers use both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradwire.hardware import Hardware, Line, LinkSpeed
from gradwire.planner.cost import Cost, Stage, reduction_cost, transfer_stage
from gradwire.spec import AllReduce, Entry, Hierarchical, ReducerSpec, TwoPhase, codec_name

_ITEM_BYTES = 4


def hierarchical_cost(
    reducer: Hierarchical,
    entries: Sequence[Entry],
    world_size: int,
    hardware: Hardware,
    between: LinkSpeed,
) -> Cost:
    """Return what a hierarchical reduction costs one rank.

    The sum within its node, the inner reduction of its shard between nodes, and
    the gathering within.

    Args:
        reducer: How.
        entries: The parameters.
        world_size: Number of ranks.
        hardware: Speeds of the codecs, and of the links within a node.
        between: The links between nodes.

    Raises:
        SpecError: The ranks do not fill their nodes, or the speed of the inner
            codec was not measured.

    Example:
        >>> from gradwire.hardware import Device
        >>> fast, slow = LinkSpeed(0.0, 1e4), LinkSpeed(0.5, 1e3)
        >>> hardware = Hardware(Device(copy_bytes_per_s=1e9), {}, fast, slow)
        >>> spec = Hierarchical(AllReduce(), ranks_per_node=2)
        >>> cost = hierarchical_cost(spec, [Entry(0, (1000,))], 4, hardware, slow)
        >>> [round(stage.link_s, 2) for stage in cost.stages]
        [0.2, 1.02, 1.02, 0.2, 0.0]
    """
    local, nodes = reducer.grid(world_size)
    owned = reducer.owned_entries(entries, 0, local)
    inner = reduction_cost(reducer.inner, owned, nodes, hardware, between)
    within = reducer.within(entries, world_size, 0)
    if not within:
        return inner
    encode, decode = _lines(reducer, hardware)
    whole_bytes, own_bytes = (_ITEM_BYTES * sum(e.numel for e in es) for es in (entries, owned))
    scatter, gather = within
    first, *others = inner.stages
    *middle, last = [first._replace(codec_s=first.codec_s + decode.time_s(whole_bytes)), *others]
    gathered_s = last.codec_s + encode.time_s(own_bytes)
    return Cost(
        (
            transfer_stage(encode.time_s(whole_bytes), scatter, hardware.within),
            *middle,
            transfer_stage(gathered_s, gather, hardware.within),
            Stage(decode.time_s(whole_bytes)),
        )
    )


def _lines(reducer: Hierarchical, hardware: Hardware) -> tuple[Line, Line]:
    """Return the times of writing and adding up values as they travel inside a node."""
    name, device = codec_name(reducer.within_codec), hardware.device
    copied = Line(device.launch_s, 2 / device.copy_bytes_per_s)
    encode, decode = (
        hardware.kernels.get(f"{step} {name}", copied) for step in ("encode", "decode")
    )
    return encode, decode


def two_level_candidates(
    candidates: Mapping[str, ReducerSpec], world_size: int, ranks_per_node: int
) -> dict[str, ReducerSpec]:
    """Return the hierarchical forms of candidates, where nodes have several ranks.

    Example:
        >>> from gradwire.spec import parse_reducer
        >>> list(two_level_candidates({"int4": parse_reducer("int4")}, 8, 4))
        ['int4@hierarchical:4']
        >>> two_level_candidates({"int4": parse_reducer("int4")}, 4, 4)
        {}
    """
    if not 1 < ranks_per_node < world_size or world_size % ranks_per_node:
        return {}
    return {
        f"{name}@hierarchical:{ranks_per_node}": Hierarchical(reducer, ranks_per_node)
        for name, reducer in candidates.items()
        if isinstance(reducer, (AllReduce, TwoPhase))
    }
