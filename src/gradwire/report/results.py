"""What a bench measured, as plain data: one file for all tools. No torch here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import median, quantiles
from typing import Any, Literal

from gradwire.errors import SpecError
from gradwire.report.model import Environment, Family, Validation, read_format
from gradwire.report.types import check_types
from gradwire.timeline import Timeline

_FORMAT = 1
_LEAST_FOR_QUARTILES = 2

Network = Literal["lab", "shaped", "none"]


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One step of the slowest rank, in seconds.

    Attributes:
        exposed_s: Computation waiting for gradients, wherever in the step.
        overlap_s: Communication under computation; None where not measured.
        processor_s: Processor time of all threads of the rank; None where not measured.
    """

    forward_s: float
    backward_s: float
    exposed_s: float
    optimiser_s: float
    overlap_s: float | None = None
    processor_s: float | None = None

    @property
    def total_s(self) -> float:
        """Duration of the step."""
        return self.forward_s + self.backward_s + self.exposed_s + self.optimiser_s


@dataclass(frozen=True, slots=True)
class Round:
    """Some steps of one mode in a row; rounds of all modes take turns.

    Attributes:
        sent_bytes: Per step, of the busiest rank, counted at its interface in
            the lab and by the mailbox elsewhere.
        foreign_cores: Cores that other programs kept busy meanwhile.
    """

    steps: tuple[StepTimes, ...]
    sent_bytes: int
    foreign_cores: float = 0.0

    def __post_init__(self) -> None:
        if not self.steps or not self.step_s > 0:
            raise SpecError("Round.steps", self.steps, "at least one step of more than 0 s")

    @property
    def step_s(self) -> float:
        """Median duration of a step."""
        return median(s.total_s for s in self.steps)


@dataclass(frozen=True, slots=True)
class ModeResult:
    """One way to exchange gradients in one cell.

    Attributes:
        mode: Unique in the cell: `"none@5"`, `"powersgd1@1000"`, `"int4"` ...
        plan: The plan as JSON, where gradwire ran.
        alone: Steps of one rank whose exchange takes no time: all of a step
            but the network.
        why: What speaks for that plan, a sentence each.
        reason: Why it did not run, where it did not.
        predicted_s: What the simulator said a step would take.
        validations: Losses on held-out data, where a model was trained.
        elapsed_s: Training time at each of the validations.
        digests: Hash of the parameters at the end, by rank.
        bits: Mean bits per value by layer, where they vary.
        timeline: One typical step, where it was recorded.
    """

    mode: str
    label: str
    family: Family
    rounds: tuple[Round, ...] = ()
    plan: str | None = None
    reason: str | None = None
    predicted_s: float | None = None
    validations: tuple[Validation, ...] = ()
    elapsed_s: tuple[float, ...] = ()
    digests: tuple[str, ...] = ()
    bits: Mapping[str, float] | None = None
    why: tuple[str, ...] = ()
    timeline: Timeline | None = None
    alone: tuple[StepTimes, ...] = ()

    @property
    def has_run(self) -> bool:
        """Whether there is anything to compare."""
        return bool(self.rounds)

    @property
    def is_replicated(self) -> bool:
        """Whether no two ranks are known to have ended with other parameters."""
        return len(set(self.digests)) <= 1

    @property
    def steps(self) -> tuple[StepTimes, ...]:
        """The steps of all rounds."""
        return tuple(s for r in self.rounds for s in r.steps)

    @property
    def step_s(self) -> float:
        """Median over rounds of the duration of a step."""
        return median(r.step_s for r in self.rounds)

    @property
    def spread_s(self) -> float:
        """Half the distance between the quartiles of all steps."""
        times = [s.total_s for s in self.steps]
        if len(times) < _LEAST_FOR_QUARTILES:
            return 0.0
        low, _, high = quantiles(times, n=4, method="inclusive")
        return (high - low) / 2


@dataclass(frozen=True, slots=True)
class Cell:
    """One model on one network; all its modes ran side by side.

    Attributes:
        rate_bytes_per_s: Of each rank's link, each way; None for no limit.
        latency_s: One way.
        network: Really limited (`"lab"`), made to last (`"shaped"`), or neither.
        settings: What was asked for, in the bench's words.
        inputs: What predictions were made from, as JSON: `"workload"` and
            `"hardware"`.
        latency_by: What holds the packets in the lab: netem, or the delay line.
    """

    model: str
    ranks: int
    rate_bytes_per_s: float | None
    latency_s: float
    network: Network
    modes: tuple[ModeResult, ...]
    num_parameters: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    latency_by: str = ""

    @property
    def name(self) -> str:
        """Names the cell in its file."""
        return f"{self.model}/{self.ranks}/{self.rate_bytes_per_s or 'unlimited'}/{self.latency_s}"

    def mode(self, name: str) -> ModeResult | None:
        """Return one mode's result, or None where it is not in the cell."""
        return next((m for m in self.modes if m.mode == name), None)


@dataclass(frozen=True, slots=True)
class BenchResult:
    """One run of the bench.

    Attributes:
        settings: What else was asked for, by name: seed, steps a round ...

    Example:
        >>> place = Environment("0.1", "2.13", "3.11", "Linux", "a processor", 2)
        >>> mode = ModeResult("none@5", "plain DDP", "ddp", (Round((StepTimes(1, 2, 3, 0),), 10),))
        >>> cell = Cell("mlp", 2, 1.25e7, 0.0, "lab", (mode,))
        >>> result = BenchResult(place, (cell,), "2026-01-01", 6.0)
        >>> BenchResult.from_json(result.to_json()) == result
        True
    """

    environment: Environment
    cells: tuple[Cell, ...]
    started: str
    wall_s: float
    settings: Mapping[str, str | int | float] = field(default_factory=dict)

    def to_json(self) -> str:
        """Write everything, every step included, as one JSON object."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> BenchResult:
        """Read a result from `to_json`'s text.

        Raises:
            SpecError: Not JSON, another format number, not complete, or a field
                of another type.
        """
        data = read_format(text, "bench result", _FORMAT)
        try:
            cells = tuple(_cell(c) for c in data["cells"])
            place = Environment(**data["environment"])
            settings = data.get("settings", {})
            result = cls(place, cells, data["started"], data["wall_s"], settings)
        except (AttributeError, KeyError, TypeError) as error:
            raise SpecError("bench result", text[:40], f"complete: {error}") from None
        check_types(result)
        return result


def _cell(data: Mapping[str, Any]) -> Cell:
    return Cell(**{**data, "modes": tuple(_mode(m) for m in data["modes"])})


def _mode(data: Mapping[str, Any]) -> ModeResult:
    rounds = tuple(
        Round(**{**r, "steps": tuple(StepTimes(**s) for s in r["steps"])}) for r in data["rounds"]
    )
    read = {
        "rounds": rounds,
        "validations": tuple(Validation(**v) for v in data["validations"]),
        "elapsed_s": tuple(data["elapsed_s"]),
        "digests": tuple(data["digests"]),
        "why": tuple(data.get("why", ())),
        "timeline": Timeline.from_dict(line) if (line := data.get("timeline")) else None,
        "alone": tuple(StepTimes(**s) for s in data.get("alone", ())),
    }
    return ModeResult(**{**data, **read})
