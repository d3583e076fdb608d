"""What the low-rank reducer keeps from step to step, and its edge cases."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.exchange import (
    Layout,
    alike,
    mean,
    noise,
    reduce_steps,
)
from gradwire.spec import (
    LowRank,
)
from strategies import (
    normal,
)

few = settings(max_examples=4)


def test_warm_start_survives_and_finds_the_largest_directions():
    u, _, v = torch.linalg.svd(normal(40, 30), full_matrices=False)
    matrix = (u * 0.8 ** torch.arange(30)) @ v
    best = torch.linalg.norm(0.8 ** torch.arange(2, 30).double())

    def errors(spec):
        traces = reduce_steps(spec, Layout.of([(40, 30)]), alike(matrix.view(-1), 2, 25), 2)
        assert len(traces[0].factors[-1]) == spec.warm_start
        return [float((out.view(40, 30) - matrix).norm() / best) for out in traces[0].outs]

    warm = errors(LowRank(2, feedback=False))
    cold = errors(LowRank(2, warm_start=False, feedback=False))
    assert warm[0] > 1.05
    assert warm[-1] < 1.005
    assert min(cold) > 1.01


def test_low_rank_recovers_after_a_step_without_gradient():
    x, layout = normal(1200), Layout.of([(40, 30)])
    x[:60] = 0  # the first rows, to which a basis of nothing would point
    gradients = [[torch.zeros(1200), torch.zeros(1200), x] for _ in range(2)]
    traces = reduce_steps(LowRank(2), layout, gradients, 2)
    assert traces[0].outs[2].norm() > 0.1 * x.norm()


def test_low_rank_does_not_overflow_between_finite_values():
    x, layout = normal(1200), Layout.of([(40, 30)])
    plain = reduce_steps(LowRank(2), layout, alike(x, 2, 3), 2)
    for scale in (2.0**100, 2.0**-100):
        traces = reduce_steps(LowRank(2), layout, alike(x * scale, 2, 3), 2)
        for a, b in zip(plain[0].outs, traces[0].outs, strict=True):
            assert torch.allclose(a, b / scale, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (1, 4), (4, 1), (6,), (), (2, 3, 4)])
@given(rank=st.integers(1, 8))
@few
def test_low_rank_beyond_the_matrix_is_exact(shape, rank):
    numel = math.prod(shape)
    if rank < min(LowRank.matrix_shape(shape)):
        rank = 8
    gradients = noise(numel, 2, 2)
    traces = reduce_steps(LowRank(rank), Layout.of([shape]), gradients, 2)
    for step in range(2):
        expected = mean([g[step] for g in gradients])
        assert torch.allclose(traces[0].outs[step].double(), expected, atol=1e-5)
