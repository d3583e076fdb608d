"""LAMB: against its formula, and its trust ratio after warm-up."""

import pytest
import torch
from replicas import digest, draw
from torch import nn
from training import loss_of, on_ranks, train

from gradwire.comm.local import run_ranks
from gradwire.optim import LAMB
from gradwire.plan import Plan, Rule
from gradwire.spec import parse_reducer


@pytest.mark.parametrize("plan", ["sign", "none"])
@pytest.mark.parametrize("world", [1, 2])
def test_exact_steps_follow_the_formula(world, plan):
    (beta1, beta2), lr, decay, eps, clip = (0.9, 0.99), 0.02, 0.1, 1e-6, (0.5, 1.2)
    start = draw(64, 32, seed=0)
    x, m, v = start.double(), torch.zeros(64, 32).double(), torch.zeros(64, 32).double()
    for t in range(1, 5):
        g = sum(draw(64, 32, seed=10 * t + r).double() for r in range(world)) / world
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        u = m / (1 - beta1**t) / ((v / (1 - beta2**t)).sqrt() + eps) + decay * x
        x = x - lr * (x.norm() / u.norm()).clamp(*clip) * u

    def body(mailbox):
        p = nn.Parameter(start.clone())
        options = {"plan": plan, "warmup_steps": 9, "group": mailbox, "trust_clip": clip}
        optimizer = LAMB([p], lr, (beta1, beta2), eps, decay, **options)
        for t in range(1, 5):
            p.grad = draw(64, 32, seed=10 * t + mailbox.rank)
            optimizer.step()
        optimizer.close()
        assert torch.allclose(p.double(), x, rtol=1e-5, atol=1e-6)

    run_ranks(world, body)


def test_trust_ratio_stays_in_range_and_changes_slowly():
    """Gradients 100 times smaller after warm-up would blow the ratio up."""

    def body(mailbox):
        p = nn.Parameter(draw(64, 32, seed=0))
        optimizer = LAMB([p], 0.001, plan="sign", warmup_steps=3, group=mailbox)
        factors = []
        for i in range(40):
            p.grad = draw(64, 32, seed=10 * i + mailbox.rank) * (1 if i < 3 else 0.01)
            optimizer.step()
            factors.append(optimizer.state[p].get("trust_factor"))
        optimizer.close()
        return factors

    factors, others = run_ranks(2, body)
    assert factors == others
    assert factors[:3] == [None] * 3
    for before, after in zip([1.0, *factors[3:]], factors[3:], strict=False):
        assert 0.9 * before <= after <= 1.1 * before
    assert max(factors[3:]) == 4.0


@pytest.mark.parametrize("plan", ["sign", "int4"])
@pytest.mark.parametrize("world", [2, 3])
def test_replicas_are_bit_identical_after_every_step(world, plan):
    def make(model, mailbox):
        return LAMB(model.named_parameters(), 0.01, plan=plan, warmup_steps=2, group=mailbox)

    def body(model, optimizer, rank):
        seen = []
        for i in range(6):
            train(model, optimizer, range(i, i + 1), rank, world)
            seen.append(digest(list(model.parameters())))
        return seen

    first, *others = on_ranks(world, make, body)
    assert others == [first] * (world - 1)
    assert len(set(first)) == 6


def test_training_learns_as_well_as_without_compression():
    def trained(plan):
        def make(model, mailbox):
            everywhere = Plan((Rule(parse_reducer(plan), min_numel=64),))
            return LAMB(model.parameters(), 0.05, plan=everywhere, warmup_steps=25, group=mailbox)

        def body(model, optimizer, rank):
            initial = loss_of(model, seed=0, rows=500).item()
            train(model, optimizer, range(60), rank, 2)
            return initial, loss_of(model, seed=0, rows=500).item()

        return on_ranks(2, make, body)[0]

    initial, exact = trained("none")
    _, compressed = trained("int4")
    assert exact < 0.2 * initial
    assert compressed <= exact + 0.05 * initial
