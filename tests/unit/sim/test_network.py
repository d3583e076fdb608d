"""Sharing of links: fairness, priorities, change, conservation."""

from __future__ import annotations

import math

import pytest
from clusters import hardware, phases_s
from hypothesis import given
from hypothesis import strategies as st

from gradwire.sim.base import TOPOLOGIES, Cluster, Trace
from gradwire.sim.events import EventQueue
from gradwire.sim.network import Network, max_min
from gradwire.sim.schedules import Exchange, Message, Rounds

LINKS = 6


@st.composite
def _graphs(draw):
    weight = st.sampled_from([0.5, 1.0, 2.0])
    path = st.dictionaries(st.integers(0, LINKS - 1), weight, min_size=1, max_size=4)
    paths = [tuple(p.items()) for p in draw(st.lists(path, min_size=1, max_size=12))]
    rates = draw(st.lists(st.floats(0.1, 100.0), min_size=LINKS, max_size=LINKS))
    return paths, dict(enumerate(rates))


def _water_filling(paths, rates):
    """Raise all rates alike until a link is full; its flows keep theirs."""
    out, level, active = [0.0] * len(paths), 0.0, set(range(len(paths)))
    left = dict(rates)
    while active:
        pull = {link: sum(w for f in active for n, w in paths[f] if n == link) for link in rates}
        rise = min(left[n] / p for n, p in pull.items() if p > 0)
        level += rise
        for link, p in pull.items():
            left[link] -= rise * p
        full = {n for n, p in pull.items() if p > 0 and left[n] <= 1e-9 * rates[n]}
        for flow in [f for f in active if any(n in full for n, _ in paths[f])]:
            out[flow] = level
            active.discard(flow)
    return out


@given(_graphs())
def test_rates_equal_water_filling(graph):
    paths, rates = graph
    assert max_min(paths, rates) == pytest.approx(_water_filling(paths, rates), rel=1e-6)


@given(_graphs())
def test_no_link_carries_more_than_its_rate(graph):
    paths, rates = graph
    got = max_min(paths, rates, [i % 2 for i in range(len(paths))])
    for link, rate in rates.items():
        used = sum(got[f] * w for f, path in enumerate(paths) for n, w in path if n == link)
        assert used <= rate * (1 + 1e-9)


def test_first_priority_takes_all_it_can():
    paths = [((0, 1.0),), ((0, 1.0), (1, 1.0))]
    assert max_min(paths, {0: 10.0, 1: 4.0}, [1, 0]) == [6.0, 4.0]


def _finish_s(flows, rates):
    queue, ends = EventQueue(), {}
    network = Network(queue, rates)
    for name, (start_s, path, num_bytes, priority) in flows.items():
        queue.at(
            start_s,
            lambda n=name, p=path, b=num_bytes, q=priority: network.start(
                p, b, lambda: ends.setdefault(n, queue.now_s), q
            ),
        )
    queue.run()
    return ends


def test_two_equal_flows_take_twice_as_long():
    path = ((0, 1.0),)
    one = _finish_s({"a": (0.0, path, 100.0, 0)}, [10.0])
    two = _finish_s(dict.fromkeys("ab", (0.0, path, 100.0, 0)), [10.0])
    assert (one["a"], two["a"], two["b"]) == (10.0, 20.0, 20.0)


def test_flow_speeds_up_when_another_ends():
    path = ((0, 1.0),)
    ends = _finish_s({"a": (0.0, path, 100.0, 0), "b": (0.0, path, 50.0, 0)}, [10.0])
    assert ends == {"b": 10.0, "a": 15.0}


def test_urgent_flow_interrupts():
    path = ((0, 1.0),)
    ends = _finish_s({"slow": (0.0, path, 100.0, 1), "urgent": (5.0, path, 50.0, 0)}, [10.0])
    assert ends == {"urgent": 10.0, "slow": 15.0}


def test_unlimited_link_takes_no_time():
    assert _finish_s({"a": (1.0, ((0, 1.0),), 100.0, 0)}, [math.inf]) == {"a": 1.0}


def test_trace_changes_the_rate_under_way():
    cluster = Cluster(2, traces={0: Trace((1.0,), (10.0,))})
    message = Rounds(rounds=((Message(0, (1,), 150.0),),))
    took_s, _ = phases_s([message], cluster)
    assert took_s == pytest.approx(1.0 + 50.0 / 10.0 + 0.5)


def test_half_duplex_takes_twice_as_long():
    exchange = Exchange(groups=((0, 1),), sizes=(100.0, 100.0))
    both = [phases_s([exchange], Cluster(2, is_full_duplex=full))[0] for full in (True, False)]
    assert both == pytest.approx([1.5, 2.5])


def test_oversubscribed_tree_is_slower_between_leaves():
    exchange = Exchange(groups=(tuple(range(8)),), sizes=(100.0,) * 8)
    times = [
        phases_s([exchange], Cluster(8, topology="tree", nodes_per_leaf=4, oversubscription=o))[0]
        for o in (1.0, 4.0)
    ]
    assert times == pytest.approx([7.5, 0.5 + 4 * 4 * 100 / 100])


def test_interfaces_of_a_node_work_side_by_side():
    phase = Exchange(groups=((0, 2), (1, 3)), sizes=(100.0,) * 4)
    times = [phases_s([phase], Cluster(4, 2, interfaces=i))[0] for i in (1, 2)]
    assert times == pytest.approx([2.5, 1.5])


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("per_node", [1, 2])
@pytest.mark.parametrize("is_to_owner", [True, False])
def test_bulk_counts_what_messages_count(topology, per_node, is_to_owner):
    cluster = Cluster(12, per_node, topology, nodes_per_leaf=4, oversubscription=2.0)
    sizes = tuple(float(10 + r) for r in range(12))
    exchange = Exchange(groups=(tuple(range(12)),), sizes=sizes, is_to_owner=is_to_owner)
    single, bulk = (phases_s([exchange], cluster, in_bulk=b)[1] for b in (False, True))
    assert bulk == pytest.approx(single)
    assert sum(map(exchange.sent_bytes, range(12))) == pytest.approx(
        sum(map(exchange.received_bytes, range(12)))
    )


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_time_falls_as_bandwidth_rises(topology):
    exchange = Exchange(groups=(tuple(range(8)),), sizes=(100.0,) * 8)
    times = []
    for rate in (50.0, 100.0, 200.0, 400.0):
        speeds = hardware()
        between = type(speeds.between)(0.5, rate)
        cluster = Cluster(8, topology=topology)
        times.append(phases_s([exchange], cluster, speeds=hardware(between=between))[0])
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == len(times)


def test_torus_goes_the_short_way_round():
    message = Rounds(rounds=((Message(0, (3,), 100.0),),))
    assert list(phases_s([message], Cluster(4, topology="ring"))[1]) == ["node0>node3"]
    _, loads = phases_s(
        [Rounds(rounds=((Message(0, (5,), 100.0),),))], Cluster(9, topology="torus")
    )
    assert list(loads) == ["node0>node2", "node2>node5"]
