"""What a training loop may do: each sharp edge is either exact or refused in words."""

import contextlib
import copy
import os
import pickle
import signal
import threading
import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gradwire.errors import CollectiveError, RankMismatchError, SpecError
from overlapped import draw, mean, plain, run, same, train, weights


def _net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))


def _build(net=_net, **options):
    def build():
        model = net()
        options.setdefault("lr", 0.1)
        return model, torch.optim.SGD(model.parameters(), momentum=0.9, **options)

    return build


def _loss(model, rank, i):
    return model(draw(4, 6, seed=100 * i + rank)).square().mean()


def _step(ranks, i=0):
    _loss(ranks.model, ranks.rank, i).backward()
    ranks.optimizer.step()
    ranks.optimizer.zero_grad()


def _refused(match, action, build=None, **options):
    def body(ranks):
        with pytest.raises(SpecError, match=match):
            action(ranks)
        return True

    assert run(2, build or _build(), body, **options) == [True, True]


# What reads parameters sees them up to date.


@pytest.mark.parametrize("how", ["evaluation", "model state", "optimizer state", "submodule"])
def test_whoever_reads_parameters_sees_the_latest(how):
    def read(ranks):
        if how == "evaluation":
            with torch.no_grad():
                ranks.model.eval()(torch.ones(1, 6))
                ranks.model.train()
        elif how == "model state":
            ranks.model.state_dict()
        elif how == "submodule":
            ranks.model[0].state_dict()
        else:
            ranks.optimizer.state_dict()
        return weights(ranks.model)

    def body(ranks):
        for i in range(3):
            _step(ranks, i)
        return read(ranks)

    expected = plain(2, _build(), range(3), _loss)
    assert all(same(expected, found) for found in run(2, _build(), body))


def test_load_state_dict_of_the_model_comes_after_updates_under_way():
    def body(ranks):
        saved = copy.deepcopy(ranks.model.state_dict())
        _step(ranks)
        ranks.model.load_state_dict(saved)
        return same(weights(ranks.model), list(saved.values()))

    assert run(2, _build(), body) == [True, True]


# Gradients: accumulated, dropped, missing.


def test_accumulation_equals_plain_accumulation():
    def micro(model, rank, i):
        return _loss(model, rank, 10 * i) + _loss(model, rank, 10 * i + 1)

    def body(ranks):
        for i in range(4):
            with ranks.step.accumulate():
                _loss(ranks.model, ranks.rank, 10 * i).backward()
            _loss(ranks.model, ranks.rank, 10 * i + 1).backward()
            ranks.optimizer.step()
            ranks.optimizer.zero_grad(set_to_none=False)
        ranks.step.synchronize()
        return weights(ranks.model)

    found = run(2, _build(), body)
    expected = plain(2, _build(), range(4), micro)
    assert same(*found)
    for a, b in zip(expected, found[0], strict=True):
        torch.testing.assert_close(a, b)


def _holds(ranks, module="0"):
    layers = {layer.name: layer for layer in ranks.step._layers}
    layer = layers[module]
    return [layer.holds(p.grad, i) for i, p in enumerate(layer.parameters)]


def test_gradients_are_accumulated_where_they_are_encoded_and_stay_as_they_are():
    def body(ranks):
        _loss(ranks.model, ranks.rank, 0).backward()
        held = _holds(ranks)
        for layer in ranks.step._layers:
            layer.turn.exchange.done.result(20)
        found = [p.grad.clone() for p in ranks.model.parameters()]
        ranks.optimizer.step()
        return held, found

    for rank, (held, found) in enumerate(run(2, _build(), body)):
        model, _ = _build()()
        _loss(model, rank, 0).backward()
        assert all(held)
        assert same(found, [p.grad for p in model.parameters()])


@pytest.mark.filterwarnings("ignore:Using backward:UserWarning")
def test_gradients_that_must_be_differentiable_or_accumulated_are_copied():
    def body(ranks):
        model = ranks.model
        with ranks.step.accumulate():
            _loss(model, ranks.rank, 0).backward()
        is_held = any(_holds(ranks))
        ranks.optimizer.zero_grad()
        _loss(model, ranks.rank, 0).backward(create_graph=True)
        assert next(model.parameters()).grad.requires_grad
        return is_held or any(_holds(ranks))

    assert not any(run(2, _build(), body))


def test_a_second_backward_without_accumulate_is_refused():
    def action(ranks):
        _loss(ranks.model, ranks.rank, 0).backward()
        _loss(ranks.model, ranks.rank, 1).backward()

    _refused(r"'accumulated twice' .* `with step.accumulate\(\):`; .*set_to_none=True", action)


