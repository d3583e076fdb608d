"""Saving and resuming: bit for bit, in another world, from another rank's file."""

import pickle
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from launch import run_processes
from replicas import (
    Given,
    assert_replicas_agree,
    digest,
    draw,
    everywhere,
    mlp,
    residuals,
    step,
    total,
    train,
    wrap,
)
from torch import nn

from gradwire.engine.feedback import StateWarning
from gradwire.errors import StateError


@pytest.mark.parametrize(
    "scheme", ["none", "int4", "sign", "topk:0.1", "low_rank:2", "random_k:0.1"]
)
@pytest.mark.parametrize("loads_late", [False, True], ids=["before", "after"])
def test_j4_resumed_run_is_bit_identical(tmp_path, scheme, loads_late):
    def body(rank):
        options = {"bucket_cap_mb": 0.005}
        ddp, sync = wrap(mlp(depth=2), everywhere(scheme, warmup_steps=1), **options)
        optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.01)
        train(ddp, optimizer, range(4), rank)
        state = {
            "model": ddp.module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "gradwire": sync.state_dict(),
        }
        torch.save(state, tmp_path / f"{rank}.pt")
        train(ddp, optimizer, range(4, 8), rank)
        want = assert_replicas_agree(ddp)
        kept = digest(list(residuals(sync).values()))
        sync.close()

        ddp, sync = wrap(mlp(depth=2), everywhere(scheme, warmup_steps=1), **options)
        optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.01)
        if loads_late:
            train(ddp, optimizer, range(2), rank)
        state = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        ddp.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        sync.load_state_dict(state["gradwire"])
        train(ddp, optimizer, range(4, 8), rank)
        assert assert_replicas_agree(ddp) == want
        assert digest(list(residuals(sync).values())) == kept

    run_processes(2, body)


def test_j2_state_is_plain_data_and_the_handle_is_not_pickled(tmp_path):
    def body(rank):
        ddp, sync = wrap(mlp(depth=2), "low_rank:2")
        ddp(draw(2, 40, seed=rank)).sum().backward()
        state = sync.state_dict()
        torch.save(state, tmp_path / f"{rank}.pt")
        loaded = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert loaded.keys() == state.keys() == {f"rank{rank}"}
        kinds = {type(v) for v in state[f"rank{rank}"].values()}
        assert kinds == {int, str, dict}
        with pytest.raises(TypeError, match=r"cannot be pickled or copied; save its state_dict"):
            pickle.dumps(sync)
        assert_replicas_agree(ddp)

    run_processes(2, body)


def test_state_is_a_copy():
    def body(rank):
        ddp, sync = wrap(Given((40, 33)), "low_rank:2")
        step(ddp, draw(40, 33, seed=rank))
        state = sync.state_dict()[f"rank{rank}"]
        before = digest([*state["residual"].values(), *state["factors"].values()])
        step(ddp, draw(40, 33, seed=5 + rank))
        assert digest([*state["residual"].values(), *state["factors"].values()]) == before
        assert_replicas_agree(ddp)

    run_processes(2, body)


def test_j3_warm_up_does_not_run_again():
    def body(rank):
        plan = everywhere("int4", warmup_steps=3)
        ddp, sync = wrap(mlp(depth=2), plan, bucket_cap_mb=0.005)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        train(ddp, optimizer, range(4), rank)
        state = sync.state_dict()
        sync.close()
        ddp, sync = wrap(mlp(depth=2), plan, bucket_cap_mb=0.005)
        sync.load_state_dict(state)
        train(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1), range(1), rank)
        assert sync.stats().steps_done == 5
        (last,) = sync.stats().recent
        assert last.step == 4
        assert last.times_smaller > 2
        assert_replicas_agree(ddp)

    run_processes(2, body)


def test_distributed_checkpoint_returns_each_rank_its_own_state(tmp_path):
    def body(rank):
        ddp, sync = wrap(Given((40, 33), (20, 33)), "low_rank:2")
        step(ddp, draw(40, 33, seed=rank), draw(20, 33, seed=rank))
        want = sync.state_dict()[f"rank{rank}"]
        dcp.save({"gradwire": sync.state_dict()}, checkpoint_id=tmp_path)
        sync.close()
        ddp, sync = wrap(Given((40, 33), (20, 33)), "low_rank:2")
        state = {"gradwire": sync.state_dict()}
        dcp.load(state, checkpoint_id=tmp_path)
        sync.load_state_dict(state["gradwire"])
        got = sync.state_dict()[f"rank{rank}"]
        for kind in ("residual", "factors"):
            assert digest(list(want[kind].values())) == digest(list(got[kind].values()))
            assert any(t.any() for t in got[kind].values())
        assert got["steps_done"] == 1
        step(ddp, draw(40, 33, seed=rank), draw(20, 33, seed=rank))
        assert_replicas_agree(ddp)

    run_processes(2, body)


def _states(world_size, scheme="int4"):
    """Each rank's state after a step, and the mean that is still owed."""

    def body(rank):
        ddp, sync = wrap(Given((40, 33)), scheme)
        step(ddp, draw(40, 33, seed=rank))
        owed = total(residuals(sync)["w.0"]) / world_size
        assert_replicas_agree(ddp)
        return sync.state_dict(), owed.numpy()

    results = run_processes(world_size, body)
    return {k: v for state, _ in results for k, v in state.items()}, results[0][1]


