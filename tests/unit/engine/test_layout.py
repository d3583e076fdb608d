import pytest
import torch

from gradwire.engine.layout import Layouts, storage_shape
from gradwire.errors import SpecError
from gradwire.plan import DENSE, Parameter, Plan, Rule
from gradwire.spec import Entry, parse_reducer

PARAMETERS = [
    Parameter("a", Entry(1, (64, 64))),
    Parameter("bias", Entry(2, (64,))),
    Parameter("b", Entry(3, (32, 64))),
    Parameter("none", Entry(4, (0, 4))),
    Parameter("c", Entry(5, (128, 64))),
]
OFFSETS = {"a": 0, "b": 4096, "c": 6144}


def _layouts() -> Layouts:
    plan = Plan((Rule(parse_reducer("int8"), match="b"), Rule(parse_reducer("int4"))))
    return Layouts(PARAMETERS, plan.assign(PARAMETERS, 2), OFFSETS, 2)


def test_parameters_are_grouped_by_reducer_dense_ones_last():
    layout = _layouts().of(("bias", "a", "b", "none", "c"), 14400, all_dense=False)
    specs = [reducer.spec for reducer, _ in layout.parts]
    names = [[slot.name for slot in part.slots] for _, part in layout.parts]
    assert specs == [parse_reducer("int4"), parse_reducer("int8"), DENSE]
    assert names == [["a", "c"], ["b"], ["bias"]]
    slots = {slot.name: slot for _, part in layout.parts for slot in part.slots}
    assert [slots[n].offset for n in ("bias", "a", "b", "c")] == [0, 64, 4160, 6208]
    assert [slots[n].residual_offset for n in ("a", "b", "c")] == [0, 4096, 6144]


def test_a_layout_is_made_once_for_each_composition():
    layouts = _layouts()
    first = layouts.of(("a", "b"), 6144, all_dense=False)
    assert layouts.of(("a", "b"), 6144, all_dense=False) is first
    assert layouts.of(("b", "a"), 6144, all_dense=False) is not first


def test_everything_is_dense_during_warm_up():
    layouts = _layouts()
    (only,) = layouts.of(("a", "b"), 6144, all_dense=True).parts
    assert only[0].spec == DENSE
    assert len(layouts.of(("a", "b"), 6144, all_dense=False).parts) == 2


def test_reducers_are_shared_between_layouts():
    layouts = _layouts()
    ((first, _),) = layouts.of(("a",), 4096, all_dense=False).parts
    ((second, _),) = layouts.of(("c",), 8192, all_dense=False).parts
    assert first is second


def test_a_bucket_of_another_size_than_its_parameters_is_refused():
    with pytest.raises(SpecError, match=r"bucket size=4000 is not 4096, the size of \['a'\]"):
        _layouts().of(("a",), 4000, all_dense=False)


def test_a_bucket_of_empty_parameters_has_no_parts():
    assert _layouts().of(("none",), 0, all_dense=False).parts == ()


@pytest.mark.parametrize(
    ("tensor", "shape"),
    [
        (torch.zeros(4, 5), (4, 5)),
        (torch.zeros(4, 5).T, (4, 5)),
        (torch.zeros(()), ()),
        (torch.zeros(0, 4), (0, 4)),
        (torch.zeros(7), (7,)),
        (torch.zeros(3, dtype=torch.complex64), (3, 2)),
        (torch.zeros(8, 4, 3, 5).to(memory_format=torch.channels_last), (8, 3, 5, 4)),
        (torch.zeros(1, 4, 3, 3).to(memory_format=torch.channels_last), (1, 3, 3, 4)),
        (torch.zeros(2, 4, 3, 3, 3).to(memory_format=torch.channels_last_3d), (2, 3, 3, 3, 4)),
        (torch.zeros(4, 6)[:, ::2], (4, 3)),
        (torch.zeros(6).expand(4, 6), (4, 6)),
    ],
    ids=lambda value: "x".join(map(str, value.stride())) if isinstance(value, torch.Tensor) else "",
)
def test_storage_shape_follows_memory_where_memory_is_dense(tensor, shape):
    assert storage_shape(tensor) == shape
    assert torch.Size(shape).numel() == tensor.numel() * (2 if tensor.is_complex() else 1)
