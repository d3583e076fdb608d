import warnings

import pytest
import torch

from gradwire.engine.feedback import ErrorFeedback, StateWarning
from gradwire.errors import StateError
from gradwire.plan import Parameter, Plan, Rule
from gradwire.spec import Entry, parse_reducer

PARAMETERS = [
    Parameter("low", Entry(1, (40, 8, 4))),
    Parameter("bias", Entry(2, (64,))),
    Parameter("int4", Entry(3, (64, 32))),
]


def _feedback(parameters=None, plan: Plan | None = None) -> ErrorFeedback:
    parameters = PARAMETERS if parameters is None else parameters
    rules = (Rule(parse_reducer("low_rank:2"), match="low"), Rule(parse_reducer("int4")))
    assignments = (plan or Plan(rules)).assign(parameters, 2)
    return ErrorFeedback(parameters, assignments, torch.device("cpu"))


def _filled() -> ErrorFeedback:
    feedback = _feedback()
    feedback.state.residual.copy_(torch.arange(feedback.state.residual.numel()))
    feedback.state.factors["low"] = torch.ones(32, 2)
    return feedback


def test_only_parameters_with_feedback_have_a_place():
    feedback = _feedback()
    assert feedback.offsets == {"low": 0, "int4": 1280}
    assert feedback.num_bytes == 4 * (1280 + 2048)
    assert feedback.of("int4").shape == (64, 32)


def test_without_feedback_nothing_is_kept():
    feedback = _feedback(plan=Plan.of("none"))
    feedback.clear()
    feedback.rescale(2.0)
    assert feedback.state.residual is None
    assert feedback.num_bytes == 0
    assert feedback.tensors() == {"residual": {}, "factors": {}}
    feedback.load({"residual": {}, "factors": {}}, 1.0)


def test_of_is_a_view_of_the_parameter_alone():
    feedback = _feedback()
    feedback.of("int4").fill_(3.0)
    assert feedback.of("low").eq(0).all()
    assert feedback.of("int4").eq(3).all()


def test_clear_and_rescale_change_all_that_is_owed():
    feedback = _filled()
    before = feedback.state.residual.clone()
    feedback.rescale(0.5)
    assert torch.equal(feedback.state.residual, before / 2)
    feedback.clear()
    assert feedback.state.residual.eq(0).all()


def test_tensors_are_copies_with_the_same_keys_before_and_after_the_first_step():
    fresh, filled = _feedback(), _filled()
    assert {k: set(v) for k, v in fresh.tensors().items()} == {
        "residual": {"low", "int4"},
        "factors": {"low"},
    }
    saved = filled.tensors()
    filled.clear()
    assert saved["residual"]["int4"][0, 0] == 1280


@pytest.mark.parametrize(("scale", "expected"), [(1.0, 1280), (1.5, 1920), (None, 0)])
def test_load_takes_over_what_was_saved(scale, expected):
    feedback = _feedback()
    feedback.state.residual.fill_(7.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        feedback.load(_filled().tensors(), scale)
    assert feedback.of("int4")[0, 0] == expected
    assert feedback.state.factors["low"].eq(1).all()


def test_a_warm_start_that_never_was_stays_away():
    feedback = _filled()
    feedback.load(_feedback().tensors(), 1.0)
    assert feedback.state.factors == {}


@pytest.mark.parametrize("kind", ["residual", "factors"])
def test_load_refuses_other_shapes_by_name(kind):
    saved = _filled().tensors()
    saved[kind]["low"] = torch.zeros(3, 3)
    feedback = _filled()
    with pytest.raises(
        StateError, match=rf"{kind} of 'low' has shape \(3, 3\), the model asks"
    ) as e:
        feedback.load(saved, 1.0)
    assert e.value.unexpected == ("low",)
    assert feedback.of("int4")[0, 0] == 1280  # untouched


def test_load_names_what_is_missing_and_what_is_left_over():
    saved = _filled().tensors()
    saved["residual"]["old"] = saved["residual"].pop("int4")
    feedback = _filled()
    with pytest.warns(StateWarning, match=r"no residual for \['int4'\], unused .* of \['old'\]"):
        feedback.load(saved, 1.0)
    assert feedback.of("int4").eq(0).all()
    assert feedback.of("low").view(-1)[5] == 5
