"""The mailbox whose urgent messages overtake others, over socket pairs."""

import socket
import threading
import time

import pytest
import torch

from gradwire.comm import line as lines
from gradwire.comm.local import run_ranks
from gradwire.comm.meter import Meter
from gradwire.comm.priority import PriorityMailbox
from gradwire.comm.shaped import Link
from gradwire.comm.sockets import connect, run_connected
from gradwire.errors import CollectiveError, SpecError


def _filled(numel, value):
    return torch.full((numel,), float(value))


def test_every_rank_may_exchange_in_an_order_of_its_own():
    def body(mailbox):
        others = [r for r in range(3) if r != mailbox.rank]
        tags = [(7 * i + mailbox.rank * 13) % 20 for i in range(20)]
        boxes = {t: {r: torch.zeros(1000 + t) for r in others} for t in range(20)}
        pendings = [
            mailbox.exchange(
                t, dict.fromkeys(others, _filled(1000 + t, 100 * mailbox.rank + t)), boxes[t], -t
            )
            for t in tags
        ]
        for pending in pendings:
            pending.result(20)
        return all(bool((boxes[t][r] == 100 * r + t).all()) for t in boxes for r in others)

    assert run_connected(3, body) == [True] * 3


def test_an_urgent_message_overtakes_a_long_one_under_way():
    done = []

    def body(mailbox):
        peer = 1 - mailbox.rank
        long, short = _filled(200_000, 1), _filled(1000, 2)
        boxes = [torch.zeros(200_000), torch.zeros(1000)]
        rear = mailbox.exchange(1, {peer: long}, {peer: boxes[0]}, 5.0)
        front = mailbox.exchange(2, {peer: short}, {peer: boxes[1]}, 1.0)
        if mailbox.rank == 0:
            rear.add_done_callback(lambda _: done.append("rear"))
            front.add_done_callback(lambda _: done.append("front"))
        rear.result(20)
        front.result(20)
        return bool((boxes[0] == 1).all() and (boxes[1] == 2).all())

    assert run_connected(2, body, link=Link(4e6)) == [True, True]
    assert done == ["front", "rear"]


def test_a_link_takes_its_time_once_for_all_ranks_sent_to():
    def body(mailbox):
        others = [r for r in range(3) if r != mailbox.rank]
        boxes = {r: torch.zeros(12_500) for r in others}
        mailbox.gather_objects(None)
        start = time.monotonic()
        mailbox.exchange(1, dict.fromkeys(others, torch.ones(12_500)), boxes).result(20)
        return start, time.monotonic()

    starts, ends = zip(*run_connected(3, body, link=Link(5e5, 0.05)), strict=True)
    assert max(ends) - max(starts) >= 0.24  # the last to start still had both to serve


def test_sizes_that_differ_break_the_connection_in_words():
    def body(mailbox):
        peer, size = 1 - mailbox.rank, 10 + mailbox.rank
        with pytest.raises(CollectiveError) as caught:
            mailbox.exchange(3, {peer: torch.ones(size)}, {peer: torch.ones(size)}).result(20)
        return str(caught.value)

    told = run_connected(2, body)
    assert any("tag 3: at least 44 bytes sent, 40 expected" in text for text in told)


def test_a_lost_connection_fails_everything_on_all_ranks():
    def body(mailbox):
        others = [r for r in range(3) if r != mailbox.rank]
        connected.wait(20)
        if mailbox.rank == 2:
            for each in mailbox._lines.values():
                each._socket.shutdown(socket.SHUT_RDWR)
            return ""
        boxes = {r: torch.zeros(3) for r in others}
        with pytest.raises(CollectiveError) as caught:
            mailbox.exchange(1, dict.fromkeys(others, torch.ones(3)), boxes).result(20)
        with pytest.raises(CollectiveError, match="tag 2: rank"):
            mailbox.exchange(2, {}, boxes).result(20)
        return str(caught.value)

    connected = threading.Barrier(3)
    first, second, _ = run_connected(3, body)
    assert "closed by peer" in first + second


def test_what_was_sent_is_delivered_though_the_sender_closes_at_once():
    def body(mailbox):
        peer, box = 1 - mailbox.rank, torch.zeros(300_000)
        if mailbox.rank == 0:
            mailbox.exchange(1, {peer: torch.ones(300_000)}, {}).result(20)
            mailbox.close()
            closed.set()
            return True
        closed.wait(20)
        mailbox.exchange(1, {}, {peer: box}).result(20)
        with pytest.raises(CollectiveError, match="rank 0 has closed its end"):
            mailbox.exchange(2, {}, {peer: box}).result(20)
        return bool((box == 1).all())

    closed = threading.Event()
    assert run_connected(2, body) == [True, True]


