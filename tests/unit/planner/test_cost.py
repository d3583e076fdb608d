"""Costs that can be reckoned by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.errors import SpecError
from gradwire.hardware import Device, Hardware, Line, LinkSpeed
from gradwire.planner.cost import Cost, Job, Stage, overlap, reduction_cost, ring_cost
from gradwire.spec import AllReduce, Broadcast, Entry, LowRank, Quantize, Sparse, TwoPhase

LINK = LinkSpeed(latency_s=0.5, bandwidth_bytes_per_s=1000.0)
ENTRY = Entry(0, (4, 1024))
NUM_BYTES = 4 * 4096


def machine(**lines):
    kernels = {name.replace("_", " ", 1): Line(*line) for name, line in lines.items()}
    return Hardware(Device(copy_bytes_per_s=2e3), kernels, LINK, LINK)


def codec_times(cost):
    return [stage.codec_s for stage in cost.stages]


def test_two_phase_passes_over_the_values_are_each_counted_once():
    hardware = machine(encode_int4=(1.0, 0.001), decode_int4=(0.1, 0.0005))
    spec = TwoPhase(Quantize(4))
    cost = reduction_cost(spec, [ENTRY], 4, hardware, LINK)
    encode = 4 * 1.0 + 0.001 * NUM_BYTES
    middle = 0.1 + 0.0005 * NUM_BYTES + 1.0 + 0.001 * NUM_BYTES / 4
    assert codec_times(cost) == pytest.approx([encode, middle, 4 * 0.1 + 0.0005 * NUM_BYTES])
    shard = Quantize(4).num_bytes([1024])
    assert [s.num_bytes for s in cost.stages] == [3 * shard, 3 * shard, 0]
    assert [s.link_s for s in cost.stages] == pytest.approx([3 * shard / 1e3, 3 * shard / 1e3, 0])
    assert cost.sent_bytes == sum(t.sent_bytes for t in spec.transfers([ENTRY], 4, 0))


def test_broadcast_decodes_the_payload_of_every_rank():
    hardware = machine(**{"encode_topk:0.5": (0.0, 0.001), "decode_topk:0.5": (0.2, 0.0005)})
    cost = reduction_cost(Broadcast(Sparse(0.5)), [ENTRY], 3, hardware, LINK)
    assert codec_times(cost) == pytest.approx([0.001 * NUM_BYTES, 0.2 + 0.0005 * 3 * NUM_BYTES])


def test_bfloat16_is_cast_before_summed_between_and_cast_after():
    hardware = machine(encode_bf16=(0.0, 0.001), decode_bf16=(0.0, 0.0005))
    cost = reduction_cost(AllReduce("bfloat16"), [ENTRY], 2, hardware, LINK)
    full = 0.001 * NUM_BYTES
    assert codec_times(cost) == pytest.approx([full, full / 2 + full / 2, full / 2])


def test_float32_unmeasured_is_added_up_at_the_speed_of_a_copy():
    cost = reduction_cost(AllReduce(), [ENTRY], 2, machine(), LINK)
    assert codec_times(cost) == pytest.approx([0.0, 2 * NUM_BYTES / 2e3, 0.0])


def test_low_rank_works_before_between_and_after_its_two_sums():
    cost = reduction_cost(
        LowRank(1), [ENTRY], 2, machine(**{"encode_low_rank:1": (3.0, 0.0)}), LINK
    )
    assert codec_times(cost) == pytest.approx([1.0, 0.0, 1.0, 0.0, 1.0])


def test_an_unmeasured_codec_is_an_error_that_names_it():
    with pytest.raises(SpecError, match="'encode int4' is not measured; known are none at all"):
        reduction_cost(TwoPhase(Quantize(4)), [ENTRY], 2, machine(), LINK)


def test_one_rank_costs_nothing():
    assert reduction_cost(TwoPhase(Quantize(4)), [ENTRY], 1, machine(), LINK).alone_s == 0
    assert ring_cost(1000, 1, LINK).alone_s == 0


def test_ring_uses_the_measured_line_only_for_as_many_ranks():
    measured = LinkSpeed(0.5, 1000.0, 0.0, {"all_reduce": Line(0.25, 0.002)}, ranks=2)
    assert ring_cost(1000, 2, measured).alone_s == pytest.approx(0.25 + 2.0)
    assert ring_cost(1000, 4, measured).alone_s == pytest.approx(6 * 0.5 + 1.5)


def test_transfers_wait_for_the_link_and_latencies_overlap():
    cost = Cost((Stage(0.0, 2.0, 1.0, 8), Stage(0.0)))
    run = overlap([Job(1.0, (cost,)), Job(2.0, (cost,))], backward_s=2.0)
    assert run.done_s == 6.0  # sent from 1 to 3 and from 3 to 5, and 1 on its way
    assert run.link_s == 4.0


def test_the_codec_thread_serves_who_came_first():
    first = Cost((Stage(1.0, 1.0, 0.0, 8), Stage(1.0)))
    second = Cost((Stage(3.0, 0.0, 0.0, 8), Stage(0.0)))
    run = overlap([Job(0.0, (first,)), Job(0.5, (second,))], backward_s=0.0)
    assert run.done_s == 5.0  # first encodes 0-1, second 1-4, first decodes 4-5
    assert run.codec_s == 5.0


def test_interference_lengthens_backward_and_delays_later_gradients():
    cost = Cost((Stage(2.0),))
    run = overlap([Job(1.0, (cost,)), Job(4.0, (cost,))], backward_s=4.0, interference=0.5)
    assert run.backward_s == 5.0  # the first encoding costs it 1
    assert run.done_s == 7.0  # so the second begins at 5


times = st.floats(0, 10)
transfers = st.lists(st.builds(Stage, times, times, times, st.just(8)), max_size=2)
costs = st.builds(lambda stages, last_s: Cost((*stages, Stage(last_s))), transfers, times)
jobs = st.lists(st.builds(lambda ready_s, cost: Job(ready_s, (cost,)), times, costs), max_size=5)


@given(jobs, times)
def test_overlap_lies_between_the_longest_part_and_the_sum_of_all(work, backward_s):
    run = overlap(work, backward_s)
    whole = sum(c.alone_s for j in work for c in j.costs)
    last = max((j.ready_s for j in work), default=0.0)
    assert run.end_s >= max(run.codec_s, run.link_s, backward_s) - 1e-9
    assert run.end_s <= max(last, backward_s) + whole + 1e-9
    assert run == overlap(work, backward_s)


@given(jobs, times, st.floats(0, 1))
def test_interference_never_makes_a_step_shorter(work, backward_s, chi):
    slowed, free = overlap(work, backward_s, chi), overlap(work, backward_s)
    assert slowed.backward_s >= free.backward_s
    assert slowed.backward_s <= free.backward_s + slowed.codec_s + 1e-9
