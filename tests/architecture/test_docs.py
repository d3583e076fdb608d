"""What the documentation says exists, and is complete."""

from __future__ import annotations

import ast
import pkgutil
import re
from pathlib import Path

import pytest

import gradwire
from gradwire.spec import Entry, parse_reducer, sent_bytes

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
README_ROW = re.compile(
    r"^\| `([a-z0-9_:.@]+)`.*?\| .*? \| ([0-9.]+) \| ([0-9.]+)x \| ([0-9.]+)x \|", re.MULTILINE
)


def _blocks(page):
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        snippet = re.match(r'--8<-- "(.*)"\n', block)
        yield (ROOT / snippet[1]).read_text(encoding="utf-8") if snippet else block


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_in_docs_parses_and_uses_public_names(page):
    for block in _blocks(page):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "gradwire":
                assert node.attr in gradwire.__all__
            if isinstance(node, ast.ImportFrom) and node.module == "gradwire":
                assert {alias.name for alias in node.names} <= set(gradwire.__all__)


def test_reference_covers_every_module():
    pages = "\n".join(
        page.read_text(encoding="utf-8") for page in (ROOT / "docs/reference").glob("*.md")
    )
    listed = set(re.findall(r"^::: gradwire\.(\w+)$", pages, re.MULTILINE))
    modules = {info.name for info in pkgutil.iter_modules(gradwire.__path__)}
    assert listed == {name for name in modules if not name.startswith("_")}


def test_tests_named_in_docs_exist():
    sources = "\n".join(path.read_text(encoding="utf-8") for path in ROOT.glob("tests/**/*.py"))
    named = {
        name
        for page in PAGES
        for name in re.findall(r"`(test_\w+)`", page.read_text(encoding="utf-8"))
    }
    assert {name for name in named if f"def {name}(" not in sources} == set()


def test_readme_table_agrees_with_the_specs():
    rows = README_ROW.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(rows) >= 10
    matrix = [Entry(0, (1024, 1024))]
    dense = parse_reducer("none")
    for name, *numbers in rows:
        sent = [sent_bytes(parse_reducer(name), matrix, ranks) for ranks in (2, 4)]
        full = [sent_bytes(dense, matrix, ranks) for ranks in (2, 4)]
        expected = (32 * sent[0] / full[0], full[0] / sent[0], full[1] / sent[1])
        assert [float(n) for n in numbers] == pytest.approx(expected, rel=0.01), name


def test_frameworks_table_names_the_versions_that_the_tests_install():
    table = (ROOT / "docs/how-to/frameworks.md").read_text(encoding="utf-8")
    lines = (ROOT / "requirements/constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines)
    packages = {"Ray Train": "ray", "Lightning Fabric": "lightning"}
    rows = re.findall(r"^\| ([^|`]+?) \| ([\d.]+) \| `", table, re.MULTILINE)
    assert {name for name, _ in rows} == {
        *packages,
        "Accelerate",
        "Lightning",
        "Transformers",
        "torchft",
    }
    for name, version in rows:
        assert version == pins[packages.get(name, name.lower())]
    assert set(re.findall(r"\| torch ([\d.]+) \|", table)) == {pins["torch"].rpartition(".")[0]}
