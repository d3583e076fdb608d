"""All Hypothesis strategies: tensors, specs, plans, entries."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from gradwire.key import name_hash
from gradwire.plan import Plan, Rule
from gradwire.report.model import Environment, Validation
from gradwire.report.results import BenchResult, Cell, ModeResult, Round, StepTimes
from gradwire.spec import (
    AllReduce,
    BitPlanes,
    Broadcast,
    Entry,
    Float,
    LowRank,
    Quantize,
    Sign,
    Sparse,
    TwoPhase,
)

BLOCK = 256
BLOCK_SIZES = st.sampled_from([256, 512, 1024])
EDGE_NUMELS = (0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 773)
SEEDS = st.integers(0, 2**31)
WORLD_SIZES = st.integers(1, 4)
DENSITIES = st.sampled_from([0.01, 0.1, 0.5, 1.0])


def normal(*shape, seed=0, scale=1.0):
    """Return float32 noise of a shape, the same for a seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator) * scale


def _heavy_tailed(numel, seed):
    return normal(numel, seed=seed) ** 3


def _mostly_zero(numel, seed):
    return torch.where(normal(numel, seed=seed + 1) > 1, normal(numel, seed=seed), 0)


def _one_huge(numel, seed):
    values = normal(numel, seed=seed)
    values[:1] = 1e30
    return values


def _many_scales(numel, seed):
    return normal(numel, seed=seed) * 10 ** (normal(numel, seed=seed + 1) * 3)


KINDS = {
    "normal": lambda numel, seed: normal(numel, seed=seed),
    "small": lambda numel, seed: normal(numel, seed=seed, scale=1e-20),
    "zero": lambda numel, _seed: torch.zeros(numel),
    "heavy_tailed": _heavy_tailed,
    "mostly_zero": _mostly_zero,
    "one_huge": _one_huge,
    "many_scales": _many_scales,
}


@st.composite
def tensors(draw, max_numel=2000):
    """Draw a 1-D float32 tensor whose blocks have all sorts of ranges."""
    numel = draw(st.one_of(st.sampled_from(EDGE_NUMELS), st.integers(0, max_numel)))
    return KINDS[draw(st.sampled_from(sorted(KINDS)))](numel, draw(SEEDS))


def codec_specs():
    """Draw the parameters of any codec."""
    formats = st.sampled_from(["float32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2"])
    roundings = st.sampled_from(["stochastic", "nearest"])
    selections = st.sampled_from(["threshold", "exact", "random"])
    planes = st.integers(2, 8).flatmap(
        lambda bits: st.builds(BitPlanes, st.just(bits), st.integers(2, bits), BLOCK_SIZES)
    )
    return st.one_of(
        st.builds(Float, formats, BLOCK_SIZES),
        st.builds(Quantize, st.integers(1, 8), BLOCK_SIZES, roundings),
        st.builds(Quantize, st.integers(2, 8), BLOCK_SIZES, roundings, st.just("l2")),
        planes,
        st.builds(Sign, BLOCK_SIZES),
        st.builds(Sparse, DENSITIES, selections),
    )


def _with_feedback(reducer, codec, feedback):
    return reducer(codec, feedback and getattr(codec, "is_contraction", True))


def reducer_specs():
    """Draw the parameters of any reducer."""
    dense = codec_specs().filter(lambda spec: not isinstance(spec, Sparse))
    return st.one_of(
        st.builds(AllReduce, st.sampled_from(["float32", "bfloat16"])),
        st.builds(_with_feedback, st.just(TwoPhase), dense, st.booleans()),
        st.builds(_with_feedback, st.just(Broadcast), codec_specs(), st.booleans()),
        st.builds(LowRank, st.integers(1, 5), st.booleans(), st.booleans()),
    )


def shapes(max_numel=1500):
    """Draw the shape of a parameter, from scalars to convolutions."""
    numels = st.integers(1, max_numel)
    return st.one_of(
        st.just(()),
        st.tuples(numels),
        numels.flatmap(lambda n: st.tuples(st.just(n), st.integers(1, max_numel // n))),
        st.tuples(*(st.integers(1, 6) for _ in range(4))),
    )


def entries():
    """Draw parameters as a spec sees them."""
    return st.lists(shapes(), min_size=1, max_size=5).map(
        lambda drawn: [Entry(name_hash(f"p{i}"), shape) for i, shape in enumerate(drawn)]
    )


def plans():
    """Draw a plan with up to three rules."""
    rules = st.builds(
        Rule,
        reducer_specs(),
        st.sampled_from(["*", "*.weight", "layer?.*"]),
        st.integers(0, 4096),
        st.integers(0, 4),
    )
    return st.builds(Plan, st.lists(rules, max_size=3).map(tuple), SEEDS, st.integers(0, 100))


_SECONDS = st.sampled_from([1e-6, 0.01, 1.0, 700.0])
_WORDS = st.sampled_from(["int4", "[b]", "a, <b>", "x\ny"])
_STEP_TIMES = st.builds(
    StepTimes, _SECONDS, _SECONDS, _SECONDS | st.just(0.0), _SECONDS, st.none() | _SECONDS
)
_ROUNDS = st.builds(
    Round,
    st.lists(_STEP_TIMES, min_size=1, max_size=3).map(tuple),
    st.sampled_from([0, 1, 10**9]),
    st.sampled_from([0.0, 2.0]),
)
_LOSSES = st.sampled_from([-1.0, 0.0, 2.5])
_VALIDATIONS = st.builds(Validation, st.integers(0, 100), _LOSSES, st.just(0.5))
_MODES = st.builds(
    ModeResult,
    mode=_WORDS,
    label=_WORDS,
    family=st.sampled_from(["ddp", "hook", "gradwire"]),
    rounds=st.lists(_ROUNDS, max_size=4).map(tuple),
    reason=st.none() | _WORDS,
    predicted_s=st.none() | _SECONDS,
    validations=st.lists(_VALIDATIONS, max_size=3).map(tuple),
    elapsed_s=st.lists(_SECONDS, max_size=3).map(tuple),
    digests=st.lists(st.sampled_from(["a", "b"]), max_size=2).map(tuple),
)
_CELLS = st.builds(
    Cell,
    model=st.sampled_from(["vgg", "[text]"]),
    ranks=st.integers(1, 64),
    rate_bytes_per_s=st.sampled_from([None, 1.0, 12.5e6]),
    latency_s=st.sampled_from([0.0, 0.001]),
    network=st.sampled_from(["lab", "shaped", "none"]),
    modes=st.lists(_MODES, max_size=4, unique_by=lambda m: m.mode).map(tuple),
    num_parameters=st.integers(0, 10**9),
)
BENCH_RESULTS = st.builds(
    BenchResult,
    environment=st.just(Environment("0.1", "2.13", "3.11", "Linux", "a processor", 2)),
    cells=st.lists(_CELLS, max_size=3, unique_by=lambda c: c.name).map(tuple),
    started=st.just("2026-01-01"),
    wall_s=_SECONDS,
    settings=st.just({"seed": 0}),
)