def test_j4_grown_world_owes_the_same_mean():
    saved, owed = _states(2)

    def body(rank):
        ddp, sync = wrap(Given((40, 33)), "int4")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            sync.load_state_dict(saved)
        texts = [str(w.message) for w in caught if w.category is StateWarning]
        assert len(texts) == (rank == 2)
        assert all("holds rank 0 of 2, this is rank 2" in text for text in texts)
        now = total(residuals(sync)["w.0"]) / 3
        assert (now - torch.from_numpy(owed)).abs().max() < 1e-6
        step(ddp, draw(40, 33, seed=rank))
        assert_replicas_agree(ddp)

    run_processes(3, body)


def test_j4_shrunk_world_drops_the_residual_in_words():
    saved, _ = _states(3)

    def body(rank):
        ddp, sync = wrap(Given((40, 33)), "int4")
        with pytest.warns(StateWarning, match="the world has shrunk from 3 to 2 ranks"):
            sync.load_state_dict(saved)
        assert not residuals(sync)["w.0"].any()
        assert sync.stats().steps_done == 1
        step(ddp, draw(40, 33, seed=rank))
        assert_replicas_agree(ddp)

    run_processes(2, body)


def test_j4_state_of_rank_0_loaded_everywhere_is_not_used_twice():
    saved, _ = _states(2, "low_rank:2")
    only_first = {"rank0": saved["rank0"]}

    def body(rank):
        ddp, sync = wrap(Given((40, 33)), "low_rank:2")
        if rank == 0:
            sync.load_state_dict(only_first)
        else:
            with pytest.warns(StateWarning, match="holds rank 0 of 2, this is rank 1"):
                sync.load_state_dict(only_first)
        assert residuals(sync)["w.0"].any() == (rank == 0)
        step(ddp, draw(40, 33, seed=rank))
        assert_replicas_agree(ddp)

    run_processes(2, body)


def test_state_that_does_not_fit_is_refused():
    saved, _ = _states(2)

    def body(rank):
        ddp, sync = wrap(Given((40, 33)), "int4")
        mine = saved[f"rank{rank}"]
        before = digest(list(residuals(sync).values()))
        with pytest.raises(StateError, match="format 7, this version reads 1"):
            sync.load_state_dict({f"rank{rank}": {**mine, "format": 7}})
        with pytest.raises(StateError, match="no state of gradwire among the keys"):
            sync.load_state_dict({"model": {}})
        with pytest.raises(StateError, match="NoneType is no state"):
            sync.load_state_dict(None)
        with pytest.raises(StateError, match="state of format None"):
            sync.load_state_dict({f"rank{rank}": None})
        with pytest.raises(StateError, match="no state of gradwire"):
            sync.load_state_dict({1: mine})
        for key in ("rank", "world_size", "steps_done", "residual", "factors"):
            with pytest.raises(StateError, match=f"state without {key}"):
                sync.load_state_dict({f"rank{rank}": {k: mine[k] for k in mine if k != key}})
        for broken in ({"world_size": 0}, {"steps_done": -5}, {"steps_done": "x"}):
            with pytest.raises(StateError, match=r"broken state: \w+=.* is not a whole number"):
                sync.load_state_dict({f"rank{rank}": {**mine, **broken}})
        other = {"residual": {"w.0": torch.zeros(33, 40)}}
        with pytest.raises(StateError, match=r"'w.0' has shape \(33, 40\), .* \(40, 33\)"):
            sync.load_state_dict({f"rank{rank}": {**mine, **other}})
        renamed = {"residual": {"old": torch.zeros(4)}}
        with pytest.warns(StateWarning, match=r"no residual for \['w.0'\].*residuals of \['old'\]"):
            sync.load_state_dict({f"rank{rank}": {**mine, **renamed}})
        assert digest(list(residuals(sync).values())) == before
        step(ddp, draw(40, 33, seed=rank))
        assert_replicas_agree(ddp)

    run_processes(2, body)


def test_c4_other_buckets_after_loading_change_nothing():
    def body(rank):
        results = []
        for cap in (25, 0.005):
            ddp, sync = wrap(mlp(depth=2), "int4")
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            train(ddp, optimizer, range(3), rank)
            model, state = ddp.module.state_dict(), sync.state_dict()
            sync.close()
            ddp, sync = wrap(mlp(depth=2), "int4", bucket_cap_mb=cap)
            ddp.module.load_state_dict(model)
            sync.load_state_dict(state)
            train(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1), range(3, 6), rank)
            results.append(assert_replicas_agree(ddp))
            sync.close()
        assert results[0] == results[1]
        dist.barrier()

    run_processes(2, body)


@pytest.mark.parametrize("warmup_steps", [0, 4])
def test_j3_state_loaded_on_some_ranks_only_is_noticed_by_all(warmup_steps):
    def body(rank):
        ddp, sync = wrap(nn.Linear(64, 32), everywhere("int4", warmup_steps=warmup_steps))
        if rank == 0:
            state = sync.state_dict()
            state["rank0"]["steps_done"] = 5
            sync.load_state_dict(state)
        try:
            ddp(torch.ones(2, 64)).sum().backward()
        except RuntimeError as error:
            return str(error)
        return "nothing noticed"

    for text in run_processes(2, body):
        assert "steps done differ by rank: {0: 5, 1: 0}" in text


def test_poisoned_residual_is_refused():
    def body(rank):
        _, sync = wrap(nn.Linear(64, 32), everywhere("int4"))
        state = sync.state_dict()
        state[f"rank{rank}"]["residual"]["weight"][0, 0] = torch.nan
        with pytest.raises(StateError, match="residual of 'weight' holds NaN or infinity"):
            sync.load_state_dict(state)

    run_processes(2, body)
