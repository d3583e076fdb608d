"""Models of all kinds under DDP: bucketed anew, tied, frozen, compiled, copied, two at once."""

import copy

import pytest
import torch
import torch.distributed as dist
from launch import run_processes
from replicas import (
    Given,
    assert_replicas_agree,
    buckets_of,
    draw,
    everywhere,
    mlp,
    residuals,
    step,
    total,
    train,
    wrap,
)
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 - as everyone calls it
from torch.utils.checkpoint import checkpoint

import gradwire


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    ],
    ids=["adamw", "sgd"],
)
def test_plan_none_trains_bit_for_bit_like_plain_ddp(make):
    def body(rank):
        results = []
        for attaches in (False, True):
            ddp = DDP(mlp(), bucket_cap_mb=0.005)
            if attaches:
                gradwire.attach(ddp, "none")
            train(ddp, make(ddp.parameters()), range(20), rank)
            results.append(assert_replicas_agree(ddp))
        assert results[0] == results[1]

    run_processes(2, body)


def test_lossy_plans_train_with_agreeing_replicas_on_three_ranks():
    def body(rank):
        for scheme in ("int4", "topk:0.1", "low_rank:2", "sign"):
            ddp, sync = wrap(mlp(), scheme, bucket_cap_mb=0.005)
            optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01)
            train(ddp, optimizer, range(6), rank)
            nn.utils.clip_grad_norm_(ddp.parameters(), 0.01)
            optimizer.step()
            assert_replicas_agree(ddp)
            sync.close()

    run_processes(3, body)


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("plan", ["none", "int4"])
def test_result_does_not_depend_on_buckets(plan, world_size):
    def body(rank):
        digests = set()
        for options in ({}, {"bucket_cap_mb": 0.001}, {"gradient_as_bucket_view": True}):
            ddp, sync = wrap(mlp(), plan, **options)
            train(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1), range(4), rank)
            digests.add(assert_replicas_agree(ddp))
            sync.close()
        assert len(digests) == 1

    run_processes(world_size, body)


def test_rebuilt_bucket_of_equal_length_but_other_contents_keeps_residuals_apart():
    class Backwards(nn.Module):
        """Its gradients become ready in another order than DDP first assumes."""

        def __init__(self):
            super().__init__()
            self.w = nn.ParameterList([torch.ones(40, 33) for _ in range(4)])

        def forward(self, *gradients):
            out = torch.zeros(())
            for i in (1, 3, 0, 2):
                out = (out + (self.w[i] * gradients[i]).mean()).tanh() + out
            return out

    def body(rank):
        ddp, sync = wrap(Backwards(), "int2", **buckets_of(40 * 33 * 4, count=4))
        seen = []
        reduce = sync.reduce
        sync.reduce = lambda i, b, names, *rest, **kw: (
            seen.append((i, b.numel(), names)),
            reduce(i, b, names, *rest, **kw),
        )
        for i in range(3):
            before = {n: total(r) for n, r in residuals(sync).items()}
            gradients = [draw(40, 33, seed=10 * i + j + rank) for j in range(4)]
            plain = copy.deepcopy(ddp.module)
            plain.zero_grad()
            plain(*gradients).backward()
            step(ddp, *gradients)
            after = residuals(sync)
            for name, p in ddp.module.named_parameters():
                owed = total(plain.get_parameter(name).grad) + before[name]
                error = owed - 2 * p.grad.double() - total(after[name])
                assert error.abs().max() < 1e-5 * owed.abs().max(), name
        buckets = len(seen) // 3
        assert seen[buckets : 2 * buckets] == seen[2 * buckets :]
        assert [s[:2] for s in seen[:buckets]] == [s[:2] for s in seen[buckets : 2 * buckets]]
        assert seen[:buckets] != seen[buckets : 2 * buckets]
        assert_replicas_agree(ddp)

    run_processes(2, body)


def test_i3_step_number_is_constant_within_a_backward_pass():
    def body(rank):
        for layers, cap in ((0, 25), (2, 25), (6, 0.001)):
            net = mlp(32, layers)
            if layers:
                net = nn.Sequential(net, _ToDouble(), nn.Linear(1, 1).double())
            ddp, sync = wrap(net, "int4", bucket_cap_mb=cap)
            for _ in range(4):
                ddp(draw(2, 32, seed=rank)).sum().backward()
            steps = sync.stats().recent
            assert [s.step for s in steps] == [0, 1, 2, 3]
            for s in steps:
                assert [b.index for b in s.buckets] == list(range(len(s.buckets)))
            count = len(steps[-1].buckets)
            assert count >= 7 if layers == 6 else count == layers // 2 + 1
            assert sync.stats().steps_done == 4
            assert_replicas_agree(ddp)
            sync.close()

    run_processes(2, body)


