"""What a reader may count on in every docstring."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
from types import ModuleType

import pytest

import gradwire

MAX_FIRST_LINE = 80
EXTRAS = {
    f"gradwire.integrations.{package}": package
    for package in ("accelerate", "lightning", "ray", "torchft", "transformers")
}
MISSING = {m: p for m, p in EXTRAS.items() if importlib.util.find_spec(p) is None}


def _modules():
    yield gradwire
    for info in pkgutil.walk_packages(gradwire.__path__, "gradwire."):
        if not info.name.rsplit(".", 1)[1].startswith("_") and info.name not in MISSING:
            yield importlib.import_module(info.name)


def _is_ours(value: object, module: ModuleType) -> bool:
    is_code = inspect.isclass(value) or inspect.isroutine(value)
    return is_code and getattr(value, "__module__", None) == module.__name__


def _public(module):
    yield module.__name__, module
    for name, value in vars(module).items():
        if name.startswith("_") or not _is_ours(value, module):
            continue
        yield f"{module.__name__}.{name}", value
        if inspect.isclass(value):
            for method_name, method in vars(value).items():
                code = getattr(method, "__func__", method)
                if not method_name.startswith("_") and (
                    inspect.isfunction(code) or isinstance(code, property)
                ):
                    yield f"{module.__name__}.{name}.{method_name}", code


DOCUMENTED = {name: value for module in _modules() for name, value in _public(module)}
PUBLIC = sorted(set(gradwire.__all__) - {"__version__"})


@pytest.mark.parametrize("name", EXTRAS)
def test_module_of_an_extra_is_among_them(name):
    if name in MISSING:
        pytest.skip(f"{MISSING[name]} is not installed")
    assert name in DOCUMENTED


def test_modules_are_found():
    assert {"gradwire.plan", "gradwire.plan.Plan", "gradwire.plan.Plan.of"} <= set(DOCUMENTED)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_docstring_says_in_its_first_line_what_it_does(name):
    doc = DOCUMENTED[name].__doc__
    assert doc, f"{name} has no docstring"
    first = doc.splitlines()[0]
    assert first, f"{name}: the docstring begins with an empty line"
    assert len(first) < MAX_FIRST_LINE
    assert first.rstrip()[-1] in ".?!:"


@pytest.mark.parametrize("name", PUBLIC)
def test_public_name_has_an_example(name):
    assert ">>> " in inspect.getdoc(getattr(gradwire, name))
