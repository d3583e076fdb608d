"""Event simulation against formulas, where nothing contends."""

from __future__ import annotations

import pytest
from clusters import FAST, LINK, phases_s, star

from gradwire.sim import closed_form as form
from gradwire.sim.base import Cluster
from gradwire.sim.schedules import (
    Exchange,
    Ring,
    chain_broadcast,
    multicast,
    multicast_broadcast,
    tree_all_gather,
    tree_all_reduce,
    tree_broadcast,
    unicast_broadcast,
)

BYTES = 1200.0
BOTH = pytest.mark.parametrize("in_bulk", [False, True], ids=["messages", "phases"])
RANKS = pytest.mark.parametrize("ranks", [2, 3, 4, 6])


def _shards(ranks, total=BYTES):
    return {"groups": (tuple(range(ranks)),), "sizes": (total / ranks,) * ranks}


@BOTH
@RANKS
def test_ring_takes_its_formula(ranks, in_bulk):
    for laps, formula in ((1, form.ring_all_gather_s), (2, form.ring_all_reduce_s)):
        phase = Ring(**_shards(ranks), laps=laps)
        took_s, _ = phases_s([phase], star(ranks), in_bulk=in_bulk)
        assert took_s == pytest.approx(formula(BYTES, ranks, LINK))


@BOTH
@RANKS
def test_exchanges_take_their_formula(ranks, in_bulk):
    first, second = Exchange(**_shards(ranks)), Exchange(**_shards(ranks), is_to_owner=False)
    took_s, _ = phases_s([first], star(ranks), in_bulk=in_bulk)
    assert took_s == pytest.approx(form.exchange_s(BYTES, ranks, LINK))
    took_s, _ = phases_s([first, second], star(ranks), in_bulk=in_bulk)
    assert took_s == pytest.approx(form.two_phase_s(BYTES, ranks, LINK))


@BOTH
@RANKS
def test_trees_take_their_formula(ranks, in_bulk):
    for make, formula in (
        (tree_broadcast, form.tree_broadcast_s),
        (tree_all_reduce, form.tree_all_reduce_s),
    ):
        took_s, _ = phases_s([make(range(ranks), BYTES)], star(ranks), in_bulk=in_bulk)
        formula_s = formula(BYTES, ranks, LINK)
        if in_bulk or ranks in {2, 4}:
            assert took_s == pytest.approx(formula_s)
        # In a tree that is not full, the last message need not wait for an arrival before it.
        assert formula_s - 2 * LINK.latency_s <= took_s <= formula_s + 1e-9


@BOTH
@RANKS
def test_broadcasts_of_all_are_limited_by_what_arrives(ranks, in_bulk):
    payload = {"groups": (tuple(range(ranks)),), "sizes": (BYTES,) * ranks}
    cluster = star(ranks, is_multicast=True)
    for phase in (Exchange(**payload, is_to_owner=False), multicast(payload["sizes"])):
        took_s, _ = phases_s([phase], cluster, in_bulk=in_bulk)
        assert took_s == pytest.approx(form.all_broadcast_s(BYTES, ranks, LINK))


@BOTH
@RANKS
def test_broadcasts_of_one_take_their_formulas(ranks, in_bulk):
    everyone, cluster = range(ranks), star(ranks, is_multicast=True)
    took_s, _ = phases_s([unicast_broadcast(everyone, BYTES)], cluster, in_bulk=in_bulk)
    assert took_s == pytest.approx(form.unicast_broadcast_s(BYTES, ranks, LINK))
    took_s, _ = phases_s([multicast_broadcast(everyone, BYTES)], cluster, in_bulk=in_bulk)
    assert took_s == pytest.approx(form.message_s(BYTES, LINK))
    for chunks in (1, 4):
        phase = chain_broadcast(everyone, BYTES, chunks)
        took_s, _ = phases_s([phase], cluster, in_bulk=in_bulk)
        formula_s = form.chain_broadcast_s(BYTES, ranks, LINK, chunks)
        # Message by message, chunks follow each other without waiting for each other's latency.
        assert took_s <= formula_s + 1e-9
        if in_bulk or chunks == 1:
            assert took_s == pytest.approx(formula_s)


@BOTH
@pytest.mark.parametrize("shape", [(2, 2), (3, 2), (2, 4)])
def test_hierarchy_takes_its_formula(shape, in_bulk):
    nodes, local = shape
    ranks = nodes * local
    groups = tuple(tuple(range(n * local, (n + 1) * local)) for n in range(nodes))
    rails = tuple(tuple(range(r, ranks, local)) for r in range(local))
    within = {"groups": groups, "sizes": (BYTES / local,) * ranks}
    between = {"groups": rails, "sizes": (BYTES / ranks,) * ranks}
    phases = [
        Exchange(**within),
        Exchange(**between),
        Exchange(**between, is_to_owner=False),
        Exchange(**within, is_to_owner=False),
    ]
    took_s, _ = phases_s(phases, Cluster(ranks, local), in_bulk=in_bulk)
    assert took_s == pytest.approx(form.hierarchical_s(BYTES, shape, FAST, LINK))


@RANKS
def test_tree_gather_brings_everything_to_everyone(ranks):
    sizes = tuple(float(10 * (r + 1)) for r in range(ranks))
    phase = tree_all_gather(sizes)
    for rank in range(ranks):
        assert phase.received_bytes(rank) == pytest.approx(sum(sizes) - sizes[rank])
