"""What a worker tells its parent: one JSON object a line. No torch here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

from gradwire.report.model import Step
from gradwire.timeline import Timeline


class Event:
    """Base of what workers tell; its dataclasses are written by name and fields."""

    __slots__ = ()
    kinds: ClassVar[dict[str, type[Event]]] = {}

    def __init_subclass__(cls) -> None:
        Event.kinds[cls.__name__] = cls

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read an event from its fields."""
        return cls(**data)


@dataclass(frozen=True, slots=True)
class MethodStarted(Event):
    """A method's model stands, and its first step begins."""

    method: str
    num_parameters: int


@dataclass(frozen=True, slots=True)
class StepDone(Event):
    """One step, as this rank saw it: its own loss, times and bytes."""

    method: str
    step: Step

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """See `Event.from_dict`."""
        return cls(data["method"], Step(**data["step"]))


@dataclass(frozen=True, slots=True)
class Validated(Event):
    """Sums over this rank's share of the held-out data, after `step` steps."""

    method: str
    step: int
    loss_sum: float
    num_correct: int
    num_targets: int


@dataclass(frozen=True, slots=True)
class PlanChosen(Event):
    """A plan that a mode has chosen itself, why, and what it predicts for a step."""

    method: str
    plan: str
    why: str
    predicted_s: float | None


@dataclass(frozen=True, slots=True)
class MethodDone(Event):
    """A method has ended; the digest is a hash of this rank's parameters."""

    method: str
    digest: str


@dataclass(frozen=True, slots=True)
class Recorded(Event):
    """What overlap did in its last steps, on this rank.

    Attributes:
        bits: Mean bits per value, by layer in order of use.
        timeline: The last whole step.
    """

    method: str
    bits: Mapping[str, float]
    timeline: Timeline

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """See `Event.from_dict`."""
        return cls(**{**data, "timeline": Timeline.from_dict(data["timeline"])})


@dataclass(frozen=True, slots=True)
class Finished(Event):
    """The worker has done all it was asked for."""

    torch: str


@dataclass(frozen=True, slots=True)
class Failed(Event):
    """The worker raised."""

    message: str


def to_line(event: Event) -> str:
    """Write an event as one line.

    Example:
        >>> from_line(to_line(Failed("no")))
        Failed(message='no')
    """
    fields = asdict(event)  # type: ignore[call-overload]  # every event is a dataclass
    return json.dumps({"kind": type(event).__name__, **fields}) + "\n"


def from_line(line: str) -> Event:
    """Read an event from `to_line`'s line."""
    data = json.loads(line)
    return Event.kinds[data.pop("kind")].from_dict(data)
