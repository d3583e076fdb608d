"""The public surface, written out: a name comes or goes only on purpose."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import gradwire

PUBLIC = {
    "Adaptive",
    "AllReduce",
    "Auto",
    "BackendError",
    "BitPlanes",
    "Broadcast",
    "CollectiveError",
    "CommandError",
    "Float",
    "GradwireError",
    "Hierarchical",
    "LowRank",
    "PayloadError",
    "Plan",
    "Quantize",
    "RankMismatchError",
    "Rule",
    "SharedScale",
    "Sign",
    "Sparse",
    "SpecError",
    "StateError",
    "TwoPhase",
    "UnknownIdError",
    "__version__",
    "attach",
    "find_ddp",
    "load_plan",
    "overlap",
    "parse_reducer",
    "wrap",
}
TORCH_FREE = ("gradwire", "gradwire.cli", "gradwire.plan", "gradwire.report")


def test_public_names_are_these():
    assert set(gradwire.__all__) == PUBLIC
    assert len(gradwire.__all__) == len(PUBLIC)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_public_name_exists_and_is_listed(name):
    assert getattr(gradwire, name) is not None
    assert name in dir(gradwire)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'gradwire' has no attribute 'atach'"):
        _ = gradwire.atach


def test_names_loaded_on_use_are_those_that_type_checkers_see():
    tree = ast.parse(Path(gradwire.__file__).read_text(encoding="utf-8"))
    guards = [
        n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"
    ]
    typed = {
        alias.name: statement.module
        for guard in guards
        for statement in guard.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert typed == gradwire._LOADED_ON_USE


@pytest.mark.parametrize("module", TORCH_FREE)
def test_import_does_not_load_torch(module):
    code = (
        f"import sys, {module}; "
        "print(sorted({'torch', 'numpy', 'triton', 'matplotlib', 'sklearn'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_version_is_the_one_of_the_installed_package():
    assert gradwire.__version__.count(".") == 2
