"""Options of `gradwire simulate` that describe the cluster."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from gradwire.cli import main

NETWORK = ("--network", "lenet5:8", "--rate", "1Gbit/s")


def simulate(*args):
    return CliRunner().invoke(main, ["simulate", *NETWORK, *args], prog_name="gradwire")


def step_of(tmp_path, *args):
    path = tmp_path / "step.json"
    done = simulate(*args, "--json", str(path), "--force")
    assert done.exit_code == 0, done.output
    return json.loads(path.read_text())


def test_simulate_counts_nodes_in_place_of_ranks(tmp_path):
    step = step_of(tmp_path, "--nodes", "3", "--ranks-per-node", "2")
    assert step["ranks"] == 6
    assert {"node2>", ">rank5"} <= step["link_bytes"].keys()


def test_simulate_prints_bytes_of_each_link():
    done = simulate("--ranks", "4", "--plan", "none")
    assert done.exit_code == 0
    assert len(re.findall(r"│ >?node\d>? +│ [\d.]+ kB", done.output)) == 8
    many = simulate("--ranks", "64")
    assert "112 more links carry no more" in many.output
    assert "up to 128 ranks" in simulate("--ranks", "256").output


def test_simulate_small_buckets_hide_more_and_send_as_much(tmp_path):
    whole, cut = (
        step_of(tmp_path, "--ranks", "2", "--plan", "none", "--bucket", size)
        for size in ("25MiB", "10kB")
    )
    assert cut["sent_bytes"] == pytest.approx(whole["sent_bytes"], rel=0.01)
    assert cut["exposed_s"] < whole["exposed_s"]


def test_simulate_oversubscribed_tree_is_slower(tmp_path):
    tree = ("--nodes", "8", "--topology", "tree", "--nodes-per-leaf", "2")
    full, narrow = (
        step_of(tmp_path, *tree, "--oversubscription", factor) for factor in ("1", "16")
    )
    assert narrow["step_s"] > full["step_s"]
    assert "leaf0>" in narrow["link_bytes"]


def test_simulate_stragglers_delay_and_are_drawn_from_the_seed(tmp_path):
    plain = step_of(tmp_path, "--ranks", "4")
    args = ("--ranks", "4", "--straggler", "lognormal:3", "--straggler", "constant:5:1+2")
    first, again = (step_of(tmp_path, *args, "--seed", "7") for _ in range(2))
    assert first["step_s"] == again["step_s"] > plain["step_s"]
    assert step_of(tmp_path, *args, "--seed", "8")["step_s"] != first["step_s"]


def test_simulate_follows_a_bandwidth_trace(tmp_path):
    plain = step_of(tmp_path, "--ranks", "2", "--plan", "none")
    all_nodes = step_of(
        tmp_path, *("--ranks", "2", "--plan", "none", "--bandwidth-trace", "0s=100Mbit/s")
    )
    one_node = step_of(
        tmp_path,
        *("--ranks", "2", "--plan", "none", "--bandwidth-trace", "1:0s=100Mbit/s,1s=1Gbit/s"),
    )
    assert plain["step_s"] < one_node["step_s"] <= all_nodes["step_s"]


def test_simulate_multicast_loads_senders_less(tmp_path):
    broadcast = ("--ranks", "4", "--plan", "int4@broadcast")
    unicast = step_of(tmp_path, *broadcast)["link_bytes"]
    multicast = step_of(tmp_path, *broadcast, "--multicast", "--collective", "multicast")
    assert multicast["link_bytes"]["node0>"] < unicast["node0>"] / 2
    assert multicast["link_bytes"][">node0"] > 0.9 * unicast[">node0"]


@pytest.mark.parametrize("topology", ["star", "ring", "tree", "mesh", "torus"])
def test_simulate_knows_every_topology(tmp_path, topology):
    links = step_of(tmp_path, "--ranks", "6", "--topology", topology)["link_bytes"]
    assert links
    assert all(num_bytes > 0 for num_bytes in links.values())


def test_simulate_sums_levels_of_a_shared_scale(tmp_path):
    args = ("--ranks", "4", "--plan")
    shared, own, floats = (
        step_of(tmp_path, *args, plan)["sent_bytes"]
        for plan in ("int4@shared_scale", "int8@two_phase", "fp8@shared_scale")
    )
    assert 0.9 < shared / own < 1.1  # 8 bits out and 8 bits back, as levels or as int8
    assert 0.9 < floats / own < 1.1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--nodes", "2", "--ranks", "4"), "--nodes takes the place of --ranks"),
        (("--oversubscription", "2"), "--oversubscription needs --topology tree"),
        (("--straggler", "normal"), "such as normal:0.1"),
        (("--straggler", "odd:1"), "one of: constant"),
        (("--straggler", "normal:0.1:9"), "Straggler.ranks"),
        (("--bandwidth-trace", "x:0s=1Gbit/s"), "no node's number"),
        (("--bandwidth-trace", "1Gbit/s"), "TIME=RATE"),
        (("--bandwidth-trace", "9:0s=1Gbit/s"), "Cluster.traces"),
        (("--bucket", "many"), 'such as "25MiB"'),
        (("--sweep", "--nodes", "2"), "--nodes is of one step"),
    ],
)
def test_simulate_refuses_what_makes_no_cluster(args, message):
    done = simulate(*args)
    assert done.exit_code == 2
    assert message in done.output
