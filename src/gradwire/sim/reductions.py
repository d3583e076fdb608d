"""Reductions: turns a plan's buckets into work and messages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gradwire.errors import SpecError
from gradwire.hardware import Hardware
from gradwire.layout import shard_numels
from gradwire.plan import DENSE, Assignment, Parameter
from gradwire.sim.base import Cluster, Collective
from gradwire.sim.levels import hierarchical_reduction
from gradwire.sim.schedules import (
    Exchange,
    Groups,
    Phase,
    Ring,
    multicast,
    tree_all_gather,
    tree_all_reduce,
)
from gradwire.sim.stages import Reduction, Speeds, Stage
from gradwire.spec import (
    FLOAT_BYTES,
    AllReduce,
    Broadcast,
    Entry,
    Float,
    Hierarchical,
    LowRank,
    ReducerSpec,
    SharedScale,
    TwoPhase,
    codec_name,
    spec_name,
)
from gradwire.workload import gradient_bytes

ONE_TRIP_BYTES = 1 << 14
"""Up to so many bytes of float32 the overlap engine sends to all at once."""

_ITEM_BYTES = 4
_SUM_BYTES = {"int8": 1, "int16": 2, "int32": 4, "float8_e4m3": 1}


class Reductions:
    """Turns buckets into reductions.

    Args:
        assignments: Reducer of each parameter.
        hardware: Speeds of the codecs.
        cluster: How many ranks, and which share a node.
        collective: How bytes travel.
    """

    def __init__(
        self,
        assignments: Mapping[str, Assignment],
        hardware: Hardware,
        cluster: Cluster,
        collective: Collective,
    ) -> None:
        if collective == "multicast" and not cluster.is_multicast:
            raise SpecError("collective", collective, "possible without Cluster.is_multicast")
        self._assignments = assignments
        self._speeds = Speeds(hardware)
        self.ranks = self._ranks = cluster.ranks
        self._world: Groups = (tuple(range(cluster.ranks)),)
        self._ranks_per_node = cluster.ranks_per_node
        self._collective = collective

    def of(self, name: str, parameters: Sequence[Parameter]) -> list[Reduction]:
        """Return the reductions of a bucket, one for each of its reducers."""
        if self._ranks == 1:
            return []
        by_reducer: dict[ReducerSpec, list[Entry]] = {}
        for p in parameters:
            by_reducer.setdefault(self._assignments[p.name].reducer, []).append(p.entry)
        several = len(by_reducer) > 1
        return [
            replace(
                self._reduction(f"{name}.{i}" if several else name, reducer, entries),
                num_bytes=_ITEM_BYTES * sum(e.numel for e in entries),
                is_plain=reducer == DENSE,
            )
            for i, (reducer, entries) in enumerate(by_reducer.items())
        ]

    def chunked(
        self, name: str, parameters: Sequence[Parameter], chunk_bytes: int
    ) -> list[Reduction]:
        """Return the reductions of a layer as the overlap engine cuts and sends them.

        Args:
            name: Of the layer.
            parameters: Its own.
            chunk_bytes: Most bytes of float32 in a chunk.
        """
        chunks: list[Reduction] = []
        for whole in self.of(name, parameters):
            if whole.is_plain and whole.num_bytes <= ONE_TRIP_BYTES:
                chunks.append(self._in_one_trip(whole))
            else:
                chunks += whole.chunks(math.ceil(whole.num_bytes / chunk_bytes))
        return chunks

    def _in_one_trip(self, whole: Reduction) -> Reduction:
        """Everyone sends all to all others, and adds up by itself."""
        phase = self._gather((whole.num_bytes,) * self._ranks)
        return replace(whole, stages=(Stage(0.0, 0.0, phase), Stage(0.0, 0.0, None)))

    def gathered(self, name: str, parameters: Sequence[Parameter]) -> list[Reduction]:
        """Return the all-gather of sharded parameters, in their own precision."""
        if self._ranks == 1 or not parameters:
            return []
        shard_bytes = float(-(-gradient_bytes(parameters) // self._ranks))
        phase = self._gather((shard_bytes,) * self._ranks)
        return [Reduction(name, (Stage(0.0, 0.0, phase), Stage(0.0, 0.0, None)))]

    def scattered(self, name: str, parameters: Sequence[Parameter]) -> list[Reduction]:
        """Return reductions that end with the mean of each rank's own shard.

        Raises:
            SpecError: A reducer, or the way its bytes travel, does not work by
                shards of all ranks.
        """
        return [self._scattered(r) for r in self.of(f"{name} gradient", parameters)]

    def _scattered(self, whole: Reduction) -> Reduction:
        first = whole.stages[0].phase
        if isinstance(first, Ring) and first.laps > 1:
            first = replace(first, laps=1)
        elif not (isinstance(first, Exchange) and first.is_to_owner and len(first.groups) == 1):
            raise SpecError("reducer", whole.name, "one that works by shards, as fsdp needs it")
        decode = whole.stages[1]._replace(phase=None, again_s=0.0)
        return replace(whole, stages=(whole.stages[0]._replace(phase=first), decode))

    def _reduction(self, name: str, reducer: ReducerSpec, entries: list[Entry]) -> Reduction:
        if self._collective == "hierarchical" and isinstance(reducer, (AllReduce, TwoPhase)):
            reducer = Hierarchical(reducer, self._ranks_per_node)
        match reducer:
            case Hierarchical():
                return hierarchical_reduction(name, reducer, entries, self._ranks, self._speeds)
            case AllReduce():
                return self._all_reduce(name, reducer, entries)
            case TwoPhase():
                return self._two_phase(name, reducer, entries)
            case LowRank():
                return self._low_rank(name, reducer, entries)
            case SharedScale():
                return self._shared_scale(name, reducer, entries)
            case Broadcast():
                return self._broadcast(name, reducer, entries)
            case _:
                raise SpecError("reducer", reducer.id, "one that can be simulated")

    def _summed(self, numel: int, item_bytes: int) -> tuple[list[Phase], tuple[float, ...]]:
        """Return the phases of a sum of plain values, and each rank's shard of them."""
        shards = tuple(float(item_bytes * n) for n in shard_numels(numel, 1, self._ranks))
        if self._collective == "ring":
            return [Ring(groups=self._world, sizes=shards, laps=2)], shards
        if self._collective == "tree":
            return [tree_all_reduce(self._world[0], float(item_bytes * numel))], shards
        return [Exchange(groups=self._world, sizes=shards), self._gather(shards)], shards

    def _gather(self, sizes: tuple[float, ...]) -> Phase:
        """Return how everyone's own bytes reach all others."""
        match self._collective:
            case "ring" | "chain":
                return Ring(groups=self._world, sizes=sizes)
            case "tree":
                return tree_all_gather(sizes)
            case "multicast":
                return multicast(sizes)
            case _:
                return Exchange(groups=self._world, sizes=sizes, is_to_owner=False)

    def _all_reduce(self, name: str, reducer: AllReduce, entries: list[Entry]) -> Reduction:
        numel = sum(e.numel for e in entries)
        item_bytes = FLOAT_BYTES[reducer.format]
        phases, shards = self._summed(numel, item_bytes)
        cast = self._speeds.of(codec_name(Float(reducer.format)))
        is_cast = reducer.format != "float32"
        first_s, last_s = (line.time_s(_ITEM_BYTES * numel) * is_cast for line in cast)
        sum_s = self._ranks * self._speeds.sum_s_per_byte
        first = Stage(first_s, 0.0, phases[0])
        # A back end's own all-reduce is one phase, and sums while it sends.
        middle = [Stage(0.0, sum_s, phase) for phase in phases[1:]]
        stages = (first, *middle, Stage(last_s, 0.0, None))
        scale = _ITEM_BYTES / item_bytes
        owned = tuple(scale * s for s in shards)
        is_inline = self._collective == "ring"
        return Reduction(name, stages, owned, 8.0 * item_bytes, is_inline)

    def _two_phase(self, name: str, reducer: TwoPhase, entries: list[Entry]) -> Reduction:
        sizes, means = (
            tuple(map(float, sizes)) for sizes in reducer.shard_bytes(entries, self._ranks)
        )
        encode, decode = self._speeds.of(codec_name(reducer.codec))
        again, last = self._speeds.of(codec_name(reducer.mean_codec))
        total = _ITEM_BYTES * sum(e.numel for e in entries)
        calls = sum(1 for size in sizes if size)
        stages = (
            Stage(encode.fixed_s * calls + total * encode.s_per_byte, 0.0, self._spread(sizes)),
            Stage(
                decode.fixed_s + again.fixed_s,
                self._ranks * decode.s_per_byte,
                self._gather(means),
                again.s_per_byte,
            ),
            Stage(last.fixed_s * calls + total * last.s_per_byte, 0.0, None),
        )
        encoded = sum(sizes)
        shards = tuple(total * size / encoded for size in sizes)
        return Reduction(name, stages, shards, 8 * _ITEM_BYTES * encoded / total)

    def _spread(self, sizes: tuple[float, ...]) -> Exchange:
        return Exchange(groups=self._world, sizes=sizes)

    def _shared_scale(self, name: str, reducer: SharedScale, entries: list[Entry]) -> Reduction:
        """Agree on scales by a small sum, then add up levels: small ones out, wider sums back."""
        numel = sum(e.numel for e in entries)
        width = _SUM_BYTES[reducer.accumulator_for(self._ranks)]
        shards = tuple(map(float, reducer.shard_sizes(entries, self._ranks)))
        encode, decode = self._speeds.of(spec_name(reducer))
        scales, _ = self._summed(reducer.num_blocks(entries), _ITEM_BYTES)
        if reducer.is_float:  # the back end adds up by itself
            shards = tuple(map(float, shard_numels(numel, 1, self._ranks)))
            levels: list[Phase] = [Ring(groups=self._world, sizes=shards, laps=2)]
        else:
            levels = [self._spread(shards), self._gather(tuple(width * s for s in shards))]
        peaks_s = self._speeds.sum_s_per_byte * _ITEM_BYTES * numel
        sum_s = self._ranks * self._speeds.sum_s_per_byte
        stages = (
            Stage(peaks_s, 0.0, scales[0]),
            *(Stage(0.0, 0.0, phase) for phase in scales[1:]),
            Stage(encode.time_s(_ITEM_BYTES * numel), 0.0, levels[0]),
            *(Stage(0.0, sum_s, phase) for phase in levels[1:]),
            Stage(decode.time_s(_ITEM_BYTES * numel), 0.0, None),
        )
        sent = sum(shards) * (1 + width) / 2
        owned = tuple(_ITEM_BYTES * s for s in shards)
        return Reduction(name, stages, owned, 8 * sent / numel)

    def _broadcast(self, name: str, reducer: Broadcast, entries: list[Entry]) -> Reduction:
        sent = [reducer.transfers(entries, self._ranks, r)[0] for r in self._alike(reducer)]
        sizes = [t.sent_bytes / (self._ranks - 1) for t in sent]
        sizes *= self._ranks // len(sizes)
        encode, decode = self._speeds.of(codec_name(reducer.codec))
        total = _ITEM_BYTES * sum(e.numel for e in entries)
        stages = (
            Stage(encode.time_s(total), 0.0, self._gather(tuple(sizes))),
            Stage(decode.time_s(total * self._ranks), 0.0, None),
        )
        return Reduction(name, stages, (), 8 * _ITEM_BYTES * max(sizes) / total)

    def _alike(self, reducer: Broadcast) -> range:
        """Return the ranks whose messages differ: one where all have the same codec."""
        return range(self._ranks if getattr(reducer, "senders", None) else 1)

    def _low_rank(self, name: str, reducer: LowRank, entries: list[Entry]) -> Reduction:
        shapes = [LowRank.matrix_shape(e.shape) for e in entries]
        counts = [sum(min(reducer.matrix_rank, *s) * s[i] for s in shapes) for i in (0, 1)]
        total = _ITEM_BYTES * sum(e.numel for e in entries)
        third_s = self._speeds.of(f"low_rank:{reducer.matrix_rank}")[0].time_s(total) / 3
        stages: list[Stage] = []
        for count in counts:
            work_s = third_s
            for phase in self._summed(count, _ITEM_BYTES)[0]:
                stages.append(Stage(work_s, 0.0, phase))
                work_s = 0.0
        stages.append(Stage(third_s, 0.0, None))
        bits = 8 * _ITEM_BYTES * _ITEM_BYTES * sum(counts) / total
        return Reduction(name, tuple(stages), (), bits, self._collective == "ring")
