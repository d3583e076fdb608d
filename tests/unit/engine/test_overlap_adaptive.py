"""AQGB's own controller in the engine: bits follow the link, alike on all ranks."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from gradwire.plan import Plan
from gradwire.spec import Adaptive
from overlapped import draw, run, same, train, weights


def _build():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 128), nn.Linear(128, 64))
    return model, torch.optim.SGD(model.parameters(), lr=0.05)


def _loss(model, rank, i):
    return model(draw(4, 64, seed=100 * i + rank)).square().mean()


@pytest.mark.parametrize(("bytes_per_s", "has_more"), [(1e3, False), (1e12, True)])
def test_bits_follow_the_measured_bandwidth_and_replicas_agree(bytes_per_s, has_more):
    def body(ranks):
        ranks.step._mailbox._meter.bytes_per_s = lambda: bytes_per_s
        train(ranks, range(12), _loss)
        return weights(ranks.model), [s.bits for s in ranks.step.stats().recent]

    plan = replace(Plan.of("aqgb"), adaptive=Adaptive(cap=8))
    (a, bits), (b, others) = run(2, _build, body, plan)
    assert same(a, b)
    assert bits == others
    assert bits[0] == bits[2]  # the plan's, until there is something measured
    assert (bits[-1] > bits[0]) is has_more
    assert bits[-1] != bits[0]
