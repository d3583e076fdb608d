"""Attaching to a model on a GPU."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 - as everyone calls it

import gradwire

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("plan", ["none", "int4", "sign", "topk:0.1", "low_rank:2"])
def test_one_rank_on_a_gpu_loses_nothing(plan, tmp_path):
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("nccl", store=store, rank=0, world_size=1)
    try:
        ddp = DDP(nn.Linear(64, 32).cuda())
        sync = gradwire.attach(ddp, plan)
        x = torch.randn(8, 64, device="cuda")
        ddp(x).square().sum().backward()
        expected = torch.autograd.grad(ddp.module(x).square().sum(), list(ddp.module.parameters()))
        for p, gradient in zip(ddp.module.parameters(), expected, strict=True):
            assert torch.equal(p.grad, gradient)
        sync.close()
    finally:
        dist.destroy_process_group()
