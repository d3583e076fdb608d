"""The cross-iteration engine in real processes: exact, told of failures, and ending well."""

import json
import subprocess
import sys
import textwrap
import threading

import pytest
import torch
from launch import NEVER_S, kill_self, run_processes
from replicas import assert_replicas_agree, draw, mlp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 - as everyone calls it

import gradwire
from gradwire.comm.shaped import Link


def _train(model, optimizer, steps: range, rank: int) -> None:
    for i in steps:
        model(draw(4, 40, seed=100 * i + rank)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def _optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def test_weights_are_those_of_ddp_and_of_rank_0_at_the_start():
    def body(rank: int):
        ddp = DDP(mlp())
        _train(ddp, optimizer := _optimizer(ddp), range(60), rank)
        net = mlp()
        if rank == 1:
            nn.init.zeros_(net[0].weight)
        step = gradwire.overlap(net, optimizer := _optimizer(net), "none", check_every=20)
        _train(net, optimizer, range(60), rank)
        step.synchronize()
        assert_replicas_agree(net)
        step.close()
        pairs = zip(ddp.module.parameters(), net.parameters(), strict=True)
        return all(torch.equal(a, b) for a, b in pairs)

    assert run_processes(2, body) == [True, True]


def test_a_run_on_a_slow_link_is_hidden_where_it_can_be():
    def body(rank: int):
        net = mlp()
        step = gradwire.overlap(net, optimizer := _optimizer(net), "aqgb", link=Link(2e5, 1e-3))
        _train(net, optimizer, range(20), rank)
        step.synchronize()
        assert_replicas_agree(net)
        stats, line = step.stats(), step.timeline()
        step.close()
        step.close()
        threads = [t.name for t in threading.enumerate() if t.name.startswith("gradwire")]
        return stats.steps_done, stats.recent[-1].sent_bytes > 0, line.step_s > 0, threads

    assert run_processes(3, body) == [(20, True, True, [])] * 3


def test_ranks_that_differ_are_told_before_training():
    def body(rank: int):
        net = mlp()
        plan = "int4" if rank == 0 else "int8"
        with pytest.raises(gradwire.RankMismatchError, match=r"plans \(digest\) differ"):
            gradwire.overlap(net, _optimizer(net), plan)
        with pytest.raises(gradwire.GradwireError, match="clip_by_last_norm") as caught:
            gradwire.overlap(net, _optimizer(net), clip_by_last_norm=-1.0 if rank == 1 else None)
        with pytest.raises(gradwire.SpecError, match=r"plan=.auto. is not a fixed plan.*aqgb"):
            gradwire.overlap(net, _optimizer(net), "auto")
        return type(caught.value).__name__

    assert run_processes(2, body) == ["RankMismatchError", "SpecError"]


def test_a_peer_killed_in_mid_step_is_told_to_all_survivors():
    def body(rank: int):
        net = mlp()
        step = gradwire.overlap(net, optimizer := _optimizer(net), "int8")
        _train(net, optimizer, range(3), rank)
        if rank == 2:
            net[2].weight.register_post_accumulate_grad_hook(lambda _: kill_self())
        with pytest.raises(gradwire.CollectiveError) as caught:
            _train(net, optimizer, range(3, 9), rank)
        with pytest.raises(gradwire.CollectiveError, match="already broken: step"):
            _train(net, optimizer, range(1), rank)
        step.close()
        threads = [t.name for t in threading.enumerate() if t.name.startswith("gradwire")]
        return str(caught.value), threads

    results = run_processes(3, body, killed=[2], group_timeout_s=NEVER_S)
    for text, threads in results[:2]:
        assert text.startswith("step "), text
        assert "rank" in text
        assert threads == []


SCRIPT = """
    import json, os, sys
    import torch, torch._dynamo, torch.distributed as dist
    from torch import nn
    import gradwire, gradwire.integrations.overlap

    def train(rank, store, ending):
        torch.set_num_threads(1)
        dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
        net = nn.Sequential(*[nn.Linear(64, 64) for _ in range(6)])
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        gradwire.overlap(net, optimizer, "int4")
        for i in range(4):
            net(torch.ones(4, 64)).sum().backward()
            if ending == "exception" and i == 3:
                raise ValueError("the end")
            optimizer.step()
            optimizer.zero_grad()
        if ending == "interrupt":
            raise KeyboardInterrupt

    codes = {}
    for ending in sys.argv[2:]:
        ranks = []
        for rank in range(2):
            pid = os.fork()
            if pid == 0:
                sys.stderr = open(f"{sys.argv[1]}/{ending}{rank}.err", "w")
                train(rank, f"{sys.argv[1]}/{ending}", ending)
                sys.exit(0)
            ranks.append(pid)
        codes[ending] = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
    print(json.dumps(codes))
"""


def test_processes_end_well_without_any_clean_up(tmp_path):
    expected = {"plain": [0, 0], "exception": [1, 1], "interrupt": [-2, -2]}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), str(tmp_path), *expected],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    errors = "\n".join(f"{p.name}: {p.read_text()}" for p in tmp_path.glob("*.err"))
    assert json.loads(done.stdout) == expected, errors + done.stderr
