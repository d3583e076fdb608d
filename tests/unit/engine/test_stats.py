import pytest

from gradwire.engine.stats import BucketStats, Stats, StepStats


def _bucket(**fields: object) -> BucketStats:
    values = {
        "index": 0,
        "parameters": 2,
        "dense_bytes": 8000,
        "sent_bytes": 1000,
        "received_bytes": 900,
        "encode_s": 0.01,
        "exchange_s": 0.02,
        "decode_s": 0.01,
        "exposed_s": 0.03,
    }
    return BucketStats(**{**values, **fields})


def _stats(*steps: StepStats) -> Stats:
    return Stats(len(steps), None, steps, {}, 0)


def test_a_step_adds_up_its_buckets():
    step = StepStats(4, (_bucket(), _bucket(index=1, sent_bytes=3000)), 0.03, 0.02, is_finite=True)
    assert (step.dense_bytes, step.sent_bytes, step.received_bytes) == (16000, 4000, 1800)
    assert step.times_smaller == 4.0


def test_a_step_that_sent_nothing_is_not_smaller():
    assert StepStats(0, (_bucket(sent_bytes=0),), 0.0, 0.0, is_finite=True).times_smaller == 1.0


def test_scalars_hold_the_largest_error_where_one_was_measured():
    buckets = (_bucket(), _bucket(relative_error=0.2), _bucket(relative_error=0.5))
    scalars = StepStats(0, buckets, 0.03, 0.02, is_finite=True).scalars()
    assert scalars["gradwire/relative_error"] == 0.5
    assert scalars["gradwire/sent_bytes"] == 3000.0
    assert scalars["gradwire/times_smaller"] == 8.0
    assert scalars["gradwire/exposed_s"] == 0.03
    assert (
        "gradwire/relative_error" not in StepStats(0, buckets[:1], 0, 0, is_finite=True).scalars()
    )


@pytest.mark.parametrize(
    ("step", "ending"),
    [
        # 7000 bytes less at 1000 bytes in 20 ms are 140 ms, less 20 ms of encoding.
        (StepStats(0, (_bucket(),), 0.03, 0.02, is_finite=True), "saves about 120 ms a step"),
        (
            StepStats(0, (_bucket(encode_s=1.0),), 0.03, 0.02, is_finite=True),
            "dense would be faster here: encoding takes longer than the bytes it saves",
        ),
        (
            StepStats(0, (_bucket(sent_bytes=0),), 0.0, 0.0, is_finite=True),
            "nothing went over the network",
        ),
    ],
)
def test_m1_the_summary_says_whether_compression_pays(step, ending):
    summary = _stats(step, step).summary()
    assert summary.endswith("; " + ending)
    assert "x smaller; " in summary


def test_the_summary_before_the_first_step_says_so():
    assert _stats().summary() == "no step has been synchronised yet"
