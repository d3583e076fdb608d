"""Whatever can be asked for can be built, and whatever is built can be asked for."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest

import gradwire.codecs
import gradwire.reduce
from gradwire.codecs.base import CODECS
from gradwire.reduce.base import REDUCERS
from gradwire.spec import CODEC_SPECS, REDUCER_SPECS

PAIRS = {
    "codec": (gradwire.codecs, CODECS, CODEC_SPECS, {"encode", "decode"}),
    "reducer": (gradwire.reduce, REDUCERS, REDUCER_SPECS, {"part", "reduce"}),
}


def _classes(package, methods):
    for info in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        module = importlib.import_module(info.name)
        for _, cls in inspect.getmembers(module, inspect.isclass):
            defined_here = cls.__module__ == info.name and not cls.__name__.startswith("_")
            is_protocol = getattr(cls, "_is_protocol", False)
            if defined_here and not is_protocol and methods <= set(dir(cls)):
                yield cls


@pytest.mark.parametrize("kind", PAIRS)
def test_every_spec_has_a_class_and_every_class_a_spec(kind):
    _, classes, specs, _ = PAIRS[kind]
    assert list(classes) == list(specs)


@pytest.mark.parametrize("kind", PAIRS)
def test_every_class_is_registered(kind):
    package, classes, _, methods = PAIRS[kind]
    registered = {classes[key] for key in classes}
    assert {cls.__qualname__ for cls in set(_classes(package, methods)) - registered} == set()


@pytest.mark.parametrize("kind", PAIRS)
def test_every_spec_is_a_frozen_dataclass_that_knows_its_id(kind):
    _, _, specs, _ = PAIRS[kind]
    for key in specs:
        assert specs[key].id == key
        assert specs[key].__dataclass_params__.frozen
