"""What training loops do around DDP: accumulate, skip, compile, checkpoint, join, wrap twice."""

import contextlib
import copy

import pytest
import torch
import torch.distributed as dist
from launch import run_processes
from replicas import (
    Given,
    assert_replicas_agree,
    buckets_of,
    digest,
    draw,
    everywhere,
    residuals,
    step,
    total,
    wrap,
)
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 - as everyone calls it
from torch.utils.checkpoint import checkpoint

import gradwire
from gradwire.plan import Plan, Rule
from gradwire.spec import parse_reducer


def _mlp(width=40, depth=3):
    torch.manual_seed(0)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(width, 1))


def _train(ddp, optimizer, steps, rank, width=40):
    for i in range(steps):
        optimizer.zero_grad()
        ddp(draw(4, width, seed=100 * i + rank)).square().mean().backward()
        optimizer.step()


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
            ddp = DDP(_mlp(), bucket_cap_mb=0.005)
            if attaches:
                gradwire.attach(ddp, "none")
            _train(ddp, make(ddp.parameters()), 20, rank)
            results.append(assert_replicas_agree(ddp))
        assert results[0] == results[1]

    run_processes(2, body)


def test_lossy_plans_train_with_agreeing_replicas_on_three_ranks():
    def body(rank):
        for scheme in ("int4", "topk:0.1", "low_rank:2", "sign"):
            ddp, sync = wrap(_mlp(), scheme, bucket_cap_mb=0.005)
            optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01)
            _train(ddp, optimizer, 6, rank)
            nn.utils.clip_grad_norm_(ddp.parameters(), 0.01)
            optimizer.step()
            assert_replicas_agree(ddp)
            sync.close()

    run_processes(3, body)


def test_result_does_not_depend_on_buckets():
    def body(rank):
        digests = set()
        for options in ({}, {"bucket_cap_mb": 0.001}, {"gradient_as_bucket_view": True}):
            ddp, sync = wrap(_mlp(), "int4", **options)
            _train(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1), 4, rank)
            digests.add(assert_replicas_agree(ddp))
            sync.close()
        assert len(digests) == 1

    run_processes(2, body)


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
            net = _mlp(32, layers)
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


def test_e4_static_graph_is_warned_about_and_works_after_a_synchronised_step():
    def body(rank):
        net = _mlp()
        ddp = DDP(net, static_graph=True)
        with pytest.warns(UserWarning, match="one synchronised step before the first no_sync"):
            sync = gradwire.attach(ddp, "int4")
        for i in range(3):
            if i:
                with ddp.no_sync():
                    ddp(draw(2, 40, seed=rank)).sum().backward()
            ddp(draw(2, 40, seed=rank)).sum().backward()
        assert sync.stats().steps_done == 3
        assert_replicas_agree(ddp)

    run_processes(2, body)


def test_e5_forwards_without_backward_do_not_count_as_steps():
    def body(rank):
        ddp, sync = wrap(_mlp(), "int4")
        x = draw(2, 40, seed=rank)
        for _ in range(3):
            with torch.no_grad():
                ddp(x)
            ddp(x)
            ddp(x).sum().backward()
        assert sync.stats().steps_done == 3
        assert sync.stats().forwards == 6
        assert_replicas_agree(ddp)

    run_processes(2, body)


def test_e7_two_forwards_one_backward_with_batch_norm():
    def body(rank):
        results = []
        for attaches in (False, True):
            torch.manual_seed(0)
            net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
            ddp = DDP(net)
            if attaches:
                gradwire.attach(ddp, "none")
            for i in range(2):
                ddp.zero_grad()
                a, b = draw(4, 8, seed=i + rank), draw(4, 8, seed=9 + i + rank)
                (ddp(a).sum() + ddp(b).sum()).backward()
            ddp(a)
            results.append((assert_replicas_agree(ddp), digest(list(net.buffers()))))
        assert results[0] == results[1]

    run_processes(2, body)


def test_f3_no_sync_round_the_backward_only_synchronises():
    def body(rank):
        ddp, sync = wrap(_mlp(), "int4")
        for _ in range(15):
            loss = ddp(draw(2, 40, seed=rank)).sum()
            with ddp.no_sync():
                loss.backward()
        assert (sync.stats().steps_done, sync.stats().forwards) == (15, 15)
        for _ in range(15):
            with ddp.no_sync():
                ddp(draw(2, 40, seed=rank)).sum().backward()
        assert (sync.stats().steps_done, sync.stats().forwards) == (15, 30)
        ddp.zero_grad()
        ddp(draw(2, 40, seed=rank)).sum().backward()
        assert_replicas_agree(ddp)

    run_processes(2, body)


def test_f4_second_backward_adds_an_average_as_in_plain_ddp():
    def body(rank):
        results = []
        for scheme in (None, "none", "int4"):
            ddp = DDP(_mlp())
            sync = scheme and gradwire.attach(ddp, scheme)
            loss = ddp(draw(2, 40, seed=rank)).sum()
            loss.backward(retain_graph=True)
            ddp(draw(2, 40, seed=5 + rank)).sum().backward()
            results.append(torch.cat([p.grad.view(-1) for p in ddp.parameters()]))
            assert not sync or sync.stats().steps_done == 2
            assert_replicas_agree(ddp)
        assert torch.equal(results[0], results[1])
        assert (results[2] - results[0]).norm() < 0.2 * results[0].norm()

    run_processes(2, body)


