"""`check_every`: names the first step at which replicas differ, and catches lost gradients."""

import pytest
import torch
from launch import run_processes
from replicas import SCHEMES, Given, assert_replicas_agree, draw, everywhere, step
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 - as everyone calls it

import gradwire
from gradwire.codecs.base import CODECS


def _attached(net, scheme="int4", **options):
    ddp = DDP(net, bucket_cap_mb=0.005)
    return ddp, gradwire.attach(ddp, everywhere(scheme), **options)


@pytest.mark.parametrize("world_size", [2, 3])
def test_checks_pass_for_every_scheme(world_size):
    def body(rank):
        for scheme in SCHEMES:
            ddp, sync = _attached(Given((40, 33), (300,), (5, 4)), scheme, check_every=1)
            for i in range(3):
                step(ddp, *(draw(*s, seed=i + rank) for s in ((40, 33), (300,), (5, 4))))
            assert_replicas_agree(ddp)
            sync.close()

    run_processes(world_size, body)


def test_checks_pass_for_mixed_dtypes_and_after_an_overflow():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.table = nn.Embedding(9, 4, sparse=True)
            self.brief = nn.Parameter(draw(40, 33, seed=1).bfloat16())
            self.wide = nn.Parameter(draw(40, 33, seed=2).double())
            self.w = nn.Parameter(draw(40, 33, seed=3))
            self.turned = nn.Parameter(torch.complex(draw(8, 8, seed=1), draw(8, 8, seed=2)))
            self.empty = nn.Parameter(torch.zeros(0))
            self.scalar = nn.Parameter(torch.tensor(1.0))

        def forward(self, rows, g):
            return (
                self.table(rows).sum() * self.scalar
                + ((self.w + self.brief) * g).sum()
                + (self.wide * g).sum()
                + self.turned.abs().sum()
                + self.empty.sum()
            )

    def body(rank):
        ddp, sync = _attached(Net(), "int4", check_every=1)
        for i in range(4):
            gradient = draw(40, 33, seed=i + rank)
            if i == 1 and rank == 0:
                gradient[3, 3] = float("nan")
            step(ddp, torch.tensor([rank, 5]), gradient)
        assert [s.is_finite for s in sync.stats().recent] == [True, False, True, True]
        assert_replicas_agree(ddp)

    run_processes(2, body)


def test_check_names_step_parameter_and_ranks_that_differ():
    def body(rank):
        ddp, _ = _attached(Given((40, 33), (20, 33)), check_every=1)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        steps, message = 0, ""
        try:
            for i in range(6):
                if i == 3 and rank == 1:
                    with torch.no_grad():
                        ddp.module.w[1][2, 3] += 1e-6
                step(ddp, draw(40, 33, seed=i + rank), draw(20, 33, seed=i + rank))
                optimizer.step()
                steps += 1
        except RuntimeError as error:
            message = str(error)
        return steps, message

    for steps, message in run_processes(2, body):
        assert steps == 3
        assert "before the update of step 3" in message
        assert "parameter 'w.1' of ranks [1] differs from rank 0's" in message


def test_c5_loss_scales_that_differ_are_reported_at_the_first_step_they_matter():
    def body(rank):
        ddp, _ = _attached(nn.Linear(64, 32), check_every=1)
        assert_replicas_agree(ddp)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** (10 + rank))
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        steps, message = 0, ""
        try:
            for i in range(4):
                optimizer.zero_grad()
                scaler.scale(ddp(draw(2, 64, seed=i)).square().mean()).backward()
                scaler.step(optimizer)
                scaler.update()
                steps += 1
        except RuntimeError as error:
            message = str(error)
        return steps, message

    for steps, message in run_processes(2, body):
        assert steps == 1  # unlike units were averaged at step 0, and applied unlike
        assert "before the update of step 1" in message
        assert "loss scales" in message


def test_check_every_two_finds_it_at_the_next_check():
    def body(rank):
        ddp, _ = _attached(Given((40, 33)), check_every=2)
        steps, message = 0, ""
        try:
            for i in range(6):
                if i == 3 and rank == 0:
                    with torch.no_grad():
                        ddp.module.w[0][0, 0] += 1
                step(ddp, draw(40, 33, seed=i + rank))
                steps += 1
        except RuntimeError as error:
            message = str(error)
        return steps, message

    for steps, message in run_processes(2, body):
        assert steps == 4
        assert "before the update of step 4" in message


@pytest.mark.parametrize("scheme", ["int4", "topk:0.2", "sign"])
def test_planted_bug_that_loses_gradients_is_caught(scheme):
    def body(rank):
        codec = everywhere(scheme).rules[0].reducer.codec
        encode = CODECS[codec.id].encode

        def forgetful(self, x, segments, key, residual=None, gain=0.0):
            payload = encode(self, x, segments, key, residual, gain)
            if key.step == 2 and rank == 1 and residual is not None:
                residual[100:200] = 0
            return payload

        CODECS[codec.id].encode = forgetful
        ddp, _ = _attached(Given((40, 33), (40, 33)), scheme, check_every=1)
        steps, message = 0, ""
        try:
            for i in range(4):
                step(ddp, draw(40, 33, seed=i + rank), draw(40, 33, seed=i + 5 + rank))
                steps += 1
        except RuntimeError as error:
            message = str(error)
        return steps, message

    for steps, message in run_processes(2, body):
        assert steps == 2
        assert "conservation check" in message
        assert "w.0: what was sent and what arrived differ" in message
        assert "step 2" in message
