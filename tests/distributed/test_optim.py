"""The optimisers in real processes: a DDP model under `no_sync`, and a plain one, resumed."""

import torch
import torch.distributed as dist
from launch import run_processes
from replicas import digest, draw, mlp
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 - as everyone calls it

from gradwire.optim import LAMB, AdamW


def _train(model, optimizer, steps, rank):
    for i in steps:
        optimizer.zero_grad()
        model(draw(4, 40, seed=100 * i + rank)).square().mean().backward()
        optimizer.step()
        found = [None] * dist.get_world_size()
        dist.all_gather_object(found, digest(list(model.parameters())))
        assert len(set(found)) == 1, f"step {i}"
    return digest(list(model.parameters()))


def test_model_in_ddp_under_no_sync_equals_the_plain_one():
    def body(rank):
        found = []
        for wrap in (DDP, lambda model: model):
            model = wrap(mlp())
            optimizer = AdamW(model.parameters(), 0.01, plan="int4", warmup_steps=3)
            context = getattr(model, "no_sync", torch.enable_grad)
            with context():
                found.append(_train(model, optimizer, range(8), rank))
            assert not optimizer.is_warming_up
            assert optimizer.stats().sent_bytes < optimizer.stats().dense_bytes
            optimizer.close()
        assert found[0] == found[1]

    run_processes(2, body)


def test_resumed_run_of_three_processes_is_bit_identical(tmp_path):
    def body(rank):
        model = mlp()
        optimizer = LAMB(model.named_parameters(), 0.01, plan="sign", warmup_steps=2)
        _train(model, optimizer, range(4), rank)
        torch.save([model.state_dict(), optimizer.state_dict()], tmp_path / f"{rank}.pt")
        expected = _train(model, optimizer, range(4, 8), rank)
        optimizer.close()

        model = mlp()
        optimizer = LAMB(model.named_parameters(), 0.01, plan="sign", warmup_steps=2)
        weights, state = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        model.load_state_dict(weights)
        optimizer.load_state_dict(state)
        assert _train(model, optimizer, range(4, 8), rank) == expected
        optimizer.close()

    run_processes(3, body)


def test_a_rank_that_ends_fails_the_others_in_words():
    def body(rank):
        model = mlp()
        optimizer = AdamW(model.parameters(), plan="int4", warmup_steps=1)
        _train(model, optimizer, range(3), rank)
        if rank == 1:
            optimizer.close()
            return ""
        try:
            optimizer.zero_grad()
            model(draw(4, 40, seed=0)).sum().backward()
            optimizer.step()
        except RuntimeError as error:
            return type(error).__name__
        return "nothing"

    assert run_processes(2, body) == ["CollectiveError", ""]