def test_a_gradient_thrown_away_by_zero_grad_is_not_applied():
    def body(ranks):
        for i in range(3):
            _loss(ranks.model, ranks.rank, 50 + i).backward()
            ranks.optimizer.zero_grad()
            _step(ranks, i)
        _loss(ranks.model, ranks.rank, 60).backward()
        ranks.optimizer.zero_grad()
        ranks.optimizer.step()
        ranks.step.synchronize()
        return weights(ranks.model)

    expected = plain(2, _build(), range(3), _loss)
    assert all(same(expected, found) for found in run(2, _build(), body))


class _Fails(torch.autograd.Function):
    """Fails in backward, once, on the ranks that are asked to."""

    @staticmethod
    def forward(ctx, x, pending):
        ctx.pending = pending
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.pending:
            ctx.pending.clear()
            raise MemoryError
        return gradient, None


def _train_repeating(ranks, failing):
    """Repeat the backward pass of step 1 where it fails after half of the layers."""
    front, back = ranks.model[:2], ranks.model[2:]
    for i in range(4):
        pending = [1] if i == 1 and ranks.rank in failing else []
        for _ in range(1 + len(pending)):
            hidden = _Fails.apply(front(draw(4, 6, seed=100 * i + ranks.rank)), pending)
            with contextlib.suppress(MemoryError):
                back(hidden).square().mean().backward()
                ranks.optimizer.step()
            ranks.optimizer.zero_grad()
    ranks.step.synchronize()
    return weights(ranks.model)


def test_a_backward_pass_that_all_ranks_repeat_counts_once():
    def body(ranks):
        return _train_repeating(ranks, (0, 1))

    expected = plain(2, _build(), range(4), _loss)
    assert all(same(expected, found) for found in run(2, _build(), body))


def test_a_backward_pass_that_one_rank_repeats_is_no_step_of_another():
    def body(ranks):
        with pytest.raises(CollectiveError, match="step 1, layer") as told:
            _train_repeating(ranks, (1,))
        return str(told.value)

    # Long before the time limit; the rank that ends first may cut the other's note off.
    told = run(2, _build(), body, timeout_s=600.0)
    assert any("repeated unlike numbers of backward passes: {0: 0, 1: 1}" in text for text in told)


def test_a_forked_process_waits_for_nothing_and_its_parent_goes_on():
    def in_child(ranks):
        signal.alarm(20)  # ends it where it waits
        with pytest.raises(SpecError, match="forked process"):
            _loss(ranks.model, ranks.rank, 1).backward()
        ranks.step.close()
        ranks.step._closer()

    def body(ranks):
        _step(ranks, 0)
        status = None
        if ranks.rank == 0:  # whose exchange waits for rank 1's part
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of threads at a fork
                child = os.fork()
            if child == 0:
                try:
                    in_child(ranks)
                    os._exit(0)
                finally:
                    os._exit(1)
            status = os.waitpid(child, 0)[1]
        _step(ranks, 1)
        ranks.step.synchronize()
        return status, weights(ranks.model)

    (status, found), (_, other) = run(2, _build(), body)
    assert status == 0
    assert same(found, other)


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.first = nn.Linear(6, 6)
        self.branch = nn.Linear(6, 6)
        self.never = nn.Linear(6, 6)
        self.last = nn.Linear(6, 1)

    def forward(self, x, *, use_branch):
        x = self.first(x)
        return self.last(self.branch(x) if use_branch else x)


@pytest.mark.parametrize("plan", ["none", "int8"])
def test_a_parameter_without_gradient_counts_as_zero_unless_no_rank_has_one(plan):
    def loss(model, rank, i):
        x = draw(4, 6, seed=10 * i + rank)
        return model(x, use_branch=i % 3 == 0 and rank == i % 2).square().mean()

    def build():
        model = Branches()
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)

    found = run(2, build, lambda r: train(r, range(8), loss), plan)
    assert same(*found)
    if plan == "none":
        assert same(found[0], plain(2, build, range(8), loss))
    never = dict(zip([n for n, _ in Branches().named_parameters()], found[0], strict=True))
    assert torch.equal(never["never.weight"], Branches().never.weight)


def test_frozen_parameters_stay_and_unfreezing_is_refused():
    def net():
        model = _net()
        model[2].requires_grad_(requires_grad=False)
        return model

    found = run(2, _build(net), lambda r: train(r, range(3), _loss))
    assert all(same(plain(2, _build(net), range(3), _loss), w) for w in found)

    def action(ranks):
        ranks.model[2].requires_grad_()
        _step(ranks)

    _refused("frozen parameters='unfrozen'", action, _build(net))


# What changes gradients or steps in a way the engine cannot follow.


