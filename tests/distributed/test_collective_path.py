"""The path of GPUs, run on the CPU: a group's own collectives instead of tagged messages."""

from __future__ import annotations

import pytest
import torch
from launch import run_processes
from replicas import mlp, wrap
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 - as everyone calls it

import gradwire
from gradwire.comm.torch_collective import DistGroup
from gradwire.integrations import ddp as module

PLANS = ("none", "int4", "sign", "topk:0.1", "low_rank:2", "int4@broadcast", "fp8")


def _use_collectives() -> None:
    module._group = lambda ddp, device: DistGroup(ddp.process_group, device)


def _train(plan: str, rank: int) -> tuple[list[torch.Tensor], int]:
    torch.manual_seed(0)
    ddp, sync = wrap(mlp(), plan, bucket_cap_mb=0.004)
    optimiser = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(4):
        ddp(torch.randn(8, 40, generator=generator)).square().sum().backward()
        optimiser.step()
        optimiser.zero_grad()
    sent = sync.stats().sent_bytes
    sync.close()
    return [p.detach().clone() for p in ddp.parameters()], sent


@pytest.mark.parametrize("ranks", [2, 3])
def test_collectives_train_to_the_same_bits_as_tagged_messages(ranks):
    def body(rank: int) -> list[bool]:
        tagged = [_train(plan, rank) for plan in PLANS]
        _use_collectives()
        same = []
        for plan, (values, sent) in zip(PLANS, tagged, strict=True):
            others, counted = _train(plan, rank)
            # Two ranks without compression leave the sum to the back end: counted alike.
            same.append(
                counted == sent
                and all(torch.equal(a, b) for a, b in zip(values, others, strict=True))
            )
        return same

    assert run_processes(ranks, body) == [[True] * len(PLANS)] * ranks


def test_closing_ends_the_group_and_a_later_step_fails_in_words():
    def body(_: int) -> str:
        _use_collectives()
        ddp = DDP(mlp())
        sync = gradwire.attach(ddp, "int4")
        ddp(torch.ones(2, 40)).sum().backward()
        sync.close()
        with pytest.raises(RuntimeError) as caught:
            ddp(torch.ones(2, 40)).sum().backward()
        return str(caught.value)

    assert all("closed" in text for text in run_processes(2, body))


def test_an_exception_in_a_codec_names_the_step():
    def body(_: int) -> str:
        _use_collectives()
        ddp, sync = wrap(mlp(), "int4")

        def fail(*_: object, all_dense: bool) -> None:
            raise ValueError(f"out of ideas, {all_dense}")

        sync._scheme.layouts.of = fail
        with pytest.raises(RuntimeError) as caught:
            ddp(torch.ones(2, 40)).sum().backward()
        return str(caught.value)

    texts = run_processes(2, body)
    assert all("step 0, bucket 0" in text and "out of ideas" in text for text in texts)
