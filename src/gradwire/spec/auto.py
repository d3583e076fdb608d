"""Auto: a plan that is chosen from measured costs while training begins, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from gradwire.errors import SpecError
from gradwire.spec.fields import check_number, check_whole


@dataclass(frozen=True, slots=True)
class Auto:
    """Settings of HAGC: what the choice has to keep to, and how long it may take.

    Attributes:
        max_harm: By what share training may take more steps to a loss, as expected
            from what codecs lose or defer of the model's own gradients.
        observed_steps: Steps from which times and gradients are taken.
        tried_steps: Steps for which each plan of the shortlist is tried in a turn.
        turns: How often plans take turns, at most; 1 to 4.
        watched_steps: Steps from one look at the costs to the next.

    Example:
        >>> Auto.from_dict(Auto(max_harm=0.1).to_dict()).max_harm
        0.1
    """

    max_harm: float = 0.1
    observed_steps: int = 4
    tried_steps: int = 4
    turns: int = 4
    watched_steps: int = 50

    def __post_init__(self) -> None:
        check_number("Auto.max_harm", self.max_harm, "a number of at least 0")
        if not 0 <= self.max_harm < float("inf"):
            raise SpecError("Auto.max_harm", self.max_harm, "at least 0 and finite")
        for name in ("observed_steps", "tried_steps", "watched_steps"):
            check_whole(f"Auto.{name}", getattr(self, name), 2)
        check_whole("Auto.turns", self.turns, 1, 4)

    def to_dict(self) -> dict[str, Any]:
        """Turn the settings into JSON-ready data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Auto:
        """Read settings from `to_dict`'s data; what is left out has its default.

        Raises:
            SpecError: A field is unknown or out of range.
        """
        known = {field.name for field in fields(cls)}
        if not isinstance(data, Mapping) or set(data) - known:
            raise SpecError("auto", data, "an object with some of: " + ", ".join(sorted(known)))
        return cls(**data)