@pytest.mark.parametrize("how", ["by norm", "by value", "data"])
def test_clipping_by_the_user_is_refused(how):
    def action(ranks):
        _loss(ranks.model, ranks.rank, 0).backward()
        if how == "by norm":
            nn.utils.clip_grad_norm_(ranks.model.parameters(), 1e9)
        elif how == "by value":
            nn.utils.clip_grad_value_(ranks.model.parameters(), 1e9)
        else:
            for p in ranks.model.parameters():
                p.grad.data.clamp_(-1e-6, 1e-6)
        ranks.optimizer.step()

    _refused("changed after backward.*clip_by_last_norm", action)


@pytest.mark.parametrize("fused", [False, True])
def test_a_grad_scaler_is_refused(fused):
    def action(ranks):
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(_loss(ranks.model, ranks.rank, 0)).backward()
        scaler.step(ranks.optimizer)

    _refused("bfloat16", action, _build(fused=fused))


def test_a_closure_is_refused():
    _refused("closure", lambda ranks: ranks.optimizer.step(lambda: 1.0))


def test_new_parameters_of_the_optimizer_are_refused():
    def action(ranks):
        ranks.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
        _step(ranks)

    _refused("as when overlap was called", action)


def test_a_parameter_replaced_in_the_optimizer_is_refused():
    def action(ranks):
        ranks.model[0].bias = nn.Parameter(torch.ones(8))
        ranks.optimizer.param_groups[0]["params"][1] = ranks.model[0].bias
        _step(ranks)

    _refused(r"'6, 1 of them new' .* the same as when overlap was called", action)


def test_hooks_around_the_optimizers_step_are_refused():
    def action(ranks):
        ranks.optimizer.register_step_post_hook(lambda *_: None)
        _step(ranks)

    _refused("step hooks of the optimizer", action)


def test_an_optimizer_that_counts_in_its_groups_is_refused():
    class Counting(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure=None):
            self.param_groups[0]["steps"] = self.param_groups[0].get("steps", 0) + 1

    def build():
        model = _net()
        optimizer = Counting(model.parameters(), lr=0.1)
        optimizer.param_groups[0]["steps"] = 0
        return model, optimizer

    def action(ranks):
        _step(ranks)
        ranks.step.synchronize()

    _refused("Counting.param_groups='steps'", action, build)


