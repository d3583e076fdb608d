"""What training loops do around DDP: accumulate, skip steps, evaluate, scale losses, join."""

import contextlib

import pytest
import torch
from launch import run_processes
from replicas import (
    Given,
    assert_replicas_agree,
    digest,
    draw,
    everywhere,
    mlp,
    residuals,
    total,
    wrap,
)
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 - as everyone calls it

import gradwire
from gradwire.plan import Plan, Rule
from gradwire.spec import parse_reducer


def test_e4_static_graph_is_warned_about_and_works_after_a_synchronised_step():
    def body(rank):
        net = mlp()
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
        ddp, sync = wrap(mlp(), "int4")
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
        ddp, sync = wrap(mlp(), "int4")
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
            ddp = DDP(mlp())
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
            ddp = DDP(mlp())
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
            ddp, sync = wrap(mlp(), scheme, bucket_cap_mb=0.005)
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