def test_gradient_accumulation_sends_the_sum():
    def body(rank):
        means = []
        for scheme in (None, "none", "int8"):
            ddp = DDP(_mlp())
            if scheme:
                gradwire.attach(ddp, everywhere(scheme))
            for i in range(8):
                last = i % 4 == 3
                with contextlib.nullcontext() if last else ddp.no_sync():
                    (ddp(draw(2, 40, seed=10 * i + rank)).sum() / 4).backward()
            means.append(torch.cat([p.grad.view(-1) for p in ddp.parameters()]))
            assert_replicas_agree(ddp)
        assert torch.equal(means[0], means[1])
        # As the first result is still in the gradient, 8 bits round it twice.
        assert (means[2] - means[0]).norm() < 0.05 * means[0].norm()

    run_processes(2, body)


def test_amp_overflow_on_one_rank_is_seen_by_all_and_leaves_nothing_behind():
    def body(rank):
        for scheme in ("none", "int4", "topk:0.1", "low_rank:2", "sign", "bf16"):
            ddp, sync = wrap(Given((40, 33), (40, 33)), scheme, bucket_cap_mb=0.001)
            scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=1.0)

            def train(*gradients, ddp=ddp, scaler=scaler, optimizer=optimizer):
                optimizer.zero_grad()
                scaler.scale(ddp(*gradients)).backward()
                scaler.step(optimizer)
                scaler.update()

            ones = torch.ones(40, 33)
            train(ones, draw(40, 33, seed=rank))
            weights = digest(list(ddp.parameters()))
            bad = ones.clone()
            if rank == 1:
                bad[3, 7] = float("inf")
            train(bad, ones)
            assert scaler.get_scale() == 512
            assert digest(list(ddp.parameters())) == weights
            assert not any(r.any() for r in residuals(sync).values())
            assert not sync.stats().recent[-1].is_finite
            train(ones, ones)
            for i, p in enumerate(ddp.parameters()):
                kept = total(residuals(sync).get(f"w.{i}", torch.zeros(40, 33))) / 512
                assert torch.allclose(2 * p.grad.double() + kept, torch.tensor(2.0).double())
            assert_replicas_agree(ddp)
            sync.close()

    run_processes(2, body)


def test_l8_overflow_does_not_change_the_count_of_steps():
    def body(rank):
        plan = Plan((Rule(parse_reducer("int4"), min_numel=1),), warmup_steps=4)
        ddp, sync = wrap(Given((40, 33)), plan)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        for i in range(6):
            optimizer.zero_grad()
            infinite = i == 3 and rank == 1
            scaler.scale(ddp(torch.full((40, 33), float("inf") if infinite else 1.0))).backward()
            scaler.step(optimizer)
            scaler.update()
        steps = sync.stats().recent
        assert [s.times_smaller > 1 for s in steps] == [False] * 4 + [True] * 2
        assert [s.is_finite for s in steps] == [i != 3 for i in range(6)]
        assert_replicas_agree(ddp)

    run_processes(2, body)


def test_l6_gradient_that_appears_after_warm_up_gives_no_nan():
    def body(rank):
        ddp, _ = wrap(Given((40, 33), (40, 33)), everywhere("int4", warmup_steps=3))
        optimizer = torch.optim.Adam(ddp.parameters(), lr=0.1, weight_decay=0.1)
        for i in range(6):
            optimizer.zero_grad()
            late = draw(40, 33, seed=rank) if i >= 3 else torch.zeros(40, 33)
            ddp(draw(40, 33, seed=i + rank), late).backward()
            optimizer.step()
        assert all(p.isfinite().all() for p in ddp.parameters())
        assert ddp.module.w[1].any()
        assert_replicas_agree(ddp)

    run_processes(2, body)


def test_join_with_uneven_inputs():
    def body(rank):
        for scheme in ("none", "int4"):
            ddp, sync = wrap(_mlp(), scheme, bucket_cap_mb=0.005)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            with Join([ddp]):
                for i in range(3 + 2 * rank):
                    optimizer.zero_grad()
                    ddp(draw(2, 40, seed=i + rank)).sum().backward()
                    optimizer.step()
            assert sync.stats().steps_done == 5
            ddp.zero_grad()
            ddp(draw(2, 40, seed=rank)).sum().backward()
            assert_replicas_agree(ddp)
            sync.close()

    run_processes(2, body)


def test_two_models_at_once():
    def body(rank):
        alone, together = [], []
        for results, at_once in ((alone, False), (together, True)):
            pairs = [wrap(_mlp(32, depth), "int4", bucket_cap_mb=0.005) for depth in (1, 3)]
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
            ddp = DDP(_mlp())
            model = torch.compile(ddp, backend="aot_eager") if compiles else ddp
            sync = gradwire.attach(model, everywhere("int4"))
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            _train(model, optimizer, 4, rank)
            assert sync.stats().forwards == sync.stats().steps_done == 4
            digests.append(assert_replicas_agree(ddp))
        assert digests[0] == digests[1]
        counters = torch._dynamo.utils.counters  # noqa: SLF001 - no public way to read them
        assert counters["stats"]["unique_graphs"] <= 3, counters["stats"]

    run_processes(2, body)


def test_j2_copy_of_the_model_is_plain_ddp_until_attached():
    def body(rank):
        ddp, sync = wrap(_mlp(), "int4")
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
