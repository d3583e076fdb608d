"""Simulates a grid of plans, ranks and rates, and keeps every point."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from gradwire.errors import SpecError
from gradwire.hardware import Hardware, LinkSpeed
from gradwire.plan import Plan
from gradwire.sim.base import (
    COLLECTIVES,
    ENGINES,
    TOPOLOGIES,
    Cluster,
    Collective,
    Engine,
    Topology,
)
from gradwire.sim.run import EventSimulator, simulate
from gradwire.spec import check_number, check_whole
from gradwire.spec.reducers import Broadcast
from gradwire.workload import Workload

BASELINE = "none"
"""The plan that every other one is compared with: float32, all-reduced."""
RANKS = (2, 4, 8, 16, 64, 256, 1024)
RATES_BYTES_PER_S = tuple(gbit * 1.25e8 for gbit in (0.1, 0.3, 1, 3, 10, 25, 100, 400))
PLANS = (BASELINE, "bf16", "int8", "int4", "int2", "low_rank:4", "topk:0.01")

_FORMAT = 1
_MOST_RANKS = 1 << 20


@dataclass(frozen=True, slots=True)
class Grid:
    """What is varied, and what is the same at every point.

    Attributes:
        ranks: Numbers of ranks; where nodes hold several, multiples of that.
        rates_bytes_per_s: Of each network interface, each way.
        plans: Short names; the baseline is always among them.
        engines: How gradients are awaited (see `Simulator.run`).
        latency_s: Of a message between nodes.
        collective: How bytes travel.

    Example:
        >>> Grid(ranks=(2,), rates_bytes_per_s=(1e9,), plans=("int4",)).plans
        ('none', 'int4')
    """

    ranks: tuple[int, ...] = RANKS
    rates_bytes_per_s: tuple[float, ...] = RATES_BYTES_PER_S
    plans: tuple[str, ...] = PLANS
    engines: tuple[Engine, ...] = ("ddp",)
    latency_s: float = 1e-5
    ranks_per_node: int = 1
    topology: Topology = "star"
    collective: Collective = "direct"

    def __post_init__(self) -> None:
        object.__setattr__(self, "plans", tuple(dict.fromkeys((BASELINE, *self.plans))))
        for name in ("ranks", "rates_bytes_per_s", "engines"):
            if not getattr(self, name):
                raise SpecError(f"Grid.{name}", (), "at least one value")
        check_whole("Grid.ranks_per_node", self.ranks_per_node, 1)
        for ranks in self.ranks:
            check_whole("Grid.ranks", ranks, 2, _MOST_RANKS)
            if ranks % self.ranks_per_node:
                raise SpecError("Grid.ranks", ranks, f"a multiple of {self.ranks_per_node}")
        for rate in self.rates_bytes_per_s:
            check_number("Grid.rates_bytes_per_s", rate, "a number above 0")
            if not rate > 0:
                raise SpecError("Grid.rates_bytes_per_s", rate, "above 0")
        for plan in self.plans:
            Plan.of(plan)
        self._check_names()

    def _check_names(self) -> None:
        known = (
            ("topology", (self.topology,), TOPOLOGIES),
            ("collective", (self.collective,), COLLECTIVES),
            ("engines", self.engines, ENGINES),
        )
        for name, values, allowed in known:
            for value in values:
                if value not in allowed:
                    raise SpecError(f"Grid.{name}", value, "one of: " + ", ".join(allowed))


class PointKey(NamedTuple):
    """Names a point of a sweep."""

    workload: str
    engine: Engine
    ranks: int
    rate_bytes_per_s: float
    plan: str


@dataclass(frozen=True, slots=True)
class Point:
    """One simulated step.

    Attributes:
        exposed_s: Computation idle for gradients.
        sent_bytes: By the busiest rank.
        row: Overlap over wait; None where nothing waits.
    """

    workload: str
    engine: Engine
    ranks: int
    rate_bytes_per_s: float
    plan: str
    step_s: float
    exposed_s: float
    sent_bytes: int
    row: float | None

    @property
    def key(self) -> PointKey:
        """Names the point."""
        return PointKey(self.workload, self.engine, self.ranks, self.rate_bytes_per_s, self.plan)


@dataclass(frozen=True, slots=True)
class SweptWorkload:
    """What a result keeps of a workload.

    Attributes:
        compute_s: A step without communication.
        digest: Hash of the workload, so that another one is not mixed in.
    """

    name: str
    digest: str
    batch_size: int
    num_parameters: int
    compute_s: float

    @classmethod
    def of(cls, workload: Workload) -> SweptWorkload:
        """Describe a workload."""
        digest = hashlib.blake2b(workload.to_json().encode(), digest_size=16).hexdigest()
        return cls(workload.name, digest, workload.batch_size, workload.numel, workload.compute_s)


@dataclass(frozen=True, slots=True)
class SweepResult:
    """Everything a sweep simulated.

    Attributes:
        hardware: Fingerprint of the machine.
        hardware_digest: Hash of its speeds.
        euro_per_rank_hour: Price of a rank; None where none was given.
        samples: What training takes until it has converged; None if unknown.

    Example:
        >>> grid = Grid((2,), (1e9,), ("none",))
        >>> work = SweptWorkload("tiny", "", 8, 10, 0.1)
        >>> point = Point("tiny", "ddp", 2, 1e9, "none", 0.2, 0.1, 40, 1.0)
        >>> result = SweepResult(grid, (work,), "toy", "", (point,))
        >>> SweepResult.from_json(result.to_json()) == result
        True
    """

    grid: Grid
    workloads: tuple[SweptWorkload, ...]
    hardware: str
    hardware_digest: str
    points: tuple[Point, ...] = ()
    euro_per_rank_hour: float | None = None
    samples: float | None = None

    def __post_init__(self) -> None:
        for name in ("euro_per_rank_hour", "samples"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise SpecError(f"SweepResult.{name}", value, "above 0 and finite")

    @property
    def size(self) -> int:
        """Number of points of the whole grid."""
        grid = self.grid
        counts = map(len, (grid.engines, grid.ranks, grid.rates_bytes_per_s, grid.plans))
        total = len(self.workloads)
        for count in counts:
            total *= count
        return total

    def by_key(self) -> Mapping[PointKey, Point]:
        """Return the points by what names them."""
        return {point.key: point for point in self.points}

    def is_same_sweep(self, other: SweepResult) -> bool:
        """Tell whether points of both may stand in one file."""
        return all(
            getattr(self, name) == getattr(other, name)
            for name in ("grid", "workloads", "hardware", "hardware_digest")
        )

    def to_json(self) -> str:
        """Write everything as one JSON object."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> SweepResult:
        """Read a result from `to_json`'s text.

        Raises:
            SpecError: Not JSON, another format number, or not complete.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SpecError("sweep result", text[:40], f"JSON: {error}") from None
        if not isinstance(data, dict) or data.get("format") != _FORMAT:
            found = data.get("format") if isinstance(data, dict) else data
            raise SpecError("sweep result format", found, f"{_FORMAT}, the one this version reads")
        try:
            return cls(**_read(data))
        except (KeyError, TypeError) as error:
            raise SpecError("sweep result", text[:40], f"complete: {error}") from None


def _read(data: Mapping[str, Any]) -> dict[str, Any]:
    grid: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in data["grid"].items()
    }
    read = {
        "grid": Grid(**grid),
        "workloads": tuple(SweptWorkload(**w) for w in data["workloads"]),
        "points": tuple(Point(**p) for p in data["points"]),
    }
    return {k: v for k, v in {**data, **read}.items() if k != "format"}


def plan_sweep(
    grid: Grid,
    workloads: Sequence[Workload],
    hardware: Hardware,
    *,
    euro_per_rank_hour: float | None = None,
    samples: float | None = None,
) -> SweepResult:
    """Describe a sweep that has no points yet.

    Raises:
        SpecError: Two workloads have one name, or there is none.
    """
    names = [workload.name for workload in workloads]
    if not names or len(set(names)) < len(names):
        raise SpecError("workloads", names, "at least one, of different names")
    digest = hashlib.blake2b(hardware.to_json().encode(), digest_size=16).hexdigest()
    swept = tuple(SweptWorkload.of(workload) for workload in workloads)
    return SweepResult(grid, swept, hardware.fingerprint, digest, (), euro_per_rank_hour, samples)


def missing(result: SweepResult) -> Iterator[PointKey]:
    """Yield the points of the grid that a result does not have yet.

    Example:
        >>> work = SweptWorkload("tiny", "", 8, 10, 0.1)
        >>> len(list(missing(SweepResult(Grid((2, 4), (1e9,), ()), (work,), "", ""))))
        2
    """
    done, grid = {point.key for point in result.points}, result.grid
    for workload in result.workloads:
        for engine in grid.engines:
            for ranks in grid.ranks:
                for rate in grid.rates_bytes_per_s:
                    for plan in grid.plans:
                        key = PointKey(workload.name, engine, ranks, rate, plan)
                        if key not in done:
                            yield key


def simulate_point(key: PointKey, grid: Grid, workload: Workload, hardware: Hardware) -> Point:
    """Simulate one step of a sweep, in which all ranks are alike."""
    link = LinkSpeed(grid.latency_s, key.rate_bytes_per_s)
    step = simulate(
        _forced(Plan.of(key.plan)),
        workload,
        replace(hardware, between=link),
        Cluster(key.ranks, grid.ranks_per_node, grid.topology),
        engine=key.engine,
        collective=grid.collective,
        simulator=EventSimulator("alike"),
    )
    row = step.row()
    finite = None if row is None or row == float("inf") else row
    return Point(*key, step.step_s, step.exposed_s, step.sent_bytes, finite)


def _forced(plan: Plan) -> Plan:
    """Have broadcasts simulated where they lose, too: a sweep is there to show it."""
    rules = tuple(
        replace(rule, reducer=replace(rule.reducer, force=True))
        if isinstance(rule.reducer, Broadcast)
        else rule
        for rule in plan.rules
    )
    return replace(plan, rules=rules)
