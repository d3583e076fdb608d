"""Steps as a whole: barriers, buckets, deadlines, conservation, determinism."""

from __future__ import annotations

import itertools

import pytest
from clusters import hardware, layers
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.errors import SpecError
from gradwire.hardware import Device, Hardware, Line, LinkSpeed
from gradwire.plan import Plan
from gradwire.sim import COLLECTIVES, Cluster, EventSimulator, Straggler, simulate
from gradwire.sim.reductions import Reductions
from gradwire.spec import Broadcast, Quantize, parse_reducer
from gradwire.workload import BUCKET_BYTES, Layer, Workload, parameter

RATE = 4e5
WIRE = LinkSpeed(0.0, RATE)
SPEEDS = hardware(within=WIRE, between=WIRE)
DETAILS = ("messages", "phases", "alike")
PLANS = ("none", "bf16", "int4", "int4@broadcast", "sign", "topk:0.01", "low_rank:2")


def _step(workload, plan="none", cluster=None, detail="messages", speeds=SPEEDS, **options):
    return EventSimulator(detail).run(
        Plan.of(plan), workload, speeds, cluster or Cluster(2), **options
    )


def _spans(step, kind, rank=0):
    return [s for s in step.timeline.of(rank) if s.kind == kind]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_bytes_equal_what_the_spec_predicts(plan, ranks):
    parameters = [parameter("w", (300, 40)), parameter("v", (64, 64))]
    assigned = Plan.of(plan).assign(parameters, ranks)
    for detail in ("messages", "phases"):
        work = Workload("w", (Layer("l", tuple(parameters), 0.1, 0.1),))
        step = _step(work, plan, Cluster(ranks), detail)
        by_reducer = {}
        for p in parameters:
            by_reducer.setdefault(assigned[p.name].reducer, []).append(p.entry)
        for rank in range(ranks):
            moved = [t for r, e in by_reducer.items() for t in r.transfers(e, ranks, rank)]
            assert step.timeline.sent_bytes(rank) == sum(t.sent_bytes for t in moved)
            assert step.link_bytes[f"node{rank}>"] == sum(t.sent_bytes for t in moved)
            assert step.link_bytes[f">node{rank}"] == sum(t.received_bytes for t in moved)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("plan", ["none", "int4", "int2@broadcast"])
def test_every_collective_brings_every_bucket_home(collective, plan):
    cluster = Cluster(8, 2, is_multicast=True)
    work = layers((0.1, 0.2), (0.1, 0.2), numel=40_000)
    steps = [
        _step(work, plan, cluster, d, collective=collective, bucket_bytes=100_000) for d in DETAILS
    ]
    assert all(len(_spans(s, "optimiser")) == 0 for s in steps)  # it takes no time here
    assert steps[1].step_s == pytest.approx(steps[2].step_s, rel=0.05)
    assert steps[0].step_s == pytest.approx(steps[1].step_s, rel=0.35)


@pytest.mark.parametrize("detail", DETAILS)
def test_ranks_that_are_alike_need_no_detail(detail):
    work = layers((0.1, 0.2), (0.1, 0.3), (0.05, 0.1), numel=50_000)
    for plan, engine in itertools.product(("none", "int4"), ("ddp", "overlap", "fsdp")):
        reference = _step(work, plan, Cluster(4), "messages", engine=engine)
        step = _step(work, plan, Cluster(4), detail, engine=engine)
        assert step.step_s == pytest.approx(reference.step_s, rel=0.02)


def test_buckets_leave_when_their_last_gradient_is_there():
    work = layers((0.1, 0.2), (0.1, 0.3), (0.1, 0.4), numel=10_000)
    step = _step(work, bucket_bytes=40_000)
    assert [round(s.start_s, 6) for s in _spans(step, "transfer")][::2] == [0.7, 1.0, 1.2]
    whole = _step(work, bucket_bytes=10**9)
    assert {round(s.start_s, 6) for s in _spans(whole, "transfer")[:1]} == {1.2}


def test_exposed_is_what_backward_does_not_hide():
    work = layers((0.1, 0.2), (0.1, 0.3), (0.1, 0.4), numel=10_000)
    step = _step(work, bucket_bytes=40_000)
    # 2 x 20 kB each way for a bucket at 400 kB/s; only the last is not hidden.
    assert step.exposed_s == pytest.approx(0.1)
    assert step.step_s == pytest.approx(0.3 + 0.9 + 0.1)
    assert step.row() == pytest.approx(2.0)


