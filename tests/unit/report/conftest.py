"""The results that reports are made from, and how their texts are checked."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gradwire.report.model import DemoResult
from gradwire.report.results import BenchResult
from made_results import bench_result, demo_result


@pytest.fixture(scope="session")
def result() -> DemoResult:
    return demo_result()


@pytest.fixture(scope="session")
def bench() -> BenchResult:
    return bench_result()


@pytest.fixture
def matches_snapshot() -> Callable[[str, str], None]:
    """Compares a text with a stored one; GRADWIRE_ACCEPT=1 stores it anew."""

    def compare(name: str, text: str) -> None:
        path = Path(__file__).parent / "snapshots" / name
        if os.environ.get("GRADWIRE_ACCEPT") == "1":
            path.parent.mkdir(exist_ok=True)
            path.write_text(text + "\n", encoding="utf-8")
        assert text + "\n" == path.read_text(encoding="utf-8")

    return compare
