"""Overlap, wait and their ratio."""

from __future__ import annotations

import json
import math

from gradwire.timeline import Span, Timeline


def _timeline():
    return Timeline(
        (
            Span(0, "backward", "a", 0.0, 4.0),
            Span(0, "transfer", "a", 1.0, 3.0, 10, 4.0),
            Span(0, "transfer", "b", 2.0, 6.0, 20),
            Span(0, "wait", "b", 4.0, 6.0),
            Span(1, "forward", "a", 0.0, 1.0),
        ),
        step_s=6.0,
    )


def test_overlap_counts_simultaneous_transfers_once():
    assert _timeline().overlap_s() == 3.0


def test_row_is_overlap_over_wait():
    assert _timeline().row() == 1.5


def test_row_is_infinite_without_wait_and_undefined_without_transfers():
    assert Timeline(_timeline().spans[:2], 4.0).row() == math.inf
    assert Timeline(_timeline().spans[:1], 4.0).row() is None


def test_ranks_do_not_mix():
    assert _timeline().sent_bytes(0) == 30
    assert _timeline().sent_bytes(1) == 0


def test_chrome_trace_has_one_event_a_span_in_microseconds():
    events = json.loads(_timeline().to_chrome_trace())["traceEvents"]
    assert len(events) == 5
    transfer = next(e for e in events if e["name"] == "transfer a 4 bits")
    assert (transfer["ts"], transfer["dur"], transfer["tid"]) == (1e6, 2e6, "link")
