import json

import pytest

from gradwire.errors import SpecError, UnknownIdError
from gradwire.plan import DENSE, Parameter, Plan, Rule, load_plan
from gradwire.spec import Broadcast, Entry, LowRank, Quantize, parse_reducer

MATRIX = Parameter("net.0.weight", Entry(1, (64, 64)))
INT4 = parse_reducer("int4")


def _parameter(name: str, *shape: int, **fields: object) -> Parameter:
    return Parameter(name, Entry(1, shape), **fields)


def _file(**changes: object) -> str:
    return json.dumps({**json.loads(Plan.of("int4").to_json()), **changes})


def test_the_first_rule_that_matches_decides():
    plan = Plan(
        (
            Rule(parse_reducer("int8"), match="net.1.*"),
            Rule(LowRank(2), min_ndim=4),
            Rule(INT4),
        )
    )
    parameters = [
        MATRIX,
        _parameter("net.1.weight", 64, 64),
        _parameter("conv", 32, 32, 3, 3),
        _parameter("bias", 5000),
        _parameter("small", 10, 10),
    ]
    chosen = plan.assign(parameters, 2)
    assert chosen["net.0.weight"].reducer == INT4
    assert chosen["net.1.weight"].reducer == parse_reducer("int8")
    assert chosen["conv"].reducer == LowRank(2)
    assert chosen["bias"] == (DENSE, "1 dimensions, fewer than 2")
    assert chosen["small"] == (DENSE, "100 values, fewer than 1024")


@pytest.mark.parametrize(
    ("parameter", "plan", "reason"),
    [
        (_parameter("e", 64, 64, is_sparse=True), Plan.of("int4"), "sparse gradient"),
        (
            _parameter("d", 64, 64, dtype="float64"),
            Plan.of("int4"),
            "float64 is averaged in its own precision",
        ),
        (MATRIX, Plan(()), "the plan has no rules"),
        (MATRIX, Plan.of("none"), "the plan says so"),
        (
            MATRIX,
            Plan((Rule(INT4, match="head.*"),)),
            "no rule matches its name (last pattern: head.*)",
        ),
    ],
)
def test_a_dense_parameter_has_its_reason(parameter, plan, reason):
    assert plan.assign([parameter], 2)[parameter.name] == (DENSE, reason)


@pytest.mark.parametrize("shape", [(3, 3), (1, 1000), (10, 2)])
def test_m2_what_would_grow_stays_dense(shape):
    plan = Plan((Rule(LowRank(4), min_numel=1), Rule(INT4)))
    reducer, reason = plan.assign([_parameter("thin", *shape)], 2)["thin"]
    assert reducer == DENSE
    assert "would send" in reason


def test_a_broadcast_of_many_ranks_stays_dense():
    plan = Plan((Rule(Broadcast(Quantize(8))),))
    assert plan.assign([MATRIX], 2)[MATRIX.name].dense_reason is None
    assert "would send" in plan.assign([MATRIX], 64)[MATRIX.name].dense_reason


def test_with_one_rank_nothing_is_sent_and_the_plan_stands():
    assert Plan.of("int4").assign([MATRIX], 1)[MATRIX.name] == (INT4, None)


@pytest.mark.parametrize("spec", ["int4", "low_rank:2", "low_rank:64"])
@pytest.mark.parametrize("shape", [(64, 64), (5000, 1), (2, 3)])
def test_one_rank_keeps_residuals_exactly_where_two_do(spec, shape):
    plan = Plan((Rule(parse_reducer(spec), min_numel=0),))
    one, two = (plan.assign([_parameter("w", *shape)], ranks)["w"] for ranks in (1, 2))
    assert one == two


@pytest.mark.parametrize("name", ["none", "int4", "topk:0.1@broadcast", "low_rank:3", "sign"])
def test_plans_survive_json(name):
    plan = Plan((Rule(parse_reducer(name), "*.w", 7, 1),), seed=3, warmup_steps=9)
    copy = Plan.from_json(plan.to_json())
    assert copy == plan
    assert copy.digest() == plan.digest()