def test_closing_fails_what_is_under_way_and_what_comes_later():
    def body(mailbox):
        peer = 1 - mailbox.rank
        pending = mailbox.exchange(1, {}, {peer: torch.zeros(3)})
        mailbox.close()
        later = mailbox.exchange(2, {}, {peer: torch.zeros(3)})
        return [str(p.exception(20)) for p in (pending, later)]

    for pending, later in run_connected(2, body):
        assert "tag 1: " in pending
        assert "closed" in pending
        assert "tag 2: the mailbox was closed" in later
    names = [t.name for t in threading.enumerate()]
    assert not [name for name in names if name.startswith(("gradwire-send", "gradwire-receive"))]


def test_tensors_that_cannot_be_sent_are_refused():
    def body(mailbox):
        with pytest.raises(SpecError, match="contiguous"):
            mailbox.exchange(1, {1 - mailbox.rank: torch.ones(4, 4).T}, {})

    run_connected(2, body)


def test_latency_and_bandwidth_are_measured():
    def body(mailbox):
        peer, box = 1 - mailbox.rank, torch.zeros(100_000)
        mailbox.ping()
        mailbox.exchange(1, {peer: torch.ones(100_000)}, {peer: box}).result(20)
        mailbox.gather_objects(None)
        return mailbox.rates()

    for rates in run_connected(2, body, link=Link(4e6, 0.005)):
        assert rates.latency_s >= 0.005
        assert rates.bandwidth_bytes_per_s < 5e6


def test_the_meter_leaves_out_pauses_and_what_buffers_swallow():
    meter = Meter(1 << 17)
    assert meter.bytes_per_s() is None
    for burst in range(3):
        for i in range(6):
            start = 10.0 * burst + 0.1 * i
            meter.add(start, start + (0.0 if i < 2 else 0.1), 1 << 16)
    # Two packets of each burst went into buffers at once; four took 0.1 s each.
    assert meter.bytes_per_s() == pytest.approx((1 << 16) / 0.1, rel=0.3)


def test_the_meter_is_not_misled_by_a_sender_that_waited_for_a_core():
    meter, now = Meter(0), 0.0
    for i in range(40):
        took = 0.05 if i % 4 == 0 else 0.001 if i % 4 == 1 else 0.01
        meter.add(now, now + took, 1 << 17)
        now += took
    assert meter.bytes_per_s() == pytest.approx((1 << 17) / 0.01)


def test_the_meter_believes_the_latest_quarter_of_a_second():
    meter, now = Meter(0), 0.0
    for took in [0.001] * 60 + [0.02] * 14:
        meter.add(now, now + took, 1 << 17)
        now += took
    assert meter.bytes_per_s() == pytest.approx((1 << 17) / 0.02)


def test_latency_is_measured_before_there_is_any_traffic():
    def body(mailbox):
        mailbox.measure_latency()
        return mailbox.rates()

    for rates in run_connected(3, body):
        assert rates.bandwidth_bytes_per_s is None
        assert rates.latency_s > 0


def test_lines_that_share_a_link_share_what_may_be_under_way():
    sizes = []
    ends = socket.socketpair()
    made = [lines.Line(1, end, None, lambda *_: None, lambda _: None) for end in ends]
    made[0].trip_s = 0.001
    for share in (1, 3):
        made[0].set_rate(1e8, share)
        sizes.append(ends[0].getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF))
    assert sizes[0] > sizes[1]
    for each in made:
        each.stop()


def test_packets_suit_the_link():
    ends = socket.socketpair()
    made = [lines.Line(1, end, None, lambda *_: None, lambda _: None) for end in ends]
    for rate, size in ((1e3, 1 << 14), (1e7, 20_000), (1e12, 1 << 18)):
        made[0].set_rate(rate)
        assert made[0]._packet_bytes == size
    for each in made:
        each.stop()


def test_ranks_connect_by_tcp(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")

    def body(local):
        mailbox = PriorityMailbox(local.rank, connect(local, 20.0))
        values = mailbox.gather_objects(local.rank)
        mailbox.close()
        return values

    assert run_ranks(3, body) == [[0, 1, 2]] * 3


def test_an_interface_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere7")
    with pytest.raises(CollectiveError, match="interface 'nowhere7' of GLOO_SOCKET_IFNAME"):
        run_ranks(1, connect)


def test_one_rank_needs_no_connection():
    assert run_connected(1, lambda mailbox: mailbox.gather_objects("alone")) == [["alone"]]


def test_run_connected_tells_the_first_error():
    def body(mailbox):
        if mailbox.rank == 1:
            raise KeyError("mine")
        mailbox.gather_objects(None)

    with pytest.raises((KeyError, CollectiveError)):
        run_connected(2, body)
