"""The lab's workers fail, stop and end as they should, and leave nothing behind."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest
from processes import LIMIT_S, process_state, python_command, wait_until

from gradwire.errors import CommandError
from gradwire.lab.latency import PROGRAM
from gradwire.lab.netns import Network, missing

REASON = missing()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")


@pytest.fixture(autouse=True)
def _beside_others(monkeypatch):
    monkeypatch.setenv("GRADWIRE_LAB_NICE", "0")


def test_failure_of_a_rank_is_told_with_its_last_lines():
    code = "import os, sys; os.environ['RANK'] == '1' and sys.exit('it broke')"
    with Network(2) as network:
        with pytest.raises(CommandError, match=r"exit codes \[.*, 1\](.|\n)*rank 1\nit broke"):
            network.run(python_command(code))
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
        wait_until(lambda: process_state(child) in "Zgone")
        assert process_state(int(workers.output(0))) not in "Zgone"


def test_rank_is_paused_resumed_and_slowed():
    with Network(1) as network, network.start(python_command("while True: pass")) as workers:
        (process,) = workers.process_ids
        workers.pause(0)
        wait_until(lambda: process_state(process) == "T")
        workers.resume(0)
        wait_until(lambda: process_state(process) == "R")
        workers.slow(0, 4.0)
        for state in "TRTR":
            wait_until(lambda state=state: process_state(process) == state)
        with pytest.raises(ValueError, match="normal_speed"):
            workers.slow(0, 2.0)
        workers.normal_speed(0)
        wait_until(lambda: process_state(process) == "R")
        with pytest.raises(ValueError, match="above 1"):
            workers.slow(0, 1.0)


def test_workers_have_a_session_and_its_priority(monkeypatch):
    monkeypatch.delenv("GRADWIRE_LAB_NICE")
    with Network(1) as network, network.start(["sleep", "60"]) as workers:
        (process,) = workers.process_ids
        assert os.getsid(process) == process
        wait_until(lambda: "sleep" in Path(f"/proc/{process}/cmdline").read_text().split("\0")[:1])
        assert os.getpriority(os.PRIO_PROCESS, process) == -20
        group = Path(f"/proc/{process}/autogroup")
        assert not group.exists() or group.read_text().strip().endswith("nice -20")


HARNESS = """
import sys, time
from gradwire.lab.netns import Network
with Network(2, 2.5e6, latency_s=float(sys.argv[1]), verify=False) as network:
    with network.start(["sh", "-c", "echo ready; exec sleep 600"]) as workers:
        for rank in (0, 1):
            workers.wait_for("ready", rank=rank)
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
        python_command(HARNESS, latency), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with harness:
        processes = [int(text) for text in harness.stdout.readline().split()]
        assert len(processes) == 2 + PROGRAM.exists()
        inside = {Path(f"/proc/{p}/ns/net").stat().st_ino for p in processes[:2]}
        assert len(inside) == 2
        assert inside <= _namespaces_in_use()
        harness.send_signal(sent)
        harness.wait(LIMIT_S)
    wait_until(lambda: all(process_state(p) in "Zgone" for p in processes))
    wait_until(lambda: not inside & _namespaces_in_use())
    assert subprocess.run(["ip", "-o", "link"], capture_output=True, check=True).stdout == links  # noqa: S607
