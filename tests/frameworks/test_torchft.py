"""torchft's DDP with a quorum played by the test: what is owed over changes and failures."""

import pytest
import torch
import torch.distributed as dist
from launch import run_processes
from replicas import assert_replicas_agree, digest, draw, everywhere, mlp

torchft = pytest.importorskip("torchft")

from gradwire.integrations.torchft import DistributedDataParallel  # noqa: E402 - needs torchft

pytestmark = pytest.mark.filterwarnings("ignore")  # of the package's own


class Played:
    """What gradwire asks of a manager, decided by the test."""

    def __init__(self, store):
        self._store = store
        self._pg = torchft.ProcessGroupGloo()
        self.problem = None
        self.heals = False

    def meet(self, quorum, rank, size, participants=None):
        place = dist.PrefixStore(quorum, self._store)
        self._pg._pg = self._pg._create_pg(place, rank, size)
        self.participants, self.problem = participants or size, None

    def errored(self):
        return self.problem

    def report_error(self, error):
        self.problem = error

    def wait_quorum(self):
        pass

    def num_participants(self):
        return self.participants

    def is_participating(self):
        return not self.heals


def _backward(model, seed):
    model.zero_grad()
    model(draw(4, 40, seed=seed)).square().mean().backward()


def _residual(model):
    (state,) = model.exchange.sync.state_dict().values()
    return torch.cat([t.reshape(-1) for t in state["residual"].values()])


def _made():
    store = dist.PrefixStore("torchft", dist.group.WORLD.get_group_store())
    manager = Played(store)
    return manager, DistributedDataParallel(manager, mlp(depth=2), everywhere("int4"), timeout_s=5)


def test_what_is_owed_is_kept_in_the_unit_of_the_new_quorum():
    def body(rank):
        manager, model = _made()
        manager.meet("both", rank, 2)
        for step in range(3):
            _backward(model, 10 * step + rank)
        assert_replicas_agree(model)
        owed = _residual(model)
        assert owed.any()
        manager.meet(f"alone {rank}", 0, 1)
        _backward(model, rank)
        assert torch.equal(_residual(model), owed / 2)
        manager.meet("again", 1 - rank, 2)  # ranks may be dealt out anew
        before = _residual(model)
        kept = [None, None]
        dist.all_gather_object(kept, before)
        _backward(model, rank)
        assert model.exchange.connections == 3
        assert model.exchange.sync.stats().steps_done == 5
        assert_replicas_agree(model)

    run_processes(2, body)


def test_failed_step_is_taken_back_and_told_to_the_manager():
    def body(rank):
        manager, model = _made()
        manager.meet("both", rank, 2)
        _backward(model, rank)
        owed = digest([_residual(model)])
        if rank == 1:
            model.exchange.sync.close()
            dist.barrier()
            return
        dist.barrier()
        _backward(model, 5)
        assert "failed on rank 0" in str(manager.errored())
        manager.problem = None
        _backward(model, 6)
        assert "waits for a new quorum" in str(manager.errored())
        manager.meet("alone", 0, 1, participants=2)
        _backward(model, 7)
        assert manager.errored() is None
        assert digest([_residual(model)]) == owed

    run_processes(2, body)


def test_healing_replica_contributes_zeros_and_owes_nothing_from_before():
    def body(rank):
        manager, model = _made()
        manager.meet(f"alone {rank}", 0, 1)
        _backward(model, rank)
        manager.heals = rank == 1
        manager.meet("both", rank, 2, participants=1)
        _backward(model, 3)
        gradients = [p.grad.clone() for p in model.parameters()]
        net = mlp(depth=2)
        net(draw(4, 40, seed=3)).square().mean().backward()
        for ours, p in zip(gradients, net.parameters(), strict=True):
            assert (ours - p.grad).abs().amax() <= 0.2 * p.grad.abs().amax()
        assert_replicas_agree(model)

    run_processes(2, body)
