"""What the handle reports: bytes, errors, parameters left dense, time, and where it goes."""

import pytest
import torch
from launch import run_processes
from replicas import SCHEMES, Given, assert_replicas_agree, draw, everywhere, step, wrap
from torch import nn

import gradwire
from gradwire.integrations.loggers import log_to
from gradwire.key import name_hash
from gradwire.plan import DENSE, Parameter, Plan
from gradwire.report import timeline_html
from gradwire.spec import Entry

_SHAPES = ((40, 33), (300,), (5, 4), (64, 16))


def _names_by_step(sync):
    """Record the parameters of each bucket from now on, by step."""
    seen = []
    reduce = sync.reduce

    def recording(index, buffer, names, deliver, **options):
        if index == 0:
            seen.append([])
        seen[-1].append(names)
        reduce(index, buffer, names, deliver, **options)

    sync.reduce = recording
    return seen


@pytest.mark.parametrize("world_size", [2, 3])
def test_bytes_counted_are_those_the_specs_predict(world_size):
    def body(rank):
        for scheme in SCHEMES:
            plan = everywhere(scheme)
            ddp, sync = wrap(Given(*_SHAPES), plan, bucket_cap_mb=0.001)
            seen = _names_by_step(sync)
            for _ in range(2):
                step(ddp, *(draw(*shape, seed=rank) for shape in _SHAPES))
            last = sync.stats().recent[-1]
            assert (last.sent_bytes, last.received_bytes) == predicted(plan, seen[-1], rank)
            numel = sum(p.numel() for p in ddp.parameters())
            exact = 2 * (world_size - 1) * 4 * numel / world_size
            assert 0 <= exact - last.dense_bytes < len(last.buckets)  # each is rounded down
            assert_replicas_agree(ddp)
            sync.close()

    def predicted(plan, buckets, rank):
        """Sum over buckets: payloads of one bucket's parameters share their alignment."""
        parameters = [
            Parameter(f"w.{i}", Entry(name_hash(f"w.{i}"), shape))
            for i, shape in enumerate(_SHAPES)
        ]
        reducers = {n: a.reducer for n, a in plan.assign(parameters, world_size).items()}
        transfers = [
            transfer
            for names in buckets
            for reducer in {reducers[n] for n in names}
            for transfer in reducer.transfers(
                [
                    p.entry
                    for n in names
                    for p in parameters
                    if p.name == n and reducers[n] == reducer
                ],
                world_size,
                rank,
            )
        ]
        return sum(t.sent_bytes for t in transfers), sum(t.received_bytes for t in transfers)

    run_processes(world_size, body)


def test_m2_nothing_grows_and_what_stays_dense_is_listed():
    shapes = ((3, 3), (1, 1000), (10, 2), (64, 48))

    def body(rank):
        for scheme in SCHEMES[1:]:
            ddp, sync = wrap(Given(*shapes), scheme, bucket_cap_mb=0.00001)
            for _ in range(2):
                step(ddp, *(draw(*shape, seed=rank) for shape in shapes))
            stats = sync.stats()
            for bucket in stats.recent[-1].buckets:
                assert bucket.sent_bytes <= bucket.dense_bytes + 4, (scheme, bucket)
            assert "w.3" not in stats.dense
            assert all("would send" in reason for reason in stats.dense.values())
            assert_replicas_agree(ddp)
            sync.close()
        ddp, sync = wrap(Given(*shapes), "low_rank:4")
        assert {"w.0", "w.1", "w.2"} <= set(sync.stats().dense)
        step(ddp, *(draw(*shape, seed=rank) for shape in shapes))
        assert_replicas_agree(ddp)

    run_processes(2, body)


