"""Layers of a model, measured and left as they were."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn

from gradwire.errors import SpecError
from gradwire.measure.model import measure_workload

X = torch.linspace(-1, 1, 24).view(4, 6)


def total(model):
    return model(X).square().sum()


class Tied(nn.Module):
    """Two linear layers that share a weight, the second used first."""

    def __init__(self):
        super().__init__()
        self.late = nn.Linear(6, 6)
        self.early = nn.Linear(6, 6)
        self.late.weight = self.early.weight

    def forward(self, x):
        return self.late(torch.relu(self.early(x)))


class Around(nn.Module):
    """Uses the weight of a child it never calls."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))
        self.inner = nn.Linear(6, 6, bias=False)

    def forward(self, x):
        return nn.functional.linear(x * self.scale, self.inner.weight)


def test_layers_come_in_order_of_use_with_their_parameters():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 2))
    work = measure_workload(model, total, name="net", batch_size=4)
    assert [layer.name for layer in work.layers] == ["0", "2", "3"]
    assert [p.name for p in work.layers[1].parameters] == ["2.weight", "2.bias"]
    assert [p.entry.shape for p in work.layers[0].parameters] == [(8, 6), (8,)]
    assert (work.name, work.batch_size, work.numel) == ("net", 4, 90)
    assert all(layer.forward_s > 0 for layer in work.layers)
    assert work.backward_s > 0
    assert work.optimiser_s >= 0


def test_shared_parameters_belong_to_their_first_use():
    work = measure_workload(Tied(), total)
    assert [[p.name for p in layer.parameters] for layer in work.layers] == [
        ["late.weight", "early.bias"],
        ["late.bias"],
    ]
    assert [layer.name for layer in work.layers] == ["early", "late"]


def test_parameters_of_a_module_never_called_belong_to_the_one_around_it():
    work = measure_workload(Around(), total)
    assert [[p.name for p in layer.parameters] for layer in work.layers] == [
        ["scale", "inner.weight"]
    ]
    assert work.layers[0].name == "Around"


def test_a_layer_used_twice_is_one_layer():
    layer = nn.Linear(6, 6)
    work = measure_workload(nn.Sequential(layer, nn.ReLU(), layer), total)
    assert [layer.name for layer in work.layers] == ["0"]


def test_frozen_parameters_are_left_out():
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 2))
    model[0].requires_grad_(requires_grad=False)
    assert [layer.name for layer in measure_workload(model, total).layers] == ["1"]


def test_everything_is_as_it_was():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters())
    total(model).backward()
    optimizer.step()
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    gradients = [p.grad for p in model.parameters()]
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002

    def noisy(m):
        random.random()
        np.random.rand()  # noqa: NPY002
        return total(m)

    work = measure_workload(model, noisy, optimizer=optimizer)
    assert work.optimiser_s > 0
    after = (model.state_dict(), optimizer.state_dict())
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    assert all(a is b for a, b in zip(gradients, (p.grad for p in model.parameters()), strict=True))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.random.get_state()[1].tolist() == states[2]  # noqa: NPY002
    assert not any(m._forward_pre_hooks for m in model.modules())


def test_everything_is_as_it_was_after_a_failing_loss():
    model = nn.Linear(6, 2)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match="lost"):
        measure_workload(model, lambda _: _raise())
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def _raise():
    raise RuntimeError("lost")


@pytest.mark.parametrize(
    ("model", "loss", "message"),
    [
        (nn.ReLU(), total, "one with a parameter to train"),
        (nn.Linear(6, 2), lambda m: m(X), "a scalar tensor that needs a gradient"),
        (nn.Linear(6, 2), lambda m: m(X).sum().item(), "a scalar tensor that needs a gradient"),
        (nn.Linear(6, 2), lambda m: m.weight.sum(), "calls a module with parameters"),
    ],
)
def test_what_cannot_be_measured_is_refused(model, loss, message):
    with pytest.raises(SpecError, match=message):
        measure_workload(model, loss)
