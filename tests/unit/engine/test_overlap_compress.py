"""Compression in the cross-iteration engine: residuals, levels, chunks, order, state."""

import json
import math
import tempfile
import warnings

import pytest
import torch
from torch import nn

import gradwire.engine.overlap_scheme as scheme
from gradwire.engine.chunks import cut
from gradwire.engine.feedback import StateWarning
from gradwire.errors import RankMismatchError, SpecError, StateError
from gradwire.plan import Plan, Rule
from gradwire.spec import parse_reducer
from overlapped import draw, everywhere, plain, run, same, train, weights

SPECS = ("bf16", "int8", "int4", "int4@broadcast", "sign", "topk:0.1@broadcast", "low_rank:2")


def _build(width=24):
    def build():
        torch.manual_seed(1)
        layers = (nn.Linear(6, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        model = nn.Sequential(*layers, nn.Linear(width, 1))
        return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    return build


def _loss(model, rank, i):
    return model(draw(4, 6, seed=100 * i + rank)).square().mean()


def _residual(ranks):
    return ranks.step.state_dict()[f"rank{ranks.rank}"]["residual"]


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("spec", SPECS)
def test_replicas_agree_for_every_reducer(spec, world_size):
    found = run(world_size, _build(), lambda r: train(r, range(12), _loss), spec)
    assert all(same(found[0], other) for other in found[1:])
    assert not same(found[0], plain(world_size, _build(), range(12), _loss))


@pytest.mark.parametrize("spec", ["none", "bf16", "int4", "int4@broadcast", "sign"])
def test_results_do_not_depend_on_chunks(spec, monkeypatch):
    def body(ranks):
        trained = train(ranks, range(6), _loss)
        return trained, _residual(ranks)

    whole = run(2, _build(80), body, spec)
    monkeypatch.setattr(scheme, "cut", lambda spec, part: cut(spec, part, 512))
    pieces = run(2, _build(80), body, spec)
    for (a, owed_a), (b, owed_b) in zip(whole, pieces, strict=True):
        assert same(a, b)
        assert same(list(owed_a.values()), list(owed_b.values()))


@pytest.mark.parametrize("spec", ["none", "int8", "int4@broadcast", "low_rank:2"])
def test_resuming_is_bit_identical(spec):
    def straight(ranks):
        return train(ranks, range(8), _loss)

    def first(ranks):
        train(ranks, range(5), _loss)
        state = (ranks.model.state_dict(), ranks.optimizer.state_dict(), ranks.step.state_dict())
        return [torch.save(state, f"{folder}/{ranks.rank}")]

    def second(ranks):
        model, optimizer, step = torch.load(f"{folder}/{ranks.rank}", weights_only=True)
        ranks.model.load_state_dict(model)
        ranks.optimizer.load_state_dict(optimizer)
        ranks.step.load_state_dict(step)
        return train(ranks, range(5, 8), _loss)

    with tempfile.TemporaryDirectory() as folder:
        run(2, _build(), first, spec)
        resumed = run(2, _build(), second, spec)
    expected = run(2, _build(), straight, spec)
    assert all(same(a, b) for a, b in zip(expected, resumed, strict=True))


def test_loading_on_one_rank_only_is_refused():
    def body(ranks):
        train(ranks, range(2), _loss)
        state = ranks.step.state_dict()
        train(ranks, range(2, 3), _loss)
        if ranks.rank == 0:
            ranks.step.load_state_dict(state)
            ranks.step.load_state_dict(state)
        else:
            ranks.step._talk.forget()
        with pytest.raises(RankMismatchError, match=r"steps done differ by rank: \{0: 2, 1: 3\}"):
            train(ranks, range(3, 5), _loss)

    run(2, _build(), body, "int8")


def test_a_state_of_something_else_is_refused_and_of_another_rank_dropped():
    def body(ranks):
        with pytest.raises(StateError, match="no state of gradwire"):
            ranks.step.load_state_dict({"model": 1})
        train(ranks, range(2), _loss)
        state = ranks.step.state_dict()
        other = {f"rank{1 - ranks.rank}": {**state[f"rank{ranks.rank}"], "rank": 1 - ranks.rank}}
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            ranks.step.load_state_dict(other)
        assert any(w.category is StateWarning and "is dropped" in str(w.message) for w in told)
        assert not any(r.any() for r in _residual(ranks).values())

    run(1, _build(), body, "int8")


@pytest.mark.parametrize("spec", ["none", "int4", "int4@broadcast"])
def test_a_gradient_that_is_not_finite_reaches_all_ranks_and_no_residual(spec):
    def loss(model, rank, i):
        factor = math.nan if (rank, i) == (1, 2) else 1.0
        return _loss(model, rank, i) * factor

    def body(ranks):
        train(ranks, range(2), loss)
        before = weights(ranks.model)
        train(ranks, range(2, 3), loss)
        owed = _residual(ranks).values()
        assert all(bool(r.isfinite().all()) for r in owed)
        _loss(ranks.model, ranks.rank, 3).backward()
        assert not ranks.step.stats().recent[-1].is_finite
        assert all(bool(b.isfinite().all()) for b in before)
        return [bool(w.isnan().any()) for w in weights(ranks.model)]

    assert run(2, _build(), body, spec) == [[True] * 6] * 2


class Every:
    """Changes the level of all layers every so many steps, and of one in between."""

    def __init__(self, log):
        self.log = log

    def update(self, step, layers, network):
        assert network.world_size == 2
        assert len(network.bandwidth_bytes_per_s) == 2
        assert network.step_s > 0
        self.log.append((step, tuple(layer.name for layer in layers), layers, network))
        name = ("int8@broadcast", "none", "int3@broadcast", "int5", "int1@broadcast", "bf16")[
            step % 6
        ]
        if step % 2:
            return {layers[0].name: parse_reducer(name)}
        return {layer.name: parse_reducer(name) for layer in layers}


def test_a_controller_changes_levels_at_the_same_step_on_all_ranks():
    logs = [[], []]

    def body(ranks):
        seen = []
        ranks.step._sender._measure_always = True
        ranks.step._talk._controller = Every(logs[ranks.rank])
        for i in range(16):
            train(ranks, range(i, i + 1), _loss)
            seen.append(tuple(map(str, ranks.step.reducers().values())))
        return weights(ranks.model), seen

    (a, seen), (b, other) = run(2, _build(), body, everywhere("int4@broadcast"))
    assert same(a, b)
    assert seen == other
    assert len(set(seen)) > 5
    assert [entry[:2] for entry in logs[0]] == [entry[:2] for entry in logs[1]]
    assert logs[0][-1][2:] == logs[1][-1][2:]
    layer = logs[0][-1][2][0]
    assert layer.name == "0"
    assert layer.losses.error > 0
    assert layer.due_s > layer.ready_s > 0


def test_what_is_owed_is_paid_when_a_layer_becomes_dense():
    class Dense:
        def update(self, step, layers, network):
            return {layer.name: parse_reducer("none") for layer in layers}

    def body(ranks):
        train(ranks, range(2), _loss)
        assert all(r.any() for r in _residual(ranks).values())
        train(ranks, range(2, 7), _loss)
        return any(r.any() for r in _residual(ranks).values())

    assert run(2, _build(), body, "int4@broadcast", controller=Dense()) == [False, False]


class Turning(nn.Module):
    """Uses its layers in another order from a certain step on."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.a, self.b, self.c = (nn.Linear(6, 6) for _ in range(3))
        self.order = "abc"

    def forward(self, x):
        for name in self.order:
            x = torch.tanh(getattr(self, name)(x))
        return x


def test_the_order_of_use_is_rank_0s_and_follows_changes():
    def build():
        model = Turning()
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def body(ranks):
        seen = []
        for i in range(10):
            ranks.model.order = "abc" if i < 4 else "cab" if ranks.rank == 0 else "bca"
            train(ranks, range(i, i + 1), _loss)
            seen.append("".join(layer.name for layer in ranks.step._sender.order))
        return seen, weights(ranks.model)

    (first, a), (second, b) = run(2, build, body)
    assert first == second == ["abc"] * 6 + ["cab"] * 4
    assert same(a, b)


def test_stats_and_timeline_tell_where_the_time_went():
    steps = []

    def body(ranks):
        with pytest.raises(SpecError, match="at least 1"):
            ranks.step.timeline()
        assert "no whole step" in ranks.step.stats().summary()
        train(ranks, range(4), _loss)
        return ranks.step.stats(), ranks.step.timeline()

    plan = Plan((Rule(parse_reducer("int8"), min_numel=100),))
    (stats, line), _ = run(2, _build(), body, plan, on_step=steps.append)
    assert stats.steps_done == 4
    assert [s.step for s in stats.recent] == [0, 1, 2]
    assert stats.dense["0.bias"].startswith("1 dimensions")
    assert stats.residual_bytes == 4 * (6 * 24 + 24 * 24)
    last = stats.recent[-1]
    assert [layer.name for layer in last.layers] == ["0", "2", "4"]
    assert last.layers[1].bits == pytest.approx((8 * 592 + 32 * 24) / 600, rel=0.05)
    assert last.sent_bytes == last.received_bytes > 0
    assert last.layers[2].ready_s < last.layers[0].ready_s < last.step_s
    assert last.overlap_s == line.overlap_s(0)
    assert last.wait_s == line.wait_s(0) <= last.step_s
    assert {s.kind for s in line.spans} >= {
        "forward",
        "backward",
        "optimiser",
        "transfer",
        "encode",
    }
    assert sum(s.num_bytes for s in line.spans) == last.sent_bytes
    names = {e["name"] for e in json.loads(line.to_chrome_trace())["traceEvents"]}
    assert any(name.startswith("transfer 2 ") and name.endswith("bits") for name in names)
    assert last.scalars()["gradwire/sent_bytes"] == last.sent_bytes
    assert len(steps) == 6
    assert "sent a step" in stats.summary()


def test_warmup_is_dense():
    plan = Plan((Rule(parse_reducer("int4"), min_numel=1, min_ndim=0),), warmup_steps=3)
    found = run(
        2, _build(), lambda r: (train(r, range(3), _loss), train(r, range(3, 4), _loss)), plan
    )
    assert all(same(dense, plain(2, _build(), range(3), _loss)) for dense, _ in found)
    assert all(not same(a, plain(2, _build(), range(4), _loss)) for _, a in found)
