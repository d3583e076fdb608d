"""What a demo run measured, as plain data. No torch here; renderers only read it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from gradwire.errors import SpecError
from gradwire.report.types import check_types
from gradwire.timeline import Timeline

_FORMAT = 1

BASELINE = "ddp"
"""Name of the method that every other one is compared with."""

Family = Literal["ddp", "hook", "gradwire", "compute"]
"""What a method is: `"compute"` is computation alone, which nothing is compared with."""


@dataclass(frozen=True, slots=True)
class Step:
    """One training step; times are rank 0's.

    Attributes:
        loss: Training loss before the step, averaged over ranks.
        forward_s: From the start of the step to the loss.
        backward_s: From there until the last gradient is ready.
        exposed_s: From there until backward returns: communication not hidden.
        optimiser_s: The optimiser's step.
        sent_bytes: Payload that the busiest rank sent.

    Example:
        >>> Step(0, 5.5, 0.25, 0.5, 0.125, 0.125, 1000).total_s
        1.0
    """

    step: int
    loss: float
    forward_s: float
    backward_s: float
    exposed_s: float
    optimiser_s: float
    sent_bytes: int

    @property
    def total_s(self) -> float:
        """Duration of the whole step."""
        return self.forward_s + self.backward_s + self.exposed_s + self.optimiser_s


@dataclass(frozen=True, slots=True)
class Validation:
    """Loss and accuracy on held-out data after `step` steps."""

    step: int
    loss: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class MethodResult:
    """Everything measured of one method.

    Attributes:
        name: Short name, unique in the run (`"ddp"`, `"int4"`).
        label: The name readers see.
        family: `"ddp"` (no compression), `"hook"` (PyTorch's) or `"gradwire"`.
        validations: At least the one after the last step.
        digests: Hash of the parameters after the last step, by rank.
        why: The plan that was chosen in training, and why; empty where it was given.
        bits: Mean bits per value of the last steps by layer, where they vary.
        timeline: A late step of rank 0, where it was recorded.
    """

    name: str
    label: str
    family: Family
    steps: tuple[Step, ...]
    validations: tuple[Validation, ...]
    digests: tuple[str, ...]
    why: str = ""
    bits: Mapping[str, float] | None = None
    timeline: Timeline | None = None

    @property
    def is_replicated(self) -> bool:
        """Whether all ranks ended with bit-identical parameters."""
        return len(set(self.digests)) == 1


@dataclass(frozen=True, slots=True)
class Settings:
    """What was asked for.

    Attributes:
        link: Rate of the emulated link, in each direction, bytes per second;
            None for no limit.
        latency_s: One-way delay of the emulated link.
        untimed_steps: Steps at the start that medians leave out.
    """

    task: str
    num_parameters: int
    ranks: int
    steps: int
    batch_size: int
    seed: int
    link_bytes_per_s: float | None
    latency_s: float
    untimed_steps: int


@dataclass(frozen=True, slots=True)
class Environment:
    """Where it ran."""

    gradwire: str
    torch: str
    python: str
    platform: str
    processor: str
    cores: int


@dataclass(frozen=True, slots=True)
class DemoResult:
    """One run of the demo: settings, place, and each method's steps."""

    settings: Settings
    environment: Environment
    methods: tuple[MethodResult, ...]
    started: str
    wall_s: float

    def to_json(self) -> str:
        """Write everything, every step included, as one JSON object."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, indent=2, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> DemoResult:
        """Read a result from `to_json`'s text.

        Raises:
            SpecError: Not JSON, another format number, not complete, or a field
                of another type.
        """
        data = read_format(text, "demo result", _FORMAT)
        try:
            methods = tuple(_method(m) for m in data["methods"])
            settings, place = Settings(**data["settings"]), Environment(**data["environment"])
            result = cls(settings, place, methods, data["started"], data["wall_s"])
        except (AttributeError, KeyError, TypeError) as error:
            raise SpecError("demo result", text[:40], f"complete: {error}") from None
        check_types(result)
        return result


def read_format(text: str, what: str, version: int) -> dict[str, Any]:
    """Read a JSON object of ours.

    Args:
        text: The file's text.
        what: What an error calls it.
        version: The format number it must have.

    Raises:
        SpecError: Not JSON, no object, or of another format number.

    Example:
        >>> read_format('{"format": 1, "cells": []}', "bench result", 1)["cells"]
        []
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(what, text[:40], f"JSON: {error}") from None
    if not isinstance(data, dict) or data.get("format") != version:
        found = data.get("format") if isinstance(data, dict) else data
        raise SpecError(f"{what} format", found, f"{version}, the one this version reads")
    return data


def _method(data: Mapping[str, Any]) -> MethodResult:
    read = {
        "steps": tuple(Step(**s) for s in data["steps"]),
        "validations": tuple(Validation(**v) for v in data["validations"]),
        "digests": tuple(data["digests"]),
        "timeline": Timeline.from_dict(line) if (line := data.get("timeline")) else None,
    }
    return MethodResult(**{**data, **read})
