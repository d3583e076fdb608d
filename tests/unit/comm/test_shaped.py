import math
import threading
import time
from concurrent.futures import Future

import pytest
import torch

from gradwire.comm.base import complete
from gradwire.comm.channel import Channel
from gradwire.comm.local import run_ranks
from gradwire.comm.shaped import Alarm, Link, Port, ShapedMailbox
from gradwire.errors import CollectiveError, SpecError
from tries import assert_fast


@pytest.mark.parametrize(
    ("rate", "latency"),
    [(0, 0), (-1, 0), (math.nan, 0), (1, -1), (1, math.inf), ("1MB/s", 0), (None, 0), (1, "1ms")],
)
def test_link_refuses_what_cannot_be(rate, latency):
    with pytest.raises(SpecError, match="Link"):
        Link(rate, latency)


def test_port_sends_one_message_after_the_other():
    port = Port(Link(100.0, 5.0))
    assert [port.send(0.0, 100), port.send(0.5, 200), port.send(10.0, 100)] == [1.0, 3.0, 11.0]


def test_port_receives_while_it_sends():
    port = Port(Link(100.0))
    assert port.send(0.0, 100) == 1.0
    assert port.receive(1.0, 100) == 1.0


def test_port_receives_from_two_senders_at_the_rate_of_its_line():
    port = Port(Link(100.0, 0.25))
    assert [port.receive(1.0, 100), port.receive(1.0, 100)] == [1.25, 2.25]


def test_port_overlaps_latencies():
    port = Port(Link(100.0, 7.0))
    assert [port.receive(1.0, 100), port.receive(2.0, 100)] == [8.0, 9.0]


def test_port_waits_for_a_late_sender():
    port = Port(Link(100.0))
    port.receive(1.0, 100)
    assert port.receive(9.0, 100) == 9.0


def test_alarm_calls_in_order_of_time():
    alarm, calls, done = Alarm(), [], threading.Event()
    now = time.monotonic()
    alarm.at(now + 0.10, lambda: (calls.append("late"), done.set()))
    alarm.at(now + 0.05, lambda: calls.append("early"))
    assert done.wait(10)
    assert calls == ["early", "late"]
    alarm.close()


def test_alarm_leaves_nothing_undone_when_closed():
    alarm, calls = Alarm(), []
    alarm.at(time.monotonic() + 3600, lambda: calls.append(1))
    alarm.close()
    alarm.close()
    alarm.at(time.monotonic() + 3600, lambda: calls.append(2))
    assert calls == [1, 2]


def test_alarm_ends_its_thread_when_dropped():
    alarm = Alarm()
    thread = alarm._queue._thread
    del alarm
    thread.join(10)
    assert not thread.is_alive()


def test_shaped_all_reduce_takes_the_time_of_the_link():
    num_bytes, link = 4000, Link(10_000.0, 0.05)
    ideal_s = 2 * (2 / 3 * num_bytes / link.rate_bytes_per_s + link.latency_s)

    def body(mailbox):
        shaped = ShapedMailbox(mailbox, link)
        x = torch.full((num_bytes // 4,), float(mailbox.rank + 1))
        mailbox.gather_objects(None)
        start = time.monotonic()
        complete(Channel(shaped, 0).all_reduce(x))
        took_s = time.monotonic() - start
        shaped.close()
        return took_s, x.unique().tolist()

    def slowest():
        took_s, values = zip(*run_ranks(3, body), strict=True)
        assert values == ([6.0],) * 3
        assert min(took_s) > ideal_s - 0.01
        return max(took_s)

    assert_fast(slowest, ideal_s + 0.2)


def test_shaped_sender_to_many_is_as_slow_as_its_own_line():
    def body(mailbox):
        shaped = ShapedMailbox(mailbox, Link(10_000.0))
        mailbox.gather_objects(None)
        start = time.monotonic()
        if mailbox.rank == 0:
            shaped.exchange(0, {r: torch.ones(250) for r in (1, 2)}, {}).result()
        else:
            shaped.exchange(0, {}, {0: torch.ones(250)}).result()
        end = time.monotonic()
        shaped.close()
        return start, end

    def first_s():
        (start, sent), (_, first), (_, second) = run_ranks(3, body)
        assert first > start + 0.09
        assert min(second, sent) > start + 0.19
        return first - start

    assert_fast(first_s, 0.19)


def test_shaped_exchange_without_limit_adds_nothing():
    def body(mailbox):
        shaped = ShapedMailbox(mailbox, Link())
        pending = shaped.exchange(0, {}, {})
        shaped.close()
        return pending.done()

    assert run_ranks(1, body) == [True]


def test_shaped_exchange_passes_failures_on():
    class Broken:
        rank, world_size = 0, 2

        def exchange(self, tag, *_):
            pending = Future()
            pending.set_exception(CollectiveError("exchange", 0, f"tag {tag}"))
            return pending

        def close(self):
            pass

    shaped = ShapedMailbox(Broken(), Link(1.0))
    with pytest.raises(CollectiveError, match="tag 9"):
        shaped.exchange(4, {1: torch.ones(1)}, {}).result()
    shaped.close()
