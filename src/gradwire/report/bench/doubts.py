"""Reasons to doubt a number: each becomes a mark on it and a line that says why."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from gradwire.report.results import ModeResult

MAX_SPREAD = 0.10
"""Half the interquartile range over the median, above which a time is shaky."""
MIN_ROUNDS = 3
"""Rounds below which a ratio may be chance: its range says little."""
MAX_FOREIGN_CORES = 0.3
"""Cores that other programs may keep busy in a round."""

Kind = Literal["spread", "rounds", "busy", "replicas", "missing"]


_SAYS: dict[Kind, str] = {
    "spread": f"steps spread by more than {100 * MAX_SPREAD:.0f} %",
    "rounds": f"fewer than {MIN_ROUNDS} rounds, so that a difference may be chance",
    "busy": f"other programs kept more than {MAX_FOREIGN_CORES} cores busy",
    "replicas": "the ranks ended with different parameters",
    "missing": "did not run",
}
MARKS: dict[Kind, str] = {
    "spread": "s",
    "rounds": "r",
    "busy": "b",
    "replicas": "d",
    "missing": "m",
}
"""The letter that a number carries for each kind of doubt."""


class Doubt(NamedTuple):
    """One reason to doubt a mode's numbers.

    `"replicas"` is about what was learned, the others about times.

    Attributes:
        label: Whose numbers.
        detail: How bad it is; may be empty.
    """

    kind: Kind
    label: str
    detail: str

    @property
    def reason(self) -> str:
        """All of it in words."""
        return gather([self])[0]


def gather(doubts: Iterable[Doubt]) -> list[str]:
    """Return one line for each kind of doubt, with the modes it is about.

    Example:
        >>> gather([Doubt("rounds", "fp16 hook", "2"), Doubt("rounds", "int4", "1")])
        ['fewer than 3 rounds, so that a difference may be chance: fp16 hook (2), int4 (1)']
    """
    found: dict[Kind, list[str]] = {}
    for kind, label, detail in dict.fromkeys(doubts):
        found.setdefault(kind, []).append(f"{label} ({detail})" if detail else label)
    return [f"{_SAYS[kind]}: {', '.join(found[kind])}" for kind in _SAYS if kind in found]


def marks(doubts: Iterable[Doubt]) -> str:
    """Return the letter of each kind of doubt, in the order of `gather`'s lines.

    Example:
        >>> marks([Doubt("busy", "int4", "1.2"), Doubt("spread", "int4", "± 12 %")])
        'sb'
    """
    found = {doubt.kind for doubt in doubts}
    return "".join(MARKS[kind] for kind in _SAYS if kind in found)


def legend(letters: str) -> list[tuple[str, str]]:
    """Return each letter once, with what it stands for."""
    return [(mark, _SAYS[kind]) for kind, mark in MARKS.items() if mark in letters]


def doubts(mode: ModeResult) -> tuple[Doubt, ...]:
    """Return every reason to doubt the numbers of a mode.

    Example:
        >>> [doubt] = doubts(ModeResult("fp16", "fp16 hook", "hook", reason="needs a GPU"))
        >>> doubt.reason
        'did not run: fp16 hook (needs a GPU)'
    """
    if not mode.has_run:
        return (Doubt("missing", mode.label, mode.reason or "no reason was written down"),)
    details: dict[Kind, str | None] = {
        "spread": _spread(mode),
        "rounds": _rounds(mode),
        "busy": _busy(mode),
        "replicas": None if mode.is_replicated else "",
    }
    return tuple(
        Doubt(kind, mode.label, detail) for kind, detail in details.items() if detail is not None
    )


def _spread(mode: ModeResult) -> str | None:
    share = mode.spread_s / mode.step_s
    return f"± {100 * share:.0f} %" if share > MAX_SPREAD else None


def _rounds(mode: ModeResult) -> str | None:
    return f"{len(mode.rounds)}" if len(mode.rounds) < MIN_ROUNDS else None


def _busy(mode: ModeResult) -> str | None:
    busy = [r.foreign_cores for r in mode.rounds if r.foreign_cores > MAX_FOREIGN_CORES]
    if not busy:
        return None
    return f"{max(busy):.1f} in {len(busy)} of {len(mode.rounds)} rounds"
