"""The lab's lines are what was asked for: rates, latency, counters, scripts and cuts."""

import contextlib
import math
import time
from pathlib import Path

import pytest
from processes import LIMIT_S, python_command, wait_until

from gradwire.errors import CommandError, SpecError
from gradwire.lab.latency import PROGRAM, has_netem
from gradwire.lab.line import Line
from gradwire.lab.namespace import Namespace
from gradwire.lab.netns import Network, missing
from gradwire.lab.script import RateScript

REASON = missing()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")

STREAM = """
import os, socket, sys, time
rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
if rank == 0:
    server = socket.create_server((os.environ["MASTER_ADDR"], port))
    print("listening", flush=True)
    peer, _ = server.accept()
    count = 0
    while data := peer.recv(1 << 16):
        count += len(data)
        print("receiving", flush=True)
    print(count)
else:
    while True:
        try:
            peer = socket.create_connection((os.environ["MASTER_ADDR"], port))
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    count = 0
    while not os.path.exists(sys.argv[1]):
        count += peer.send(bytes(4096))
    peer.close()
    print(count)
"""


@pytest.fixture(autouse=True)
def _beside_others(monkeypatch):
    monkeypatch.setenv("GRADWIRE_LAB_NICE", "0")


def _limits(namespace, device):
    return namespace.command(f"tc class show dev {device}")


def test_ranks_have_torchruns_environment_and_their_own_line():
    code = """
        import os
        from gradwire.lab.counters import interface_bytes
        names = "MASTER_ADDR", "RANK", "LOCAL_RANK", "WORLD_SIZE", "GLOO_SOCKET_IFNAME", "MINE"
        print([os.environ[n] for n in names], interface_bytes().sent < 5000)
    """
    with Network(2) as network:
        outputs = network.run(python_command(code), environment={"MINE": "1"})
    same = "'0', '2', 'eth0', '1'] True\n"
    assert outputs == [f"['10.77.0.1', '{rank}', {same}" for rank in (0, 1)]


def test_each_line_has_its_rate_and_packet_size():
    with Network(2, [2.5e6, 1.25e6], mtu=1400, verify=False) as network:
        for rank, rate in enumerate(("20Mbit", "10Mbit")):
            line = network._lines[rank]
            assert f"rate {rate}" in _limits(line.inside, "eth0")
            assert f"rate {rate}" in _limits(network._hub, line.port)
            assert "mtu 1400" in line.inside.command("ip link show eth0")
        network.limit(math.inf, 0)
        network.limit(5e6, 1)
        assert network.rates_bytes_per_s == (math.inf, 5e6)
        assert _limits(network._lines[0].inside, "eth0") == ""
        assert "rate 40Mbit" in _limits(network._lines[1].inside, "eth0")


def test_rates_are_verified_before_a_run_and_wrong_ones_refused():
    with Network(2, [2.5e6, math.inf]) as network:
        (check,) = network.checks
        assert (check.rank, check.rate_bytes_per_s) == (0, 2.5e6)
        inside = network._lines[0].inside
        inside.command("tc class change dev eth0 parent 1: classid 1:1 htb rate 10Mbit")
        with pytest.raises(CommandError, match=r"rank 0 sends at .* where 20 Mbit/s is set"):
            network.verify()


def test_bytes_of_a_rank_are_read_from_outside():
    with Network(2, 2.5e6) as network:
        before = [network.interface_bytes(rank) for rank in (0, 1)]
        network.run(
            python_command(STREAM, "/"), timeout_s=LIMIT_S
        )  # the file is there: ends at once

        def carried(rank):
            return network.interface_bytes(rank) - before[rank]

        wait_until(lambda: 0 < carried(1).sent == carried(0).received)
        wait_until(lambda: 0 < carried(0).sent == carried(1).received)


