from __future__ import annotations

import pytest

from gradwire.demo.collect import Collector
from gradwire.demo.events import (
    Failed,
    Finished,
    MethodDone,
    MethodStarted,
    StepDone,
    Validated,
    from_line,
    to_line,
)
from gradwire.demo.settings import Job, choose_methods
from gradwire.report.model import Step, Validation

JOB = Job("digits", 2, 1, 8, 0, float("inf"), 0.0, choose_methods([], []))


def step(loss: float, seconds: float, sent_bytes: int) -> Step:
    return Step(0, loss, seconds, seconds, seconds, seconds, sent_bytes)


EVENTS = [
    (0, MethodStarted("ddp", 1000)),
    (1, StepDone("ddp", step(1.0, 9.0, 30))),
    (0, StepDone("ddp", step(3.0, 0.5, 20))),
    (0, Validated("ddp", 1, 2.0, 1, 4)),
    (1, Validated("ddp", 1, 4.0, 2, 4)),
    (1, MethodDone("ddp", "b")),
    (0, MethodDone("ddp", "a")),
    (0, Finished("2.13.0")),
]


@pytest.mark.parametrize("event", [*(e for _, e in EVENTS), Failed("no\nway")])
def test_events_survive_their_line(event):
    line = to_line(event)
    assert line.count("\n") == 1
    assert from_line(line) == event


def test_collector_joins_the_ranks():
    collector = Collector(JOB)
    for rank, event in EVENTS:
        collector.add(rank, event)
    result = collector.result("now", 1.0, cores=2)
    (method,) = result.methods
    assert method.steps == (step(2.0, 0.5, 30),)
    assert method.validations == (Validation(1, 0.75, 0.375),)
    assert method.digests == ("a", "b")
    assert not method.is_replicated
    assert result.settings.link_bytes_per_s is None
    assert (result.settings.num_parameters, result.environment.torch) == (1000, "2.13.0")
