"""Levels of the broadcast: norms, bit planes, and a codec for each sender."""

from __future__ import annotations

import math

import pytest
import torch

from contract.exchange import (
    SHAPES,
    Layout,
    assert_agreement,
    assert_conservation,
    noise,
    reduce_steps,
    same_bits,
)
from contract.test_codecs import KEY, decoded
from gradwire.codecs.base import CODECS, Segment, Segments, build
from gradwire.codecs.mixed import decode_mean
from gradwire.errors import GradwireError, PayloadError, SpecError
from gradwire.key import Key
from gradwire.spec import BitPlanes, Broadcast, Entry, Float, Quantize, Sign, Sparse, parse_reducer
from strategies import BLOCK, normal


@pytest.mark.parametrize("bits", range(2, 9))
def test_stochastic_rounding_to_levels_of_the_norm_is_unbiased(bits):
    x = normal(BLOCK, seed=5)
    spec, tiled = Quantize(bits, scale="l2"), x.repeat(50)
    drawn = torch.cat([decoded(spec, tiled, Key(0, s, 0)).view(50, BLOCK) for s in range(20)])
    step = float(x.norm()) / (2 ** (bits - 1) - 1)
    chance = (x.abs().double() / step).frac()
    variance = chance * (1 - chance)
    z = (drawn.double().mean(0) - x) / (step * (variance / 1000).sqrt().clamp_min(1e-6))
    assert z.mean().abs() < 4.5 / BLOCK**0.5
    is_often = variance > 0.02  # not so rare that a normal distribution does not tell
    assert z[is_often].abs().max() < 4.5
    assert is_often.sum() > BLOCK / 2


@pytest.mark.parametrize(
    ("bits", "block_size", "scale", "expected"),
    # Normal values: design notes' figures, from 4 million samples of their own code.
    [
        (3, 512, "max", 0.198),
        (4, 512, "max", 0.036),
        (3, 512, "l2", 5.0),
        (4, 512, "l2", 1.58),
        (8, 512, "l2", 5.3e-3),
    ],
)
def test_variance_of_levels_is_the_known_one(bits, block_size, scale, expected):
    x = normal(200 * block_size)
    out = decoded(Quantize(bits, block_size, scale=scale), x)
    assert float((out - x).square().sum() / x.square().sum()) == pytest.approx(expected, rel=0.06)


def test_norm_levels_with_feedback_are_refused_where_the_bound_allows_growth():
    assert not Quantize(5, scale="l2").is_contraction
    assert Quantize(6, scale="l2").is_contraction
    assert not Quantize(6, 1024, scale="l2").is_contraction


@pytest.mark.parametrize("planes", [2, 3, 5, 8])
def test_sender_that_stops_early_announces_its_planes(planes):
    spec, whole = BitPlanes(8, 8), Segments.whole(773)
    x, residual = normal(773), normal(773, seed=1)
    owed, codec = x + residual, CODECS["bit_planes"](spec)
    full = codec.encode(x, whole, KEY, residual.clone())
    short = codec.encode_planes(x, whole, KEY, planes, residual)
    end = spec.prefix_bytes(whole.numels, planes)
    assert torch.equal(short[16:end], full[16:end])
    assert not short[end:].any()
    out, same = torch.empty(773), torch.empty(773)
    codec.decode(short[None], whole, out)
    assert torch.equal(residual, owed - out)
    alone = CODECS["bit_planes"](BitPlanes(8, planes))
    alone.decode(short[None, :end].contiguous(), whole, same)
    assert torch.equal(out, same)


def test_each_sender_may_stop_at_planes_of_its_own():
    codec, whole = CODECS["bit_planes"](BitPlanes(8, 8)), Segments.whole(773)
    sent = [codec.encode_planes(normal(773, seed=p), whole, Key(0, 0, p), p) for p in (2, 5, 8)]
    singles = [torch.empty(773) for _ in sent]
    for payload, out in zip(sent, singles, strict=True):
        codec.decode(payload[None], whole, out)
    mean = torch.empty(773)
    codec.decode(torch.stack(sent), whole, mean, 3.0)
    assert torch.equal(mean, (singles[0] + singles[1] + singles[2]) / 3.0)


