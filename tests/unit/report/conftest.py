"""A made-up result: numbers chosen so that every wording appears."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gradwire.report.model import (
    DemoResult,
    Environment,
    Family,
    MethodResult,
    Settings,
    Step,
    Validation,
)


def method(
    name: str, label: str, family: Family, *, exposed_s: float, worse: float
) -> MethodResult:
    steps = tuple(
        Step(
            step=i,
            loss=3.0 - 0.1 * i + worse + 0.01 * (i % 2),
            forward_s=0.1,
            backward_s=0.2,
            exposed_s=exposed_s + 0.002 * (i % 3),
            optimiser_s=0.01,
            sent_bytes=round(exposed_s * 25e6),
        )
        for i in range(12)
    )
    validation = Validation(12, 2.0 + worse, 0.4)
    return MethodResult(name, label, family, steps, (validation,), ("a1", "a1"))


@pytest.fixture(scope="session")
def result() -> DemoResult:
    return DemoResult(
        settings=Settings(
            task="text",
            num_parameters=10_900_000,
            ranks=2,
            steps=12,
            batch_size=8,
            seed=0,
            link_bytes_per_s=25e6,
            latency_s=0.001,
            untimed_steps=2,
        ),
        environment=Environment("0.1.0", "2.13.0", "3.13.0", "Linux", "Some <CPU>", 2),
        methods=(
            method("ddp", "plain DDP", "ddp", exposed_s=1.7, worse=0.0),
            method("fp16", "fp16 hook", "hook", exposed_s=0.8, worse=0.0),
            method("powersgd", "PowerSGD hook", "hook", exposed_s=0.1, worse=0.3),
            method("gradwire:int4", "gradwire int4", "gradwire", exposed_s=0.1001, worse=0.002),
        ),
        started="2026-01-02T03:04:05+00:00",
        wall_s=61.0,
    )


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
