"""The simulator reproduces published figures, within the bounds that the docs state."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from published import FIGURES, broadcast, efficiency, resnet50

PAGE = Path(__file__).parents[3] / "docs/explanation/published.md"
ROW = re.compile(r"^\| `(.+?)` \|.*\| ([0-9.]+) \| ([0-9.]+) \| ([0-9.]+) % \|$", re.MULTILINE)
TABLE = {
    key: tuple(map(float, numbers))
    for key, *numbers in ROW.findall(PAGE.read_text(encoding="utf-8"))
}


def test_table_has_every_figure():
    assert list(TABLE) == list(FIGURES)


@pytest.mark.parametrize("key", FIGURES)
def test_figure_is_reproduced_within_its_bound(key):
    published, written, bound = TABLE[key]
    simulated = FIGURES[key]()
    assert simulated == pytest.approx(published, rel=bound / 100)
    assert simulated == pytest.approx(written, rel=0.01)


def test_bits_hidden_at_fast_links_are_sixteen_and_more():
    for ranks, gbit in ((4, 25), (4, 100), (8, 100)):
        step = broadcast(resnet50(), 16, ranks, gbit)
        assert step.exposed_s <= 0.02 * resnet50().compute_s


def test_more_bits_wait_longer_and_overlap_less():
    steps = [broadcast(resnet50(), bits, 8, 10) for bits in (3, 4, 8)]
    waits, rows = [s.exposed_s for s in steps], [s.row() for s in steps]
    assert waits == sorted(waits)
    assert rows == sorted(rows, reverse=True)


def test_compression_is_needed_at_10_gbit_and_not_at_100():
    assert efficiency(100, None) > 0.95
    assert efficiency(10, None) < 0.75
    assert efficiency(10, 32 / 2) > 0.9
    assert efficiency(10, 32 / 5) > 0.95


def test_fewer_plans_pay_at_faster_links():
    gains = [efficiency(gbit, 4) / efficiency(gbit, None) for gbit in (1, 10, 100, 1000)]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 2
    assert gains[-1] < 1.01
