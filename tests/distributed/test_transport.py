"""Buckets of every shape, dtype and number on their way, and codecs that break their promise."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import pytest
import torch
from launch import run_processes
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 - as everyone calls it

import gradwire
from gradwire.codecs.base import CODECS
from gradwire.plan import Plan, Rule
from gradwire.spec import CODEC_SPECS, Broadcast, Sparse, TwoPhase, parse_reducer

SCHEMES = (
    *("none", "bf16", "fp16", "fp8", "fp8_e5m2", "int8", "int4", "int3", "int1", "int4@broadcast"),
    *("sign", "topk:0.1", "threshold:0.1", "random_k:0.1", "low_rank:2"),
)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64)


class _Given(nn.Module):
    """A module whose gradients are what is passed in."""

    def __init__(self, *parameters: Tensor) -> None:
        super().__init__()
        self.w = nn.ParameterList(parameters)

    def forward(self, *gradients: Tensor) -> Tensor:
        pairs = zip(self.w, gradients, strict=True)
        return sum((w.conj() * g).real.sum().to(torch.float64) for w, g in pairs)


def _everywhere(name: str) -> Plan:
    return Plan((Rule(parse_reducer(name), min_numel=1, min_ndim=0),))


def _drawn(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw values that differ in every entry."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def _digest(module: nn.Module) -> str:
    data = b"".join(
        p.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        for p in module.parameters()
    )
    return hashlib.sha256(data).hexdigest()


def _layers() -> nn.Sequential:
    torch.manual_seed(0)
    sizes = [64, 10, 33, 7, 50, 128, 3, 90, 21, 40, 16]
    return nn.Sequential(*[nn.Linear(a, b) for a, b in pairwise(sizes)])


@pytest.mark.parametrize("plan", ["low_rank:2", "int4"])
def test_h7_rounds_of_many_unlike_buckets_do_not_mix(plan):
    def body(rank: int):
        ddp = DDP(_layers(), bucket_cap_mb=0.001)
        sync = gradwire.attach(ddp, _everywhere(plan), check_every=5)
        optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
        for step in range(30):
            optimizer.zero_grad()
            ddp(_drawn(100 * step + rank, 8, 64)).square().sum().backward()
            optimizer.step()
        stats = sync.stats()
        return _digest(ddp), stats.steps_done, len(stats.recent[-1].buckets)

    first, second = run_processes(2, body)
    assert first == second
    assert first[1:] == (30, 10)


def test_i1_many_buckets_in_flight_all_come_home():
    def body(rank: int):
        torch.manual_seed(0)
        net = nn.Sequential(*[nn.Linear(40, 40) for _ in range(25)])
        ddp = DDP(net, bucket_cap_mb=0.001)
        sync = gradwire.attach(ddp, _everywhere("int8"))
        for step in range(4):
            ddp.zero_grad()
            ddp(_drawn(10 * step + rank, 4, 40)).sum().backward()
        buckets = sync.stats().recent[-1].buckets
        return len(buckets), [b.index for b in buckets], _digest(ddp)

    results = run_processes(3, body)
    assert results[0] == results[1] == results[2]
    assert results[0][:2] == (25, list(range(25)))


def test_h3_h4_every_scheme_takes_every_dtype_and_layout():
    shape = (40, 8, 3, 3)

    def parameters() -> list[Tensor]:
        plain = [torch.zeros(shape, dtype=dtype) for dtype in DTYPES]
        return [
            *plain,
            torch.zeros(shape).to(memory_format=torch.channels_last),
            torch.zeros(96, 30).T,
            torch.zeros(50, 60)[:, ::2],
            torch.zeros(()),
            torch.zeros(0, 4),
        ]

    def body(rank: int):
        found = {}
        for scheme in SCHEMES:
            ddp = DDP(_Given(*parameters()))
            sync = gradwire.attach(ddp, _everywhere(scheme))
            given = [
                [
                    _drawn(50 * r + i, *p.shape, dtype=p.dtype) + _drawn(i, *p.shape, dtype=p.dtype)
                    for i, p in enumerate(parameters())
                ]
                for r in range(2)
            ]
            total = [torch.zeros_like(p) for p in ddp.parameters()]
            for _ in range(8):
                ddp.zero_grad()
                ddp(*given[rank]).backward()
                total = [t + p.grad for t, p in zip(total, ddp.parameters(), strict=True)]
            wanted = [(a + b) / 2 for a, b in zip(*given, strict=True)]
            errors = [
                float((t / 8 - w).norm() / w.norm()) if w.numel() else 0.0
                for t, w in zip(total, wanted, strict=True)
            ]
            dtypes = [p.grad.dtype for p in ddp.parameters()]
            kept = all(p.grad.stride() == p.stride() for p in ddp.parameters() if p.dim() > 1)
            stats = sync.stats()
            sync.close()
            found[scheme] = errors, dtypes, kept, _digest_of(total), stats.recent[-1].times_smaller
        return found

    first, second = run_processes(2, body, timeout_s=100)
    for scheme in SCHEMES:
        errors, dtypes, _, digest, times_smaller = first[scheme]
        assert dtypes[:5] == list(DTYPES), scheme
        assert digest == second[scheme][3], scheme
        limit = {"none": 0.005, "bf16": 0.02, "fp16": 0.01}.get(scheme, 0.85)
        assert max(errors) < limit, (scheme, errors)
        assert (times_smaller > 1) == (scheme != "none"), (scheme, times_smaller)


def _digest_of(tensors: list[Tensor]) -> str:
    return _digest(_Given(*tensors))


def test_h1_ranks_that_select_unequal_numbers_of_values_get_the_mean():
    numel = 4000

    def gradient(rank: int) -> Tensor:
        count = 1000 if rank else 3
        x = torch.zeros(numel)
        x[_drawn(rank, numel).argsort()[:count]] = _drawn(rank + 7, count) + 5.0
        return x

    def body(rank: int):
        ddp = DDP(_Given(torch.zeros(numel)))
        plan = Plan(
            (Rule(Broadcast(Sparse(0.3, "threshold"), force=True), min_numel=1, min_ndim=0),)
        )
        gradwire.attach(ddp, plan)
        total = torch.zeros(numel)
        for step in range(4):
            ddp.zero_grad()
            ddp(gradient(rank) if step == 0 else torch.zeros(numel)).backward()
            total += ddp.module.w[0].grad
        return total

    wanted = (gradient(0) + gradient(1)) / 2
    for total in run_processes(2, body):
        assert torch.allclose(total, wanted, atol=1e-6)


@pytest.mark.parametrize("plan", ["fp8", "fp8_e5m2"])
def test_h5_fp8_travels_as_bytes_and_keeps_what_is_not_finite(plan):
    def body(rank: int):
        ddp = DDP(_Given(torch.zeros(64, 64)))
        gradwire.attach(ddp, plan)
        g = _drawn(rank, 64, 64)
        outputs = []
        for bad in (0.0, float("inf"), 0.0):
            ddp.zero_grad()
            ddp(g + (bad if rank else 0.0)).backward()
            outputs.append(ddp.module.w[0].grad.clone())
        return outputs

    first, second = run_processes(2, body)
    wanted = (_drawn(0, 64, 64) + _drawn(1, 64, 64)) / 2
    for rank, outputs in enumerate((first, second)):
        assert torch.allclose(outputs[0], wanted, atol=0.3), rank
        assert not outputs[1].isfinite().any()
        assert torch.allclose(outputs[2], wanted, atol=0.3)
    assert torch.equal(first[2], second[2])


# A codec that somebody else wrote.


@dataclass(frozen=True)
class _Foreign:
    id: ClassVar[str] = "foreign"
    block_size: ClassVar[int] = 256
    how: str = "well"

    def num_bytes(self, numels) -> int:
        return 2 * sum(numels)


class _ForeignCodec:
    """Sends float16, or something that is no payload."""

    def __init__(self, spec: _Foreign) -> None:
        self.spec = spec

    def encode(self, x, segments, key, residual=None, gain=0.0):
        good = torch.cat([x.narrow(0, s.offset, s.numel) for s in segments.items])
        good = good.half().view(torch.uint8)
        return {
            "well": good,
            "a list": [good],
            "nothing": None,
            "floats": good.view(torch.float16),
            "a matrix": good.view(1, -1),
            "too short": good[:-4],
            "too long": torch.cat([good, good]),
        }[self.spec.how]

    def decode(self, payloads, segments, out, divisor=1.0, *, accumulate=False) -> None:
        mean = payloads.view(torch.float16).float().sum(0) / divisor
        for s, values in zip(segments.items, mean.split(list(segments.numels)), strict=True):
            out.narrow(0, s.offset, s.numel).copy_(values)


PROMISE = r"is not torch.uint8 \[4096\], as _Foreign\(how='.*'\) promises"
BROKEN = {
    "a list": f"SpecError: _ForeignCodec.encode='list' {PROMISE}",
    "nothing": f"SpecError: _ForeignCodec.encode='NoneType' {PROMISE}",
    "floats": rf"SpecError: _ForeignCodec.encode='torch.float16 \[2048\]' {PROMISE}",
    "a matrix": rf"SpecError: _ForeignCodec.encode='torch.uint8 \[1, 4096\]' {PROMISE}",
    "too short": r"PayloadError: _ForeignCodec.encode of _Foreign\(how='too short'\): payload of"
    " 4092 bytes where 4096 bytes are expected",
    "too long": "PayloadError: .* payload of 8192 bytes where 4096 bytes are expected",
}


def test_i2_what_a_foreign_codec_returns_is_checked():
    def body(rank: int):
        CODEC_SPECS.register("foreign")(_Foreign)
        CODECS.register("foreign")(_ForeignCodec)
        texts = {}
        for how in ("well", *BROKEN):
            ddp = DDP(_Given(torch.zeros(64, 32)))
            codec = _Foreign(how)
            is_well = how == "well"
            reducer = TwoPhase(codec, False) if is_well else Broadcast(codec, False, force=True)
            sync = gradwire.attach(ddp, Plan((Rule(reducer, min_numel=1),)))
            try:
                ddp(torch.full((64, 32), rank + 1.0)).backward()
                texts[how] = str(ddp.module.w[0].grad.unique().tolist())
            except RuntimeError as error:
                texts[how] = str(error)
            sync.close()
        return texts

    for texts in run_processes(2, body):
        assert texts["well"] == "[1.5]"
        for how, expected in BROKEN.items():
            assert re.search(rf"step 0, bucket 0 \(w\.0\): {expected}", texts[how]), texts[how]
