"""All ranks act on what rank 0 said, at the same step."""

import torch

from gradwire.comm.base import complete
from gradwire.comm.local import run_ranks
from gradwire.engine.switch import Order, Switch
from gradwire.engine.synchronizer import Synchronizer
from gradwire.plan import Parameter, Plan, Rule
from gradwire.spec import Entry, parse_reducer

ORDERS = {0: Order(None, 2), 2: Order(Plan.of("int4"), 1), 3: Order(None, 5)}


def test_every_rank_learns_of_a_plan_in_the_same_step():
    def body(mailbox):
        asked = []

        def lead(step):
            asked.append(step)
            return ORDERS[step]

        switch = Switch(mailbox, lead if mailbox.rank == 0 else None)
        seen = []
        for step in range(6):
            seen.append(switch.take())
            for task in switch.tasks(step):
                complete(task)
        return seen, asked

    results = run_ranks(3, body)
    assert all(seen == [None] * 3 + [Plan.of("int4")] + [None] * 2 for seen, _ in results)
    assert [asked for _, asked in results] == [[0, 2, 3], [], []]


def test_after_a_restart_rank_0_speaks_at_that_step():
    def body(mailbox):
        switch = Switch(mailbox, (lambda _: Order(None, 9)) if mailbox.rank == 0 else None)
        for task in switch.tasks(0):
            complete(task)
        switch.restart(4)
        return [bool(switch.speaks(s)) for s in (3, 4)]

    assert run_ranks(2, body) == [[False, True]] * 2


class _Scripted:
    """A pilot that follows a script."""

    decision = None

    def __init__(self, mailbox, orders):
        lead = (lambda step: orders.get(step, Order(None, 1))) if mailbox.rank == 0 else None
        self.switch = Switch(mailbox, lead)

    def leaves(self, step, scheme):
        return False

    def note(self, stats):
        pass

    def resume(self, plan, step):
        self.switch.restart(step)


PARAMETERS = [Parameter("a", Entry(1, (40, 32))), Parameter("b", Entry(2, (300,)))]
_NUMEL = 1280 + 300


def _everywhere(name):
    return Plan((Rule(parse_reducer(name), min_numel=1, min_ndim=0),))


def _average(sync, x):
    """Average one bucket, and return the mean."""
    done = torch.futures.Future()
    names = ("a", "b")
    sync.reduce(0, x, names, lambda mean, error: done.set_result((mean, error)), is_last=True)
    mean, error = done.wait()
    assert error is None, error
    return mean.clone()


def _train(mailbox, orders, steps):
    sync = Synchronizer(_everywhere("int6"), PARAMETERS, mailbox, pilot=_Scripted(mailbox, orders))
    means, plans = [], []
    for step in range(steps):
        generator = torch.Generator().manual_seed(10 * step + mailbox.rank)
        means.append(_average(sync, torch.randn(_NUMEL, generator=generator)))
        plans.append(sync.plan.digest())
    owed = sync.state_dict()
    sync.close()
    return means, plans, owed


def test_replanned_ranks_stay_bit_identical_and_lose_nothing():
    orders = {
        1: Order(_everywhere("int3"), 1),
        3: Order(_everywhere("none"), 1),
        5: Order(_everywhere("topk:0.1"), 1),
        7: Order(_everywhere("none"), 1),
    }
    results = run_ranks(2, lambda mailbox: _train(mailbox, orders, 10))
    for mine, theirs in zip(results[0][0], results[1][0], strict=True):
        assert torch.equal(mine, theirs)
    assert results[0][1] == results[1][1]
    assert len(set(results[0][1])) == 4
    # All that was owed has been paid: the sums of means and of gradients agree.
    exact = sum(
        torch.randn(_NUMEL, generator=torch.Generator().manual_seed(10 * step + rank))
        for step in range(10)
        for rank in range(2)
    )
    assert torch.allclose(sum(results[0][0]), exact / 2, atol=1e-4)


def test_a_plan_takes_effect_in_the_next_step_not_before():
    fixed = run_ranks(2, lambda mailbox: _train(mailbox, {}, 3))
    changed = run_ranks(2, lambda mailbox: _train(mailbox, {1: Order(_everywhere("int2"), 1)}, 3))
    assert torch.equal(fixed[0][0][1], changed[0][0][1])
    assert not torch.equal(fixed[0][0][2], changed[0][0][2])


def test_a_resumed_run_goes_on_with_the_stored_plan():
    orders = {1: Order(_everywhere("int3"), 1)}

    def whole(mailbox):
        return _train(mailbox, orders, 6)[0]

    def parted(mailbox):
        _, _, state = _train(mailbox, orders, 4)
        sync = Synchronizer(_everywhere("int6"), PARAMETERS, mailbox, pilot=_Scripted(mailbox, {}))
        sync.load_state_dict(state)
        assert sync.plan == _everywhere("int3")
        means = []
        for step in (4, 5):
            generator = torch.Generator().manual_seed(10 * step + mailbox.rank)
            means.append(_average(sync, torch.randn(_NUMEL, generator=generator)))
        sync.close()
        return means

    once, twice = run_ranks(2, whole), run_ranks(2, parted)
    for rank in range(2):
        assert all(map(torch.equal, once[rank][4:], twice[rank]))
