"""AQGB's own controller in the engine: bits follow the link, alike on all ranks."""

import torch
from torch import nn

from gradwire.demo.tasks import Digits, evaluate, loss_of
from gradwire.plan import Plan
from overlapped import draw, run, same, train, weights


def _build():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 128), nn.Linear(128, 64))
    return model, torch.optim.SGD(model.parameters(), lr=0.05)


def _loss(model, rank, i):
    return model(draw(4, 64, seed=100 * i + rank)).square().mean()


def _bits(bytes_per_s):
    def body(ranks):
        ranks.step._mailbox._meter.bytes_per_s = lambda: bytes_per_s
        train(ranks, range(12), _loss)
        return weights(ranks.model), [s.bits for s in ranks.step.stats().recent]

    (a, bits), (b, others) = run(2, _build, body, Plan.of("aqgb"))
    assert same(a, b)
    assert bits == others
    assert bits[0] == bits[2]  # the plan's, until there is something measured
    return bits


def test_bits_follow_the_measured_bandwidth_and_replicas_agree():
    slow, fast = _bits(1e3), _bits(1e12)
    assert slow[0] == fast[0]
    assert slow[-1] < 0.7 * fast[-1]


def _losses_on_digits(plan, steps):
    task = Digits(batch_size=32)

    def build():
        model = task.model(0)
        return model, task.optimiser(model)

    def body(ranks):
        ranks.step._mailbox._meter.bytes_per_s = lambda: 1e3  # nothing can be hidden
        train(ranks, range(steps), lambda m, rank, i: loss_of(m, *task.batch(rank, 2, 0, i)))
        ranks.step.synchronize()
        score = evaluate(task, ranks.model, 0, 1)
        return score.loss_sum / score.num_targets, ranks.step.stats().recent[-1].bits

    (loss, bits), _ = run(2, build, body, plan)
    return loss, bits


def test_default_trains_as_plain_training_does_however_slow_the_link():
    plain, _ = _losses_on_digits("none", 40)
    loss, bits = _losses_on_digits(Plan.of("aqgb"), 42)
    assert bits < 4
    assert loss <= plain
