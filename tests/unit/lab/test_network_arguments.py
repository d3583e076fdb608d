import math
import os
import shutil

import pytest

from gradwire.errors import CommandError, SpecError
from gradwire.lab.counters import interface_bytes
from gradwire.lab.line import Line
from gradwire.lab.netns import Network, missing
from gradwire.lab.probe import LineCheck


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"world_size": 0}, "world_size=0"),
        ({"world_size": 251}, "world_size=251"),
        ({"rate_bytes_per_s": 0}, "at least 12500"),
        ({"rate_bytes_per_s": math.nan}, "rate_bytes_per_s=nan"),
        ({"rate_bytes_per_s": [1e6]}, "one rate, or 2"),
        ({"rate_bytes_per_s": [1e6, 5.0]}, "rate_bytes_per_s=5.0"),
        ({"latency_s": -1.0}, "latency_s=-1.0"),
        ({"latency_s": math.inf}, "latency_s=inf"),
        ({"mtu": 100}, "mtu=100"),
        ({"nice": 5}, "nice='5'"),
    ],
)
def test_argument_out_of_range_is_refused(arguments, said):
    with pytest.raises(SpecError, match=said):
        Network(**{"world_size": 2, **arguments})


def test_priority_in_the_environment_must_be_a_number(monkeypatch):
    monkeypatch.setenv("GRADWIRE_LAB_NICE", "high")
    with pytest.raises(SpecError, match="nice='high'"):
        Network(2)


def test_rates_are_one_a_rank():
    assert Network(2, 1e6).rates_bytes_per_s == (1e6, 1e6)
    assert Network(2, [1e6, math.inf]).rates_bytes_per_s == (1e6, math.inf)


def test_network_is_there_only_inside_its_block():
    for call in (lambda n: n.run(["true"]), Network.verify, lambda n: n.limit(1e6)):
        with pytest.raises(CommandError, match="inside `with"):
            call(Network(2))


def test_missing_says_what_to_install(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "tc" else name)
    assert "the program 'tc' (install iproute2)" in missing()


def test_missing_asks_for_root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert missing().startswith("network namespaces need root")
    with pytest.raises(CommandError, match="need root"), Network(2):
        pass


def test_counters_know_no_other_interface():
    with pytest.raises(SpecError, match=r"'eth9' is not one of those here: .*lo"):
        interface_bytes("eth9")


@pytest.mark.parametrize(
    ("check", "said"),
    [
        (LineCheck(1, 1e6, 0.95e6, 1.05e6), None),
        (LineCheck(1, 1e6, 0.8e6, 1e6), "rank 1 sends at 6.4 Mbit/s where 8 Mbit/s is set"),
        (LineCheck(1, 1e6, 1e6, 1.2e6), "rank 1 receives at 9.6 Mbit/s where 8 Mbit/s is set"),
        (LineCheck(1, 1.25e9, 0.5e9, 0.9e9), None),
        (LineCheck(1, 1.25e9, 2.5e9, 1e9), "rank 1 sends at 20 Gbit/s where 10 Gbit/s is set"),
    ],
)
def test_line_is_refused_beyond_tolerance_unless_the_machine_limits_it(check, said):
    assert check.complaint(0.1) == said


def test_netem_holds_packets_and_room_for_those_on_their_way():
    line = object.__new__(Line)
    line._mtu = 1500
    assert line._leaf(0.01, 1.5e8) == "netem delay 10000us limit 6000"
    assert line._leaf(0.01, 1e6) == "netem delay 10000us limit 1000"
    assert line._leaf(0.0, 1.5e8) == "bfifo limit 4194304"
