"""Cores that all ranks share, and what a simulation costs."""

from __future__ import annotations

import math
import sys

import pytest
from clusters import hardware, layers

from gradwire.errors import SpecError
from gradwire.hardware import Line, LinkSpeed
from gradwire.plan import Plan
from gradwire.sim import Cluster, EventSimulator, simulate

STEP = layers((1.0, 2.0), (1.0, 2.0))
NO_LINK = LinkSpeed(0.0, 1e12)


def _with_transport(processor_s_per_byte):
    """Two ranks whose all-reduce takes 1 ms a byte on the link, and so much of each rank's core."""
    lines = {"all_reduce": Line(0.0, 1e-3)}
    work = {"all_reduce": Line(0.0, processor_s_per_byte)}
    return hardware(between=LinkSpeed(0.0, 1e3, 0.0, lines, 2, processor=work))


def _ring(speeds, cores, ranks=2):
    cluster = Cluster(ranks, shared_cores=cores)
    return simulate(Plan.of("none"), STEP, speeds, cluster, collective="ring", bucket_bytes=1)


def test_ranks_take_turns_on_shared_cores():
    speeds = hardware(between=NO_LINK)
    alone, crowded = (_ring(speeds, cores, ranks=4).step_s for cores in (0, 2))
    assert alone == pytest.approx(6.0)
    assert crowded == pytest.approx(12.0)


def test_no_thread_works_faster_than_one_core():
    speeds = hardware(between=NO_LINK)
    assert _ring(speeds, 64).step_s == pytest.approx(_ring(speeds, 0).step_s)


def test_transport_and_computation_share_the_cores_fairly():
    # 4 kB a layer: 4 s of the link, or of a core of each rank
    free, working = (_ring(_with_transport(s), 2).step_s for s in (0.0, 1e-3))
    assert free == pytest.approx(2 + 2 + 8)
    # beside the second backward both have half a core: 4 s, in which 2 s of the first
    # exchange are done; the rest of it and the second one take 6 s
    assert working == pytest.approx(2 + 2 + 4 + 6)


def test_transport_that_needs_more_than_the_cores_is_limited_by_them():
    # 8 kB, 2 ms of each rank's core a byte: two cores are busy for 16 s with nothing else
    step = _ring(_with_transport(2e-3), 2)
    assert step.step_s == pytest.approx(6 + 16)


def test_work_counts_the_processor_and_not_the_clock():
    speeds = hardware(between=NO_LINK)
    assert _ring(speeds, 0, ranks=4).work_s == pytest.approx(6.0)
    assert _ring(speeds, 1, ranks=4).work_s == pytest.approx(6.0)


def test_codec_and_backward_delay_each_other_only_where_cores_are_short():
    kernels = {"encode int4": Line(1.0, 0.0), "decode int4": Line(0.0, 0.0)}
    speeds = hardware(between=NO_LINK, kernels=kernels, interference=1.0)
    large = layers((1.0, 2.0), (1.0, 2.0), numel=100_000)

    def step(cores):
        cluster = Cluster(2, shared_cores=cores)
        return simulate(Plan.of("int4"), large, speeds, cluster, bucket_bytes=1)

    work_s = step(0).work_s
    assert 6 < step(8).step_s < work_s
    assert step(1).step_s == pytest.approx(2 * work_s, rel=1e-6)


def test_shared_cores_are_simulated_message_by_message():
    cluster = Cluster(16, shared_cores=4)
    assert simulate(Plan.of("none"), STEP, hardware(), cluster).step_s > 6 * 4
    with pytest.raises(SpecError, match="messages where cores are shared"):
        EventSimulator("alike").run(Plan.of("none"), STEP, hardware(), cluster)


def _operations(run):
    """Count calls of functions, those of built-in ones included."""
    calls = 0

    def count(_frame, event, _argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        step = run()
    finally:
        sys.setprofile(None)
    return calls, step.events


def test_operations_grow_no_faster_than_events_times_their_logarithm():
    def unit(ranks, count):
        work = layers(*[(0.1, 0.1)] * count, numel=2_000)
        calls, events = _operations(
            lambda: EventSimulator("phases").run(
                Plan.of("int4"), work, hardware(), Cluster(ranks), bucket_bytes=1
            )
        )
        return calls / (events * math.log2(events))

    small = unit(16, 8)
    assert unit(128, 8) < 1.1 * small
    assert unit(16, 64) < 1.1 * small
