"""A timeline as lanes of blocks, in percent of the step: what a page draws."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gradwire.timeline import Span, Timeline
from gradwire.units import format_bytes, format_seconds

MAX_RANKS = 8
"""Ranks that are drawn unless the caller names others."""

_LANES = ("compute", "codec", "link")
_MAX_TRACKS = 10
_MAX_TICKS = 8
_MAX_LEGEND = 12
_LEAST_TEXT_PERCENT = 1.2
_ROOT = "(the model itself)"
_FIRST_HUE, _HUES = 215.0, 330.0
_NO_LAYER = frozenset({"optimiser", "wait"})


class Block(NamedTuple):
    """One span: place and width in percent, colour, text inside and in full."""

    kind: str
    left: float
    width: float
    hue: float | None
    text: str
    title: str


class Lane(NamedTuple):
    """What one part of a rank did; blocks that overlap lie on separate tracks."""

    name: str
    tracks: tuple[tuple[Block, ...], ...]


class RankLanes(NamedTuple):
    """The lanes of one rank."""

    rank: int
    lanes: tuple[Lane, ...]


class Drawing(NamedTuple):
    """Everything a page draws of a timeline.

    Attributes:
        ticks: Place in percent, and time in words.
        layers: Name and hue, in order of use.
        width_rem: Width below which blocks would be too narrow.
        left_out: Ranks that are not drawn.
        description: The timeline in words.
    """

    ranks: tuple[RankLanes, ...]
    ticks: tuple[tuple[float, str], ...]
    layers: tuple[tuple[str, float], ...]
    width_rem: float
    left_out: int
    description: str

    @property
    def legend(self) -> tuple[tuple[str, float], ...]:
        """All layers where there are few, otherwise some of them at equal distances."""
        last = len(self.layers) - 1
        if last < _MAX_LEGEND:
            return self.layers
        places = (round(i * last / (_MAX_LEGEND - 1)) for i in range(_MAX_LEGEND))
        return tuple(self.layers[place] for place in places)


def draw_timeline(timeline: Timeline, ranks: Sequence[int] | None = None) -> Drawing:
    """Return the lanes of a timeline.

    Args:
        timeline: What the ranks did.
        ranks: Which to draw; by default the first `MAX_RANKS`.

    Example:
        >>> line = Timeline((Span(0, "forward", "fc", 0.0, 0.5),), 1.0)
        >>> draw_timeline(line).ranks[0].lanes[0].tracks[0][0].width
        50.0
    """
    known = sorted({s.rank for s in timeline.spans})
    drawn = known[:MAX_RANKS] if ranks is None else [r for r in known if r in set(ranks)]
    hues = _hues(timeline.spans)
    end_s = max((s.end_s for s in timeline.spans), default=0.0)
    whole_s = max(timeline.step_s, end_s) or 1.0
    return Drawing(
        ranks=tuple(RankLanes(r, _lanes(timeline.of(r), hues, whole_s)) for r in drawn),
        ticks=_ticks(whole_s),
        layers=tuple((name or _ROOT, hue) for name, hue in hues.items()),
        width_rem=min(160.0, 42.0 + 0.6 * len(hues)),
        left_out=len(known) - len(drawn),
        description=_description(timeline, drawn),
    )


def _hues(spans: Iterable[Span]) -> dict[str, float]:
    """Give each layer its colour: neighbours in the model are neighbours in hue."""
    order = sorted(
        (s for s in spans if s.kind not in _NO_LAYER),
        key=lambda s: (s.kind != "forward", s.start_s if s.kind == "forward" else -s.start_s),
    )
    names = list(dict.fromkeys(s.layer for s in order))
    return {
        name: round((_FIRST_HUE + _HUES * i / len(names)) % 360, 1) for i, name in enumerate(names)
    }


def _lanes(spans: Sequence[Span], hues: dict[str, float], whole_s: float) -> tuple[Lane, ...]:
    lanes = []
    for name in _LANES:
        own = sorted((s for s in spans if s.lane == name), key=lambda s: (s.start_s, s.end_s))
        if own:
            lanes.append(Lane(name, _tracks(own, hues, whole_s)))
    return tuple(lanes)


def _tracks(
    spans: Sequence[Span], hues: dict[str, float], whole_s: float
) -> tuple[tuple[Block, ...], ...]:
    ends: list[float] = []
    tracks: list[list[Block]] = []
    for span in spans:
        free = next((i for i, end_s in enumerate(ends) if span.start_s >= end_s - 1e-12), None)
        if free is None and len(tracks) < _MAX_TRACKS:
            free = len(tracks)
            tracks.append([])
            ends.append(0.0)
        if free is None:
            free = ends.index(min(ends))
        ends[free] = max(ends[free], span.end_s)
        tracks[free].append(_block(span, hues, whole_s))
    return tuple(tuple(track) for track in tracks)


def _block(span: Span, hues: dict[str, float], whole_s: float) -> Block:
    duration_s = span.end_s - span.start_s
    width = 100 * duration_s / whole_s
    details = [f"{span.kind} {span.layer}: {format_seconds(duration_s)}"]
    details += [f"from {format_seconds(span.start_s)}"]
    details += [format_bytes(span.num_bytes)] if span.num_bytes else []
    details += [f"{span.bits:.3g} bits a value"] if span.bits else []
    text = "wait" if span.kind == "wait" else f"{span.bits:.3g}" if span.bits else ""
    return Block(
        kind=span.kind,
        left=round(100 * span.start_s / whole_s, 3),
        width=round(width, 3),
        hue=None if span.kind in _NO_LAYER else hues[span.layer],
        text=text if width >= _LEAST_TEXT_PERCENT else "",
        title=", ".join(details),
    )


def _ticks(whole_s: float) -> tuple[tuple[float, str], ...]:
    power = 10.0 ** math.floor(math.log10(whole_s / _MAX_TICKS))
    step_s = next(p * power for p in (1, 2, 5, 10) if p * power * _MAX_TICKS >= whole_s)
    count = math.floor(whole_s / step_s * (1 + 1e-9))
    return tuple((100 * i * step_s / whole_s, format_seconds(i * step_s)) for i in range(count + 1))


def _description(timeline: Timeline, drawn: Sequence[int]) -> str:
    if not drawn:
        return "An empty timeline."
    rank = drawn[0]
    return (
        f"Timeline of a step of {format_seconds(timeline.step_s)}. Rank {rank} hid "
        f"{format_seconds(timeline.overlap_s(rank))} of communication under computation, waited "
        f"{format_seconds(timeline.wait_s(rank))} for gradients and sent "
        f"{format_bytes(timeline.sent_bytes(rank))}."
    )