class _ToDouble(nn.Module):
    def forward(self, x):
        return x.double()


def test_two_models_at_once():
    def body(rank):
        alone, together = [], []
        for results, at_once in ((alone, False), (together, True)):
            pairs = [wrap(mlp(32, depth), "int4", bucket_cap_mb=0.005) for depth in (1, 3)]
            x = draw(2, 32, seed=rank)
            for _ in range(3):
                if at_once:
                    sum(ddp(x).sum() for ddp, _ in pairs).backward()
                else:
                    for ddp, _ in pairs:
                        ddp(x).sum().backward()
            results += [assert_replicas_agree(ddp) for ddp, _ in pairs]
            for _, sync in pairs:
                sync.close()
        assert alone == together

    run_processes(2, body)


class _Shared(nn.Module):
    """Tied weights, a layer used twice, one frozen, one recomputed in backward."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(50, 32)
        self.twice = nn.Linear(32, 32)
        self.frozen = nn.Linear(32, 32).requires_grad_(requires_grad=False)
        self.recomputed = nn.Sequential(nn.Linear(32, 32), nn.Tanh())
        self.out = nn.Linear(32, 50, bias=False)
        self.out.weight = self.table.weight

    def forward(self, rows):
        x = self.twice(self.twice(self.table(rows)).tanh())
        x = checkpoint(self.recomputed, self.frozen(x), use_reentrant=False)
        return self.out(x)


@pytest.mark.parametrize("options", [{}, {"find_unused_parameters": True}])
def test_tied_reused_frozen_and_recomputed_layers(options):
    def body(rank):
        gradients = []
        for scheme in (None, "none", "int8"):
            ddp = DDP(_Shared(), gradient_as_bucket_view=True, **options)
            if scheme:
                sync = gradwire.attach(ddp, everywhere(scheme))
                assert not any("frozen" in name for name in residuals(sync))
            step(ddp, torch.tensor([rank, 3, 3, 9]))
            (*found,) = step(ddp, torch.tensor([rank, 3, 5, 9]))
            gradients.append(torch.cat([g.view(-1) for g in found]))
            assert_replicas_agree(ddp)
        assert torch.equal(gradients[0], gradients[1])
        assert (gradients[2] - gradients[0]).norm() < 0.02 * gradients[0].norm()

    run_processes(2, body)


def test_compiled_model_trains_like_an_eager_one():
    def body(rank):
        digests = []
        for compiles in (False, True):
            ddp = DDP(mlp())
            model = torch.compile(ddp, backend="aot_eager") if compiles else ddp
            sync = gradwire.attach(model, everywhere("int4"))
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            train(model, optimizer, range(4), rank)
            assert sync.stats().forwards == sync.stats().steps_done == 4
            digests.append(assert_replicas_agree(ddp))
        assert digests[0] == digests[1]
        counters = torch._dynamo.utils.counters
        assert counters["stats"]["unique_graphs"] <= 3, counters["stats"]

    run_processes(2, body)


def test_j2_copy_of_the_model_is_plain_ddp_until_attached():
    def body(rank):
        ddp, sync = wrap(mlp(), "int4")
        ddp(draw(2, 40, seed=rank)).sum().backward()
        twin = copy.deepcopy(ddp)
        step(twin, draw(2, 40, seed=rank))
        assert sync.stats().steps_done == 1
        again = gradwire.attach(twin, "int4")
        step(twin, draw(2, 40, seed=rank))
        assert (sync.stats().steps_done, again.stats().steps_done) == (1, 1)
        assert_replicas_agree(twin)
        ddp.zero_grad()
        ddp(draw(2, 40, seed=rank)).sum().backward()
        assert_replicas_agree(ddp)

    run_processes(2, body)


def test_one_rank_alone_gets_its_own_gradient():
    def body(_):
        for scheme in ("int4", "sign", "low_rank:2", "topk:0.1"):
            ddp, sync = wrap(Given((40, 33)), scheme)
            gradient = draw(40, 33, seed=1)
            assert torch.equal(step(ddp, gradient)[0], gradient)
            assert "nothing went over the network" in sync.stats().summary()
            assert_replicas_agree(ddp)
            sync.close()
        dist.barrier()

    run_processes(1, body)
