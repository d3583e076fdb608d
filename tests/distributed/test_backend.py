"""The `gradwire` back end: what it encodes, what it leaves to Gloo, what it refuses."""

import pytest
import torch
import torch.distributed as dist
from launch import run_processes
from replicas import assert_replicas_agree, digest, draw, mlp, train
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 - as everyone calls it

import gradwire
import gradwire.integrations.backend
from gradwire.errors import RankMismatchError, SpecError
from gradwire.integrations.flat import check_flat
from gradwire.plan import Plan, Rule
from gradwire.spec import parse_reducer

pytestmark = pytest.mark.usefixtures("_plan")


@pytest.fixture
def _plan(monkeypatch):
    monkeypatch.setenv("GRADWIRE_PLAN", "int8")


def test_large_sums_are_encoded_and_the_rest_is_exact():
    def body(rank):
        group = dist.group.WORLD
        x = draw(10_000, seed=rank)
        want = draw(10_000, seed=0) + draw(10_000, seed=1)
        error = (want.abs().amax() / 64).item()
        for op, scale in ((dist.ReduceOp.SUM, 1.0), (dist.ReduceOp.AVG, 0.5)):
            y = x.clone()
            dist.all_reduce(y, op=op)
            assert 0 < (y / scale - want).abs().amax() < error
            assert set(_gathered(digest([y]))) == {digest([y])}
        work = dist.all_reduce(half := x.bfloat16().view(100, 100), async_op=True)
        work.wait()
        assert work.is_completed()
        assert (half.float().view(-1) - want).abs().amax() < 4 * error
        transposed = x.clone().view(100, 100).t()
        dist.all_reduce(transposed)
        assert (transposed.t().reshape(-1) - want).abs().amax() < error
        assert group.encoded_calls == 4
        assert 0 < group.sent_bytes < 4 * 10_000 * 2
        for exact in (x[:100].clone(), x.double(), (1000 * x).long()):
            total = exact.clone()
            dist.all_reduce(total)
            others = [torch.empty_like(exact) for _ in range(2)]
            dist.all_gather(others, exact)
            assert torch.equal(total, others[0] + others[1])
        largest = x.clone()
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        assert torch.equal(largest, torch.maximum(draw(10_000, seed=0), draw(10_000, seed=1)))
        assert group.encoded_calls == 4

    run_processes(2, body, backend="gradwire")


def test_many_collectives_in_a_row_end():
    def body(rank):
        data = torch.arange(3)
        for _ in range(500):  # Gloo's thread drops a tensor of Python's while the next one starts
            assert _gathered(rank) == [0, 1]
            dist.broadcast(data.clone(), 0)
            dist.barrier()

    run_processes(2, body, backend="gradwire", group_timeout_s=5)


def test_what_is_not_summed_goes_as_it_is():
    def body(rank):
        there = torch.empty(2)
        if rank == 0:
            dist.send(torch.tensor([1.0, 2.0]), 1)
        else:
            dist.recv(there, 0)
            assert there.tolist() == [1, 2]
        mine = torch.tensor([10.0 * rank, 10.0 * rank + 1])
        dist.all_to_all_single(there, mine)
        assert there.tolist() == [rank, 10 + rank]
        dist.reduce_scatter(one := torch.empty(1), [mine[:1], mine[1:]])
        assert one.item() == 10 + 2 * rank

    run_processes(2, body, backend="gradwire")


def _gathered(value):
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


@pytest.mark.parametrize("plan", ["int8", "topk:0.1"])
def test_ddp_trains_over_it_with_equal_replicas(monkeypatch, plan):
    monkeypatch.setenv("GRADWIRE_PLAN", plan)

    def body(rank):
        ddp = DDP(mlp(depth=2), bucket_cap_mb=0.005)
        train(ddp, torch.optim.SGD(ddp.parameters(), lr=0.05), range(5), rank)
        assert dist.group.WORLD.encoded_calls >= 5
        assert_replicas_agree(ddp)
        plain = DDP(mlp(depth=2), process_group=dist.new_group(backend="gloo"))
        train(plain, torch.optim.SGD(plain.parameters(), lr=0.05), range(5), rank)
        pairs = zip(ddp.parameters(), plain.parameters(), strict=True)
        assert max((a - b).abs().amax().item() for a, b in pairs) < 0.05

    run_processes(2, body, backend="gradwire")


def test_residuals_make_up_for_what_was_lost_within_backward_only(monkeypatch):
    monkeypatch.setenv("GRADWIRE_PLAN", "topk:0.1")

    def body(_rank):
        gradient = draw(64, 64, seed=7)
        net = nn.Linear(64, 64, bias=False)
        ddp = DDP(net)
        total = torch.zeros(64, 64)
        for _ in range(40):
            ddp.zero_grad()
            ddp(torch.eye(64)).t().mul(gradient).sum().backward()
            total += net.weight.grad
        lost = (total / 40 - gradient).norm() / gradient.norm()
        assert lost < 0.3  # a tenth is sent each time: without residuals it were 0.7
        outside = gradient.clone()
        dist.all_reduce(outside)
        assert torch.equal(outside, 2 * gradient)

    run_processes(2, body, backend="gradwire")


def test_subgroups_sharded_models_and_attach_work_on_it():
    def body(rank):
        group = dist.new_group([0, 1], backend="gradwire", pg_options="int4")
        assert group.plan == check_flat(Plan.of("int4"))
        x = draw(10_000, seed=rank)
        dist.all_reduce(x, group=group)
        assert group.encoded_calls == 1
        net = fully_shard(mlp(depth=2), mesh=init_device_mesh("cpu", (2,)))
        net(draw(4, 40, seed=rank)).sum().backward()
        assert net[0].weight.grad.full_tensor().shape == (40, 40)
        ddp = DDP(mlp(depth=2))
        before = dist.group.WORLD.encoded_calls
        sync = gradwire.attach(ddp, "int4")
        ddp(draw(4, 40, seed=rank)).sum().backward()
        assert dist.group.WORLD.encoded_calls == before
        assert_replicas_agree(ddp)
        sync.close()

    run_processes(2, body, backend="gradwire")


def test_different_plans_and_a_lost_rank_are_told():
    def body(rank):
        with pytest.raises(RankMismatchError, match=r"plans differ.*GRADWIRE_PLAN"):
            dist.new_group([0, 1], backend="gradwire", pg_options=f"int{4 + rank}")
        return rank

    assert run_processes(2, body) == [0, 1]


def test_lost_rank_is_told():
    def body(rank):
        if rank == 1:
            dist.destroy_process_group()
            return
        with pytest.raises(RuntimeError, match="all_reduce failed on rank 0"):
            dist.all_reduce(torch.ones(10_000))

    run_processes(2, body, backend="gradwire", group_timeout_s=2)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (Plan.of("low_rank:2"), "without the shapes of parameters"),
        (Plan((Rule(parse_reducer("int4"), match="*.weight"),)), "a process group sees no names"),
    ],
)
def test_plans_that_need_parameters_are_refused(plan, words):
    with pytest.raises(SpecError, match=words):
        check_flat(plan)