@pytest.mark.parametrize("announced", [-1, 0, 1, 5, 2**30])
def test_impossible_number_of_planes_is_refused(announced):
    codec, whole = build(BitPlanes(8, 4)), Segments.whole(773)
    payload = codec.encode(normal(773), whole, KEY)
    payload[:4] = torch.tensor([announced], dtype=torch.int32).view(torch.uint8)
    with pytest.raises(GradwireError, match=f"announces {announced} bit planes"):
        codec.decode(payload[None], whole, torch.zeros(773))


MIXTURES = [
    (Quantize(1), Quantize(3), Quantize(8)),
    (Quantize(2), Float("bfloat16"), Quantize(4, 1024)),
    (Float("float32"), Sign(512), Quantize(6), Quantize(5), Quantize(7)),
    (Float("float16"), Float("float8_e4m3"), Float("float8_e5m2")),
    (Quantize(4), Sparse(0.1, "exact"), BitPlanes(8, 3)),
]


@pytest.mark.parametrize("specs", MIXTURES, ids=str)
@pytest.mark.parametrize("numels", [(1,), (773,), (5, 2304, 256, 4000)])
def test_payloads_of_different_codecs_are_averaged_in_order(specs, numels):
    ends = [sum(numels[: i + 1]) + 7 * i for i in range(len(numels))]
    segments = Segments.of(
        [Segment(end - n, 0, n, 0, i) for i, (end, n) in enumerate(zip(ends, numels, strict=True))]
    )
    size, codecs = ends[-1] + 3, [build(spec) for spec in specs]
    payloads = [
        codec.encode(normal(size, seed=rank), segments, Key(0, 0, rank))
        for rank, codec in enumerate(codecs)
    ]
    singles = [torch.full((size,), math.nan) for _ in specs]
    for codec, payload, single in zip(codecs, payloads, singles, strict=True):
        codec.decode(payload[None], segments, single)
    out = torch.full((size,), math.nan)
    decode_mean(codecs, payloads, segments, out)
    total = singles[0]
    for single in singles[1:]:
        total = total + single
    expected = total / torch.tensor(float(len(specs)))
    assert torch.equal(out.nan_to_num(-99), expected.nan_to_num(-99))


def test_mixed_payload_of_another_size_is_refused():
    codecs, whole = [build(Quantize(4)), build(Quantize(8))], Segments.whole(773)
    payloads = [codec.encode(normal(773), whole, KEY) for codec in codecs]
    with pytest.raises(PayloadError):
        decode_mean(codecs, payloads[::-1], whole, torch.zeros(773))


TRAVELS = {
    **{bits: Quantize(bits) for bits in (1, 2, 3, 4, 5, 6, 8)},
    16: Float("bfloat16"),
    32: Float("float32"),
}


@pytest.mark.parametrize("bits", TRAVELS)
@pytest.mark.parametrize("feedback", [False, True])
def test_every_level_travels_by_broadcast(bits, feedback):
    codec = TRAVELS[bits]
    if feedback and not getattr(codec, "is_contraction", True):
        with pytest.raises(SpecError, match="loses too much"):
            Broadcast(codec)
        return
    spec, layout = Broadcast(codec, feedback), Layout.of([(30, 31), (257,)])
    gradients = noise(layout.residual_numel, 3, 3)
    traces = reduce_steps(spec, layout, gradients, 3)
    assert_agreement(traces)
    mean = sum(g[0] for g in gradients) / 3
    error = float((traces[0].outs[0] - mean).norm() / mean.norm())
    assert error <= {1: 3.2, 2: 1.4, 3: 0.5, 4: 0.2, 5: 0.1, 6: 0.05, 8: 0.012, 16: 3e-3}.get(
        bits, 1e-6
    )
    if feedback:
        assert_conservation(traces)


