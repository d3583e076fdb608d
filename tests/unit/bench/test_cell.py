from __future__ import annotations

import pytest

from gradwire.bench import cell
from gradwire.bench.modes import parse_modes
from gradwire.bench.settings import CellJob
from gradwire.demo.events import MethodStarted
from gradwire.demo.launch import WorkerError

JOB = CellJob("mlp", 2, None, 0.0, "none", parse_modes("none,bf16"))


def test_mode_that_ends_its_launch_is_left_out_of_the_next(monkeypatch):
    launches = []

    def launch(job, collector, _watch):
        launches.append([m.name for m in job.modes])
        collector.add(0, MethodStarted(job.modes[-1].name, 0))
        raise WorkerError(1, "was killed by SIGABRT")

    monkeypatch.setattr(cell, "_launch", launch)
    measured, _ = cell.measure_cell(JOB, lambda _: None)
    assert launches == [["none", "bf16"], ["none"]]
    text = "ended its launch: the worker of rank 1 was killed by SIGABRT"
    assert [m.reason for m in measured.modes] == [text, text]


def test_workers_that_do_not_start_are_an_error(monkeypatch):
    def launch(*_):
        raise WorkerError(0, "ended early")

    monkeypatch.setattr(cell, "_launch", launch)
    with pytest.raises(WorkerError, match="ended early"):
        cell.measure_cell(JOB, lambda _: None)
