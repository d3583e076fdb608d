"""Measures one cell: a launch holds all its modes."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from gradwire.bench.collect import CellCollector
from gradwire.bench.events import RoundDone, RoundStarted
from gradwire.bench.processor import ForeignLoad
from gradwire.bench.settings import CellJob
from gradwire.demo.events import Event
from gradwire.demo.launch import Place, WorkerError, Workers
from gradwire.lab.netns import Network
from gradwire.report.results import Cell

WORKER = (sys.executable, "-P", "-m", "gradwire.bench.worker")

Watch = Callable[[Event], None]


def measure_cell(job: CellJob, watch: Watch) -> tuple[Cell, str]:
    """Measure a cell.

    A mode that ends its launch is left out of the next one, with the reason.

    Args:
        job: What to measure.
        watch: Is given rank 0's events as they come.

    Returns:
        The cell, and PyTorch's version.

    Raises:
        WorkerError: The workers died before any mode began.
        CommandError: The lab cannot be built here.
    """
    broken: dict[str, str] = {}
    while True:
        left = replace(job, modes=tuple(m for m in job.modes if m.name not in broken))
        collector = CellCollector(left)
        if not left.modes:
            return collector.result(job, broken), ""
        try:
            _launch(left, collector, watch)
        except WorkerError as error:
            if collector.current is None:
                raise
            broken[collector.current] = f"ended its launch: {error}"
        else:
            return collector.result(job, broken), collector.torch


def _launch(job: CellJob, collector: CellCollector, watch: Watch) -> None:
    with ExitStack() as stack:
        command, place = list(WORKER), None
        if job.network == "lab":
            rate = math.inf if job.rate_bytes_per_s is None else job.rate_bytes_per_s
            network = stack.enter_context(Network(job.ranks, rate, latency_s=job.latency_s))
            collector.latency_by = network.latency_by if job.latency_s else ""
            command, place = network.launched(WORKER), _places(network)
        workers = stack.enter_context(Workers(job, command, place))
        load = ForeignLoad(workers.process_ids)
        for rank, event in workers.events():
            collector.add(rank, event)
            if rank:
                continue
            if isinstance(event, RoundStarted):
                load = ForeignLoad(workers.process_ids)
            elif isinstance(event, RoundDone):
                collector.add_foreign(event, load.cores(event.wall_s))
            watch(event)


def _places(network: Network) -> Callable[[int], Place]:
    return lambda rank: Place(network.variables(rank), partial(network.entered, rank))
