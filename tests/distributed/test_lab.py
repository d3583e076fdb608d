"""The lab's lines are what was asked for, and nothing of them is left behind."""

import contextlib
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from gradwire.errors import CommandError, SpecError
from gradwire.lab.latency import PROGRAM, has_netem
from gradwire.lab.namespace import Namespace
from gradwire.lab.netns import Network, missing
from gradwire.lab.script import RateScript

REASON = missing()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")
LIMIT_S = 60.0

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


def _python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code), *arguments]


def _until(holds):
    end = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def _state(process_id):
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "gone"


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
        outputs = network.run(_python(code), environment={"MINE": "1"})
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
        network.run(_python(STREAM, "/"), timeout_s=LIMIT_S)  # the file is there: ends at once

        def carried(rank):
            return network.interface_bytes(rank) - before[rank]

        _until(lambda: 0 < carried(1).sent == carried(0).received)
        _until(lambda: 0 < carried(0).sent == carried(1).received)


def test_rates_change_while_workers_run_and_no_connection_is_lost(tmp_path):
    stop = tmp_path / "stop"
    script = RateScript.parse("0s 40Mbit/s; 50ms 8Mbit/s rank 1; 100ms unlimited; 150ms 16Mbit/s")
    with Network(2, 1.25e6, verify=False) as network:
        with network.start(_python(STREAM, str(stop))) as workers:
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


def test_line_is_cut_and_restored_and_the_connection_goes_on(tmp_path):
    stop = tmp_path / "stop"
    with (
        Network(2, 1.25e6, verify=False) as network,
        network.start(_python(STREAM, str(stop))) as workers,
    ):
        workers.wait_for("receiving", timeout_s=LIMIT_S)
        network.cut(0)
        stalled = network.interface_bytes(0).received
        time.sleep(0.2)
        assert network.interface_bytes(0).received == stalled
        network.restore(0)
        _until(lambda: network.interface_bytes(0).received > stalled)
        stop.touch()
        received, sent = (text.split()[-1] for text in workers.wait(LIMIT_S))
    assert received == sent


def _can_have_latency():
    if REASON is not None:
        return False
    with contextlib.closing(Namespace()) as namespace:
        return PROGRAM.exists() or has_netem(namespace)


@pytest.mark.skipif(not _can_have_latency(), reason="neither netem nor a delay line was built")
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
        round_trip_s = float(network.run(_python(code))[1])
    assert round_trip_s >= 0.1


def test_latency_that_cannot_be_had_is_refused_with_what_serves_instead(monkeypatch):
    monkeypatch.setattr("gradwire.lab.latency.PROGRAM", Path("/nonexistent"))
    monkeypatch.setattr("gradwire.lab.netns.has_netem", lambda _: False)
    with (
        pytest.raises(CommandError, match=r"netem.*not built.*link=Link"),
        Network(2, latency_s=0.1),
    ):
        pass


def test_failure_of_a_rank_is_told_with_its_last_lines():
    code = "import os, sys; os.environ['RANK'] == '1' and sys.exit('it broke')"
    with Network(2) as network:
        with pytest.raises(CommandError, match=r"exit codes \[.*, 1\](.|\n)*rank 1\nit broke"):
            network.run(_python(code))
        with pytest.raises(CommandError, match=r"not done after 0.1 s of waiting for their end"):
            network.run(["sleep", "60"], timeout_s=0.1)
        with pytest.raises(CommandError, match="cannot start no-such-program"):
            network.run(["no-such-program"])
        with (
            network.start(["true"]) as workers,
            pytest.raises(CommandError, match="all ranks ended before rank 0 wrote 'ready'"),
        ):
            workers.wait_for("ready")


def test_rank_is_killed_with_what_it_started():
    with Network(2) as network, network.start(["sh", "-c", "sleep 60 & echo $!; wait"]) as workers:
        for rank in (0, 1):
            workers.wait_for("\n", rank=rank, timeout_s=LIMIT_S)
        child = int(workers.output(1))
        workers.kill(1)
        assert workers.exit_codes() == [None, -signal.SIGKILL]
        _until(lambda: _state(child) in "Zgone")
        assert _state(int(workers.output(0))) not in "Zgone"


def test_rank_is_paused_resumed_and_slowed():
    with Network(1) as network, network.start(_python("while True: pass")) as workers:
        (process,) = workers.process_ids
        workers.pause(0)
        _until(lambda: _state(process) == "T")
        workers.resume(0)
        _until(lambda: _state(process) == "R")
        workers.slow(0, 4.0)
        for state in "TRTR":
            _until(lambda state=state: _state(process) == state)
        with pytest.raises(ValueError, match="normal_speed"):
            workers.slow(0, 2.0)
        workers.normal_speed(0)
        _until(lambda: _state(process) == "R")
        with pytest.raises(ValueError, match="above 1"):
            workers.slow(0, 1.0)


def test_workers_have_a_session_and_its_priority(monkeypatch):
    monkeypatch.delenv("GRADWIRE_LAB_NICE")
    with Network(1) as network, network.start(["sleep", "60"]) as workers:
        (process,) = workers.process_ids
        assert os.getsid(process) == process
        _until(lambda: "sleep" in Path(f"/proc/{process}/cmdline").read_text().split("\0")[:1])
        assert os.getpriority(os.PRIO_PROCESS, process) == -20
        group = Path(f"/proc/{process}/autogroup")
        assert not group.exists() or group.read_text().strip().endswith("nice -20")


HARNESS = """
import sys, time
from gradwire.lab.netns import Network
with Network(2, 2.5e6, latency_s=float(sys.argv[1]), verify=False) as network:
    with network.start(["sleep", "600"]) as workers:
        delay = network._delay_line
        print(*workers.process_ids, *([delay.process_id] if delay else []), flush=True)
        time.sleep(600)
"""


def _namespaces_in_use():
    found = set()
    for path in Path("/proc").glob("[0-9]*/ns/net"):
        with contextlib.suppress(OSError):
            found.add(path.stat().st_ino)
    return found


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_the_harness_is_ended(sent):
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, check=True).stdout  # noqa: S607
    latency = "0.01" if PROGRAM.exists() else "0"
    harness = subprocess.Popen(
        _python(HARNESS, latency), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with harness:
        processes = [int(text) for text in harness.stdout.readline().split()]
        assert len(processes) == 2 + PROGRAM.exists()
        inside = {Path(f"/proc/{p}/ns/net").stat().st_ino for p in processes[:2]}
        assert len(inside) == 2
        assert inside <= _namespaces_in_use()
        harness.send_signal(sent)
        harness.wait(LIMIT_S)
    _until(lambda: all(_state(p) in "Zgone" for p in processes))
    _until(lambda: not inside & _namespaces_in_use())
    assert subprocess.run(["ip", "-o", "link"], capture_output=True, check=True).stdout == links  # noqa: S607
