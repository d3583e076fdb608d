"""FSDP2 and HSDP: encoded reduce-scatters, and all-reduces between nodes."""

from __future__ import annotations

import re

import pytest
import torch
import torch.distributed as dist
from launch import run_processes
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP  # noqa: N817 - as everyone calls it

import gradwire

WIDTH = 48


class Net(nn.Module):
    """Uneven first dimensions, so that shards are padded, and one module within another."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.front = nn.Linear(WIDTH, 66)
        self.block = nn.Sequential(nn.Linear(66, 50), nn.ReLU(), nn.Linear(50, WIDTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.block(self.front(x))))


def _sharded(mesh=None, **options) -> Net:
    net = Net()
    mesh = mesh or init_device_mesh("cpu", (dist.get_world_size(),))
    for module in (net.front, net.block, net):
        fully_shard(module, mesh=mesh, **options)
    return net


def _batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(16, WIDTH, generator=generator)
    return x, x[:, :3].sin() + x[:, 3:6]


def _train(net: nn.Module, rank: int, steps: int = 5, *, first: int = 0, lr: float = 0.05) -> float:
    optimiser = torch.optim.AdamW(net.parameters(), lr=lr)
    loss = torch.zeros(())
    for step in range(first, first + steps):
        x, y = _batch(rank, step)
        loss = (net(x) - y).square().mean()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    return loss.item()


def _values(net: nn.Module) -> list[torch.Tensor]:
    return [p.full_tensor().detach() for p in net.parameters()]


def _distance(a: list[torch.Tensor], b: list[torch.Tensor]) -> float:
    return max(float((x - y).abs().max()) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("ranks", [2, 4])
def test_none_equals_plain_fsdp(ranks):
    def body(rank: int) -> tuple[float, int, int]:
        plain, ours = _sharded(), _sharded()
        sync = gradwire.attach(ours, "none")
        _train(plain, rank)
        _train(ours, rank)
        stats = sync.stats()
        sync.close()
        return _distance(_values(plain), _values(ours)), stats.steps_done, len(stats.recent)

    for distance, steps, seen in run_processes(ranks, body):
        # With two ranks a sum has one order only; with more, Gloo's is another one.
        assert distance == 0 if ranks == 2 else distance < 1e-5
        assert steps == seen == 5


SMALLER = {None: 2.5, "int4": 4, "bf16": 1.7, "sign": 8}


@pytest.mark.parametrize(("ranks", "plans"), [(2, [*SMALLER]), (4, [None])])
def test_compressed_reduce_scatter_trains_to_plain_loss(ranks, plans):
    def body(rank: int) -> tuple[float, list[tuple[float, float, bool]]]:
        plain = _sharded()
        before = _train(plain, rank, 1)
        reached = _train(plain, rank, 30, first=1, lr=0.01)
        results = []
        for plan in plans:
            ours = _sharded()
            sync = gradwire.attach(ours, plan)
            _train(ours, rank, 1)
            loss = _train(ours, rank, 30, first=1, lr=0.01)
            values = _values(ours)[0]
            gathered = [torch.empty_like(values) for _ in range(ranks)]
            dist.all_gather(gathered, values)
            smaller = sync.stats().recent[-1].times_smaller
            results.append((loss, smaller, all(torch.equal(values, v) for v in gathered)))
            sync.close()
        return before - reached, [(loss - reached, *rest) for loss, *rest in results]

    for gained, results in run_processes(ranks, body, timeout_s=100):
        for plan, (behind, smaller, same) in zip(plans, results, strict=True):
            assert behind < gained * (0.25 if plan == "sign" else 0.05)
            assert smaller > SMALLER[plan]
            assert same


def _two_dimensions() -> DeviceMesh:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))


def test_of_two_dimensions_only_the_replicas_exchange_is_encoded():
    def body(rank: int) -> tuple[float, float, list[str]]:
        native, exact, ours = (_sharded(_two_dimensions()) for _ in range(3))
        one = gradwire.attach(exact, "none", check_every=2)
        two = gradwire.attach(ours, "int8", check_every=2)
        for net in (native, exact, ours):
            _train(net, rank, 3, lr=0.001)
        keys = sorted(two.state_dict())
        reference = _values(native)
        distances = [_distance(reference, _values(net)) for net in (exact, ours)]
        one.close()
        two.close()
        return *distances, keys

    for rank, (exact, ours, keys) in enumerate(run_processes(4, body)):
        assert exact < 1e-5
        assert 0 < ours < 0.01
        assert keys == [f"shard{rank % 2}/rank{rank // 2}"]


@pytest.mark.parametrize("reshard", [True, False, 1])
def test_of_two_dimensions_settings_of_the_module_hold(reshard):
    def body(rank: int) -> tuple[float, int]:
        policy = MixedPrecisionPolicy(reduce_dtype=torch.float64)
        options = {"mp_policy": policy, "reshard_after_forward": reshard}
        nets = [_sharded(_two_dimensions(), **options) for _ in range(2)]
        sync = gradwire.attach(nets[1], "none")
        for net in nets:
            for module in net.modules():
                if isinstance(module, FSDPModule):
                    module.set_force_sum_reduction_for_comms(True)
                    module.set_gradient_divide_factor(3)
            for step in range(4):
                net.set_requires_all_reduce(step % 2 == 1)
                x, y = _batch(rank, step)
                (net(x) - y).square().mean().backward()
        steps = sync.stats().steps_done
        sync.close()
        gradients = [[p.grad.full_tensor() for p in net.parameters()] for net in nets]
        assert all(gradient.any() for gradient in gradients[0])
        return _distance(*gradients), steps

    for distance, steps in run_processes(4, body):
        assert distance < 1e-5
        assert steps == 2


def test_resumed_training_is_bit_identical():
    def body(rank: int) -> bool:
        straight, first, second = _sharded(), _sharded(), _sharded()
        options = [torch.optim.SGD(n.parameters(), lr=0.05) for n in (straight, first, second)]

        def steps(net: nn.Module, optimiser: torch.optim.Optimizer, numbers: range) -> None:
            for step in numbers:
                x, y = _batch(rank, step)
                (net(x) - y).square().mean().backward()
                optimiser.step()
                optimiser.zero_grad()

        sync = gradwire.attach(straight, "int4")
        steps(straight, options[0], range(6))
        sync.close()
        sync = gradwire.attach(first, "int4")
        steps(first, options[1], range(3))
        saved = sync.state_dict()
        sync.close()
        with torch.no_grad():
            for mine, other in zip(second.parameters(), first.parameters(), strict=True):
                mine.copy_(other)
        sync = gradwire.attach(second, "int4")
        sync.load_state_dict(saved)
        steps(second, options[2], range(3, 6))
        sync.close()
        return _distance(_values(straight), _values(second)) == 0

    assert run_processes(2, body) == [True, True]


@pytest.mark.parametrize(("reshard", "ranks"), [(True, 2), (False, 2), (2, 4)])
def test_mixed_precision_and_resharding(reshard, ranks):
    def body(rank: int) -> tuple[float, bool]:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
        options = {"mp_policy": policy, "reshard_after_forward": reshard}
        plain, ours = _sharded(**options), _sharded(**options)
        sync = gradwire.attach(ours, "int8")
        _train(plain, rank, 3)
        _train(ours, rank, 3)
        finite = all(s.is_finite for s in sync.stats().recent)
        sync.close()
        return _distance(_values(plain), _values(ours)), finite

    for distance, finite in run_processes(ranks, body):
        assert distance < 0.5  # AdamW turns the sign of a small gradient into a whole step
        assert finite


def test_accumulation_and_frozen_or_unused_parameters():
    def body(rank: int) -> tuple[float, int, int]:
        plain, ours = Net(), Net()
        for net in (plain, ours):
            net.front.requires_grad_(requires_grad=False)
            net.unused = nn.Linear(40, 40, bias=False)
            nn.init.ones_(net.unused.weight)
            for module in (net.block, net):
                fully_shard(module)
        sync = gradwire.attach(ours, "none")
        for net in (plain, ours):
            optimiser = torch.optim.SGD(net.parameters(), lr=0.05)
            for step in range(6):
                net.set_requires_gradient_sync(step % 3 == 2)
                x, y = _batch(rank, step)
                (net(x) - y).square().mean().backward()
                if step % 3 == 2:
                    optimiser.step()
                    optimiser.zero_grad()
        stats = sync.stats()
        sync.close()
        return _distance(_values(plain), _values(ours)), stats.steps_done, len(stats.recent)

    assert run_processes(2, body) == [(0.0, 2, 2)] * 2


@pytest.mark.parametrize(("codec", "limit"), [("bf16", 0.02), ("int8", 0.2)])
def test_parameters_are_gathered_in_fewer_bits_and_alike(codec, limit):
    def body(rank: int) -> tuple[float, bool]:
        plain, ours = _sharded(), _sharded()
        sync = gradwire.attach(ours, "none", parameters=codec)
        x, _ = _batch(0, 0)
        difference = (plain(x) - ours(x)).abs().max().item()
        outputs = [torch.empty(16, 3) for _ in range(2)]
        dist.all_gather(outputs, ours(x).detach())
        _train(ours, rank)
        sync.close()
        return difference, torch.equal(*outputs)

    for difference, same in run_processes(2, body):
        assert 0 < difference < limit
        assert same


def test_a_nan_reaches_the_shards_owner_and_is_not_owed():
    def body(rank: int) -> tuple[bool, bool]:
        net = _sharded()
        sync = gradwire.attach(net, "int4")
        x, y = _batch(rank, 0)
        if rank == 1:
            x[0, 0] = float("nan")
        (net(x) - y).square().mean().backward()
        bad = any(not p.grad.to_local().isfinite().all() for p in net.parameters())
        net.zero_grad()
        (net(_batch(rank, 1)[0]) - y).square().mean().backward()
        good = all(p.grad.to_local().isfinite().all() for p in net.parameters())
        sync.close()
        return bad, good

    assert run_processes(2, body) == [(True, True)] * 2


def _mixed_meshes() -> object:
    net = Net()
    fully_shard(net.block, mesh=init_device_mesh("cpu", (2,)))
    names = ("replicate", "shard")
    fully_shard(net, mesh=init_device_mesh("cpu", (1, 2), mesh_dim_names=names))
    return gradwire.attach(net)


REFUSED = {
    "meshes": (
        _mixed_meshes,
        r"SpecError: replicas of block=\[\] is not that of the root module, \[\d\]",
    ),
    "FSDP1": (
        lambda: gradwire.attach(FSDP(Net(), device_id=torch.device("cpu"))),
        r"TypeError: FullyShardedDataParallel \(FSDP1\) is not served: shard the model with",
    ),
    "low rank": (
        lambda: gradwire.attach(_sharded(), "low_rank"),
        "SpecError: reducer of a sharded",
    ),
    "check_every": (lambda: gradwire.attach(_sharded(), check_every=2), "SpecError: check_every=2"),
    "parameters": (
        lambda: gradwire.attach(_sharded(), parameters="int3"),
        "UnknownIdError: .*bf16",
    ),
    "nothing trained": (
        lambda: gradwire.attach(_sharded().requires_grad_(requires_grad=False)),
        "SpecError: parameters='none with a gradient'",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_attach_refuses_in_words(what):
    action, pattern = REFUSED[what]

    def body(_: int) -> str:
        with pytest.raises(Exception) as caught:  # noqa: PT011 - its text is what is looked at
            action()
        return f"{caught.type.__name__}: {caught.value}"

    assert all(re.match(pattern, text) for text in run_processes(2, body))


def test_attach_reaches_every_sharded_module():
    def body(_: int) -> int:
        net = _sharded()
        gradwire.attach(net, "int8").close()
        modules = [m for m in net.modules() if isinstance(m, FSDPModule)]
        comms = {
            type(m._get_fsdp_state()._fsdp_param_group._reduce_scatter_comm).__name__
            for m in modules
        }
        assert comms == {"EncodedReduceScatter"}
        return len(modules)

    assert run_processes(2, body) == [3, 3]