def test_ddp_copies_gradients_in_and_out():
    device = Device(copy_bytes_per_s=8e5)
    work = layers((0.1, 0.2), numel=10_000)
    step = _step(work, speeds=Hardware(device, {}, WIRE, WIRE))
    copy_s = 2 * 40_000 / 8e5
    sum_s = 2 * 20_000 * 2 / 8e5
    assert step.step_s == pytest.approx(0.3 + copy_s + 0.1 + sum_s + copy_s)


def test_codec_beside_backward_holds_it_up_by_its_share():
    kernels = {"encode int4": Line(0.2, 0.0), "decode int4": Line(0.0, 0.0)}
    work = layers((0.0, 0.5), (0.0, 0.5), numel=10_240)
    ends = []
    for chi in (0.0, 0.5, 1.0):
        speeds = hardware(WIRE, WIRE, kernels, chi)
        step = _step(work, "int4", speeds=speeds, bucket_bytes=1)
        ends.append(_spans(step, "backward")[-1].end_s)
    # Two shards and a mean are encoded, 0.2 s each, while the first layer runs backward.
    assert ends == pytest.approx([1.0, 1.3, 1.6])


@pytest.mark.parametrize("engine", ["ddp", "overlap", "fsdp"])
def test_hooks_cast_takes_its_time_under_every_engine(engine):
    work = layers((0.1, 0.2), numel=10_000)
    times = []
    for cast_s in (0.0, 0.3):
        speeds = hardware(
            WIRE, WIRE, {"encode bf16": Line(cast_s, 0.0), "decode bf16": Line(0.0, 0.0)}
        )
        options = {"speeds": speeds, "engine": engine, "collective": "ring"}
        times.append(_step(work, "bf16", **options).step_s)
    assert times[1] - times[0] == pytest.approx(0.3)


def test_back_end_collectives_run_two_at_a_time():
    work = layers(*[(0.0, 0.0)] * 4, numel=10_000)
    step = _step(work, collective="ring", bucket_bytes=1)
    ends = sorted(s.end_s for s in _spans(step, "transfer"))
    assert ends == pytest.approx([0.1 * i for i in range(1, 5)], abs=0.06)
    assert step.step_s == pytest.approx(0.4)


