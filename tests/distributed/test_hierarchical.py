"""Two nodes of two ranks in four processes, and sums under a shared scale."""

import os

import pytest
import torch
import torch.distributed as dist
from launch import run_processes
from replicas import Given, assert_replicas_agree, draw, mlp, residuals, step, total, wrap
from torch.distributed.device_mesh import init_device_mesh

import gradwire
from gradwire.comm.base import complete
from gradwire.comm.torch_collective import DistGroup
from gradwire.errors import CollectiveError, RankMismatchError, SpecError
from gradwire.integrations.ddp import DDP

SHAPES = ((40, 33), (300,), (5, 4))
SCHEMES = ("none@hierarchical:2", "int4@hierarchical:2", "int4@broadcast@hierarchical:2")
SHARED = ("int8@shared_scale", "int4@shared_scale@hierarchical:2")


def test_ranks_of_two_nodes_stay_alike_and_lose_nothing():
    def body(rank):
        for scheme in (*SCHEMES, *SHARED):
            # Buckets are rebuilt after the first step: what is owed must follow.
            ddp, sync = wrap(Given(*SHAPES), scheme, bucket_cap_mb=0.001)
            for i in range(3):
                seed = 10 * i + rank
                gradients = [draw(*shape, seed=seed + k) for k, shape in enumerate(SHAPES)]
                before = residuals(sync)
                results = step(ddp, *gradients)
                after = residuals(sync)
                for k, (g, out) in enumerate(zip(gradients, results, strict=True)):
                    none = torch.zeros_like(g)
                    e0, e1 = (total(e.get(f"w.{k}", none)) for e in (before, after))
                    owed = total(g) + e0
                    error = (owed - 4 * out.double() - e1).abs().max()
                    assert error < 1e-5 * owed.abs().max(), scheme
            assert_replicas_agree(ddp)
            sync.close()

    run_processes(4, body)


def test_nodes_are_found_from_a_mesh_or_from_torchrun():
    def body(rank):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("node", "local"))
        found = []
        for options in ({"mesh": mesh}, {}):
            os.environ["LOCAL_WORLD_SIZE"] = "4" if options else "2"
            ddp = DDP(mlp())
            sync = gradwire.attach(ddp, "int8@hierarchical", **options)
            ddp(draw(4, 40, seed=rank)).sum().backward()
            found.append((sync.plan.rules[0].reducer.ranks_per_node, assert_replicas_agree(ddp)))
            sync.close()
        assert found[0] == found[1]
        assert found[0][0] == 2
        with pytest.raises(SpecError, match="ranks_per_node=4 is not 2, as the mesh says"):
            gradwire.attach(DDP(mlp()), "int8@hierarchical:4", mesh=mesh)
        flat = init_device_mesh("cpu", (4,))
        with pytest.raises(SpecError, match=r"mesh=\[0, 1, 2, 3\] is not two dimensions"):
            gradwire.attach(DDP(mlp()), "int8@hierarchical", mesh=flat)
        os.environ["LOCAL_WORLD_SIZE"] = "2" if rank else "4"
        with pytest.raises(RankMismatchError, match=r"plans .* differ"):
            gradwire.attach(DDP(mlp()), "int8@hierarchical")
        del os.environ["LOCAL_WORLD_SIZE"]
        with pytest.raises(SpecError, match="LOCAL_WORLD_SIZE='' is not a number of ranks"):
            gradwire.attach(DDP(mlp()), "int8@hierarchical")

    run_processes(4, body)


def test_float8_is_not_summed_where_the_back_end_cannot():
    narrow = gradwire.SharedScale(8, "int8")  # sums of two ranks would overflow

    def body(_rank):
        with pytest.raises(SpecError, match="Gloo adds up no FP8, only NCCL does; use fp8, whose"):
            gradwire.attach(DDP(mlp()), "fp8@shared_scale")
        group = DistGroup(None, torch.device("cpu"))
        assert group.float8_refusal() == "ProcessGroupGloo adds up no FP8, only NCCL does"
        with pytest.raises(CollectiveError, match="sum_float8"):
            complete(group.collective().sum_float8(torch.zeros(8, dtype=torch.float8_e4m3fn)))
        with pytest.raises(SpecError, match="accumulator='int8' is not wide enough: 2 ranks times"):
            gradwire.attach(DDP(mlp()), gradwire.Plan.of(narrow))
        group.close()
        dist.barrier()

    run_processes(2, body)
