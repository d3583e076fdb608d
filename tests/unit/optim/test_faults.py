"""What must not disturb training: unused parameters, values that are not finite, mistakes."""

import copy
import pickle

import pytest
import torch
from replicas import draw
from torch import nn
from training import net, on_ranks, same, train, values

from gradwire.comm.local import run_ranks
from gradwire.errors import RankMismatchError, SpecError, UnknownIdError
from gradwire.optim import LAMB, AdamW
from gradwire.plan import Plan, Rule
from gradwire.spec import parse_reducer

SIGN = Plan((Rule(parse_reducer("sign@broadcast"), min_numel=1, min_ndim=0),))
"""Without noise: what is sent does not depend on the number of the step."""
INF, NAN = float("inf"), float("nan")


def _parameters(*names):
    return {name: nn.Parameter(draw(40, 30, seed=i)) for i, name in enumerate(names)}


@pytest.mark.parametrize("kind", [AdamW, LAMB])
def test_frozen_unused_and_empty_parameters_stay_as_they_are(kind):
    def body(mailbox):
        params = _parameters("used", "by_one_rank", "unused", "frozen")
        params["frozen"].requires_grad_(requires_grad=False)
        params["empty"] = nn.Parameter(torch.empty(0, 5))
        before = {name: p.detach().clone() for name, p in params.items()}
        optimizer = kind(params.items(), plan=SIGN, warmup_steps=2, group=mailbox)
        for i in range(5):
            params["used"].grad = draw(40, 30, seed=10 + i + mailbox.rank)
            params["empty"].grad = torch.empty(0, 5)
            if mailbox.rank == 1:
                params["by_one_rank"].grad = draw(40, 30, seed=20 + i)
            optimizer.step()
        optimizer.close()
        moved = {n for n, p in params.items() if not torch.equal(p, before[n])}
        known = {n for n, p in params.items() if p in optimizer.state}
        return moved, known, values(nn.ParameterList(params.values()))

    results = run_ranks(3, body)
    for moved, known, found in results:
        assert moved == {"used", "by_one_rank"}
        assert known == {"used", "by_one_rank", "empty"}
        assert same(found, results[0][2])


def test_a_parameter_that_comes_late_has_a_warmup_of_its_own():
    def body(mailbox):
        params = _parameters("early", "late")
        optimizer = AdamW(params.items(), plan=SIGN, warmup_steps=2, group=mailbox)
        alone = nn.Parameter(params["late"].detach().clone())
        reference = torch.optim.AdamW([alone])
        for i in range(6):
            params["early"].grad = draw(40, 30, seed=i)
            if i >= 3:
                params["late"].grad = draw(40, 30, seed=50 + i)
            optimizer.step()
            if i in (3, 4):
                alone.grad = params["late"].grad.clone()
                reference.step()
            assert torch.equal(alone, params["late"]) is (i < 5)
        optimizer.close()
        return [optimizer.state[p]["variance_step"] for p in params.values()]

    assert run_ranks(2, body) == [[2, 2]] * 2


@pytest.mark.parametrize("value", [INF, NAN])
@pytest.mark.parametrize("bad_step", [1, 4], ids=["warm-up", "compressed"])
def test_a_value_that_is_not_finite_skips_the_step_on_all_ranks(bad_step, value):
    def make(model, mailbox):
        return AdamW(model.named_parameters(), 0.01, plan=SIGN, warmup_steps=3, group=mailbox)

    def poisoned(model, optimizer, rank):
        for i in range(7):
            if i == bad_step:
                train(model, _Gradients(model), range(90, 91), rank, 2)
                if rank == 1:
                    next(model.parameters()).grad[3, 3] = value
                before = values(model)
                optimizer.step()
                assert same(values(model), before)
            train(model, optimizer, range(i, i + 1), rank, 2)
        assert optimizer.skipped_steps == 1
        return values(model), optimizer.state_dict()["gradwire"]["exchange"][f"rank{rank}"]

    def clean(model, optimizer, rank):
        train(model, optimizer, range(7), rank, 2)
        return values(model), optimizer.state_dict()["gradwire"]["exchange"][f"rank{rank}"]

    for mine, theirs in zip(on_ranks(2, make, poisoned), on_ranks(2, make, clean), strict=True):
        assert same(mine[0], theirs[0])
        assert same(list(mine[1]["residual"].values()), list(theirs[1]["residual"].values()))


class _Gradients:
    """In place of an optimiser: leaves the gradients."""

    def __init__(self, model):
        self.zero_grad = model.zero_grad

    def step(self):
        pass


def test_a_mean_that_overflows_skips_the_step():
    def body(mailbox):
        p = nn.Parameter(torch.ones(64, 32))
        optimizer = AdamW([p], plan="none", warmup_steps=1, group=mailbox)
        for size in (1.0, 3e38, 1.0):
            before = p.detach().clone()
            p.grad = torch.full((64, 32), size)
            optimizer.step()
            assert torch.equal(p, before) is (size > 1)
        optimizer.close()
        assert optimizer.skipped_steps == 1
        return p.detach()

    first, second = run_ranks(2, body)
    assert torch.equal(first, second)
    assert bool(first.isfinite().all())