def test_stats_of_a_run():
    def body(rank):
        torch.manual_seed(0)
        ddp, sync = wrap(nn.Linear(64, 64), Plan.of("int4"), bucket_cap_mb=0.001)
        assert sync.stats().summary() == "no step has been synchronised yet"
        for _ in range(13):
            step(ddp, draw(2, 64, seed=rank))
        stats = sync.stats()
        assert (stats.steps_done, stats.forwards) == (13, 13)
        assert stats.dense == {"bias": "1 dimensions, fewer than 2"}
        assert stats.residual_bytes == 4 * 64 * 64
        assert [s.step for s in stats.recent] == list(range(13))
        for s in stats.recent:
            errors = [b.relative_error for b in s.buckets if b.relative_error is not None]
            assert bool(errors) == (s.step in (1, 11))
            assert all(0 < e < 0.3 for e in errors)
            assert s.is_finite
            assert s.exposed_s >= 0
            assert s.wire_s > 0
            for b in s.buckets:
                assert min(b.encode_s, b.exchange_s, b.decode_s) > 0
        ratios = [max(b.gradient_ratio or 0 for b in s.buckets) for s in stats.recent]
        assert ratios[0] == 0
        assert all(0 < ratio < 1 for ratio in ratios[1:])
        summary = stats.summary()
        assert "sent a step, 7." in summary
        assert "x smaller" in summary
        assert_replicas_agree(ddp)
        return summary

    for summary in run_processes(2, body):
        assert "saves about" in summary or "dense would be faster here" in summary


def test_profiler_shows_encode_exchange_and_decode():
    def body(rank):
        ddp, _ = wrap(Given((40, 33), (40, 33)), "int4", bucket_cap_mb=0.005)
        step(ddp, draw(40, 33, seed=rank), draw(40, 33, seed=rank))
        # There is no public way to ask for the threads that were there before.
        config = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], experimental_config=config
        ) as profile:
            step(ddp, draw(40, 33, seed=rank), draw(40, 33, seed=rank))
        names = {event.name for event in profile.events()}
        for index in range(2):
            assert {f"gradwire::encode##bucket{index}", f"gradwire::decode##bucket{index}"} <= names
        assert "gradwire::exchange" in names
        assert_replicas_agree(ddp)

    run_processes(2, body)


class _SummaryWriter:
    """As TensorBoard's."""

    def __init__(self):
        self.seen = []

    def add_scalar(self, tag, value, global_step):
        self.seen.append((global_step, tag, value))


class _Run:
    """As of Weights & Biases."""

    def __init__(self):
        self.seen = []

    def log(self, values, *, step):
        self.seen += [(step, name, value) for name, value in values.items()]


@pytest.mark.parametrize("writer", [_SummaryWriter, _Run])
def test_on_step_writes_to_a_logger(writer):
    def body(rank):
        log = writer()
        ddp = nn.parallel.DistributedDataParallel(Given((40, 33)))
        gradwire.attach(ddp, everywhere("int4"), on_step=log_to(log))
        for _ in range(4):
            step(ddp, draw(40, 33, seed=rank))
        assert sorted({number for number, *_ in log.seen}) == [0, 1, 2]
        first = {name: value for number, name, value in log.seen if number == 1}
        assert set(first) == {
            "gradwire/sent_bytes",
            "gradwire/received_bytes",
            "gradwire/times_smaller",
            "gradwire/exposed_s",
            "gradwire/relative_error",
        }
        assert all(type(value) is float for value in first.values())
        assert first["gradwire/times_smaller"] > 6
        assert_replicas_agree(ddp)

    run_processes(2, body)


def test_plan_none_reports_every_parameter_as_dense():
    def body(rank):
        ddp, sync = wrap(Given((40, 33)), "none")
        step(ddp, draw(40, 33, seed=rank))
        assert sync.stats().dense == {"w.0": "the plan says so"}
        assert everywhere("none").rules[0].reducer == DENSE
        assert sync.stats().recent[-1].times_smaller == 1
        assert_replicas_agree(ddp)

    run_processes(2, body)


def test_measured_timeline_shows_all_buckets_in_order():
    def body(rank):
        ddp, sync = wrap(Given(*_SHAPES), "int4", bucket_cap_mb=0.001)
        for _ in range(2):
            step(ddp, *(draw(*shape, seed=rank) for shape in _SHAPES))
        last = sync.stats().recent[-1]
        line = last.timeline(rank)
        assert {s.layer for s in line.spans} == {f"bucket {b.index}" for b in last.buckets}
        assert {s.kind for s in line.spans} == {"encode", "transfer", "decode"}
        assert line.sent_bytes(rank) == last.sent_bytes
        assert all(0 <= s.start_s <= s.end_s <= line.step_s for s in line.spans)
        assert "bucket 0" in timeline_html(line)
        assert_replicas_agree(ddp)
        sync.close()

    run_processes(2, body)
