import gc
import queue
import threading
import weakref
from functools import partial

import pytest
import torch

from gradwire.comm.base import Pending
from gradwire.engine.worker import Worker


@pytest.fixture
def worker():
    worker = Worker("gradwire-test")
    yield worker
    worker.close()


@pytest.fixture
def outcomes():
    return queue.SimpleQueue()


def _waits_for(pending, log=None, name=None):
    yield pending
    if log is not None:
        log.append(name)


def test_a_task_that_sends_nothing_ends_at_once(worker, outcomes):
    worker.submit(_waits_for(_done()), outcomes.put)
    assert outcomes.get(timeout=10) is None


def test_tasks_advance_in_the_order_in_which_they_can(worker, outcomes):
    log = []
    pendings = [Pending() for _ in range(3)]
    for name, pending in enumerate(pendings):
        worker.submit(_waits_for(pending, log, name), outcomes.put)
    for name in (2, 0, 1):
        pendings[name].set_result(None)
        assert outcomes.get(timeout=10) is None
    assert log == [2, 0, 1]


def test_a_task_can_wait_many_times(worker, outcomes):
    def steps():
        yield from pendings

    pendings = [Pending() for _ in range(50)]
    worker.submit(steps(), outcomes.put)
    for pending in pendings:
        pending.set_result(None)
    assert outcomes.get(timeout=10) is None


def test_what_a_task_raises_reaches_its_finish(worker, outcomes):
    def steps():
        raise ValueError("lost")
        yield

    worker.submit(steps(), outcomes.put)
    assert repr(outcomes.get(timeout=10)) == "ValueError('lost')"
    worker.submit(_waits_for(_done()), outcomes.put)  # the thread lives on
    assert outcomes.get(timeout=10) is None


def test_a_failed_transfer_is_raised_where_the_task_waits_for_it(worker, outcomes):
    seen = []

    def steps():
        try:
            yield pending
        except OSError as error:
            seen.append(str(error))
            raise KeyError("after it") from error

    pending = Pending()
    worker.submit(steps(), outcomes.put)
    pending.set_exception(OSError("peer gone"))
    assert repr(outcomes.get(timeout=10)) == "KeyError('after it')"
    assert seen == ["peer gone"]


def test_a_task_may_recover_from_a_failed_transfer(worker, outcomes):
    def steps():
        with pytest.raises(OSError, match="once"):
            yield pendings[0]
        yield pendings[1]

    pendings = [Pending(), _done()]
    worker.submit(steps(), outcomes.put)
    pendings[0].set_exception(OSError("once"))
    assert outcomes.get(timeout=10) is None


def test_tasks_record_no_gradients(worker, outcomes):
    def steps():
        seen.append(torch.is_grad_enabled())
        return
        yield

    seen = []
    worker.submit(steps(), outcomes.put)
    outcomes.get(timeout=10)
    assert seen == [False]


def test_close_waits_until_every_task_has_ended(outcomes):
    worker = Worker("gradwire-test")
    pending = Pending()
    worker.submit(_waits_for(pending), outcomes.put)
    closer = threading.Thread(target=worker.close)
    closer.start()
    closer.join(0.05)
    assert closer.is_alive()
    pending.set_exception(OSError("given up"))
    closer.join(10)
    assert not closer.is_alive()
    assert str(outcomes.get(timeout=10)) == "given up"
    assert not any(t.name == "gradwire-test" for t in threading.enumerate())


def test_close_can_be_called_twice_and_from_a_task(outcomes):
    worker = Worker("gradwire-test")
    worker.submit(_waits_for(_done()), lambda _: outcomes.put(worker.close()))
    assert outcomes.get(timeout=10) is None
    worker.close()
    worker.close()


def test_a_task_after_close_fails_at_once(outcomes):
    worker = Worker("gradwire-test")
    worker.close()
    worker.submit(_waits_for(_done()), outcomes.put)
    assert str(outcomes.get(timeout=10)) == "worker='closed' is not open"


def test_an_ended_task_is_freed_without_the_garbage_collector(worker):
    class Buffer:
        pass

    def finish(_: object, held: Buffer) -> None:
        assert held is not None
        ended.set()

    pending, buffer, ended = Pending(), Buffer(), threading.Event()
    kept = weakref.ref(buffer)
    gc.collect()
    gc.disable()
    try:
        worker.submit(_waits_for(pending), partial(finish, held=buffer))
        del buffer
        pending.set_result(None)
        assert ended.wait(10)
        worker.close()
        del pending
        assert kept() is None
    finally:
        gc.enable()


def _done() -> Pending:
    pending = Pending()
    pending.set_result(None)
    return pending
