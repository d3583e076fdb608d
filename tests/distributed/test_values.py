"""Gradients of any size, kind and dtype, averaged through DDP."""

import pytest
import torch
import torch.distributed as dist
from launch import run_processes
from replicas import (
    LOSSY,
    SCHEMES,
    Given,
    assert_replicas_agree,
    draw,
    everywhere,
    residuals,
    step,
    total,
    wrap,
)
from torch import nn

from gradwire.plan import Plan


def _with_each(schemes, body):
    """Run `body(rank, scheme)` for each scheme within one launch."""

    def bodies(rank):
        for scheme in schemes:
            try:
                body(rank, scheme)
            except AssertionError as error:
                raise AssertionError(f"{scheme}: {error}") from error

    return bodies


@pytest.mark.parametrize("world_size", [2, 3])
def test_a1_result_is_the_mean_not_the_sum(world_size):
    def body(rank, scheme):
        ddp, sync = wrap(Given((24, 16), (8,)), scheme)
        gradients = draw(24, 16, seed=1) + rank, torch.full((8,), rank + 1.0)
        want = [total(g) / world_size for g in gradients]
        steps = 1 if scheme == "none" else 30
        sums = [torch.zeros(24, 16), torch.zeros(8)]
        for _ in range(steps):
            for one, got in zip(sums, step(ddp, *gradients), strict=True):
                one.add_(got / steps)
        for got, mean in zip(sums, want, strict=True):
            error = float((got - mean).norm() / mean.norm())
            assert error < (1e-6 if scheme == "none" else 0.25)
        assert_replicas_agree(ddp)
        sync.close()

    run_processes(world_size, _with_each(["none", "int4", "sign", "topk:0.1", "low_rank:2"], body))


def test_a3_small_gradients_are_not_flushed():
    def body(_, scheme):
        ddp, sync = wrap(Given((64,)), scheme)
        want = torch.linspace(2e-8, 6e-8, 64)
        steps = 40
        mean = sum(step(ddp, want)[0] for _ in range(steps)) / steps
        assert ((mean - want).abs() < 0.05 * 4e-8).all(), mean
        assert_replicas_agree(ddp)
        sync.close()

    run_processes(2, _with_each(["bf16", "fp16", "fp8", "int4", "int2"], body))


def test_a5_divisor_is_the_size_of_the_group():
    def body(rank):
        group = dist.new_group([0, 1])
        if rank == 2:
            return
        for scheme in ("none", "int4", "low_rank:1"):
            ddp, sync = wrap(Given((40, 30)), scheme, process_group=group)
            (got,) = step(ddp, torch.full((40, 30), rank + 1.0))
            assert torch.allclose(got, torch.tensor(1.5)), got
            assert sync.world_size == 2
            assert_replicas_agree(ddp, group)
            sync.close()

    run_processes(3, body)


def test_b2_zero_gradients_stay_exactly_zero():
    def body(_, scheme):
        ddp, sync = wrap(Given((100,), (40, 30)), scheme)
        for _ in range(2):
            for got in step(ddp, torch.zeros(100), torch.zeros(40, 30)):
                assert got.eq(0).all(), got
        assert not any(r.any() for r in residuals(sync).values())
        assert_replicas_agree(ddp)
        sync.close()

    run_processes(2, _with_each(SCHEMES, body))


def test_b4_tiny_gradients_are_finite_and_nothing_of_them_is_lost():
    def body(_, scheme):
        if scheme == "int1":
            return  # without feedback: what rounding takes is not kept
        for size in (1e-29, 3e-38, 1e-40):
            ddp, sync = wrap(Given((64, 8)), scheme)
            gradient = torch.linspace(-1, 1, 512).view(64, 8) * size
            (got,) = step(ddp, gradient)
            assert got.isfinite().all()
            kept = residuals(sync).get("w.0", torch.zeros(64, 8))
            error = 2 * got.double() + total(kept) - total(gradient)
            smallest = 1e-40 if scheme == "bf16" else 1e-44
            limit = (0.01 if scheme == "bf16" else 1e-5) * 2 * size + smallest
            assert error.abs().max() <= limit, (size, error.abs().max())
            assert_replicas_agree(ddp)
            sync.close()

    run_processes(2, _with_each(SCHEMES, body))


def test_b5_zeros_have_mean_zero_under_one_bit():
    def body(_, scheme):
        steps = 100
        for numel in (13, 1037):
            ddp, sync = wrap(Given((numel,)), scheme)
            gradient = torch.zeros(numel)
            gradient[4] = 1.0
            mean = sum(step(ddp, gradient)[0] for _ in range(steps)) / steps
            assert abs(mean[4] - 1) < (0.4 if numel == 13 else 1)
            zeros = torch.cat([mean[:4], mean[5:]])
            assert zeros.abs().max() < 2 / steps, zeros
            assert_replicas_agree(ddp)
            sync.close()

    run_processes(2, _with_each(["sign", "int2"], body))


