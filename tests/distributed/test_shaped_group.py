import time
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from launch import NEVER_S, kill_self, run_processes
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from gradwire.comm.shaped import Link
from gradwire.comm.shaped_group import Cost, new_shaped_group
from tries import assert_fast


def _model() -> torch.nn.Module:
    torch.manual_seed(0)
    sizes = [40, 50, 60, 10]
    return torch.nn.Sequential(*[torch.nn.Linear(a, b) for a, b in pairwise(sizes)])


def _train(group: dist.ProcessGroup | None, hook: str, steps: int = 4, link: Link | None = None):
    model = DistributedDataParallel(
        _model(), process_group=group, bucket_cap_mb=1000 if "power" in hook else 0.005
    )
    if link is not None:
        group.link = link
    if hook == "fp16":
        model.register_comm_hook(group, default_hooks.fp16_compress_hook)
    if hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            group, matrix_approximation_rank=1, start_powerSGD_iter=2
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 40, generator=generator)).square().mean().backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("hook", ["none", "fp16", "powersgd"])
@pytest.mark.parametrize("link", [Link(), Link(2e6, 0.0005)], ids=["unlimited", "2MB/s"])
def test_shaped_group_trains_as_gloo_does(hook, link):
    def body(_: int) -> bool:
        plain = _train(None, hook)
        return torch.equal(plain, _train(new_shaped_group(), hook, link=link))

    assert run_processes(2, body) == [True, True]


def test_shaped_group_takes_the_time_of_the_link():
    def body(rank: int) -> tuple[float, float, float]:
        group = new_shaped_group()
        group.link = Link(1e5, 0.02)
        time.sleep(0.2 * rank)
        start = time.monotonic()
        tensors = torch.ones(5000), torch.ones(5000)
        works = [dist.all_reduce(x, group=group, async_op=True) for x in tensors]
        works[0].wait()
        first_s = time.monotonic() - start
        works[1].wait()
        return first_s, time.monotonic() - start, sum(x[-1].item() for x in tensors)

    one_s, latency_s = Cost.all_reduce(20_000, 3).num_bytes / 1e5, 4 * 0.02

    def extra_s() -> float:
        late_first_s, late_both_s, value = run_processes(3, body)[2]
        assert value == 6.0
        extra_s = late_first_s - one_s - latency_s, late_both_s - 2 * one_s - latency_s
        assert min(extra_s) > -0.01
        return max(extra_s)

    assert_fast(extra_s, 0.2)


def test_shaped_group_returns_the_results_of_other_collectives():
    def body(rank: int) -> tuple[list[object], float]:
        group = new_shaped_group()
        group.link = Link(1e8)
        own = torch.full((2,), float(rank))
        rows = [torch.zeros(2) for _ in range(2)]
        dist.all_gather(rows, own, group=group)
        flat = torch.zeros(4)
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        gather(flat, own, group=group)
        swapped = torch.zeros(2)
        dist.all_to_all_single(swapped, torch.tensor([10.0, 20.0]) + rank, group=group)
        root = own + 7
        dist.broadcast(root, 1, group=group)
        dist.barrier(group=group)
        objects = [None, None]
        dist.all_gather_object(objects, rank, group=group)
        results = [
            torch.cat(rows).tolist(),
            flat.tolist(),
            swapped.tolist(),
            root.tolist(),
            objects,
        ]
        return results, group.bytes_sent

    gathered = [0.0, 0.0, 1.0, 1.0]
    for rank, (results, bytes_sent) in enumerate(run_processes(2, body)):
        swapped = [10.0 * (rank + 1), 10.0 * (rank + 1) + 1]
        assert results == [gathered, gathered, swapped, [8.0, 8.0], [0, 1]]
        assert bytes_sent > 8 + 8 + 4 + 8


def test_shaped_group_counts_the_bytes_of_the_ring():
    def body(_: int) -> float:
        group = new_shaped_group()
        dist.all_reduce(torch.ones(1000), group=group)
        return group.bytes_sent

    assert run_processes(4, body) == [6000.0] * 4


def test_shaped_group_passes_the_death_of_a_peer_on():
    def body(rank: int) -> None:
        group = new_shaped_group()
        group.link = Link(1e6)
        dist.all_reduce(torch.ones(10), group=group)
        if rank == 1:
            kill_self()
        with pytest.raises(RuntimeError):
            dist.all_reduce(torch.ones(10), group=group)

    run_processes(2, body, killed=[1], group_timeout_s=NEVER_S)
