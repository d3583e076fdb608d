"""Adaptive: how bits follow the network and the training, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from gradwire.errors import SpecError
from gradwire.spec.fields import check_number, check_switch, check_whole

LEVELS = (1, 2, 3, 4, 5, 6, 8, 16, 32)
"""Bits a value that a controller may choose; 16 is bfloat16, 32 float32."""
SCHEDULES = ("error_bounded", "rising", "falling", "constant")


@dataclass(frozen=True, slots=True)
class Adaptive:
    """Settings of AQGB: each layer in as many bits as its window can hide.

    Attributes:
        reducer: `"broadcast"` or `"two_phase"`; `"best"` takes the one that
            allows more bits at each new plan.
        floor: Bits that layers get at least, stalling if they must. Below it
            only layers go that would force a stall dearer than their error,
            and only as far as `error_bound` allows. By default that decides.
        cap: Bits that layers get at most. By default 4: more have changed no
            loss curve, and a step in which a link breaks down, whose bits were
            chosen before, then waits no longer than one of fixed 4 bits.
        every: Steps from one plan to the next; at once where bandwidth moved.
        schedule: How the floor follows training: `"error_bounded"` takes no
            plan whose relative error is expected to exceed `error_bound`, and
            raises the floor while the measured one does;
            `"rising"` and `"falling"` go between `floor` and `peak_floor` in
            `steps` steps; `"constant"` stays.
        error_bound: Norm of what was not sent over the norm of what was owed.
            By default what 3 bits leave, and something for single layers.
        peak_floor: The highest floor of a schedule.
        steps: Length of a rising or falling schedule.
        feedback: Whether what was lost is owed in the next step.
        senders: Whether each rank may have its own bits in a broadcast, when
            measured links differ.
        force: Whether broadcast may move more than a bfloat16 all-reduce.

    Example:
        >>> Adaptive.from_dict(Adaptive(reducer="broadcast").to_dict()).reducer
        'broadcast'
    """

    reducer: Literal["best", "broadcast", "two_phase"] = "best"
    floor: int = 2
    cap: int = 4
    every: int = 10
    schedule: Literal["error_bounded", "rising", "falling", "constant"] = "error_bounded"
    error_bound: float = 0.4
    peak_floor: int = 4
    steps: int = 0
    feedback: bool = True
    senders: bool = True
    force: bool = False

    def __post_init__(self) -> None:
        for name, allowed in (
            ("reducer", ("best", "broadcast", "two_phase")),
            ("schedule", SCHEDULES),
            ("floor", LEVELS),
            ("cap", LEVELS),
            ("peak_floor", LEVELS),
        ):
            value = getattr(self, name)
            if value not in allowed or isinstance(value, bool):
                raise SpecError(
                    f"Adaptive.{name}", value, f"one of: {', '.join(map(str, allowed))}"
                )
        if self.cap < max(self.floor, self.peak_floor):
            least = max(self.floor, self.peak_floor)
            raise SpecError("Adaptive.cap", self.cap, f"at least {least}, the highest floor")
        if self.peak_floor < self.floor:
            raise SpecError("Adaptive.peak_floor", self.peak_floor, f"at least floor={self.floor}")
        check_whole("Adaptive.every", self.every, 1)
        check_whole("Adaptive.steps", self.steps, 0)
        if self.schedule in ("rising", "falling") and not self.steps:
            raise SpecError(
                "Adaptive.steps", self.steps, f"above 0 with schedule={self.schedule!r}"
            )
        check_number("Adaptive.error_bound", self.error_bound, "a number above 0")
        if not 0 < self.error_bound < float("inf"):
            raise SpecError("Adaptive.error_bound", self.error_bound, "above 0 and finite")
        for name in ("feedback", "senders", "force"):
            check_switch(f"Adaptive.{name}", getattr(self, name))

    def to_dict(self) -> dict[str, Any]:
        """Turn the settings into JSON-ready data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Adaptive:
        """Read settings from `to_dict`'s data; what is left out has its default.

        Raises:
            SpecError: A field is unknown or out of range.
        """
        if not isinstance(data, Mapping):
            raise SpecError("adaptive", data, "an object")
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(data) - known)
        if unknown:
            raise SpecError("adaptive field", unknown[0], "one of: " + ", ".join(sorted(known)))
        return cls(**data)
