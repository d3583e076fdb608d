import pickle

import pytest

from gradwire import errors

EXAMPLES = [
    errors.GradwireError("plain"),
    errors.SpecError("Quantize.bits", 9, "between 1 and 8"),
    errors.UnknownIdError("codec", "int9", ["int4", "int8"]),
    errors.PayloadError("Quantize", expected_bytes=32, actual_bytes=31),
    errors.BackendError("quantize_encode", "native", "no library was built"),
    errors.CollectiveError("exchange", 1, "peer gone"),
    errors.RankMismatchError("attach", 0, "plans differ", {0: "aa", 1: "bb"}),
    errors.StateError("no state", missing=["rank1"], unexpected=["rank7"]),
    errors.CommandError("no such task", exit_code=2),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda e: type(e).__name__)
def test_every_error_is_one_of_ours_and_speaks(error):
    assert isinstance(error, errors.GradwireError)
    assert str(error)


def test_errors_are_also_what_python_calls_them():
    assert issubclass(errors.SpecError, ValueError)
    assert issubclass(errors.PayloadError, ValueError)
    assert issubclass(errors.BackendError, RuntimeError)
    assert issubclass(errors.RankMismatchError, errors.CollectiveError)
    assert issubclass(errors.CollectiveError, RuntimeError)
    assert issubclass(errors.StateError, RuntimeError)


def test_every_error_class_has_an_example_here():
    classes = {
        c
        for c in vars(errors).values()
        if isinstance(c, type) and c.__module__ == "gradwire.errors"
    }
    assert classes == {type(e) for e in EXAMPLES}


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda e: type(e).__name__)
def test_errors_survive_the_way_to_another_process(error):
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.__dict__ == error.__dict__


def test_fields_say_what_the_message_says():
    unknown = errors.UnknownIdError("codec", "int9", ["int4", "int8"])
    assert (unknown.id, unknown.known, unknown.field) == ("int9", ("int4", "int8"), "codec")
    payload = errors.PayloadError("Quantize", expected_bytes=32, actual_bytes=31)
    assert (payload.expected_bytes, payload.actual_bytes) == (32, 31)
    mismatch = errors.RankMismatchError("attach", 0, "plans differ", {0: "aa", 1: "bb"})
    assert (mismatch.op, mismatch.rank, mismatch.digests) == ("attach", 0, {0: "aa", 1: "bb"})
    state = errors.StateError("no state", missing=["a"], unexpected=["b"])
    assert (state.missing, state.unexpected) == (("a",), ("b",))
    backend = errors.BackendError("op", "native", "why")
    assert (backend.op, backend.backend, backend.reason) == ("op", "native", "why")
