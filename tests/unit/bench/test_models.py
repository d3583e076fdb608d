from __future__ import annotations

import pytest
import torch

from gradwire.bench import models
from gradwire.bench.settings import MODELS, model_of
from gradwire.demo.tasks import loss_of
from gradwire.errors import UnknownIdError

NAMES = [*(n for n in MODELS if n not in ("text", "digits")), "sleep:0.1:1:2:3"]


@pytest.mark.parametrize("name", NAMES)
def test_model_has_the_size_it_claims_and_a_gradient_everywhere(name):
    task = models.build(name, 0)
    module = task.model(3)
    numel = sum(p.numel() for p in module.parameters())
    assert numel == pytest.approx(model_of(name).num_parameters, rel=0.02)
    inputs, targets = task.batch(0, 2, seed=0, step=0)
    loss_of(module, inputs[:2], targets[:2]).backward()
    assert all(p.grad is not None and p.grad.any() for p in module.parameters())
    before = [p.clone() for p in module.parameters()]
    task.optimiser(module).step()
    pairs = zip(before, module.parameters(), strict=True)
    assert any(not torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("name", NAMES)
def test_equal_seeds_make_equal_models(name):
    task = models.build(name, 0)
    one, same = (list(task.model(7).parameters()) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))


def test_sleeping_ranks_have_gradients_of_their_own():
    first, second = (models.build("sleep:0.01:0:0:2", rank).gradients for rank in (0, 1))
    assert not torch.equal(first[0], second[0])


def test_sleeping_layers_meet_hooks_in_the_order_of_a_real_model():
    task = models.build("sleep:0.01:0:0:3", 0)
    module = task.model(0)
    seen = []
    for i, layer in enumerate(module):
        layer.register_forward_pre_hook(lambda *_, i=i: seen.append(("forward", i)))
        layer.weight.register_post_accumulate_grad_hook(lambda _, i=i: seen.append(("ready", i)))
    loss_of(module, *task.batch(0, 2, 0, 0)).backward()
    assert seen == [("forward", i) for i in range(3)] + [("ready", i) for i in (2, 1, 0)]


def test_unknown_model_is_refused():
    with pytest.raises(UnknownIdError, match="model='gpt5'"):
        models.build("gpt5", 0)