@pytest.mark.parametrize("unscales", [False, True])
def test_loss_scaling_with_an_overflow_on_one_rank_keeps_ranks_together(unscales):
    def make(model, mailbox):
        return AdamW(model.parameters(), 0.01, plan=SIGN, warmup_steps=1, group=mailbox)

    def body(model, optimizer, rank):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        for i in range(4):
            optimizer.zero_grad()
            loss = model(draw(4, 32, seed=i + rank)).square().mean()
            scaler.scale(loss * (1e38 if (i, rank) == (2, 1) else 1)).backward()
            if unscales:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        return values(model), optimizer.skipped_steps, scaler.get_scale()

    def unscaled(model, optimizer, rank):
        for i in (0, 1, 3):
            optimizer.zero_grad()
            model(draw(4, 32, seed=i + rank)).square().mean().backward()
            optimizer.step()
        return values(model)

    (first, skipped, scale), (second, _, halved) = on_ranks(2, make, body)
    assert same(first, second)
    assert skipped == 1
    assert (scale, halved) == (2.0**10, 2.0**9)
    for found, wanted in zip(first, on_ranks(2, make, unscaled)[0], strict=True):
        assert torch.allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize("kind", [AdamW, LAMB])
@pytest.mark.parametrize(
    "options",
    [
        {"betas": (0.9, 0.8)},
        {"betas": (0.9, 1.0)},
        {"lr": -1.0},
        {"eps": NAN},
        {"weight_decay": -0.1},
        {"warmup_steps": 0},
        {"warmup_steps": 1.5},
        {"variance_tolerance": 0.0},
        {"variance_tolerance": INF},
        {"variance_interval": 1},
        {"check_every": -1},
        {"on_step": "print"},
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused(kind, options):
    with pytest.raises(SpecError):
        run_ranks(1, lambda mailbox: kind(net().parameters(), group=mailbox, **options))


@pytest.mark.parametrize(
    "options",
    [
        {"trust_clip": (2.0, 1.0)},
        {"trust_clip": (0.0, 1.0)},
        {"trust_range": (1.5, 2.0)},
        {"trust_beta": 1.0},
        {"trust_change": -0.1},
    ],
    ids=str,
)
def test_trust_settings_out_of_range_are_refused(options):
    with pytest.raises(SpecError, match="trust_"):
        run_ranks(1, lambda mailbox: LAMB(net().parameters(), group=mailbox, **options))


def test_mistakes_are_named():
    def body(mailbox):
        p = nn.Parameter(torch.ones(2, 2))
        with pytest.raises(UnknownIdError, match="int_4"):
            AdamW([p], plan="int_4", group=mailbox)
        with pytest.raises(SpecError, match=r"use gradwire\.overlap"):
            AdamW([p], plan="aqgb", group=mailbox)
        with pytest.raises(SpecError, match="only attach chooses one"):
            AdamW([p], plan="auto", group=mailbox)
        with pytest.raises(SpecError, match="dtype of parameter0"):
            AdamW([nn.Parameter(torch.ones(2, dtype=torch.complex64))], group=mailbox)
        with pytest.raises(SpecError, match="different from each other"):
            AdamW(
                [{"params": [("a", p)]}, {"params": [("a", nn.Parameter(torch.ones(1)))]}],
                group=mailbox,
            )
        optimizer = AdamW([p], group=mailbox)
        with pytest.raises(SpecError, match="added later"):
            optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
        for action in (pickle.dumps, copy.deepcopy):
            with pytest.raises(TypeError, match="state_dict"):
                action(optimizer)
        p.grad = torch.ones(2, 2).to_sparse()
        with pytest.raises(SpecError, match="gradient of parameter0"):
            optimizer.step()
        optimizer.close()

    run_ranks(1, body)


def test_without_a_process_group_the_error_says_what_is_missing():
    with pytest.raises(SpecError, match="init_process_group"):
        AdamW(net().parameters())


@pytest.mark.parametrize(
    "options", [{"lr": (0.1, 0.2)}, {"warmup_steps": (3, 4)}, {"plan": ("sign", "int4")}], ids=str
)
def test_ranks_that_differ_in_settings_are_refused_everywhere(options):
    def body(mailbox):
        mine = {key: value[mailbox.rank] for key, value in options.items()}
        with pytest.raises(RankMismatchError, match="differ"):
            AdamW(net().parameters(), group=mailbox, **mine)

    run_ranks(2, body)


def test_ranks_that_start_from_other_parameters_are_refused_at_the_first_step():
    def body(mailbox):
        model = net()
        with torch.no_grad():
            model[2].weight[0, 0] += mailbox.rank
        optimizer = AdamW(model.named_parameters(), plan="sign", group=mailbox)
        with pytest.raises(RankMismatchError, match=r"parameter '2\.weight' differs"):
            train(model, optimizer, range(1), mailbox.rank, 2)
        optimizer.close()

    run_ranks(2, body)
