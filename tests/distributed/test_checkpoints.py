"""Checkpoints: all of a sharded training's state through torch.distributed.checkpoint."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from launch import run_processes
from replicas import digest, draw, everywhere, mlp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import gradwire
from gradwire.errors import StateError
from gradwire.integrations.checkpoint import gather_state, load_rank, save_rank


def _train(net, rank, steps):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for i in steps:
        optimizer.zero_grad()
        net(draw(4, 40, seed=100 * i + rank)).square().mean().backward()
        optimizer.step()


def _values(net):
    return digest([p.full_tensor() for p in net.parameters()])


@pytest.mark.filterwarnings("ignore")  # of the package's own
@pytest.mark.parametrize("ranks", [2, 4], ids=["sharded", "between-nodes"])
def test_sharded_training_resumes_bit_for_bit_from_a_distributed_checkpoint(tmp_path, ranks):
    def body(rank):
        def made():
            net = mlp(depth=2)
            if ranks == 2:
                fully_shard(net, mesh=init_device_mesh("cpu", (2,)))
            else:
                names = ("replicate", "shard")
                fully_shard(net, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=names))
            return net, gradwire.attach(net, everywhere("int4"))

        net, sync = made()
        _train(net, rank, range(4))
        state = {"model": get_model_state_dict(net), "gradwire": sync.state_dict()}
        dcp.save(state, checkpoint_id=tmp_path)
        _train(net, rank, range(4, 8))
        want = _values(net)
        sync.close()

        net, sync = made()
        state = {"model": get_model_state_dict(net), "gradwire": sync.state_dict()}
        dcp.load(state, checkpoint_id=tmp_path)
        set_model_state_dict(net, state["model"])
        sync.load_state_dict(state["gradwire"])
        _train(net, rank, range(4, 8))
        assert _values(net) == want
        assert sync.stats().steps_done == 8
        everyone = [None] * ranks
        dist.all_gather_object(everyone, want)
        assert set(everyone) == {want}
        sync.close()

    run_processes(ranks, body)


def test_a_file_a_rank_and_one_dictionary_hold_the_same(tmp_path):
    def body(rank):
        net = mlp(depth=2)
        fully_shard(net, mesh=init_device_mesh("cpu", (2,)))
        sync = gradwire.attach(net, everywhere("int4"))
        with pytest.raises(StateError, match=r"no gradwire_rank<r>\.pt in"):
            load_rank(sync, tmp_path)
        _train(net, rank, range(2))
        assert save_rank(sync, tmp_path).name == f"gradwire_rank{rank}.pt"
        together = gather_state(sync)
        assert set(together) == {"rank0", "rank1"}
        mine = together[f"rank{rank}"]["residual"]
        _train(net, rank, range(2, 4))
        for load in (lambda: load_rank(sync, tmp_path), lambda: sync.load_state_dict(together)):
            load()
            kept = sync.state_dict()[f"rank{rank}"]
            assert kept["steps_done"] == 2
            assert digest(list(kept["residual"].values())) == digest(list(mine.values()))
        sync.close()

    run_processes(2, body)
