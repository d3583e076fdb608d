"""When warm-up ends, and that all ranks end it together."""

import math

import pytest
import torch
from replicas import draw
from torch import nn

from gradwire.comm.local import run_ranks
from gradwire.errors import StateError
from gradwire.optim import AdamW
from gradwire.optim.warmup import Warmup
from gradwire.plan import Plan, Rule
from gradwire.spec import parse_reducer


def _settled_after(warmup, norms, window=2):
    """Return after how many steps the warm-up is settled, or None."""
    for count, norm in enumerate(norms, 1):
        warmup.advance(lambda norm=norm: norm, window)
        if warmup.is_settled:
            return count
    return None


@pytest.mark.parametrize(
    ("steps", "tolerance", "expected"),
    [
        (1, None, 1),
        (5, None, 5),
        (None, None, 8),
        (None, 0.2, 6),
        (None, 0.6, 4),
        (7, 0.2, 7),
        (11, 0.2, None),
        (None, 0.001, None),
    ],
)
def test_warmup_ends_by_steps_or_by_variance_or_when_both_hold(steps, tolerance, expected):
    norms = [9.0, 4.0, 9.0, 6.0, 9.0, 7.0, 9.0, 7.1, 9.0, 9.9]
    assert _settled_after(Warmup(steps, tolerance, None), norms) == expected


def test_a_variance_of_zero_has_not_settled():
    assert _settled_after(Warmup(None, None, None), [0.0] * 10) is None


def test_refresh_comes_every_interval_after_the_end():
    warmup = Warmup(2, None, 3)
    seen = []
    for _ in range(9):
        if warmup.is_settled:
            warmup.end()
        seen.append(warmup.is_refresh)
        warmup.advance(lambda: 1.0, 10)
    assert seen == [False, False, False, False, True, False, False, True, False]


@pytest.mark.parametrize("key", ["steps_done", "ended_at", "norm", "is_quiet"])
def test_broken_state_is_refused(key):
    state = Warmup(2, None, None).state_dict()
    with pytest.raises(StateError, match="warm-up"):
        Warmup(2, None, None).load_state_dict({k: v for k, v in state.items() if k != key})
    with pytest.raises(StateError, match="warm-up"):
        Warmup(2, None, None).load_state_dict({**state, key: "many"})


@pytest.mark.parametrize(
    ("key", "value"),
    [("norm", math.nan), ("norm", math.inf), ("norm", -1.0), ("ended_at", 5), ("is_quiet", 1)],
)
def test_state_that_no_warmup_has_is_refused_and_changes_nothing(key, value):
    warmup = Warmup(2, None, None)
    state = {**warmup.state_dict(), "steps_done": 4, key: value}
    with pytest.raises(StateError, match="warm-up"):
        warmup.load_state_dict(state)
    assert warmup.steps_done == 0


def test_variance_ends_the_warmup_at_the_same_step_on_all_ranks():
    """Gradients of falling size: the norm of the variance falls, then stays."""

    def body(mailbox):
        p = nn.Parameter(torch.ones(64, 32))
        optimizer = AdamW([p], betas=(0.5, 0.9), plan="sign", variance_tolerance=0.1, group=mailbox)
        for i in range(60):
            p.grad = draw(64, 32, seed=2 * i + mailbox.rank) * (1 + 3 * 0.7**i)
            optimizer.step()
        optimizer.close()
        return optimizer.state_dict()["gradwire"]["warmup"]["ended_at"], p.detach()

    (first, ours), (second, theirs) = run_ranks(2, body)
    assert first == second
    assert first % 10 == 0
    assert 10 < first < 60
    assert torch.equal(ours, theirs)


def test_one_rank_that_thinks_so_ends_it_for_all():
    """Machines of another kind may add up to another norm: the step must be the same."""

    def body(mailbox):
        p = nn.Parameter(torch.ones(64, 32))
        optimizer = AdamW([p], plan="sign", variance_tolerance=0.1, group=mailbox)
        for i in range(6):
            if i == 3 and mailbox.rank == 1:
                optimizer._warmup._is_quiet = True
            p.grad = draw(64, 32, seed=i)
            optimizer.step()
        optimizer.close()
        return optimizer.state_dict()["gradwire"]["warmup"]["ended_at"]

    assert run_ranks(2, body) == [3, 3]


def test_plan_brings_its_own_warmup():
    plan = Plan((Rule(parse_reducer("sign")),), warmup_steps=4)

    def body(mailbox):
        p = nn.Parameter(torch.ones(64, 32))
        optimizer = AdamW([p], plan=plan, group=mailbox)
        for i in range(6):
            p.grad = draw(64, 32, seed=i)
            optimizer.step()
        optimizer.close()
        return optimizer.state_dict()["gradwire"]["warmup"]["ended_at"]

    assert run_ranks(2, body) == [4, 4]
