from __future__ import annotations

import pytest

from gradwire.report import timeline_html
from gradwire.report.lanes import MAX_RANKS, draw_timeline
from gradwire.timeline import Span, Timeline
from made_results import timeline


def test_lanes_place_spans_in_percent_of_the_step():
    spans = (Span(0, "forward", "fc", 0.0, 1.0), Span(0, "backward", "fc", 1.0, 4.0))
    drawing = draw_timeline(Timeline(spans, 4.0))
    (track,) = drawing.ranks[0].lanes[0].tracks
    assert [(b.left, b.width) for b in track] == [(0.0, 25.0), (25.0, 75.0)]


def test_layers_keep_their_colour_on_every_lane_and_rank():
    drawing = draw_timeline(timeline())
    hues: dict[str, set[float | None]] = {}
    for rank in drawing.ranks:
        for lane in rank.lanes:
            for block in (b for track in lane.tracks for b in track):
                hues.setdefault(block.title.split(":")[0].split(" ")[1], set()).add(block.hue)
    assert [name for name, _ in drawing.layers] == ["conv1", "conv2", "fc"]
    assert all(hues[name] - {None} == {hue} for name, hue in drawing.layers)
    assert len({hue for _, hue in drawing.layers}) == 3


def test_transfers_that_overlap_lie_on_tracks_of_their_own():
    drawing = draw_timeline(timeline())
    link = drawing.ranks[0].lanes[2]
    assert link.name == "link"
    assert [[b.text for b in track] for track in link.tracks] == [["2", "6"], ["4"]]
    for track in link.tracks:
        ends = [b.left + b.width for b in track]
        assert all(b.left >= end - 0.01 for b, end in zip(track[1:], ends, strict=False))


def test_ranks_beyond_the_limit_are_counted_not_drawn():
    spans = tuple(Span(r, "forward", "fc", 0.0, 1.0) for r in range(20))
    assert len(draw_timeline(Timeline(spans, 1.0)).ranks) == MAX_RANKS
    assert draw_timeline(Timeline(spans, 1.0)).left_out == 12
    assert [r.rank for r in draw_timeline(Timeline(spans, 1.0), ranks=(3, 17)).ranks] == [3, 17]


@pytest.mark.parametrize("step_s", [1e-6, 0.003, 0.042, 1.0, 700.0])
def test_axis_has_a_few_round_ticks(step_s: float):
    ticks = draw_timeline(Timeline((Span(0, "forward", "fc", 0.0, step_s),), step_s)).ticks
    assert 4 <= len(ticks) <= 9
    assert ticks[0] == (0.0, "0 s")
    assert all(place <= 100.001 for place, _ in ticks)


def test_empty_timeline_is_drawn_as_such():
    drawing = draw_timeline(Timeline((), 1.0))
    assert drawing.ranks == ()
    assert drawing.description == "An empty timeline."


def test_legend_of_many_layers_names_some_from_first_to_last():
    names = [f"layer{i}" for i in range(161)]
    spans = tuple(Span(0, "forward", name, i, i + 1.0) for i, name in enumerate(names))
    line = Timeline(spans, 161.0)
    legend = [name for name, _ in draw_timeline(line).legend]
    assert len(legend) == 12
    assert (legend[0], legend[-1]) == (names[0], names[-1])
    assert f"and {161 - 12} between them" in timeline_html(line)
