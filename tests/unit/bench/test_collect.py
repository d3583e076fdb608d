from __future__ import annotations

import pytest

from gradwire.bench.collect import CellCollector
from gradwire.bench.events import Refused, RoundDone, RoundStarted
from gradwire.bench.modes import parse_modes
from gradwire.bench.settings import CellJob
from gradwire.demo.events import (
    Finished,
    MethodDone,
    MethodStarted,
    Recorded,
    Validated,
    from_line,
    to_line,
)
from gradwire.report.results import StepTimes
from gradwire.timeline import Span, Timeline

JOB = CellJob("mlp", 2, None, 0.0, "none", parse_modes("none,bf16,gradwire:int4"), rounds=1)


def times(seconds: float) -> StepTimes:
    return StepTimes(seconds, seconds, seconds, seconds)


def done(mode: str, seconds: list[float], sent_bytes: int) -> RoundDone:
    return RoundDone(mode, 0, tuple(map(times, seconds)), sent_bytes, 9.0, 1.0)


EVENTS = [
    (0, MethodStarted("none", 0)),
    (0, MethodStarted("none", 77)),
    (0, Refused("bf16", "no")),
    (0, RoundStarted("none", 0)),
    (0, done("none", [1.0, 4.0], 10)),
    (1, done("none", [2.0, 3.0], 30)),
    (0, Validated("none", 2, 2.0, 1, 4)),
    (1, Validated("none", 2, 4.0, 2, 4)),
    (1, MethodDone("none", "b")),
    (0, MethodDone("none", "a")),
    (0, Recorded("none", {"fc": 4.0}, Timeline((Span(0, "forward", "fc", 0.0, 1.0),), 2.0))),
    (0, Finished("2.13.0")),
]


@pytest.mark.parametrize("event", [e for _, e in EVENTS], ids=lambda e: type(e).__name__)
def test_events_survive_their_line(event):
    assert from_line(to_line(event)) == event


def test_collector_joins_the_ranks():
    collector = CellCollector(JOB)
    for rank, event in EVENTS:
        collector.add(rank, event)
    collector.add_foreign(EVENTS[4][1], 0.25)
    cell = collector.result(JOB, {"gradwire:int4": "ended its launch"})
    none, bf16, int4 = cell.modes
    (one,) = none.rounds
    by_rank = [e.steps for _, e in EVENTS if isinstance(e, RoundDone) and e.method == "none"]
    slowest = max(by_rank, key=lambda steps: sum(s.total_s for s in steps))
    assert one.steps == slowest, "of the rank that took longest for all of them"
    assert (one.sent_bytes, one.foreign_cores) == (30, 0.25)
    assert (none.validations[0].loss, none.elapsed_s) == (0.75, (9.0,))
    assert none.digests == ("a", "b")
    assert (none.bits, none.timeline.step_s) == ({"fc": 4.0}, 2.0)
    assert (bf16.reason, bf16.rounds) == ("no", ())
    assert int4.reason == "ended its launch"
    assert '"bits": 4' in int4.plan
    assert (cell.num_parameters, cell.settings) == (77, JOB.settings())
    assert (collector.torch, collector.current) == ("2.13.0", "none")
