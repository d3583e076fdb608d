"""What tests of the DDP path share: models, plans, and the check that all ranks agree."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 - as everyone calls it

import gradwire
from gradwire.engine.synchronizer import Synchronizer
from gradwire.plan import Plan, Rule
from gradwire.spec import parse_reducer

LOSSY = (
    *("bf16", "fp16", "fp8", "fp8_e5m2", "int8", "int4", "int2", "int1", "int4@broadcast", "sign"),
    *("topk:0.1", "threshold:0.1", "random_k:0.1", "low_rank:2"),
)
SCHEMES = ("none", *LOSSY)


class Given(nn.Module):
    """A module whose gradients are what is passed in."""

    def __init__(self, *shapes: Sequence[int], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.w = nn.ParameterList([torch.zeros(*shape, dtype=dtype) for shape in shapes])

    def forward(self, *gradients: Tensor) -> Tensor:
        return sum(((w * g).sum() for w, g in zip(self.w, gradients, strict=True)), torch.zeros(()))


def everywhere(name: str, *, seed: int = 0, warmup_steps: int = 0) -> Plan:
    """Return the plan that uses a reducer wherever it sends fewer bytes, on small tensors too."""
    rule = Rule(parse_reducer(name), min_numel=1, min_ndim=0)
    return Plan((rule,), seed=seed, warmup_steps=warmup_steps)


def wrap(net: nn.Module, plan: Any = "int4", **options: Any) -> tuple[DDP, Synchronizer]:
    """Wrap a model and attach."""
    ddp = DDP(net, **options)
    return ddp, gradwire.attach(ddp, everywhere(plan) if isinstance(plan, str) else plan)


def buckets_of(num_bytes: int, count: int) -> dict[str, Any]:
    """Return DDP's options for buckets of a size, in the first step too."""
    size = num_bytes / 2**20
    if "bucket_cap_mb_list" in inspect.signature(DDP).parameters:
        return {"bucket_cap_mb_list": [size] * count}
    return {"bucket_cap_mb": size}  # before PyTorch 2.13 it held in the first step


def mlp(width: int = 40, depth: int = 3) -> nn.Sequential:
    """Return a small net, the same on all ranks."""
    torch.manual_seed(0)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(width, 1))


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: range, rank: int, width: int = 40
) -> None:
    """Train on data that differ by rank and step."""
    for i in steps:
        optimizer.zero_grad()
        model(draw(4, width, seed=100 * i + rank)).square().mean().backward()
        optimizer.step()


def step(ddp: nn.Module, *inputs: Tensor) -> list[Tensor]:
    """Run one backward pass from cleared gradients and return copies of them."""
    ddp.zero_grad()
    ddp(*inputs).sum().backward()
    return [p.grad.clone() for p in ddp.parameters() if p.grad is not None]


def draw(*shape: int, seed: int) -> Tensor:
    """Draw values that differ in every entry."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def residuals(sync: Synchronizer) -> dict[str, Tensor]:
    """Return what this rank owes, by parameter."""
    found: dict[str, Tensor] = sync.state_dict()[f"rank{sync.rank}"]["residual"]
    return found


def total(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Sum over ranks in float64."""
    y = x.double()
    dist.all_reduce(y, group=group)
    return y


def digest(tensors: Sequence[Tensor]) -> str:
    """Hash tensors bit by bit."""
    state = hashlib.blake2b(digest_size=16)
    for x in tensors:
        dense = x.detach().to_dense() if x.is_sparse else x.detach()
        state.update(dense.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return state.hexdigest()


def assert_replicas_agree(model: nn.Module, group: dist.ProcessGroup | None = None) -> str:
    """Compare parameters and gradients with those of all ranks, bit for bit; return their hash."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    mine = digest([*model.parameters(), *gradients])
    digests: list[str | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(digests, mine, group=group)
    assert set(digests) == {mine}, digests
    return mine