class _Mixed(nn.Module):
    """One gradient a dtype, a sparse one, and awkward shapes."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 8, sparse=True)
        self.dense = nn.Linear(8, 64)
        self.wide = nn.Parameter(draw(40, 30, seed=2).double())
        self.brief = nn.Parameter(draw(40, 30, seed=3).bfloat16())
        self.turned = nn.Parameter(torch.complex(draw(40, 30, seed=4), draw(40, 30, seed=5)))
        self.empty = nn.Parameter(torch.zeros(0))
        self.no_rows = nn.Parameter(torch.zeros(0, 4))
        self.scalar = nn.Parameter(torch.tensor(1.0))

    def forward(self, rows, scale):
        return (
            self.dense(self.table(rows)).square().sum() * self.scalar
            + (self.wide.square().sum() + self.brief.square().sum()).float() * scale
            + (self.turned.real * self.turned.imag * self.turned.imag).sum() * scale
            + self.empty.sum()
            + self.no_rows.sum()
        )


def test_g4_dtypes_sparse_and_empty_parameters_in_one_model():
    def body(rank, scheme):
        torch.manual_seed(0)
        plain = nn.parallel.DistributedDataParallel(_Mixed())
        torch.manual_seed(0)
        ddp, sync = wrap(_Mixed(), scheme)
        for i in range(2):
            rows = torch.tensor([rank, 7, 7, 10 + i])
            want = step(plain, rows, torch.tensor(rank + 1.0))
            got = step(ddp, rows, torch.tensor(rank + 1.0))
            for name, x, y in zip(dict(ddp.named_parameters()), got, want, strict=True):
                assert x.dtype == y.dtype
                assert x.layout == y.layout
                _assert_close(name, scheme, x, y)
        dense = sync.stats().dense
        assert "sparse" in dense["table.weight"]
        assert "float64" in dense["wide"]
        assert {"empty", "no_rows"} <= set(dense)
        assert_replicas_agree(ddp)
        sync.close()

    def _assert_close(name, scheme, x, y):
        lossy = scheme != "none" and not name.endswith(("table.weight", "wide"))
        if not lossy:
            x, y = (t.to_dense() if t.is_sparse else t for t in (x, y))
            assert torch.allclose(x, y, rtol=0.01 if x.dtype == torch.bfloat16 else 1e-5), name
        elif x.numel() and scheme in ("bf16", "fp16", "fp8", "fp8_e5m2", "int8", "int4"):
            assert (x - y).abs().max() <= 0.3 * y.abs().max(), name

    run_processes(2, _with_each(SCHEMES, body))


def test_e2_sparse_embedding_is_averaged_beside_a_compressed_layer():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(10, 4, sparse=True)
            self.dense = nn.Linear(64, 64)

        def forward(self, x, rows):
            return self.dense(x).square().sum() + self.table(rows).sum()

    def body(rank):
        torch.manual_seed(0)
        ddp, sync = wrap(Net(), Plan.of("int4"))
        for _ in range(2):
            table, *_ = step(ddp, draw(2, 64, seed=rank), torch.tensor([rank, 7, 7]))
        assert table.is_sparse
        assert table.to_dense()[:, 0].tolist() == [0.5, 0.5, 0, 0, 0, 0, 0, 2, 0, 0]
        assert sync.stats().recent[-1].times_smaller > 5
        assert_replicas_agree(ddp)

    run_processes(2, body)


def test_complex_and_channels_last_weights_get_the_right_gradient():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(16, 24, 3).to(memory_format=torch.channels_last)
            self.turned = nn.Parameter(torch.complex(draw(32, 32, seed=1), draw(32, 32, seed=2)))

        def forward(self, x, phase):
            return self.conv(x).square().mean() + (self.turned * phase).abs().square().sum()

    def body(rank, scheme):
        torch.manual_seed(0)
        plain = nn.parallel.DistributedDataParallel(Net())
        torch.manual_seed(0)
        ddp, sync = wrap(Net(), scheme)
        # The same data on both ranks, so that even a lossy mean tends to one rank's gradient.
        x = draw(4, 16, 8, 8, seed=rank).to(memory_format=torch.channels_last)
        phase = torch.complex(draw(32, 32, seed=3), draw(32, 32, seed=4)) * (rank + 1)
        want = step(plain, x, phase)
        steps = 1 if scheme == "none" else 25
        means = [0.0] * len(want)
        for _ in range(steps):
            means = [m + g / steps for m, g in zip(means, step(ddp, x, phase), strict=True)]
        for got, right in zip(means, want, strict=True):
            assert (got - right).norm() < (1e-6 if scheme == "none" else 0.25) * right.norm()
        assert ddp.module.conv.weight.grad.is_contiguous(memory_format=torch.channels_last)
        assert_replicas_agree(ddp)
        sync.close()

    run_processes(2, _with_each(["none", "int4", "low_rank:4", "topk:0.2"], body))


def test_lossy_list_holds_every_kind_of_reducer():
    kinds = {everywhere(name).rules[0].reducer.id for name in LOSSY}
    assert kinds == {"all_reduce", "two_phase", "broadcast", "low_rank"}
