"""Saving and resuming: bit for bit, in either phase, for both optimisers."""

import copy

import pytest
import torch
from training import on_ranks, same, train, values

from gradwire.engine.feedback import StateWarning
from gradwire.errors import StateError
from gradwire.optim import LAMB, AdamW


def _make(kind, plan):
    def make(model, mailbox):
        options = {"plan": plan, "warmup_steps": 3, "variance_interval": 4}
        return kind(model.named_parameters(), 0.01, group=mailbox, **options)

    return make


@pytest.mark.parametrize("plan", ["int4", "sign", "low_rank:2"])
@pytest.mark.parametrize("saved_at", [2, 6], ids=["warm-up", "compressed"])
@pytest.mark.parametrize("kind", [AdamW, LAMB])
def test_resumed_run_is_bit_identical(kind, saved_at, plan, tmp_path):
    def through(model, optimizer, rank):
        train(model, optimizer, range(saved_at), rank, 2)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, tmp_path / f"{rank}.pt")
        train(model, optimizer, range(saved_at, 10), rank, 2)
        return values(model), optimizer.state_dict()

    def resumed(model, optimizer, rank):
        train(model, optimizer, range(50, 52), rank, 2)  # is forgotten
        state = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        train(model, optimizer, range(saved_at, 10), rank, 2)
        return values(model), optimizer.state_dict()

    make = _make(kind, plan)
    for mine, theirs in zip(on_ranks(2, make, through), on_ranks(2, make, resumed), strict=True):
        assert same(mine[0], theirs[0])
        assert _flat(mine[1]) == _flat(theirs[1])


def _flat(state):
    """Return a state with tensors as lists, to compare."""
    if isinstance(state, dict):
        return {k: _flat(v) for k, v in state.items()}
    if isinstance(state, (list, tuple)):
        return [_flat(v) for v in state]
    return state.tolist() if isinstance(state, torch.Tensor) else state


def test_counts_survive_in_short_floats():
    """torch casts what belongs to a parameter to its dtype, in which 257 is 256."""

    def make(model, mailbox):
        return LAMB(model.to(torch.bfloat16).parameters(), plan="sign", group=mailbox)

    def body(model, optimizer, _):
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
        state = optimizer.state_dict()
        state["state"][0]["variance_step"] = 257
        state["state"][0]["trust_mean"] = 0.1
        optimizer.load_state_dict(state)
        kept = optimizer.state[next(model.parameters())]
        return kept["variance_step"], kept["trust_mean"]

    assert on_ranks(1, make, body) == [(257, 0.1)]


def test_state_of_another_optimiser_is_refused():
    def body(model, optimizer, rank):
        train(model, optimizer, range(1), rank, 1)
        with pytest.raises(StateError, match=r"no state of gradwire\.optim"):
            optimizer.load_state_dict(torch.optim.AdamW(model.parameters()).state_dict())
        state = copy.deepcopy(optimizer.state_dict())
        state["state"][0]["step"] += 1
        with pytest.raises(StateError, match="broken state of a warm-up"):
            optimizer.load_state_dict({**state, "gradwire": {**state["gradwire"], "warmup": {}}})
        assert optimizer.state[next(model.parameters())]["step"] == 1
        state = optimizer.state_dict()
        state["gradwire"]["exchange"] = {}
        with pytest.raises(StateError, match="among the keys"):
            optimizer.load_state_dict(state)

    on_ranks(1, _make(AdamW, "sign"), body)


def test_state_of_another_rank_goes_on_without_what_that_rank_owed():
    def first(model, optimizer, rank):
        train(model, optimizer, range(5), rank, 2)
        return model.state_dict(), optimizer.state_dict()

    weights, state = on_ranks(2, _make(AdamW, "sign"), first)[0]

    def second(model, optimizer, rank):
        model.load_state_dict(weights)
        optimizer.load_state_dict(copy.deepcopy(state))
        train(model, optimizer, range(5, 7), rank, 3)
        return values(model)

    with pytest.warns(StateWarning, match="it holds rank 0 of 2"):
        found = on_ranks(3, _make(AdamW, "sign"), second)
    assert same(found[0], found[1])
    assert same(found[0], found[2])
