"""Error feedback and random streams through DDP: what is owed is sent later, and only once."""

import warnings

import pytest
import torch
import torch.distributed as dist
from launch import run_processes
from replicas import (
    LOSSY,
    SCHEMES,
    Given,
    assert_replicas_agree,
    digest,
    draw,
    everywhere,
    residuals,
    step,
    total,
    wrap,
)
from torch import nn

from gradwire.plan import Plan, Rule
from gradwire.spec import parse_reducer

WITH_FEEDBACK = tuple(s for s in LOSSY if everywhere(s).rules[0].reducer.feedback)


def _flat(steps):
    return [tensor for tensors in steps for tensor in tensors]


def _owed(sync, like):
    """Sum over ranks of the residual of each tensor; zeros where there is none."""
    found = residuals(sync)
    return [total(found.get(f"w.{i}", torch.zeros_like(x))) for i, x in enumerate(like)]


@pytest.mark.parametrize("world_size", [2, 3])
def test_d2_gradients_and_old_residuals_equal_results_and_new_residuals(world_size):
    def body(rank):
        for scheme in SCHEMES:
            if scheme in ("int1", "bf16"):
                continue  # no feedback: what rounding takes is not kept
            ddp, sync = wrap(Given((40, 33), (300,), (5, 4)), scheme, bucket_cap_mb=0.001)
            for i in range(4):
                seed = 10 * i + rank
                gradients = [draw(40, 33, seed=seed), draw(300, seed=seed), draw(5, 4, seed=seed)]
                before = _owed(sync, gradients)
                results = step(ddp, *gradients)
                after = _owed(sync, gradients)
                for g, e0, out, e1 in zip(gradients, before, results, after, strict=True):
                    owed = total(g) + e0
                    error = (owed - world_size * out.double() - e1).abs().max()
                    assert error < 2e-6 * owed.abs().max().clamp_min(1) * world_size, scheme
            assert_replicas_agree(ddp)
            sync.close()

    run_processes(world_size, body)


def test_d3_feedback_is_on_and_helps():
    def body(_):
        gradient = draw(48, 40, seed=3)
        for scheme in WITH_FEEDBACK:
            ddp, sync = wrap(Given((48, 40)), scheme)
            outputs = [step(ddp, gradient)[0]]
            assert residuals(sync)["w.0"].any(), scheme
            outputs += [step(ddp, gradient)[0] for _ in range(29)]
            mean = torch.stack(outputs).mean(0)
            best = min((out - gradient).norm() for out in outputs)
            assert (mean - gradient).norm() < best, scheme
            assert_replicas_agree(ddp)
            sync.close()

    run_processes(2, body)


def test_d5_warm_up_is_counted_in_steps():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(6))
            self.wide = nn.Linear(32, 32).double()

        def forward(self, x):
            for layer in self.layers:
                x = layer(x).tanh()
            return self.wide(x.double()).sum()

    def body(rank):
        plan = Plan((Rule(parse_reducer("topk:0.1")),), warmup_steps=10)
        ddp, sync = wrap(Net(), plan, bucket_cap_mb=0.001)
        for _ in range(14):
            for _ in range(2):
                with ddp.no_sync():
                    ddp(draw(2, 32, seed=rank)).backward()
            ddp(draw(2, 32, seed=rank)).backward()
        steps = sync.stats().recent
        assert len(steps[-1].buckets) >= 7
        assert [s.sent_bytes < s.dense_bytes for s in steps] == [False] * 10 + [True] * 4
        assert_replicas_agree(ddp)

    run_processes(2, body)


def test_d6_residual_of_a_16_bit_model_is_float32():
    def body(_):
        for dtype in (torch.bfloat16, torch.float16):
            ddp, sync = wrap(Given((64, 32), dtype=dtype), "int4")
            gradient = (1 + 0.001 * draw(64, 32, seed=1)).to(dtype)
            outputs = torch.stack([step(ddp, gradient)[0].float() for _ in range(40)])
            assert ddp.module.w[0].grad.dtype == dtype
            (kept,) = residuals(sync).values()
            assert kept.dtype == torch.float32
            assert sync.stats().residual_bytes == 4 * 64 * 32
            resolution = torch.finfo(dtype).eps
            assert (outputs.mean(0) - gradient.float()).abs().max() < resolution + 2 * 0.15 / 40
            assert_replicas_agree(ddp)
            sync.close()

    run_processes(2, body)


def test_d7_residual_takes_the_same_memory_at_every_step():
    def body(rank):
        torch.manual_seed(0)
        net = nn.Sequential(*(nn.Linear(20, 20) for _ in range(4)))
        ddp, sync = wrap(net, "topk:0.2", bucket_cap_mb=0.001, find_unused_parameters=True)
        trainable = sum(p.numel() for p in net.parameters())
        sizes, keys = set(), set()
        for i in range(100):
            net[1].requires_grad_(i % 20 < 10)  # frozen and thawed again
            ddp(draw(2, 20, seed=i + rank)).sum().backward()
            state = sync.state_dict()[f"rank{rank}"]
            sizes.add(
                sum(t.nbytes for kind in ("residual", "factors") for t in state[kind].values())
            )
            keys.add(tuple(state["residual"]))
            assert sync.stats().residual_bytes in sizes
        assert len(sizes) == len(keys) == 1
        assert 0 < sizes.pop() <= 4 * trainable
        assert_replicas_agree(ddp)

    run_processes(2, body)