def test_rates_change_while_workers_run_and_no_connection_is_lost(tmp_path):
    stop = tmp_path / "stop"
    script = RateScript.parse("0s 40Mbit/s; 50ms 8Mbit/s rank 1; 100ms unlimited; 150ms 16Mbit/s")
    with Network(2, 1.25e6, verify=False) as network:
        with network.start(python_command(STREAM, str(stop))) as workers:
            workers.wait_for("receiving", timeout_s=LIMIT_S)
            with network.play(script) as playback:
                playback.finish()
            assert [change for _, change in playback.made] == list(script.changes)
            stop.touch()
            received, sent = (text.split()[-1] for text in workers.wait(LIMIT_S))
        assert received == sent
        assert network.rates_bytes_per_s == (2e6, 2e6)
        assert "rate 16Mbit" in _limits(network._lines[1].inside, "eth0")
        with pytest.raises(SpecError, match="rank=2"):
            network.play(RateScript.parse("0s 1Gbit/s rank 2"))


def _can_have_latency():
    if REASON is not None:
        return False
    with contextlib.closing(Namespace()) as namespace:
        return PROGRAM.exists() or has_netem(namespace)


needs_latency = pytest.mark.skipif(
    not _can_have_latency(), reason="neither netem nor a delay line was built"
)


@pytest.mark.parametrize("latency_s", [0.0, pytest.param(0.001, marks=needs_latency)])
def test_line_is_cut_and_restored_and_the_connection_goes_on(tmp_path, latency_s):
    stop = tmp_path / "stop"
    with (
        Network(2, 1.25e6, latency_s=latency_s, verify=False) as network,
        network.start(python_command(STREAM, str(stop))) as workers,
    ):
        workers.wait_for("receiving", timeout_s=LIMIT_S)
        network.cut(0)
        time.sleep(0.1)  # what was on its way arrives
        stalled = network.interface_bytes(0).received
        time.sleep(0.2)
        assert network.interface_bytes(0).received == stalled
        network.restore(0)
        wait_until(lambda: network.interface_bytes(0).received > stalled)
        stop.touch()
        received, sent = (text.split()[-1] for text in workers.wait(LIMIT_S))
    assert received == sent


@needs_latency
def test_latency_delays_each_way():
    code = """
        import os, socket, time
        rank, address = int(os.environ["RANK"]), (os.environ["MASTER_ADDR"], 7000)
        if rank == 0:
            server = socket.create_server(address)
            peer, _ = server.accept()
            peer.send(peer.recv(1))
        else:
            while True:
                try:
                    peer = socket.create_connection(address)
                    break
                except ConnectionRefusedError:
                    pass
            start = time.monotonic()
            peer.send(b"x")
            peer.recv(1)
            print(time.monotonic() - start)
    """
    with Network(2, 2.5e6, latency_s=0.05, verify=False) as network:
        assert network.latency_by in {"netem", "delay line"}
        round_trip_s = float(network.run(python_command(code))[1])
    assert round_trip_s >= 0.1


def test_queue_of_netem_stays_in_place_when_rates_change(monkeypatch):
    monkeypatch.setattr("gradwire.lab.netns.has_netem", lambda _: True)
    # Most kernels of test machines lack netem; any queue with these options' places will do.
    monkeypatch.setattr(Line, "_leaf", lambda _, held_s, __: f"pfifo limit {7 if held_s else 8}")
    with Network(1, latency_s=0.01) as network:
        assert network.latency_by == "netem"
        line = network._lines[0]
        for rate in (math.inf, 1.25e6, 2.5e6, math.inf, 1.25e6):
            network.limit(rate)
            inside = line.inside.command("tc qdisc show dev eth0")
            outside = network._hub.command(f"tc qdisc show dev {line.port}")
            assert "limit 7p" in inside
            assert ("limit 8p" in outside) == ("htb" in inside) == math.isfinite(rate)


def test_latency_that_cannot_be_had_is_refused_with_what_serves_instead(monkeypatch):
    monkeypatch.setattr("gradwire.lab.latency.PROGRAM", Path("/nonexistent"))
    monkeypatch.setattr("gradwire.lab.netns.has_netem", lambda _: False)
    with (
        pytest.raises(CommandError, match=r"netem.*not built.*link=Link"),
        Network(2, latency_s=0.1),
    ):
        pass