def test_straggler_holds_everyone_up():
    work = layers((0.1, 0.2), numel=1000)
    slow = Cluster(3, stragglers=(Straggler("constant", 1.0, (2,)),))
    for detail in ("messages", "phases"):
        even, late = (_step(work, "none", c, detail).step_s for c in (Cluster(3), slow))
        assert late == pytest.approx(even + 0.3)
    drawn = [
        Cluster(8, seed=s, stragglers=(Straggler("exponential", 0.3),)).slowdowns()
        for s in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    with pytest.raises(SpecError, match="possible where ranks differ"):
        _step(work, "none", slow, "alike")


@pytest.mark.parametrize("detail", DETAILS)
@pytest.mark.parametrize("engine", ["ddp", "fsdp", "overlap"])
def test_same_input_gives_the_same_timeline(detail, engine):
    work = layers((0.1, 0.2), (0.1, 0.3), numel=20_000)
    runs = [_step(work, "int4", Cluster(4), detail, engine=engine).to_json() for _ in range(2)]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("engine", ["ddp", "fsdp", "overlap"])
def test_step_shortens_as_bandwidth_rises(engine):
    work = layers((0.01, 0.02), (0.01, 0.03), numel=20_000)
    times = []
    for rate in (1e5, 1e6, 1e7, 1e8):
        wire = LinkSpeed(1e-4, rate)
        times.append(_step(work, "int4", speeds=hardware(wire, wire), engine=engine).step_s)
    assert times == sorted(times, reverse=True)
    assert times[-1] >= work.compute_s


@st.composite
def _overlapped(draw):
    count = draw(st.integers(1, 6))
    times = st.floats(0.0, 0.5)
    rows = [(draw(times), draw(times), 256 * draw(st.integers(4, 400))) for _ in range(count)]
    return rows, draw(st.sampled_from([2, 3, 4]))


@given(_overlapped())
@settings(max_examples=60)
def test_overlap_waits_as_long_as_prefix_sums_say(case):
    """Front layers first is earliest deadline first, whose wait has a formula."""
    rows, ranks = case
    work = Workload(
        "w",
        tuple(
            Layer(f"l{i}", (parameter(f"w{i}", (n // 256, 256)),), f, b)
            for i, (f, b, n) in enumerate(rows)
        ),
    )
    spec = Broadcast(Quantize(8), force=True)
    speeds = hardware(WIRE, WIRE, {f"{k} int8": Line(0.0, 0.0) for k in ("encode", "decode")})
    plan = Plan.of(spec)
    assigned = plan.assign(work.parameters, ranks)
    sizes = [
        assigned[p.name].reducer.transfers([p.entry], ranks, 0)[0].received_bytes
        * len(assigned[p.name].reducer.transfers([p.entry], ranks, 0))
        for p in work.parameters
    ]
    step = EventSimulator("alike", chunk_bytes=1024, in_flight_bytes=1).run(
        plan, work, speeds, Cluster(ranks), engine="overlap"
    )
    sums = list(itertools.accumulate(s / RATE for s in sizes))
    windows = [sum(f + b for f, b, _ in rows[:k]) for k in range(len(rows))]
    wait_s = max(0.0, *(s - w for s, w in zip(sums, windows, strict=True)))
    waited_s = sum(s.end_s - s.start_s for s in _spans(step, "wait"))
    # Two phases of a dense layer cannot follow each other before a chunk is through.
    chunk_s = 4 * 1024 * ranks / RATE
    assert waited_s == pytest.approx(wait_s, abs=chunk_s)
    assert step.step_s == pytest.approx(work.compute_s + waited_s)


def test_overlap_hides_what_ddp_exposes():
    work = layers(*[(0.1, 0.1)] * 4, numel=20_000)
    ddp, overlap = (_step(work, engine=e, bucket_bytes=1).step_s for e in ("ddp", "overlap"))
    assert overlap < ddp


def test_fsdp_gathers_parameters_and_scatters_gradients():
    work = layers((0.1, 0.2), (0.1, 0.2), (0.1, 0.2), numel=10_000)
    step = _step(work, cluster=Cluster(4), engine="fsdp")
    shard = 40_000 / 4
    # Three gathers forward, two again backward, three scatters: 3 shards each.
    assert step.sent_bytes == pytest.approx(8 * 3 * shard)
    gathers = [s for s in _spans(step, "transfer") if s.layer.endswith(" forward")]
    assert gathers[1].start_s == pytest.approx(gathers[0].end_s)  # one ahead
    with pytest.raises(SpecError, match="works by shards"):
        _step(work, "int4@broadcast", Cluster(4), engine="fsdp")
    with pytest.raises(SpecError, match="works by shards"):
        _step(work, "none", Cluster(4, 2), engine="fsdp", collective="hierarchical")


def test_one_rank_only_computes():
    work = layers((0.1, 0.2), numel=10_000)
    for engine in ("ddp", "fsdp", "overlap"):
        step = _step(work, "int4", Cluster(1), engine=engine)
        assert (step.step_s, step.sent_bytes) == (pytest.approx(0.3), 0)


def test_events_grow_no_faster_than_ranks_and_layers():
    def events(ranks, count):
        work = layers(*[(0.1, 0.1)] * count, numel=2_000)
        return _step(work, "int4", Cluster(ranks), "phases", bucket_bytes=1).events

    assert events(64, 8) < 2.1 * events(32, 8)
    assert events(32, 16) < 2.1 * events(32, 8)
    work = layers(*[(0.1, 0.1)] * 8, numel=2_000)
    alike = [_step(work, "int4", Cluster(r), "alike", bucket_bytes=1).events for r in (32, 1024)]
    assert alike[1] < 1.1 * alike[0]


def test_mistakes_name_their_remedy():
    work = layers((0.1, 0.2))
    for options, text in (
        ({"engine": "none"}, "engine='none' is not one of: ddp, fsdp, overlap"),
        ({"collective": "star"}, "collective='star' is not one of: direct, ring"),
        ({"collective": "multicast"}, "possible without Cluster.is_multicast"),
        ({"bucket_bytes": 0}, "bucket_bytes=0 is not a whole number of at least 1"),
    ):
        with pytest.raises(SpecError, match=text):
            simulate(Plan.of("none"), work, SPEEDS, Cluster(2), **options)


def test_sharing_one_reducer_is_one_reduction():
    parameters = [parameter("w", (64, 64)), parameter("b", (64,)), parameter("v", (64, 64))]
    plan = Plan.of("int4")
    reductions = Reductions(plan.assign(parameters, 2), SPEEDS, Cluster(2), "direct")
    made = reductions.of("bucket 0", parameters)
    assert [r.name for r in made] == ["bucket 0.0", "bucket 0.1"]
    assert made[0].bits < 5 < made[1].bits == 32
    assert BUCKET_BYTES == 25 << 20
    assert parse_reducer("int4").codec.bits == 4
