"""Hierarchical reductions: a node's sums combined between nodes."""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.errors import SpecError
from gradwire.layout import shard_numels
from gradwire.sim.schedules import Exchange, Groups
from gradwire.sim.stages import Reduction, Speeds, Stage
from gradwire.spec import (
    FLOAT_BYTES,
    AllReduce,
    Broadcast,
    Entry,
    Float,
    Hierarchical,
    ReducerSpec,
    TwoPhase,
    codec_name,
)

_ITEM_BYTES = 4
_Sizes = tuple[float, ...]


def hierarchical_reduction(
    name: str, reducer: Hierarchical, entries: Sequence[Entry], ranks: int, speeds: Speeds
) -> Reduction:
    """Sum within each node, combine between nodes, gather within.

    Args:
        name: Of the reduction.
        reducer: How.
        entries: The parameters.
        ranks: Of all nodes.
        speeds: Of the codecs.

    Raises:
        SpecError: The inner reducer cannot be simulated, or the ranks do not
            fill their nodes.
    """
    local, nodes = reducer.grid(ranks)
    groups: Groups = tuple(tuple(range(first, first + local)) for first in range(0, ranks, local))
    rails: Groups = tuple(tuple(range(place, ranks, local)) for place in range(local))
    owned = [reducer.owned_entries(entries, place, local) for place in range(local)]
    inner, sums = _between(reducer.inner, owned, nodes, speeds)
    within = tuple(map(float, reducer.within_bytes(entries, local))) * nodes
    sum_s = local * speeds.sum_s_per_byte
    stages = [Stage(0.0, 0.0, Exchange(groups=groups, sizes=within))]
    for work_s, sizes, is_to_owner in inner:
        phase = Exchange(groups=rails, sizes=sizes, is_to_owner=is_to_owner)
        stages.append(Stage(0.0, sum_s + work_s, phase))
        sum_s = 0.0
    gather = Exchange(groups=groups, sizes=within, is_to_owner=False)
    stages += [Stage(0.0, sums, gather), Stage(0.0, 0.0, None)]
    numel = sum(e.numel for e in entries)
    shards = tuple(_ITEM_BYTES * float(sum(e.numel for e in own)) for own in owned) * nodes
    return Reduction(name, tuple(stages), shards, 8.0 * sum(inner[0][1]) / numel)


def _between(
    inner: ReducerSpec, owned: Sequence[Sequence[Entry]], nodes: int, speeds: Speeds
) -> tuple[list[tuple[float, _Sizes, bool]], float]:
    """Return work for each byte of the shard, sizes and direction by phase; and the last work."""
    match inner:
        case AllReduce():
            width = FLOAT_BYTES[inner.format]
            numels = [sum(e.numel for e in own) for own in owned]
            sizes = _by_rank([[width * n for n in shard_numels(m, 1, nodes)] for m in numels])
            encode, decode = speeds.of(codec_name(Float(inner.format)))
            is_cast = inner.format != "float32"
            out, back = encode.s_per_byte * is_cast, decode.s_per_byte * is_cast
            added = back or speeds.sum_s_per_byte
            return [(out, sizes, True), (added + out / nodes, sizes, False)], back
        case TwoPhase():
            pairs = [inner.shard_bytes(own, nodes) for own in owned]
            first, second = (_by_rank([pair[i] for pair in pairs]) for i in (0, 1))
            encode, decode = speeds.of(codec_name(inner.codec))
            again, last = speeds.of(codec_name(inner.mean_codec))
            middle = decode.s_per_byte + again.s_per_byte / nodes
            return [
                (encode.s_per_byte, first, True),
                (middle, second, False),
            ], last.s_per_byte
        case Broadcast():
            payloads = [inner.codec.num_bytes([e.numel for e in own]) for own in owned]
            sizes = _by_rank([[size] * nodes for size in payloads])
            encode, decode = speeds.of(codec_name(inner.codec))
            return [(encode.s_per_byte, sizes, False)], nodes * decode.s_per_byte
        case _:
            raise SpecError("Hierarchical.inner", inner.id, "one that can be simulated")


def _by_rank(by_place: Sequence[Sequence[int]]) -> _Sizes:
    """Order sizes, given by place in a node and by node, by rank."""
    return tuple(float(size) for node in zip(*by_place, strict=True) for size in node)
