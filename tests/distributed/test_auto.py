"""attach("auto") on real processes: all ranks take the same one, bit by bit."""

import pytest
import torch
from launch import run_processes
from replicas import assert_replicas_agree, mlp, train
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 - as everyone calls it

import gradwire
from gradwire.comm.shaped import Link
from gradwire.errors import SpecError
from gradwire.plan import Plan
from gradwire.spec import Auto

_AUTO = Auto(observed_steps=2, tried_steps=2, watched_steps=4)


def _settled(ddp, sync, rank):
    """Train until a plan is chosen; return the number of steps."""
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
    for i in range(500):
        train(ddp, optimizer, range(i, i + 1), rank)
        if sync.plan.auto is None:
            return i + 1
    raise AssertionError("no plan was chosen")


@pytest.mark.parametrize("link", [None, Link(2e5, 0.0)], ids=["free", "slow"])
def test_ranks_choose_one_plan_and_stay_alike(link):
    def body(rank):
        ddp = gradwire.wrap(mlp())
        sync = gradwire.attach(ddp, _AUTO, link=link)
        assert sync.plan.auto == _AUTO
        steps = _settled(ddp, sync, rank)
        optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
        train(ddp, optimizer, range(steps, steps + 12), rank)
        assert_replicas_agree(ddp)
        assert sync.stats().steps_done == steps + 12
        assert (sync.decision is not None) == (rank == 0)
        plan = sync.plan.digest()
        sync.close()
        return plan, sync.stats().planned

    (mine, why), (theirs, _) = run_processes(2, body)
    assert mine == theirs
    assert (mine == Plan.of("none").digest()) == why.startswith("none")
    if link is not None:
        assert not why.startswith("none")


def test_with_one_rank_or_nothing_large_enough_nothing_is_chosen():
    def body(_):
        sync = gradwire.attach(DDP(mlp()))
        assert sync.plan.auto is None
        assert sync.decision is None
        sync.close()

    run_processes(1, body)

    def small(_):
        sync = gradwire.attach(DDP(nn.Linear(4, 4)), "auto")
        assert sync.plan.auto is None
        sync.close()

    run_processes(2, small)


def test_without_a_plan_one_is_chosen_and_a_checkpoint_carries_it():
    def body(rank):
        ddp = DDP(mlp())
        sync = gradwire.attach(ddp)
        assert sync.plan.auto == Auto()
        steps = _settled(ddp, sync, rank)
        state, weights = sync.state_dict(), {n: t.clone() for n, t in ddp.state_dict().items()}
        further = range(steps, steps + 5)
        train(ddp, torch.optim.SGD(ddp.parameters(), 0.1), further, rank)
        again = DDP(mlp())
        again.load_state_dict(weights)
        resumed = gradwire.attach(again)
        resumed.load_state_dict(state)
        train(again, torch.optim.SGD(again.parameters(), 0.1), further, rank)
        assert resumed.plan == sync.plan
        assert_replicas_agree(again)
        assert all(map(torch.equal, ddp.parameters(), again.parameters()))
        sync.close()
        resumed.close()
        return resumed.plan.digest()

    mine, theirs = run_processes(2, body)
    assert mine == theirs


def test_wrap_makes_buckets_of_the_advised_size():
    def body(_):
        def loss(model):
            return model(torch.ones(2, 40)).square().mean()

        plain = gradwire.wrap(mlp())
        given = gradwire.wrap(mlp(), bucket_cap_mb=7, gradient_as_bucket_view=False)
        advised = gradwire.wrap(mlp(), loss)
        assert plain.bucket_bytes_cap == 5 << 20
        assert given.bucket_bytes_cap == 7 << 20
        assert plain.gradient_as_bucket_view
        assert not given.gradient_as_bucket_view
        return advised.bucket_bytes_cap

    mine, theirs = run_processes(2, body)
    assert mine == theirs
    assert mine >> 20 in (2, 5, 10, 25, 50)


def test_an_error_out_of_range_is_refused():
    with pytest.raises(SpecError, match=r"Auto.max_harm=-1 is not at least 0"):
        Auto(max_harm=-1)
    with pytest.raises(SpecError, match=r"auto=.* is not an object"):
        Auto.from_dict({"max_loss": 1})


def test_a_parameter_without_dimensions_is_learnt_from_and_a_cast_is_refused():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.scale = mlp(), nn.Parameter(torch.ones(()))

        def forward(self, x):
            return self.scale * self.net(x)

    def body(rank):
        ddp = DDP(Scaled())
        sync = gradwire.attach(ddp, _AUTO)
        _settled(ddp, sync, rank)
        assert_replicas_agree(ddp)
        with pytest.raises(SpecError, match=r"dtype of the model='torch\.float64' .* cast before"):
            ddp.double()(torch.ones(4, 40, dtype=torch.float64))
        sync.close()

    run_processes(2, body)
