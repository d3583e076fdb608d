import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.errors import SpecError, UnknownIdError
from gradwire.spec import (
    CODEC_SPECS,
    MAX_STRETCH,
    REDUCER_SPECS,
    AllReduce,
    Broadcast,
    Entry,
    Float,
    LowRank,
    Quantize,
    Sign,
    Sparse,
    TwoPhase,
    parse_reducer,
    reducer_from_dict,
    sent_bytes,
    spec_key,
    stretches,
    to_dict,
)

SHORT = (
    *("none", "bf16", "fp16", "fp8", "fp8_e5m2", "sign", "topk", "threshold", "random_k"),
    *(f"int{bits}" for bits in range(1, 9)),
    *("low_rank", "low_rank:4", "topk:0.001", "threshold:0.5", "random_k:1"),
    *("int4@broadcast", "int8@two_phase", "sign@broadcast", "none@broadcast", "bf16@two_phase"),
)
REFUSED = [
    (lambda: Quantize(0), "Quantize.bits=0"),
    (lambda: Quantize(9), "Quantize.bits=9 is not a whole number between 1 and 8"),
    (lambda: Quantize(4.0), "Quantize.bits=4.0"),
    (lambda: Quantize("4"), "Quantize.bits='4'"),
    (lambda: Quantize(bits=True), "Quantize.bits=True"),
    (lambda: Quantize(4, rounding="up"), "Quantize.rounding='up' is not one of"),
    (lambda: Quantize(4, block_size=100), "Quantize.block_size=100 is not a multiple of 256"),
    (lambda: Quantize(4, block_size=0), "Quantize.block_size=0"),
    (lambda: Quantize(4, block_size=256.0), "Quantize.block_size=256.0"),
    (lambda: Quantize(4, block_size=1 << 17), "Quantize.block_size=131072"),
    (lambda: Sign(block_size=5), "Sign.block_size=5"),
    (lambda: Float("float64"), "Float.format='float64' is not one of: float32"),
    (lambda: Float("float16", block_size=7), "Float.block_size=7"),
    (lambda: Sparse(0.0), "Sparse.density=0.0 is not above 0"),
    (lambda: Sparse(1.5), "Sparse.density=1.5"),
    (lambda: Sparse(math.nan), "Sparse.density=nan"),
    (lambda: Sparse(0.1, "best"), "Sparse.selection='best' is not one of"),
    (lambda: AllReduce("float16"), "AllReduce.format='float16' is not one of"),
    (lambda: LowRank(0), "LowRank.matrix_rank=0"),
    (lambda: LowRank(1.5), "LowRank.matrix_rank=1.5"),
    (lambda: TwoPhase(Sparse()), "TwoPhase.codec=Sparse"),
    (
        lambda: TwoPhase("int4"),
        "TwoPhase.codec='int4' is not a codec spec, such as one of: BitPlanes, Float",
    ),
    (lambda: TwoPhase(Quantize(4), second="int4"), "TwoPhase.second='int4' is not a codec spec"),
    (lambda: TwoPhase(Quantize(4), second=Sign()), "TwoPhase.second=Sign"),
    (lambda: TwoPhase(Quantize(1)), "TwoPhase.feedback=True is not possible with Quantize.bits=1"),
    (lambda: TwoPhase(Quantize(2)), "TwoPhase.feedback=True .* or rounding='nearest' with 2 bits"),
    (lambda: Broadcast(Quantize(2)), "Broadcast.feedback=True is not possible with Quantize"),
    (lambda: Broadcast(AllReduce()), "Broadcast.codec=AllReduce.* is not a codec spec"),
    (lambda: parse_reducer("topk:lots"), "spec='topk:lots' is not a name and a number"),
    (lambda: parse_reducer("topk:nan"), "Sparse.density=nan"),
    (lambda: parse_reducer("topk:0"), "Sparse.density=0.0"),
    (lambda: parse_reducer("low_rank:1.5"), "LowRank.matrix_rank=1.5 is not a whole number"),
    (lambda: parse_reducer("low_rank:inf"), "LowRank.matrix_rank=inf is not a whole number"),
    (lambda: parse_reducer("low_rank:nan"), "LowRank.matrix_rank=nan is not a whole number"),
    (lambda: parse_reducer("int9"), "Quantize.bits=9"),
    (lambda: parse_reducer(None), "spec=None is not a short name"),
    (lambda: Sparse("0.1"), "Sparse.density='0.1' is not a number"),
    (lambda: Sparse(True), "Sparse.density=True is not a number"),
    (lambda: TwoPhase(Quantize), "TwoPhase.codec=<class .*> is not a codec spec"),
    (lambda: TwoPhase(Quantize(4), feedback="false"), "TwoPhase.feedback='false' is not True or"),
    (lambda: Broadcast(Sign(), feedback=None), "Broadcast.feedback=None is not True or False"),
    (lambda: LowRank(1, warm_start="no"), "LowRank.warm_start='no' is not True or False"),
    (lambda: LowRank(1, feedback=0), "LowRank.feedback=0 is not True or False"),
    (lambda: reducer_from_dict([]), r"spec=\[\] is not an object"),
    (lambda: reducer_from_dict({"matrix_rank": 1}), 'is not an object with an "id"'),
    (lambda: reducer_from_dict({"id": "low_rank", "rank": 1}), "LowRank field='rank' is not one"),
    (lambda: reducer_from_dict({"id": "two_phase"}), "TwoPhase={} is not complete: .*codec"),
    (
        lambda: reducer_from_dict({"id": "two_phase", "codec": {"id": "quantize", "bits": "4"}}),
        "Quantize.bits='4'",
    ),
]
UNKNOWN = (
    *("", "int", "int4:2", "sign:1", "none:3", "bf16:2", "fp16:1", "float", "int²", "intx", "INT4"),
    *("int4@ring", "low_rank@broadcast", "low_rank:2@two_phase", "int-4"),
)


