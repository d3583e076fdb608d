"""What a worker of the bench tells its parent, besides the demo's events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from gradwire.demo.events import Event
from gradwire.report.results import StepTimes


@dataclass(frozen=True, slots=True)
class RoundStarted(Event):
    """A mode's timed steps begin."""

    method: str
    number: int


@dataclass(frozen=True, slots=True)
class RoundDone(Event):
    """A mode's timed steps, as this rank saw them.

    Attributes:
        sent_bytes: Per step.
        elapsed_s: Training time of this mode so far, untimed steps included.
        wall_s: Duration of the timed steps.
    """

    method: str
    number: int
    steps: tuple[StepTimes, ...]
    sent_bytes: int
    elapsed_s: float
    wall_s: float

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """See `Event.from_dict`."""
        return cls(**{**data, "steps": tuple(StepTimes(**s) for s in data["steps"])})


@dataclass(frozen=True, slots=True)
class AloneDone(Event):
    """A mode's timed steps with an exchange that takes no time, on this rank."""

    method: str
    number: int
    steps: tuple[StepTimes, ...]

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """See `Event.from_dict`."""
        return cls(**{**data, "steps": tuple(StepTimes(**s) for s in data["steps"])})


@dataclass(frozen=True, slots=True)
class Refused(Event):
    """A mode cannot run here; the others go on."""

    method: str
    reason: str


@dataclass(frozen=True, slots=True)
class Profiled(Event):
    """What predictions are made from, as JSON."""

    workload: str
    hardware: str
