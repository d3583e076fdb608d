"""Timeline: what each rank did when, in one training step, simulated or measured."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Kind = Literal["forward", "backward", "optimiser", "encode", "decode", "transfer", "wait"]

_COMPUTE: frozenset[Kind] = frozenset({"forward", "backward", "optimiser"})
_LANES: dict[Kind, str] = {"encode": "codec", "decode": "codec", "transfer": "link"}
_US = 1e6


@dataclass(frozen=True, slots=True)
class Span:
    """One thing a rank did, from `start_s` to `end_s`.

    Attributes:
        kind: `"wait"` is computation idle for a gradient; `"transfer"` begins
            when the bytes could have left and ends when they have arrived.
        layer: What it was done for: the name of a layer, bucket or parameter.
        num_bytes: Bytes sent, of a transfer.
        bits: Bits per value on the wire, of a transfer.
    """

    rank: int
    kind: Kind
    layer: str
    start_s: float
    end_s: float
    num_bytes: int = 0
    bits: float | None = None

    @property
    def lane(self) -> str:
        """Where it is drawn: `"compute"`, `"codec"` or `"link"`."""
        return _LANES.get(self.kind, "compute")


@dataclass(frozen=True, slots=True)
class Timeline:
    """One training step; times count from its start.

    Attributes:
        step_s: From the start of this step to the start of the next.

    Example:
        >>> spans = (
        ...     Span(0, "backward", "fc", 0.0, 2.0),
        ...     Span(0, "transfer", "fc", 1.0, 3.0, 100),
        ...     Span(0, "wait", "fc", 2.0, 3.0),
        ... )
        >>> line = Timeline(spans, step_s=3.0)
        >>> line.overlap_s(), line.wait_s(), line.row()
        (1.0, 1.0, 1.0)
    """

    spans: tuple[Span, ...]
    step_s: float

    def of(self, rank: int) -> tuple[Span, ...]:
        """Return the spans of one rank."""
        return tuple(s for s in self.spans if s.rank == rank)

    def overlap_s(self, rank: int = 0) -> float:
        """Return how long transfers of a rank ran under its computation."""
        spans = self.of(rank)
        transfers = union((s.start_s, s.end_s) for s in spans if s.kind == "transfer")
        compute = union((s.start_s, s.end_s) for s in spans if s.kind in _COMPUTE)
        return intersection_s(transfers, compute)

    def wait_s(self, rank: int = 0) -> float:
        """Return how long computation of a rank was idle for gradients."""
        waits = union((s.start_s, s.end_s) for s in self.of(rank) if s.kind == "wait")
        return sum(end - start for start, end in waits)

    def row(self, rank: int = 0) -> float | None:
        """Return overlap time over wait time (ROW); None where nothing was sent.

        Infinite where everything was hidden. Source: the measure of
        approximate gradient synchronisation with adaptive quantised gradient
        broadcast (Luo et al., FGCS 174, 2026), as reconstructed in
        docs/explanation/aqgb.md.
        """
        return ratio(self.overlap_s(rank), self.wait_s(rank))

    def sent_bytes(self, rank: int = 0) -> int:
        """Return what a rank sent."""
        return sum(s.num_bytes for s in self.of(rank))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Timeline:
        """Read a timeline from its fields, as `dataclasses.asdict` writes them."""
        return cls(tuple(Span(**span) for span in data["spans"]), data["step_s"])

    def to_json(self) -> str:
        """Write everything as one JSON object."""
        return json.dumps({"format": 1, **asdict(self)}, sort_keys=True)

    def to_chrome_trace(self) -> str:
        """Write the timeline for `chrome://tracing` and Perfetto.

        A process is a rank; its threads are compute, codec and link.

        Example:
            >>> text = Timeline((Span(0, "forward", "fc", 0.0, 1.0),), 1.0).to_chrome_trace()
            >>> json.loads(text)["traceEvents"][0]["name"]
            'forward fc'
        """
        events = [
            {
                "name": f"{s.kind} {s.layer}" + (f" {s.bits:g} bits" if s.bits else ""),
                "cat": s.kind,
                "ph": "X",
                "pid": s.rank,
                "tid": s.lane,
                "ts": s.start_s * _US,
                "dur": (s.end_s - s.start_s) * _US,
                "args": {"bytes": s.num_bytes, "bits": s.bits},
            }
            for s in sorted(self.spans, key=lambda s: (s.rank, s.start_s))
        ]
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def ratio(overlap_s: float, wait_s: float) -> float | None:
    """Return overlap over wait: infinite without wait, None without either.

    Example:
        >>> ratio(3.0, 1.5), ratio(1.0, 0.0), ratio(0.0, 0.0)
        (2.0, inf, None)
    """
    if wait_s > 0:
        return overlap_s / wait_s
    return math.inf if overlap_s > 0 else None


def union(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Join intervals that overlap or touch, in order.

    Example:
        >>> union([(4.0, 5.0), (0.0, 2.0), (1.0, 3.0)])
        [(0.0, 3.0), (4.0, 5.0)]
    """
    joined: list[tuple[float, float]] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def intersection_s(
    first: Sequence[tuple[float, float]], second: Sequence[tuple[float, float]]
) -> float:
    """Return how long two unions of intervals have in common.

    Example:
        >>> intersection_s([(0.0, 3.0), (4.0, 5.0)], [(2.0, 4.5)])
        1.5
    """
    total, i, j = 0.0, 0, 0
    while i < len(first) and j < len(second):
        start = max(first[i][0], second[j][0])
        end = min(first[i][1], second[j][1])
        total += max(0.0, end - start)
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return total
