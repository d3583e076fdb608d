"""The speed-up matrix as a page draws it: words and colours."""

from __future__ import annotations

import math
from typing import NamedTuple

from gradwire.report.bench.doubts import gather, marks
from gradwire.report.bench.matrix import Entry, Matrix
from gradwire.report.bench.summary import Speedup
from gradwire.report.bench.words import times
from gradwire.report.summary import format_milliseconds

_STRONGEST = 70.0
_STRONGEST_AT = 8.0


class HeatEntry(NamedTuple):
    """One field: a speed-up and what stands below it.

    Attributes:
        below: Range over rounds, and the median step.
        colour: Of the ground; empty where nothing was gained or lost.
        marks: Letters of the doubts.
        doubts: Why to doubt it, in words.
    """

    text: str
    below: tuple[str, ...]
    colour: str
    marks: str
    doubts: str
    is_best: bool


class Title(NamedTuple):
    """A heading: its words, kept together, and the cell it leads to."""

    words: tuple[str, ...]
    cell: int | None = None


class Heat(NamedTuple):
    """The matrix; the longer of cells and modes runs down."""

    corner: str
    columns: tuple[Title, ...]
    rows: tuple[tuple[Title, tuple[HeatEntry | None, ...]], ...]
    letters: str


def draw_heat(matrix: Matrix) -> Heat:
    """Return the matrix in words and colours."""
    cells = tuple(Title(_words(title), i) for i, (title, _) in enumerate(matrix.rows, 1))
    modes = tuple(Title(_words(label)) for label in matrix.modes)
    entries = [tuple(entry and _entry(entry) for entry in row) for _, row in matrix.rows]
    letters = marks(d for _, row in matrix.rows for entry in row if entry for d in entry.doubts)
    if len(modes) > len(cells):
        turned = zip(modes, zip(*entries, strict=True), strict=True)
        return Heat("Mode", cells, tuple(turned), letters)
    return Heat("Cell", modes, tuple(zip(cells, entries, strict=True)), letters)


def _words(title: str) -> tuple[str, ...]:
    *first, last = title.split(", ")
    return (*(f"{part}," for part in first), last)


def _entry(entry: Entry) -> HeatEntry:
    letters, doubts = marks(entry.doubts), "; ".join(gather(entry.doubts))
    if entry.step_s is None:
        return HeatEntry("did not run", (), "", letters, doubts, is_best=False)
    step, ratio = f"{format_milliseconds(entry.step_s)} ms", entry.speedup
    if ratio is None:
        return HeatEntry(step, (), "", letters, doubts, entry.is_fastest)
    middle, _, spread = times(ratio).partition(" ")
    colour = "" if entry.is_bound else _colour(ratio)
    below = (spread.strip("()").replace("-", "\N{EN DASH}"), step)
    return HeatEntry(middle, below, colour, letters, doubts, entry.is_fastest)


def _colour(ratio: Speedup) -> str:
    """Mix the page's colour with one for gain or loss, by the root of the ratio's logarithm."""
    strength = math.sqrt(abs(math.log(ratio.median)) / math.log(_STRONGEST_AT))
    share = _STRONGEST * min(1.0, strength)
    paint = "--gain" if ratio.median >= 1 else "--loss"
    return f"color-mix(in srgb, var({paint}) {share:.0f}%, var(--page))"