def test_the_digest_depends_on_every_field():
    plans = [
        Plan.of("int4"),
        Plan.of("int4", seed=1),
        Plan((Rule(INT4),), warmup_steps=1),
        Plan((Rule(INT4, match="a"),)),
        Plan((Rule(INT4, min_numel=1),)),
        Plan((Rule(INT4, min_ndim=1),)),
        Plan(()),
        Plan((Rule(INT4), Rule(INT4))),
    ]
    assert len({p.digest() for p in plans}) == len(plans)


@pytest.mark.parametrize("rules", ["int4", ("int4",), None, INT4, Rule(INT4), {"a": 1}])
def test_rules_that_are_none_are_refused(rules):
    with pytest.raises(SpecError, match=r"Plan\.rules=.* is not a tuple of rules"):
        Plan(rules)


def test_a_list_of_rules_becomes_a_tuple():
    assert Plan([Rule(INT4)]) == Plan((Rule(INT4),))


def test_a_rule_of_a_class_in_place_of_a_spec_is_refused():
    with pytest.raises(SpecError, match=r"Rule\.reducer=<class .*> is not a reducer spec"):
        Rule(LowRank)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "plan='' is not JSON"),
        ("{", "plan='{' is not JSON"),
        ("[" * 100_000, "is not JSON: maximum recursion depth"),
        ('{"format": 1, "seed": ' + 5000 * "9" + "}", "is not JSON: Exceeds the limit"),
        ("[]", r"plan format=\[\] is not 1"),
        ("{}", "plan format=None is not 1"),
        ('{"format": 2}', "plan format=2 is not 1, the one this version reads"),
        (
            _file(seeds=1),
            "plan field='seeds' is not one of: adaptive, auto, format, rules, seed, warmup_steps",
        ),
        (_file(rules=5), "plan rules=5 is not a list"),
        (_file(rules=[5]), "plan rule=5 is not an object"),
        (_file(rules=[{}]), "plan rule={} is not complete: 'reducer'"),
        (_file(rules=[{"reducer": to}] if (to := {"id": "low_rank", "x": 1}) else 0), "field='x'"),
        (
            _file(rules=[{"reducer": {"id": "low_rank"}, "matches": "*"}]),
            "plan rule=.* is not complete: .*matches",
        ),
        (
            _file(rules=[{"reducer": {"id": "low_rank"}, "match": 5}]),
            "Rule.match=5 is not a shell pattern",
        ),
        (
            _file(rules=[{"reducer": {"id": "low_rank"}, "min_numel": "many"}]),
            "Rule.min_numel='many' is not a whole number",
        ),
        (
            _file(rules=[{"reducer": {"id": "low_rank"}, "min_ndim": -1}]),
            "Rule.min_ndim=-1 is not a whole number of at least 0",
        ),
        (_file(seed="lucky"), "Plan.seed='lucky' is not a whole number"),
        (_file(warmup_steps=-3), "Plan.warmup_steps=-3 is not a whole number of at least 0"),
        (_file(warmup_steps=1.5), "Plan.warmup_steps=1.5 is not a whole number"),
    ],
)
def test_a_file_that_holds_no_plan_is_refused_in_words(text, message):
    with pytest.raises(SpecError, match=message):
        Plan.from_json(text)


def test_load_plan_takes_whatever_attach_takes(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(Plan.of("int8").to_json(), encoding="utf-8")
    assert load_plan(None) == Plan.of("int6")
    assert load_plan(Plan.of("sign")) == Plan.of("sign")
    assert load_plan(LowRank(2)) == Plan.of(LowRank(2))
    assert load_plan("int8") == load_plan(path) == load_plan(str(path)) == Plan.of("int8")


def test_load_plan_refuses_what_is_no_plan(tmp_path):
    with pytest.raises(SpecError, match="is not the path of an existing file"):
        load_plan(tmp_path)
    with pytest.raises(SpecError, match=r"plan='gone\.json' is not the path"):
        load_plan("gone.json")
    with pytest.raises(UnknownIdError, match="spec='gone' is not one of: none"):
        load_plan("gone")
    with pytest.raises(SpecError, match=r"Rule\.reducer=7 is not a reducer spec"):
        load_plan(7)
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    with pytest.raises(SpecError, match="is not a text file"):
        load_plan(tmp_path / "bytes.json")
