"""AQGB's own controller in the engine: bits follow the link, alike on all ranks."""

import time

import torch
from overlapped import draw, run, same, train, weights
from torch import nn

from gradwire.comm.shaped import Link
from gradwire.plan import Plan


class Slow(nn.Linear):
    """A layer whose forward takes its time, as on a busy accelerator."""

    def forward(self, x):
        time.sleep(0.01)
        return super().forward(x)


def _build():
    torch.manual_seed(1)
    model = nn.Sequential(Slow(64, 256), nn.Tanh(), Slow(256, 128), nn.Tanh(), Slow(128, 64))
    return model, torch.optim.SGD(model.parameters(), lr=0.05)


def _loss(model, rank, i):
    return model(draw(4, 64, seed=100 * i + rank)).square().mean()


def test_bits_follow_the_link_and_replicas_agree():
    def body(ranks):
        train(ranks, range(3), _loss)
        first = ranks.step.stats().recent[-1].bits
        for i in range(3, 24):
            train(ranks, range(i, i + 1), _loss)
        return weights(ranks.model), first, [s.bits for s in ranks.step.stats().recent]

    plan = Plan.of("aqgb")
    (slow, first, bits), (other, _, others) = run(2, _build, body, plan, link=Link(3e5))
    (_, _, quick), _ = run(2, _build, body, plan, link=Link(1e8))
    assert same(slow, other)
    assert bits == others
    assert bits[-1] < first + 0.5
    assert quick[-1] > bits[-1]
