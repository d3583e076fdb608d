"""What every registered codec keeps: its bound, its key, its residual, its bytes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given

from gradwire.codecs.base import CODECS, Segment, Segments, build
from gradwire.errors import PayloadError, SpecError
from gradwire.key import Key
from gradwire.layout import num_blocks
from gradwire.spec import BitPlanes, Float, Quantize, Sign, Sparse
from strategies import BLOCK, EDGE_NUMELS, SEEDS, codec_specs, normal, tensors

KEY = Key(seed=1, step=2, rank=0)
SPECS = {
    "float32": Float("float32"),
    "bfloat16": Float("bfloat16"),
    "float16": Float("float16"),
    "e4m3": Float("float8_e4m3"),
    "e5m2": Float("float8_e5m2"),
    **{f"int{bits}": Quantize(bits) for bits in range(1, 9)},
    "int4_nearest": Quantize(4, 512, "nearest"),
    "int1_nearest": Quantize(1, 256, "nearest"),
    "int4_l2": Quantize(4, scale="l2"),
    "int8_l2": Quantize(8, 512, "nearest", "l2"),
    "planes8": BitPlanes(8, 8),
    "planes8_4": BitPlanes(8, 4, 512),
    "planes6_2": BitPlanes(6, 2),
    "sign": Sign(256),
    "exact": Sparse(0.1, "exact"),
    "threshold": Sparse(0.1, "threshold"),
    "random": Sparse(0.1, "random"),
}
HALF_STEP = {
    "bfloat16": 2.0**-9,
    "float16": 2.0**-12,
    "float8_e4m3": 2.0**-5,
    "float8_e5m2": 2.0**-4,
}
SMALLEST = {"float16": 2.0**-40, "float8_e4m3": 2.0**-10 / 448, "float8_e5m2": 2.0**-17 / 57344}
each_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)


def decoded(spec, x, key=KEY, residual=None, gain=0.0):
    codec, whole = build(spec), Segments.whole(x.numel())
    payload = codec.encode(x, whole, key, residual, gain)
    assert payload.dtype == torch.uint8
    assert payload.shape == (spec.num_bytes(whole.numels),)
    out = torch.full_like(x, math.nan)
    codec.decode(payload[None], whole, out)
    return out


def per_block(values, block_size, statistic):
    out = torch.empty_like(values)
    for i in range(num_blocks(values.numel(), block_size)):
        block = slice(i * block_size, (i + 1) * block_size)
        out[block] = statistic(values[block])
    return out


def bound(spec, x):
    """Return the largest error each value may have, float64."""
    magnitude = x.abs().double()
    match spec:
        case Quantize(bits, block_size, rounding, scale):
            measure = torch.max if scale == "max" else torch.linalg.vector_norm
            step = per_block(magnitude, block_size, measure) / max(2 ** (bits - 1) - 1, 0.5)
            return step * (0.5 if rounding == "nearest" else 1) * (1 + 1e-4)
        case BitPlanes(bits, planes, block_size):
            levels = per_block(magnitude, block_size, torch.max) / (2 ** (bits - 1) - 1)
            return levels * 2 ** (bits - planes) * (1 + 1e-4)
        case Sign(block_size):
            mean = per_block(magnitude, block_size, torch.mean)
            return (magnitude - mean).abs() + 1e-5 * mean
        case Float("float32"):
            return torch.zeros_like(magnitude)
        case Float(form, block_size):
            peak = per_block(magnitude, block_size, torch.max)
            relative = HALF_STEP[form] * (1 + 1e-5) * 2  # half a step below a power of two
            return relative * magnitude + SMALLEST.get(form, 0) * peak
        case Sparse():
            return magnitude
    raise AssertionError(spec)


def assert_within_bound(spec, x):
    error = (decoded(spec, x).double() - x.double()).abs()
    # Blocks below the smallest normal float32 are sent as zeros.
    assert (error <= bound(spec, x) + 2.0**-126).all()


def test_every_registered_codec_is_tested():
    assert {spec.id for spec in SPECS.values()} == set(CODECS)


@given(codec_specs(), tensors())
def test_codec_round_trip_stays_within_its_bound(spec, x):
    assert_within_bound(spec, x)


@each_spec
@pytest.mark.parametrize("numel", EDGE_NUMELS)
def test_codec_handles_edge_sizes(spec, numel):
    assert_within_bound(spec, normal(numel, seed=numel))


@each_spec
def test_codec_does_not_change_its_input(spec):
    x = normal(773)
    before = x.clone()
    decoded(spec, x, residual=normal(773, seed=1))
    assert torch.equal(x, before)


@each_spec
def test_b2_codec_sends_zeros_as_zeros(spec):
    residual = torch.zeros(773)
    assert torch.equal(decoded(spec, torch.zeros(773), residual=residual), torch.zeros(773))
    assert torch.equal(residual, torch.zeros(773))


@each_spec
@pytest.mark.parametrize("scale", [1e-40, 3e-38, 1e-20, 1e20, 1.5e38])
def test_b4_codec_is_as_accurate_at_every_scale(spec, scale):
    is_norm = getattr(spec, "scale", "max") == "l2"
    x = torch.linspace(-1, 1, 64) * (scale / 8 if is_norm else scale)  # its norm is a float32
    residual = torch.zeros(64)
    out = decoded(spec, x, residual=residual)
    assert out.isfinite().all()
    error = (out.double() - x.double()).abs()
    tiny = 2.0**-126 if scale < 2.0**-126 else 2.0**-133
    assert (error <= bound(spec, x) + tiny).all()
    assert torch.equal(residual, x - out)


@each_spec
def test_b4_block_that_the_format_cannot_hold_leaves_its_residual(spec):
    x, residual = torch.linspace(-1, 1, 64) * 3.4e38, torch.zeros(64)
    out = decoded(spec, x, residual=residual)
    assert out.isfinite().all() or (not out.isfinite().any() and not residual.any())
    assert residual.isfinite().all()


@each_spec
def test_codec_keeps_what_was_lost(spec):
    x, residual = normal(773), normal(773, seed=1)
    owed = x + residual
    out = decoded(spec, x, residual=residual)
    assert torch.equal(out, decoded(spec, owed))
    assert torch.equal(residual, owed - out)


@each_spec
def test_codec_with_gain_answers_for_a_second_rounding(spec):
    x, residual = normal(773), normal(773, seed=1)
    before = residual.clone()
    out = decoded(spec, x, residual=residual, gain=3.0)
    assert torch.equal(out, decoded(spec, x))
    assert torch.equal(residual, before + 3.0 * (x - out))


@each_spec
@given(SEEDS)
def test_codec_depends_on_the_key_and_nothing_else(spec, seed):
    x = normal(600, seed=seed)
    first, again = decoded(spec, x, Key(seed, 5, 0)), decoded(spec, x, Key(seed, 5, 0))
    assert torch.equal(first, again)
    other = decoded(spec, x, Key(seed, 6, 0))
    draws = "stochastic" in repr(spec) or "random" in repr(spec)
    if not isinstance(spec, BitPlanes):  # few values are so near a cut that noise decides
        assert torch.equal(first, other) is not draws


@each_spec
def test_codec_leaves_the_users_random_state_alone(spec):
    before = torch.random.get_rng_state()
    decoded(spec, normal(600))
    assert torch.equal(torch.random.get_rng_state(), before)


@each_spec
def test_codec_accumulates_what_it_decodes(spec):
    codec, whole = build(spec), Segments.whole(773)
    payloads = torch.stack(
        [codec.encode(normal(773, seed=rank), whole, Key(0, 0, rank)) for rank in range(3)]
    )
    alone = []
    for payload in payloads:
        alone.append(torch.full((773,), math.nan))
        codec.decode(payload[None], whole, alone[-1])
    mean, added = torch.full((773,), math.nan), normal(773, seed=9)
    before = added.clone()
    codec.decode(payloads, whole, mean, 3.0)
    codec.decode(payloads, whole, added, 3.0, accumulate=True)
    assert torch.equal(mean, (alone[0] + alone[1] + alone[2]) / 3.0)
    assert torch.equal(added, before + mean)


@each_spec
@pytest.mark.parametrize("wild", [math.nan, math.inf, -math.inf])
def test_codec_passes_on_what_is_not_finite(spec, wild):
    x, residual = normal(1000), normal(1000, seed=1)
    x[300] = wild
    before = residual.clone()
    out = decoded(spec, x, residual=residual)
    assert not out[300].isfinite()
    assert residual.isfinite().all()
    assert residual[300] == before[300]


@each_spec
def test_codec_treats_stretches_apart(spec):
    # The same parameter alone, and second of two in a larger bucket and residual.
    codec = build(spec)
    x, residual = normal(600), normal(600, seed=1)
    bucket, owed = torch.zeros(1000), torch.zeros(1000)
    bucket[7:40], bucket[100:700], owed[50:650] = normal(33, seed=2), x, residual
    pair = Segments.of([Segment(7, 0, 33, 0, 5), Segment(100, 50, 600, 512, 77)])
    alone = Segments.of([Segment(0, 0, 600, 512, 77)])
    together, apart = torch.full((1000,), math.nan), torch.full((600,), math.nan)
    codec.decode(codec.encode(bucket, pair, KEY, owed)[None], pair, together)
    codec.decode(codec.encode(x, alone, KEY, residual)[None], alone, apart)
    assert torch.equal(together[100:700], apart)
    assert torch.equal(owed[50:650], residual)
    untouched = torch.cat((together[:7], together[40:100], together[700:]))
    assert untouched.isnan().all()


@each_spec
def test_codec_refuses_a_payload_of_another_size(spec):
    codec, whole = build(spec), Segments.whole(773)
    payload = codec.encode(normal(773), whole, KEY)
    with pytest.raises(PayloadError, match=f"{payload.numel() - 16} bytes"):
        codec.decode(payload[None, :-16].contiguous(), whole, torch.zeros(773))


@pytest.mark.parametrize("spec", [SPECS["int4"], SPECS["sign"], SPECS["exact"]], ids=lambda s: s.id)
def test_codec_refuses_views_with_strides(spec):
    column = normal(1000, 2)[:, 0]
    with pytest.raises(SpecError, match="contiguous"):
        build(spec).encode(column, Segments.whole(1000), KEY)


@pytest.mark.parametrize("bits", range(1, 9))
def test_stochastic_rounding_is_unbiased(bits):
    # 20 keys, 50 blocks with the same values: 1000 draws of noise.
    x = normal(BLOCK)
    tiled = x.repeat(50)
    outs = [decoded(Quantize(bits), tiled, Key(0, step, 0)).view(50, BLOCK) for step in range(20)]
    drawn = torch.cat(outs).double()
    # A value at a level is always sent alike; it may be off by the fixed point's step.
    z = (drawn.mean(0) - x) / (drawn.std(0) / 1000**0.5).clamp_min(1e-4)
    assert z.abs().max() < 4.5  # 256 values: exceeded by chance in one of 600 runs
    assert z.mean().abs() < 4.5 / BLOCK**0.5


def test_c4_noise_differs_between_parameters_and_repeats_with_the_seed():
    # Levels -1, 0, 1: each 0.3 is sent as 1 with probability 0.3.
    x = torch.full((1024,), 0.3)
    x[::BLOCK] = 1.0
    codec = build(Quantize(2))
    layers = []
    for stream in (11, 12):
        whole = Segments.whole(1024, stream)
        layers.append(torch.empty(1024))
        codec.decode(codec.encode(x, whole, KEY)[None], whole, layers[-1])
        again = torch.empty(1024)
        codec.decode(codec.encode(x, whole, KEY)[None], whole, again)
        assert torch.equal(layers[-1], again)
    drawn = torch.stack(layers)[:, torch.arange(1024) % BLOCK != 0]
    count = drawn.shape[1]
    assert ((drawn.mean(1) - 0.3).abs() < 4 * (0.21 / count) ** 0.5).all()
    assert torch.corrcoef(drawn)[0, 1].abs() < 4 / count**0.5


def test_exact_selection_sends_the_largest():
    x = normal(773)
    out = decoded(Sparse(0.1, "exact"), x)
    sent = out != 0
    assert sent.sum() == 78
    assert torch.equal(out[sent], x[sent])
    assert x[sent].abs().min() >= x[~sent].abs().max()


def test_threshold_selection_sends_about_the_density_and_only_the_largest():
    x = normal(20_000)
    out = decoded(Sparse(0.01, "threshold"), x)
    sent = out != 0
    assert 150 <= sent.sum() <= Sparse(0.01, "threshold").capacity(20_000)
    assert x[sent].abs().min() >= x[~sent].abs().max()


def test_random_selection_is_the_same_on_all_ranks():
    spec, x = Sparse(0.1, "random"), normal(333)
    assert torch.equal(decoded(spec, x, Key(0, 1, 0)), decoded(spec, x, Key(0, 1, 1)))


def test_random_selection_chooses_every_place_equally_often():
    spec, steps, chance = Sparse(0.1, "random"), 600, 4 / 33
    counts = sum(decoded(spec, torch.ones(33), Key(0, step, 0)) for step in range(steps))
    assert counts.sum() == 4 * steps
    deviation = (counts / steps - chance) / (chance * (1 - chance) / steps) ** 0.5
    assert deviation.abs().max() < 4


def test_random_selection_finds_the_places_of_each_payload():
    # Two ranks that drew differently, as in different steps, are both decoded right.
    codec, whole, x = build(Sparse(0.2, "random")), Segments.whole(100), normal(100)
    payloads = [codec.encode(x, whole, Key(0, step, 0)) for step in (1, 2)]
    singles = []
    for payload in payloads:
        singles.append(torch.empty(100))
        codec.decode(payload[None], whole, singles[-1])
    both = torch.empty(100)
    codec.decode(torch.stack(payloads), whole, both)
    assert torch.equal(both, singles[0] + singles[1])
    assert not torch.equal(singles[0], singles[1])