@pytest.mark.parametrize("count", [1, 3])
def test_senders_of_another_number_of_ranks_are_refused(count):
    spec = Broadcast(Quantize(4), senders=(Quantize(4),) * count)
    with pytest.raises(SpecError, match=f"'{count} codecs' is not 2, one for each rank"):
        spec.transfers([Entry(0, (1024,))], 2, 0)


def test_senders_send_payloads_of_their_own_size():
    spec = Broadcast(Quantize(4), senders=(Quantize(2, rounding="nearest"), Quantize(8)))
    first, second = (spec.transfers([Entry(0, (1024,))], 2, rank)[0] for rank in (0, 1))
    assert first == (272, 1040)
    assert second == (1040, 272)


def test_mean_of_equal_codecs_is_the_same_with_and_without_senders():
    layout = Layout.of([(40, 50)])
    gradients = noise(2000, 3, 2)
    one = reduce_steps(Broadcast(Quantize(4)), layout, gradients, 3)
    each = reduce_steps(Broadcast(Quantize(4), senders=(Quantize(4),) * 3), layout, gradients, 3)
    for a, b in zip(one, each, strict=True):
        assert all(map(torch.equal, a.outs, b.outs))
        assert all(map(torch.equal, a.residuals, b.residuals))


def test_qsgd_is_the_published_baseline():
    spec = parse_reducer("qsgd4")
    assert spec == Broadcast(Quantize(4, 512, scale="l2"), feedback=False)
    assert parse_reducer("qsgd8:256").codec.block_size == 256


SENDERS = {
    "levels": (Quantize(3), Sign(), Quantize(8, 512)),
    "floats": (Float("bfloat16"), Quantize(5), Float("float32"), Quantize(6)),
    "any": (Quantize(4), Sparse(0.2, "exact"), BitPlanes(8, 3)),
}


@pytest.mark.parametrize("senders", SENDERS.values(), ids=SENDERS)
def test_laws_hold_with_a_codec_for_each_sender(senders):
    world_size, order = len(senders), [4, 2, 0, 3, 1]
    spec = Broadcast(Quantize(4), senders=senders)
    layout = Layout.of(SHAPES)
    gradients = noise(layout.residual_numel, world_size, 3)
    traces = reduce_steps(spec, layout, gradients, world_size)
    assert_agreement(traces)
    assert_conservation(traces)
    for rank, trace in enumerate(traces):
        predicted = spec.transfers(layout.entries, world_size, rank)
        assert all(tuple(recorded) == predicted for recorded in trace.transfers)
    parts = [[3, 0], [1], [2, 4]]
    elsewhere = reduce_steps(
        spec, Layout.of(SHAPES, order, gap=3), gradients, world_size, parts=parts
    )
    in_place = reduce_steps(spec, layout, gradients, world_size, in_place=True)
    for a, b, c in zip(traces, elsewhere, in_place, strict=True):
        assert all(map(same_bits, a.outs, b.outs))
        assert all(map(same_bits, a.outs, c.outs))
        assert all(map(same_bits, a.residuals, b.residuals))


@pytest.mark.parametrize("senders", SENDERS.values(), ids=SENDERS)
@pytest.mark.parametrize("wild", [math.nan, math.inf])
def test_wild_value_of_one_sender_reaches_all_and_leaves_residuals(senders, wild):
    world_size, layout = len(senders), Layout.of([(40, 50), (300,)])
    gradients = noise(2300, world_size, 3)
    gradients[-1][1] = gradients[-1][1].clone()
    gradients[-1][1][777] = wild
    traces = reduce_steps(Broadcast(Quantize(4), senders=senders), layout, gradients, world_size)
    assert_agreement(traces)
    assert not traces[0].outs[1][777].isfinite()
    for trace in traces:
        assert all(r.isfinite().all() for r in trace.residuals)
        assert trace.outs[2].isfinite().all()