def _after_scale_drops(factor, rescale):
    """Outputs over gradient for the steps after the gradient's unit has shrunk, and warnings."""

    def body(_):
        ddp, sync = wrap(Given((64, 32)), "topk:0.05")
        gradient = draw(64, 32, seed=1)
        for _ in range(33):
            step(ddp, gradient * factor)
        if rescale:
            sync.rescale(1 / factor)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            peaks = [float(step(ddp, gradient)[0].abs().max()) for _ in range(5)]
        assert_replicas_agree(ddp)
        return max(peaks), [str(w.message) for w in caught if w.category is RuntimeWarning]

    return run_processes(2, body)


def test_d8_rescale_keeps_what_is_owed_in_the_unit_of_the_gradient():
    for peak, warned in _after_scale_drops(65536.0, rescale=True):
        assert peak < 2 * 20 * 4  # at most what topk:0.05 owes: 20 steps of a value of 4
        assert not warned


def test_d8_what_is_owed_in_another_unit_is_warned_about():
    for peak, warned in _after_scale_drops(65536.0, rescale=False):
        assert peak > 65536
        assert any("call rescale" in text for text in warned)


def test_residual_of_an_unused_parameter_is_kept():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.ParameterList([torch.zeros(40, 33), torch.zeros(40, 33)])

        def forward(self, used, *gradients):
            return sum((self.w[i] * gradients[i]).sum() for i in used)

    uses = [((0, 1), (0, 1)), ((0,), (0, 1)), ((0,), (0,)), ((1,), (0,)), ((0, 1), (0, 1))]

    def body(rank):
        for scheme in ("int4", "topk:0.1", "low_rank:2", "sign"):
            ddp, sync = wrap(Net(), scheme, find_unused_parameters=True)
            for i, used in enumerate(uses):
                gradients = [draw(40, 33, seed=10 * i + rank), draw(40, 33, seed=20 * i + rank)]
                before = _owed(sync, gradients)
                own = residuals(sync)
                ddp.zero_grad()
                ddp(used[rank], *gradients).backward()
                after = _owed(sync, gradients)
                for j, w in enumerate(ddp.module.w):
                    given = gradients[j] if j in used[rank] else torch.zeros(40, 33)
                    owed = total(given) + before[j]
                    is_used = any(j in u for u in used)
                    assert (w.grad is not None) == is_used
                    out = w.grad if is_used else torch.zeros(40, 33)
                    error = (owed - 2 * out.double() - after[j]).abs().max()
                    assert error < 1e-5 * owed.abs().max().clamp_min(1), (scheme, i, j)
                    if not is_used:
                        assert torch.equal(own[f"w.{j}"], residuals(sync)[f"w.{j}"])
            assert_replicas_agree(ddp)
            sync.close()

    run_processes(2, body)


def test_c4_same_seed_same_bits_and_unlike_noise_everywhere_else():
    def body(rank):
        gradient = torch.full((32, 32), 0.3)
        gradient[0] = 1.0  # the largest of each block: the others lie between two levels
        gradient = gradient.T.contiguous()

        def run(seed):
            torch.manual_seed(rank)  # the user's own random state must not matter
            ddp, sync = wrap(Given((32, 32), (32, 32)), everywhere("int4", seed=seed))
            outputs = [step(ddp, gradient, gradient) for _ in range(3)]
            assert_replicas_agree(ddp)
            sync.close()
            return outputs

        first, again, other = run(0), run(0), run(1)
        assert digest(_flat(first)) == digest(_flat(again))
        assert digest(_flat(first)) != digest(_flat(other))
        noise = torch.stack([(out - gradient).view(-1) for out in _flat(first)])
        correlation = torch.corrcoef(noise)
        within_one_step = [correlation[2 * i, 2 * i + 1].abs() for i in range(3)]
        assert max(within_one_step) < 4 / 1024**0.5

    run_processes(2, body)


def test_c4_stochastic_rounding_is_unbiased():
    def body(_):
        plan = Plan((Rule(parse_reducer("int1"), min_numel=1),))  # unbiased, without feedback
        ddp, _ = wrap(Given((64, 16)), plan)
        gradient = torch.full((64, 16), 0.3)
        gradient[:, 0] = 1.0
        mean = sum(step(ddp, gradient)[0] for _ in range(20)) / 20
        assert (mean[:, 1:].mean() - 0.3).abs() < 4 * (2 / (20 * 960)) ** 0.5
        assert_replicas_agree(ddp)

    run_processes(2, body)


def test_residuals_differ_between_ranks():
    def body(rank):
        ddp, sync = wrap(Given((40, 33)), "int4")
        step(ddp, draw(40, 33, seed=rank))
        digests = [None, None]
        dist.all_gather_object(digests, digest(list(residuals(sync).values())))
        assert digests[0] != digests[1]
        assert_replicas_agree(ddp)

    run_processes(2, body)