@pytest.mark.parametrize(("make", "text"), REFUSED, ids=[t for _, t in REFUSED])
def test_what_cannot_exist_is_refused_by_name_and_value(make, text):
    with pytest.raises(SpecError, match=text):
        make()


@pytest.mark.parametrize("name", UNKNOWN)
def test_parse_reducer_refuses_unknown_names(name):
    with pytest.raises(UnknownIdError, match="is not one of: "):
        parse_reducer(name)


@pytest.mark.parametrize("what", [{"id": "x"}, {"id": ["x"]}, {"id": None}])
def test_an_unknown_id_in_a_file_is_told_with_the_known_ones(what):
    with pytest.raises(UnknownIdError, match="is not one of: all_reduce, broadcast"):
        reducer_from_dict(what)


@pytest.mark.parametrize("name", SHORT)
def test_short_names_survive_json(name):
    spec = parse_reducer(name)
    assert reducer_from_dict(json.loads(json.dumps(to_dict(spec)))) == spec
    assert hash(spec) == hash(parse_reducer(name))


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("none", AllReduce("float32")),
        ("bf16", AllReduce("bfloat16")),
        ("none@broadcast", Broadcast(Float("float32"), feedback=False)),
        ("bf16@two_phase", TwoPhase(Float("bfloat16"), feedback=False)),
        ("fp8", TwoPhase(Float("float8_e4m3"))),
        ("int4", TwoPhase(Quantize(4))),
        ("int4@broadcast", Broadcast(Quantize(4))),
        ("sign", TwoPhase(Sign())),
        ("topk", Broadcast(Sparse(0.01, "exact"))),
        ("threshold:0.5", Broadcast(Sparse(0.5, "threshold"))),
        ("random_k:1", Broadcast(Sparse(1.0, "random"))),
        ("low_rank", LowRank(1)),
        ("low_rank:4", LowRank(4)),
    ],
)
def test_short_names_mean_what_they_say(name, spec):
    assert parse_reducer(name) == spec


@pytest.mark.parametrize("name", SHORT)
def test_spec_keys_are_short_and_of_one_line(name):
    text = spec_key(parse_reducer(name))
    assert 0 < len(text) < 80
    assert "\n" not in text


def test_spec_keys_of_different_specs_differ():
    assert len({spec_key(parse_reducer(n)) for n in SHORT}) == len(
        {parse_reducer(n) for n in SHORT}
    )


@pytest.mark.parametrize("name", SHORT)
@given(
    shapes=st.lists(st.lists(st.integers(0, 50), max_size=3), max_size=4),
    world_size=st.integers(1, 5),
)
def test_what_ranks_send_is_what_ranks_receive(name, shapes, world_size):
    spec = parse_reducer(name)
    entries = [Entry(17 * i, tuple(shape)) for i, shape in enumerate(shapes)]
    by_rank = [spec.transfers(entries, world_size, r) for r in range(world_size)]
    assert len({len(transfers) for transfers in by_rank}) == 1
    for exchange in zip(*by_rank, strict=True):
        assert sum(t.sent_bytes for t in exchange) == sum(t.received_bytes for t in exchange)
    assert sent_bytes(spec, entries, world_size) == max(
        sum(t.sent_bytes for t in transfers) for transfers in by_rank
    )
    if world_size == 1:
        assert by_rank == [()]


@pytest.mark.parametrize("name", ["int4", "int1", "sign", "fp8", "topk", "random_k", "low_rank:2"])
@pytest.mark.parametrize("numel", [3_000_000_000, 5_000_000_000])
def test_g5_tensors_beyond_32_bits_have_whole_positive_sizes(name, numel):
    spec = parse_reducer(name)
    entries = [Entry(3, (numel // 1000, 1000))]
    for rank in range(3):
        for transfer in spec.transfers(entries, 3, rank):
            assert all(isinstance(n, int) for n in transfer)
            assert 0 < transfer.sent_bytes < 8 * numel
            assert 0 < transfer.received_bytes < 8 * numel


@pytest.mark.parametrize("numel", [3_000_000_000, 5_000_000_000])
def test_g5_stretches_keep_places_below_32_bits(numel):
    cut = stretches(numel)
    assert sum(s.numel for s in cut) == numel
    assert max(s.numel for s in cut) <= MAX_STRETCH < 2**31
    assert all(s.start % 256 == 0 for s in cut)
    exact = Sparse(0.01)
    assert exact.num_bytes([s.numel for s in cut]) >= 8 * numel // 100


def test_sparse_keeps_at_least_one_value_and_at_most_all():
    assert [Sparse(0.01).kept(n) for n in (0, 1, 100, 101)] == [0, 1, 1, 2]
    assert Sparse(1.0, "threshold").capacity(10) == 10
    assert Sparse(0.01, "random").num_bytes([]) == 0


def test_second_codec_is_finer_where_the_first_is_coarse():
    assert TwoPhase(Quantize(4)).mean_codec == Quantize(4)
    assert TwoPhase(Sign()).mean_codec == Quantize(4)
    assert TwoPhase(Quantize(4), second=Float("bfloat16")).mean_codec == Float("bfloat16")


def test_registries_know_every_spec():
    assert list(CODEC_SPECS) == ["bit_planes", "float", "quantize", "sign", "sparse"]
    assert list(REDUCER_SPECS) == ["all_reduce", "broadcast", "low_rank", "two_phase"]
