"""Reductions: the work and the messages between a gradient and its mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gradwire.errors import SpecError
from gradwire.hardware import Hardware, Line
from gradwire.layout import shard, shard_numels
from gradwire.plan import Assignment, Parameter
from gradwire.sim.base import Cluster, Collective
from gradwire.sim.schedules import (
    Exchange,
    Groups,
    Phase,
    Ring,
    multicast,
    tree_all_gather,
    tree_all_reduce,
)
from gradwire.spec import (
    FLOAT_BYTES,
    AllReduce,
    CodecSpec,
    Entry,
    Float,
    LowRank,
    ReducerSpec,
    TwoPhase,
    codec_name,
)
from gradwire.workload import gradient_bytes

_ITEM_BYTES = 4
_ENCODE_PASSES = 3.0
"""Bytes moved for each byte of float32: gradient and residual read, residual written."""
_DECODE_PASSES = 1.25
"""The same in decoding: the payload is read, values are written."""


class Stage(NamedTuple):
    """Work of the codec, and what is sent when it is done.

    Attributes:
        work_s: Work that is the same on every rank.
        shard_s: Work for each byte of the shard that a rank owns.
        phase: None at the end.
    """

    work_s: float
    shard_s: float
    phase: Phase | None


@dataclass(frozen=True, slots=True)
class Reduction:
    """The parameters of a bucket that share a reducer, on their way.

    Attributes:
        name: Unique in the step.
        stages: In order; the last one sends nothing.
        shard_bytes: By rank, float32 bytes of its shard; empty where all are alike.
        bits: Bits on the wire for each value.
        is_inline: Whether the first work is done by the thread that runs
            backward, as PyTorch's hooks do it.
    """

    name: str
    stages: tuple[Stage, ...]
    shard_bytes: tuple[float, ...] = ()
    bits: float | None = None
    is_inline: bool = False

    def work_s(self, index: int, rank: int | None) -> float:
        """Return the codec's time in a stage; of the busiest rank for None."""
        stage = self.stages[index]
        if not stage.shard_s or not self.shard_bytes:
            return stage.work_s
        own = max(self.shard_bytes) if rank is None else self.shard_bytes[rank]
        return stage.work_s + stage.shard_s * own

    def renamed(self, purpose: str) -> Reduction:
        """Return the same under a name for each time that it happens."""
        return replace(self, name=f"{self.name} {purpose}")

    def chunks(self, count: int) -> list[Reduction]:
        """Cut it into chunks of the same size, which travel one by one."""
        part = 1 / count
        stages = tuple(
            Stage(s.work_s * part, s.shard_s * part, s.phase and s.phase.scaled(part))
            for s in self.stages
        )
        return [replace(self, name=f"{self.name}/{i}", stages=stages) for i in range(count)]


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
        size = cluster.ranks_per_node
        self._nodes: Groups = tuple(
            tuple(range(first, first + size)) for first in range(0, cluster.ranks, size)
        )
        self._rails: Groups = tuple(
            tuple(range(first, cluster.ranks, size)) for first in range(size)
        )
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
            self._reduction(f"{name}.{i}" if several else name, reducer, entries)
            for i, (reducer, entries) in enumerate(by_reducer.items())
        ]

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
            SpecError: A reducer does not work by shards.
        """
        return [self._scattered(r) for r in self.of(f"{name} gradient", parameters)]

    def _scattered(self, whole: Reduction) -> Reduction:
        first = whole.stages[0].phase
        if isinstance(first, Ring) and first.laps > 1:
            first = replace(first, laps=1)
        elif not (isinstance(first, Exchange) and first.is_to_owner):
            raise SpecError("reducer", whole.name, "one that works by shards, as fsdp needs it")
        decode = whole.stages[1]._replace(phase=None)
        return replace(whole, stages=(whole.stages[0]._replace(phase=first), decode))

    def _reduction(self, name: str, reducer: ReducerSpec, entries: list[Entry]) -> Reduction:
        if self._collective == "hierarchical" and isinstance(reducer, (AllReduce, TwoPhase)):
            return self._hierarchical(name, reducer, entries)
        match reducer:
            case AllReduce():
                return self._all_reduce(name, reducer, entries)
            case TwoPhase():
                return self._two_phase(name, reducer, entries)
            case LowRank():
                return self._low_rank(name, reducer, entries)
            case _:
                return self._broadcast(name, reducer, entries)

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
                self._ranks * decode.s_per_byte + again.s_per_byte,
                self._gather(means),
            ),
            Stage(last.fixed_s * calls + total * last.s_per_byte, 0.0, None),
        )
        encoded = sum(sizes)
        shards = tuple(total * size / encoded for size in sizes)
        return Reduction(name, stages, shards, 8 * _ITEM_BYTES * encoded / total)

    def _spread(self, sizes: tuple[float, ...]) -> Exchange:
        return Exchange(groups=self._world, sizes=sizes)

    def _broadcast(self, name: str, reducer: ReducerSpec, entries: list[Entry]) -> Reduction:
        sent = [reducer.transfers(entries, self._ranks, r)[0] for r in self._alike(reducer)]
        sizes = [t.sent_bytes / (self._ranks - 1) for t in sent]
        sizes *= self._ranks // len(sizes)
        codec = getattr(reducer, "codec", None)
        encode, decode = self._speeds.of(codec_name(codec) if codec else reducer.id)
        total = _ITEM_BYTES * sum(e.numel for e in entries)
        stages = (
            Stage(encode.time_s(total), 0.0, self._gather(tuple(sizes))),
            Stage(decode.time_s(total * self._ranks), 0.0, None),
        )
        return Reduction(name, stages, (), 8 * _ITEM_BYTES * max(sizes) / total)

    def _alike(self, reducer: ReducerSpec) -> range:
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

    def _hierarchical(
        self, name: str, reducer: AllReduce | TwoPhase, entries: list[Entry]
    ) -> Reduction:
        """Sum in float32 within each node, combine between nodes, gather within."""
        local, nodes = len(self._nodes[0]), len(self._nodes)
        numel = sum(e.numel for e in entries)
        codec = reducer.codec if isinstance(reducer, TwoPhase) else Float(reducer.format)
        parts = [shard(numel, 1, r % local, local).numel for r in range(self._ranks)]
        pieces = [
            shard(part, codec.block_size, r // local, nodes).numel for r, part in enumerate(parts)
        ]
        within = tuple(float(_ITEM_BYTES * part) for part in parts)
        between = _sizes(codec, [[n] if n else [] for n in pieces])
        encode, decode = self._speeds.of(codec_name(codec))
        is_dense = codec == Float("float32")
        sum_s = local * self._speeds.sum_s_per_byte
        coded = (0.0 if is_dense else encode.s_per_byte, 0.0 if is_dense else decode.s_per_byte)
        stages = (
            Stage(0.0, 0.0, Exchange(groups=self._nodes, sizes=within)),
            Stage(0.0, sum_s + coded[0], Exchange(groups=self._rails, sizes=between)),
            Stage(
                0.0,
                coded[1] + coded[0] / nodes,
                Exchange(groups=self._rails, sizes=between, is_to_owner=False),
            ),
            Stage(0.0, coded[1], Exchange(groups=self._nodes, sizes=within, is_to_owner=False)),
            Stage(0.0, 0.0, None),
        )
        return Reduction(name, stages, within, 8.0 * sum(between) / numel)


class Speeds:
    """Times of encoding and decoding: as measured, or else as fast as memory allows.

    Args:
        hardware: Measured lines, and the speed of a plain copy.

    Example:
        >>> from gradwire.hardware import Device, LinkSpeed
        >>> speed = LinkSpeed(0.0, 1e9)
        >>> device = Device(copy_bytes_per_s=3e9)
        >>> Speeds(Hardware(device, {}, speed, speed)).of("int4")[0].time_s(1e9)
        1.0
    """

    def __init__(self, hardware: Hardware) -> None:
        self._kernels = hardware.kernels
        self._device = hardware.device

    def of(self, name: str) -> tuple[Line, Line]:
        """Return the lines of encoding and decoding over bytes of float32."""
        encode, decode = (
            self._kernels.get(f"{step} {name}", self._estimate(passes))
            for step, passes in (("encode", _ENCODE_PASSES), ("decode", _DECODE_PASSES))
        )
        return encode, decode

    def _estimate(self, passes: float) -> Line:
        return Line(self._device.launch_s, passes / self._device.copy_bytes_per_s)

    @property
    def sum_s_per_byte(self) -> float:
        """Time of adding a byte of float32 to a sum."""
        line = self._kernels.get("decode none")
        return line.s_per_byte if line else 2 / self._device.copy_bytes_per_s


def _sizes(codec: CodecSpec, numels: Sequence[Sequence[int]]) -> tuple[float, ...]:
    known: dict[tuple[int, ...], float] = {}
    out = []
    for stretches in numels:
        key = tuple(stretches)
        if key not in known:
            known[key] = float(codec.num_bytes(key)) if key else 0.0
        out.append(known[key])
    return tuple(out)
