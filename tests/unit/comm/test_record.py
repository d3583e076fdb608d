from concurrent.futures import Future

import pytest
import torch

from gradwire.comm.local import run_ranks
from gradwire.comm.record import Recorder, Traffic
from gradwire.errors import CollectiveError


def test_recorder_counts_the_bytes_of_each_direction():
    def body(mailbox):
        recorder = Recorder(mailbox)
        rank, peer = recorder.rank, 1 - recorder.rank
        sizes = [3, 7]
        for tag in range(2):
            sends = {peer: torch.ones(sizes[rank], dtype=torch.float16)}
            receives = {peer: torch.ones(sizes[peer], dtype=torch.float16)}
            recorder.exchange(tag, sends, receives).result()
        traffic = recorder.take()
        return traffic.sent_bytes, traffic.received_bytes, traffic.exchanges, recorder.take()

    none = Traffic(0, 0, 0, ())
    assert run_ranks(2, body) == [(12, 28, 2, none), (28, 12, 2, none)]


def test_recorder_measures_from_start_to_completion():
    def body(mailbox):
        recorder = Recorder(mailbox)
        if mailbox.rank == 1:
            mailbox.gather_objects(None)
            recorder.exchange(0, {0: torch.ones(2)}, {}).result()
            return recorder.take()
        pending = recorder.exchange(0, {}, {1: torch.ones(2)})
        assert recorder.take() == Traffic(0, 0, 0, ())
        mailbox.gather_objects(None)
        pending.result()
        return recorder.take()

    receiver, sender = run_ranks(2, body)
    assert receiver.received_bytes == sender.sent_bytes == 8
    assert receiver.exchange_s[0] > 0


def test_recorder_passes_failures_on_uncounted():
    class Broken:
        rank, world_size = 0, 2

        def exchange(self, tag, *_):
            pending = Future()
            pending.set_exception(CollectiveError("exchange", 0, f"tag {tag}"))
            return pending

    recorder = Recorder(Broken())
    with pytest.raises(CollectiveError, match="tag 4"):
        recorder.exchange(4, {1: torch.ones(1)}, {}).result()
    assert recorder.take() == Traffic(0, 0, 0, ())
