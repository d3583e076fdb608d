"""Payload bytes and residuals are the frozen ones, from every back end."""

import json

import pytest
from write_kernels import PATH, cases, encode

from gradwire.kernels import cpu
from gradwire.kernels.select import REFERENCE

FROZEN = json.loads(PATH.read_text(encoding="utf-8"))


def test_golden_file_covers_every_case() -> None:
    assert set(FROZEN) == set(cases())


@pytest.mark.parametrize("name", FROZEN)
def test_reference_writes_the_frozen_bytes(name: str) -> None:
    op, *rest = cases()[name]
    assert encode(REFERENCE[op], *rest) == FROZEN[name]


@pytest.mark.skipif(cpu.missing() is not None, reason=f"native: {cpu.missing()}")
@pytest.mark.parametrize("name", FROZEN)
def test_native_writes_the_frozen_bytes(name: str) -> None:
    op, *rest = cases()[name]
    assert encode(cpu.KERNELS[op], *rest) == FROZEN[name]
