"""How one plan follows another: what is owed goes along, or is paid."""

import pytest
import torch

from gradwire.engine.scheme import Place, Scheme
from gradwire.plan import Parameter, Plan, Rule
from gradwire.spec import Entry, parse_reducer

PARAMETERS = [
    Parameter("a", Entry(1, (40, 32))),
    Parameter("bias", Entry(2, (64,))),
    Parameter("b", Entry(3, (64, 32))),
]


def _scheme(plan: Plan | str) -> Scheme:
    return Scheme(_plan(plan), PARAMETERS, Place(2, torch.device("cpu")))


def _plan(plan: Plan | str) -> Plan:
    return Plan.of(plan) if isinstance(plan, str) else plan


def _owing(plan: Plan | str) -> Scheme:
    scheme = _scheme(plan)
    for number, name in enumerate(scheme.feedback.offsets):
        scheme.feedback.of(name).fill_(number + 1.0)
    return scheme


def test_residuals_go_along_by_name():
    after = _owing("int6").followed_by(Plan.of("int4"))
    assert not after.is_owing
    assert after.feedback.of("a").eq(1).all()
    assert after.feedback.of("b").eq(2).all()


def test_residuals_go_along_to_other_places():
    only_b = Plan((Rule(parse_reducer("int4"), match="b"),))
    after = _owing("int6").followed_by(only_b)
    assert after.feedback.of("b").eq(2).all()
    buffer = torch.zeros(1280 + 64)
    after.pay(buffer, ("bias", "a"))
    assert buffer[:64].eq(0).all()
    assert buffer[64:].eq(1).all()
    assert not after.is_owing


def test_what_is_owed_is_paid_once():
    after = _owing("int6").followed_by(Plan.of("none"))
    assert after.is_owing
    buffer = torch.zeros(1280)
    after.pay(buffer, ("a",))
    after.pay(buffer, ("a",))
    assert buffer.eq(1).all()


def test_unpaid_debts_survive_a_second_change():
    after = _owing("int6").followed_by(Plan.of("none")).followed_by(Plan.of("int8"))
    assert not after.is_owing
    assert after.feedback.of("b").eq(2).all()


def test_a_parameter_without_a_gradient_keeps_its_debt():
    after = _owing("int6").followed_by(Plan.of("none"))
    buffer = torch.zeros(1280)
    after.pay(buffer, ("a",), hold_unused=True)
    assert buffer.eq(0).all()
    buffer[5] = 1.0
    after.pay(buffer, ("a",), hold_unused=True)
    assert buffer.sum() == 1281


def test_rescale_reaches_what_is_to_be_paid():
    after = _owing("int6").followed_by(Plan.of("none"))
    after.rescale(0.5)
    buffer = torch.zeros(1280)
    after.pay(buffer, ("a",))
    assert buffer.eq(0.5).all()


def test_warm_starts_go_along_where_they_fit():
    scheme = _owing("low_rank:2")
    scheme.feedback.state.factors["a"] = torch.ones(32, 2)
    assert scheme.followed_by(Plan.of("low_rank:2")).feedback.state.factors["a"].eq(1).all()
    assert not scheme.followed_by(Plan.of("low_rank:1")).feedback.state.factors


@pytest.mark.parametrize(("plan", "is_dense"), [("none", True), ("int6", False)])
def test_dense_schemes_are_known(plan, is_dense):
    assert _scheme(plan).is_dense is is_dense
