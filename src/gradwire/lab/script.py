"""Rates that change during a run: a script of times, rates and ranks."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from gradwire.errors import SpecError
from gradwire.units import parse_rate, parse_seconds

_ENTRY = re.compile(r"\s*(\S+)\s+(.+?)(?:\s+rank\s+(\d+))?\s*")
_FORM = '"TIME RATE" or "TIME RATE rank N" between semicolons, such as "0s 1Gbit/s; 5s 100Mbit/s"'


@dataclass(frozen=True, slots=True)
class RateChange:
    """From some time on, a line has another rate.

    Attributes:
        at_s: Since the script began to play.
        rate_bytes_per_s: Each way; infinity for no limit.
        rank: Whose line; None for all.

    Raises:
        SpecError: A time below 0, a rate not above 0, or a negative rank.

    Example:
        >>> RateChange(5.0, 12.5e6).rank is None
        True
    """

    at_s: float
    rate_bytes_per_s: float
    rank: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.at_s < math.inf:
            raise SpecError("RateChange.at_s", self.at_s, "at least 0 and finite")
        if not self.rate_bytes_per_s > 0:
            raise SpecError("RateChange.rate_bytes_per_s", self.rate_bytes_per_s, "above 0")
        if self.rank is not None and self.rank < 0:
            raise SpecError("RateChange.rank", self.rank, "at least 0, or None for all")


@dataclass(frozen=True, slots=True)
class RateScript:
    """What happens to the rates of a network, in order of time.

    Raises:
        SpecError: It is empty, or times go backwards.

    Example:
        >>> script = RateScript.parse("0s 1Gbit/s; 5s 100Mbit/s rank 1; 10s unlimited")
        >>> [(c.at_s, c.rate_bytes_per_s, c.rank) for c in script.changes]
        [(0.0, 125000000.0, None), (5.0, 12500000.0, 1), (10.0, inf, None)]
        >>> RateScript.parse(script.to_json()) == script
        True
    """

    changes: tuple[RateChange, ...]

    def __post_init__(self) -> None:
        times = [c.at_s for c in self.changes]
        if not times or times != sorted(times):
            raise SpecError("RateScript.changes", times, "one change or more, in order of time")

    @classmethod
    def parse(cls, text: str) -> RateScript:
        """Read a script from words or from `to_json`'s text.

        Args:
            text: `"0s 1Gbit/s; 5s 100Mbit/s rank 1; 10s unlimited"`, with units as
                in `gradwire.units`; or a JSON array of objects with the fields of
                `RateChange`, where a rate of null is no limit.

        Raises:
            SpecError: The text is neither.
        """
        if text.lstrip().startswith(("[", "{")):
            return cls(_from_json(text))
        changes = []
        for entry in text.strip().rstrip(";").split(";"):
            match = _ENTRY.fullmatch(entry)
            if match is None:
                raise SpecError("rate script", entry.strip(), _FORM)
            at, rate, rank = match.groups()
            changes.append(
                RateChange(parse_seconds(at), parse_rate(rate), None if rank is None else int(rank))
            )
        return cls(tuple(changes))

    def to_json(self) -> str:
        """Write it as a JSON array."""
        return json.dumps(
            [
                {
                    "at_s": c.at_s,
                    "rate_bytes_per_s": None
                    if math.isinf(c.rate_bytes_per_s)
                    else c.rate_bytes_per_s,
                    "rank": c.rank,
                }
                for c in self.changes
            ]
        )


def _from_json(text: str) -> tuple[RateChange, ...]:
    try:
        return tuple(_change(**entry) for entry in json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        if isinstance(error, SpecError):
            raise
        raise SpecError("rate script", text[:40], f"a JSON array of changes: {error}") from None


def _change(at_s: Any, rate_bytes_per_s: Any, rank: Any = None) -> RateChange:  # noqa: ANN401 - JSON
    rate = math.inf if rate_bytes_per_s is None else float(rate_bytes_per_s)
    return RateChange(float(at_s), rate, rank if rank is None else int(rank))
