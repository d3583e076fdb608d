"""Reduction: a bucket's work and messages in turn, and how fast the work is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from gradwire.hardware import Hardware, Line
from gradwire.sim.schedules import Phase

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
        again_s: Of the work for each byte of the shard, that of encoding its mean.
    """

    work_s: float
    shard_s: float
    phase: Phase | None
    again_s: float = 0.0


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
        num_bytes: Of its gradients as float32; 0 where nothing is cut.
        is_plain: Whether float32 travels.
    """

    name: str
    stages: tuple[Stage, ...]
    shard_bytes: tuple[float, ...] = ()
    bits: float | None = None
    is_inline: bool = False
    num_bytes: int = 0
    is_plain: bool = False

    def work_s(self, index: int, rank: int | None) -> float:
        """Return the codec's time in a stage; of the busiest rank for None."""
        stage = self.stages[index]
        per_byte_s = stage.shard_s + stage.again_s
        if not per_byte_s or not self.shard_bytes:
            return stage.work_s
        own = max(self.shard_bytes) if rank is None else self.shard_bytes[rank]
        return stage.work_s + per_byte_s * own

    def renamed(self, purpose: str) -> Reduction:
        """Return the same under a name for each time that it happens."""
        return replace(self, name=f"{self.name} {purpose}")

    def chunks(self, count: int) -> list[Reduction]:
        """Cut it into chunks of the same size, which travel one by one."""
        part = 1 / count
        stages = tuple(
            Stage(
                s.work_s * part,
                s.shard_s * part,
                s.phase and s.phase.scaled(part),
                s.again_s * part,
            )
            for s in self.stages
        )
        return [replace(self, name=f"{self.name}/{i}", stages=stages) for i in range(count)]


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