def test_clip_by_last_norm_uses_the_norm_of_the_step_before_and_its_own_at_first():
    def body(ranks):
        return train(ranks, range(5), _loss)

    model, optimizer = _build()()
    last = None
    for i in range(5):
        gradients = []
        for rank in range(2):
            optimizer.zero_grad()
            _loss(model, rank, i).backward()
            gradients.append([p.grad for p in model.parameters()])
        means = [mean(found) for found in zip(*gradients, strict=True)]
        norm = torch.stack([g.square().sum() for g in means]).sum().sqrt().item()
        factor = min(1.0, 0.05 / ((norm if last is None else last) + 1e-6))
        last = norm
        for p, g in zip(model.parameters(), means, strict=True):
            p.grad = g * factor
        optimizer.step()
    found = run(2, _build(), body, clip_by_last_norm=0.05)
    assert same(*found)
    for a, b in zip(weights(model), found[0], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


# Modules that run in other ways.


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpointing_is_exact(use_reentrant):
    class Checkpointed(nn.Sequential):
        def forward(self, x):
            x = self[0](x)
            x = checkpoint(nn.Sequential(*self[1:3]), x, use_reentrant=use_reentrant)
            return self[4](self[3](x))

    def net():
        return Checkpointed(*_net())

    found = run(2, _build(net), lambda r: train(r, range(5), _loss))
    assert all(same(plain(2, _build(net), range(5), _loss), w) for w in found)


def test_a_compiled_model_is_exact():
    def loss(model, rank, i):
        compiled = model.__dict__.setdefault("_compiled", torch.compile(model, backend="eager"))
        return _loss(compiled, rank, i)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = run(1, _build(), lambda r: train(r, range(4), loss))
    assert all(same(plain(1, _build(), range(4), _loss), w) for w in found)


class Direct(nn.Module):
    """Uses a weight of a child without calling it, from a certain step on."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.fc = nn.Linear(6, 1)
        self.is_direct = False

    def forward(self, x):
        return x @ self.fc.weight.T if self.is_direct else self.fc(x)


def test_a_weight_used_without_its_module_is_waited_for_by_the_module_that_ran():
    def net():
        model = Direct()
        model.is_direct = True
        return model

    found = run(2, _build(net), lambda r: train(r, range(5), _loss))
    assert all(same(plain(2, _build(net), range(5), _loss), w) for w in found)


def test_a_weight_used_behind_the_engines_back_is_refused_unless_synchronized():
    def action(ranks):
        _step(ranks)
        ranks.step.synchronize()
        ranks.model.is_direct = True
        _step(ranks, 1)
        ranks.model.is_direct = False
        ranks.step.synchronize()
        weight = ranks.model.fc.weight
        ranks.model.fc(torch.ones(1, 6)).sum().backward()
        ranks.optimizer.step()
        weight.square().sum().backward()

    _refused(r"before the parameter was updated.*synchronize\(\)", action, _build(Direct))


class Both:
    def __init__(self, optimizers):
        self.optimizers = optimizers

    def zero_grad(self):
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def step(self):
        for optimizer in self.optimizers:
            optimizer.step()


def test_several_optimizers_update_their_own_parameters():
    def build():
        model = _net()
        front = torch.optim.SGD(model[0].parameters(), lr=0.1)
        return model, [front, torch.optim.AdamW(model[2:].parameters(), lr=0.01)]

    def body(ranks):
        for i in range(5):
            _loss(ranks.model, ranks.rank, i).backward()
            for optimizer in ranks.optimizer:
                optimizer.step()
                optimizer.zero_grad()
        ranks.step.synchronize()
        return weights(ranks.model)

    def both():
        model, optimizers = build()
        return model, Both(optimizers)

    assert all(same(plain(2, both, range(5), _loss), w) for w in run(2, build, body))


def test_dtypes_may_be_mixed():
    def net():
        model = _net()
        model[2].to(torch.bfloat16)
        model[4].to(torch.float64)
        model[1].forward = lambda x: torch.tanh(x).to(torch.bfloat16)
        model[3].forward = lambda x: torch.tanh(x).to(torch.float64)
        return model

    def body(ranks):
        return train(ranks, range(3), _loss)

    found = run(2, _build(net), body)
    assert same(*found)
    assert not same(found[0], weights(net()))
    assert all(bool(w.isfinite().all()) for w in found[0])


def test_copies_of_a_model_are_free_of_the_engine():
    def body(ranks):
        _step(ranks)
        ranks.step.synchronize()
        data = pickle.dumps(ranks.model)
        twins = [copy.deepcopy(ranks.model), pickle.loads(data)]  # noqa: S301 - our own
        for twin in twins:
            twin(torch.ones(1, 6)).sum().backward()
        with pytest.raises(TypeError, match="state_dict"):
            pickle.dumps(ranks.step)
        return ranks.step.stats().steps_done, [
            same(weights(t), weights(ranks.model)) for t in twins
        ]

    assert run(2, _build(), body) == [(1, [True, True])] * 2


# Failures.


def test_an_exception_on_one_rank_is_told_to_the_others_with_step_and_layer():
    def body(ranks):
        _step(ranks)
        ranks.step.synchronize()
        if ranks.rank == 1:
            raise KeyError("bad sample")
        with pytest.raises(CollectiveError, match=r"step 1, .*rank 1") as caught:
            train(ranks, range(1, 5), _loss)
        with pytest.raises(CollectiveError, match="already broken: step 1"):
            _loss(ranks.model, ranks.rank, 9).backward()
        errors.append(str(caught.value))

    errors: list[str] = []
    with pytest.raises(KeyError):
        run(2, _build(), body)
    assert len(errors) == 1


def test_a_rank_that_does_not_come_is_named_by_step_and_layer():
    def body(ranks):
        _step(ranks)
        if ranks.rank == 0:
            with pytest.raises(CollectiveError, match=r"step 1, .*nothing came within 1 s"):
                train(ranks, range(1, 5), _loss)
            done.set()
        done.wait(20)

    done = threading.Event()
    run(2, _build(), body, timeout_s=1.0)


def test_replicas_that_differ_are_found():
    def body(ranks):
        for i in range(3):
            _step(ranks, i)
        ranks.step.synchronize()
        if ranks.rank == 1:
            with torch.no_grad():
                ranks.model[2].weight[0, 0] += 1
        with pytest.raises(RankMismatchError, match=r"parameter '2.weight' of ranks \[1\]"):
            train(ranks, range(3, 6), _loss)
        return True

    assert run(2, _build(), body, check_every=2) == [True, True]


def test_a_closed_engine_refuses_to_train_and_lets_evaluate():
    def body(ranks):
        _step(ranks)
        ranks.step.close()
        ranks.step.close()
        with torch.no_grad():
            ranks.model(torch.ones(1, 6))
        with pytest.raises(SpecError, match="overlap='closed' is not open"):
            _step(ranks)
        return weights(ranks.model)

    expected = plain(2, _build(), range(1), _loss)
    assert all(same(expected, found) for found in run(2, _build(), body))
