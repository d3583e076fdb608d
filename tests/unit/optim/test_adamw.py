"""AdamW: exact during warm-up and where nothing is compressed, frozen afterwards."""

import pytest
import torch
from replicas import digest, draw
from torch import nn
from training import WIDTH, averaged, loss_of, net, on_ranks, same, train, values

from gradwire.comm.local import run_ranks
from gradwire.errors import RankMismatchError
from gradwire.optim import AdamW
from gradwire.plan import DENSE, Plan, Rule
from gradwire.spec import Entry, parse_reducer, sent_bytes

STEPS = 260


def _groups(model):
    weights = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    return [
        {"params": weights, "weight_decay": 0.1},
        {"params": others, "weight_decay": 0.0, "lr": 0.03, "betas": (0.8, 0.99)},
    ]


def _torch_adamw(world, steps):
    """Train with torch's own AdamW on averaged gradients."""
    model = net()
    optimizer = torch.optim.AdamW(_groups(model), lr=0.01)
    for i in steps:
        for p, g in zip(model.parameters(), averaged([model] * world, i), strict=True):
            p.grad = g
        optimizer.step()
    return values(model)


@pytest.mark.parametrize(("plan", "warmup"), [("sign", 9), ("none", 2)], ids=["warm-up", "none"])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_exact_steps_equal_torch_on_averaged_gradients_bit_by_bit(world, plan, warmup):
    def make(model, mailbox):
        return AdamW(_groups(model), lr=0.01, plan=plan, warmup_steps=warmup, group=mailbox)

    def body(model, optimizer, rank):
        train(model, optimizer, range(8), rank, world)
        return values(model)

    expected = _torch_adamw(world, range(8))
    for found in on_ranks(world, make, body):
        assert same(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_any_dtype_and_memory_format_is_exact_during_warmup(dtype):
    def conv():
        layer = nn.Conv2d(8, 16, 3).to(dtype).to(memory_format=torch.channels_last)
        with torch.no_grad():
            layer.weight.copy_(draw(16, 8, 3, 3, seed=1))
        return layer.weight

    mine, theirs = conv(), conv()
    optimizer = torch.optim.AdamW([theirs])
    gradients = [draw(*mine.shape, seed=i).to(dtype) for i in range(3)]
    for g in gradients:
        theirs.grad = g.to(memory_format=torch.channels_last)
        optimizer.step()

    def body(mailbox):
        own = AdamW([mine], plan="int4", warmup_steps=5, group=mailbox)
        for g in gradients:
            mine.grad = g.to(memory_format=torch.channels_last)
            own.step()
        own.close()

    run_ranks(1, body)
    assert torch.equal(mine, theirs)


def test_frozen_steps_follow_the_formula_on_one_rank():
    beta1, beta2, lr, decay, eps = 0.9, 0.99, 0.01, 0.1, 1e-8
    start = draw(64, 32, seed=0)
    gradients = [draw(64, 32, seed=1 + i) for i in range(8)]
    x, m, v = start.double(), torch.zeros(64, 32).double(), torch.zeros(64, 32).double()
    for t, g in enumerate(gradients, 1):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g if t <= 3 else v
        root = (v / (1 - beta2 ** min(t, 3))).sqrt() + eps
        limit = (1 - beta1) / ((1 - beta2) * (1 - beta1**2 / beta2)) ** 0.5
        change = (m / (1 - beta1**t) / root).clamp(-limit, limit)
        x = x - lr * decay * x - lr * change

    def body(mailbox):
        p = nn.Parameter(start.clone())
        optimizer = AdamW(
            [p], lr, (beta1, beta2), eps, decay, plan="sign", warmup_steps=3, group=mailbox
        )
        for g in gradients:
            p.grad = g
            optimizer.step()
        optimizer.close()
        assert torch.allclose(p.double(), x, rtol=1e-5, atol=1e-6)

    run_ranks(1, body)


@pytest.mark.parametrize("plan", ["sign", "int4", "topk:0.1", "low_rank:2", "int4@broadcast"])
@pytest.mark.parametrize("world", [2, 3])
def test_replicas_are_bit_identical_after_every_step(world, plan):
    def make(model, mailbox):
        return AdamW(model.named_parameters(), 0.01, plan=plan, warmup_steps=2, group=mailbox)

    def body(model, optimizer, rank):
        seen = []
        for i in range(6):
            train(model, optimizer, range(i, i + 1), rank, world)
            moments = [optimizer.state[p]["exp_avg"] for p in model.parameters()]
            seen.append(digest([*model.parameters(), *moments]))
        assert not optimizer.is_warming_up
        return seen

    first, *others = on_ranks(world, make, body)
    assert others == [first] * (world - 1)
    assert len(set(first)) == 6


@pytest.fixture(scope="module")
def adamw_losses():
    """Return the losses of torch's AdamW on averaged gradients, before and after."""
    model = net()
    initial = loss_of(model, seed=0, rows=500).item()
    _train_to_the_end(model, torch.optim.AdamW(model.parameters(), 0.03), ranks=range(2))
    return initial, loss_of(model, seed=0, rows=500).item()


def _train_to_the_end(model, optimizer, ranks):
    """Train as all of `ranks` together."""
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for i in range(STEPS):
        optimizer.zero_grad()
        sum(loss_of(model, seed=1 + 2 * i + r) / len(ranks) for r in ranks).backward()
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize(("plan", "margin"), [("int4", 0.01), ("sign", 0.03)])
def test_training_reaches_adamw_within_a_share_of_the_initial_loss(plan, margin, adamw_losses):
    def make(model, mailbox):
        everywhere = Plan((Rule(parse_reducer(plan), min_numel=64),))
        return AdamW(model.parameters(), 0.03, plan=everywhere, warmup_steps=25, group=mailbox)

    def body(model, optimizer, rank):
        _train_to_the_end(model, optimizer, ranks=[rank])
        assert not optimizer.is_warming_up
        return loss_of(model, seed=0, rows=500).item()

    initial, wanted = adamw_losses
    assert wanted < 0.05 * initial
    first, second = on_ranks(2, make, body)
    assert first == second
    assert first <= wanted + margin * initial


def test_a_variance_of_zero_cannot_throw_a_parameter_away():
    """Values without a gradient during warm-up get one of the codec's scale afterwards."""

    def body(mailbox):
        p = nn.Parameter(torch.ones(64, 32))
        optimizer = AdamW([p], 0.01, weight_decay=0.0, plan="sign", warmup_steps=3, group=mailbox)
        for i in range(6):
            p.grad = draw(64, 32, seed=10 * i + mailbox.rank)
            p.grad[:, ::2] = 0
            optimizer.step()
        optimizer.close()
        return p.detach()

    first, second = run_ranks(2, body)
    assert torch.equal(first, second)
    moved = (first - 1).abs()[:, ::2].max()
    assert 0 < moved <= 3 * 0.01 * 7.28


def test_steps_send_what_the_specs_say_and_stats_count_it():
    entries = [Entry(0, tuple(p.shape)) for p in net().parameters()]
    status = sent_bytes(DENSE, [Entry(0, (2 + len(entries),))], 2)
    dense = sent_bytes(DENSE, entries, 2)
    mixed = sent_bytes(parse_reducer("sign"), entries[:1], 2) + sent_bytes(DENSE, entries[1:], 2)

    def make(model, mailbox):
        options = {"plan": "sign", "warmup_steps": 2, "variance_interval": 3}
        return AdamW(model.named_parameters(), group=mailbox, **options)

    def body(model, optimizer, rank):
        train(model, optimizer, range(8), rank, 2)
        return optimizer.stats()

    ranks = on_ranks(2, make, body)
    sent = [
        max(step.sent_bytes for step in steps)
        for steps in zip(*(s.recent for s in ranks), strict=True)
    ]
    exact, frozen = dense + status, mixed + status
    assert sent == [exact, exact, frozen, frozen, exact, frozen, frozen, exact]
    for stats in ranks:
        assert stats.sent_bytes == sum(step.sent_bytes for step in stats.recent)
        assert stats.dense["0.bias"] == "1 dimensions, fewer than 2"


def test_accumulation_is_more_than_one_backward_before_a_step():
    def make(model, mailbox):
        return AdamW(model.parameters(), 0.01, plan="sign", warmup_steps=1, group=mailbox)

    def in_parts(model, optimizer, rank):
        for i in range(4):
            optimizer.zero_grad()
            for half in range(2):
                (loss_of(model, seed=4 * i + 2 * half + rank) / 2).backward()
            optimizer.step()
        return values(model), optimizer.stats().steps_done

    results = on_ranks(2, make, in_parts)
    assert same(results[0][0], results[1][0])
    assert results[0][1] == 4


def test_closure_is_called_once_with_gradients_enabled():
    def make(model, mailbox):
        return AdamW(model.parameters(), plan="sign", warmup_steps=1, group=mailbox)

    def body(model, optimizer, rank):
        calls = []

        def closure():
            optimizer.zero_grad()
            loss = (model(draw(2, WIDTH, seed=rank)) ** 2).mean()
            loss.backward()
            calls.append(loss.item())
            return loss

        loss = optimizer.step(closure)
        return calls == [loss.item()]

    assert on_ranks(1, make, body) == [True]


def test_each_step_is_reported_and_replicas_are_checked_on_request():
    def body(mailbox):
        seen = []
        p = nn.Parameter(torch.ones(64, 32))
        optimizer = AdamW(
            [("w", p)],
            plan="sign",
            warmup_steps=1,
            group=mailbox,
            check_every=1,
            on_step=lambda stats: seen.append(stats.step),
        )
        for i in range(4):
            p.grad = draw(64, 32, seed=i + mailbox.rank)
            if i == 3:
                with torch.no_grad():
                    p[0, 0] += mailbox.rank
                with pytest.raises(RankMismatchError, match="'w'"):
                    optimizer.step()
            else:
                optimizer.step()
        optimizer.close()
        return seen

    assert run_ranks(2, body) == [[0, 1, 2]] * 2
