"""What a worker tells its parent: one JSON object a line. No torch here."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from gradwire.report.model import Step


@dataclass(frozen=True, slots=True)
class MethodStarted:
    """A method's model stands, and its first step begins."""

    method: str
    num_parameters: int


@dataclass(frozen=True, slots=True)
class StepDone:
    """One step, as this rank saw it: its own loss, times and bytes."""

    method: str
    step: Step


@dataclass(frozen=True, slots=True)
class Validated:
    """Sums over this rank's share of the held-out data, after `step` steps."""

    method: str
    step: int
    loss_sum: float
    num_correct: int
    num_targets: int


@dataclass(frozen=True, slots=True)
class MethodDone:
    """A method has ended; the digest is a hash of this rank's parameters."""

    method: str
    digest: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The worker has done all it was asked for."""

    torch: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The worker raised."""

    message: str


Event = MethodStarted | StepDone | Validated | MethodDone | Finished | Failed
_KINDS: dict[str, type[Event]] = {
    kind.__name__: kind
    for kind in (MethodStarted, StepDone, Validated, MethodDone, Finished, Failed)
}


def to_line(event: Event) -> str:
    """Write an event as one line.

    Example:
        >>> from_line(to_line(Failed("no")))
        Failed(message='no')
    """
    return json.dumps({"kind": type(event).__name__, **asdict(event)}) + "\n"


def from_line(line: str) -> Event:
    """Read an event from `to_line`'s line."""
    data = json.loads(line)
    kind = _KINDS[data.pop("kind")]
    if kind is StepDone:
        return StepDone(data["method"], Step(**data["step"]))
    return kind(**data)
