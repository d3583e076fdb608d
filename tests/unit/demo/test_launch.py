from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradwire.demo import launch
from gradwire.demo.events import Finished, MethodStarted
from gradwire.demo.launch import WorkerError, Workers
from gradwire.demo.settings import Job, choose_methods

JOB = Job("digits", 2, 3, 8, 0, float("inf"), 0.0, choose_methods([], []))


def workers_that(manner: str) -> Workers:
    return Workers(JOB, [sys.executable, str(Path(__file__).parent / "fake_worker.py"), manner])


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 20
    while any(map(is_running, pids)):
        assert time.monotonic() < deadline, "workers outlive their parent"
        time.sleep(0.05)


def test_workers_tell_what_happens_and_leave_nothing():
    with workers_that("finish") as workers:
        seen = list(workers.events())
    assert sorted(seen, key=str) == sorted(
        [(r, e) for r in (0, 1) for e in (MethodStarted("ddp", r), Finished("2.13.0"))], key=str
    )
    assert not any(map(is_running, workers.process_ids))


@pytest.mark.parametrize(
    ("manner", "message"),
    [
        ("raise", "the worker of rank 1 failed: ValueError: no more"),
        ("exit", "the worker of rank 1 ended early with exit code 3: Fatal: out of luck"),
    ],
)
def test_worker_that_fails_is_named_with_the_reason(manner, message):
    with workers_that(manner) as workers, pytest.raises(WorkerError) as failure:
        list(workers.events())
    assert str(failure.value) == message
    assert not any(map(is_running, workers.process_ids))


def test_worker_killed_is_named_with_the_signal():
    with workers_that("sleep") as workers:
        events = workers.events()
        next(events)
        os.kill(workers.process_ids[1], signal.SIGKILL)
        with pytest.raises(WorkerError, match="of rank 1 was killed by SIGKILL"):
            list(events)
    assert not any(map(is_running, workers.process_ids))


def test_workers_that_fall_silent_are_given_up(monkeypatch):
    monkeypatch.setattr(launch, "STALL_S", 0.5)
    with workers_that("sleep") as workers, pytest.raises(WorkerError, match="told nothing for"):
        list(workers.events())
    assert not any(map(is_running, workers.process_ids))


def test_workers_end_with_a_killed_parent():
    code = (
        "import sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_launch import workers_that\n"
        "with workers_that('sleep') as workers:\n"
        "    events = workers.events()\n"
        "    next(events), next(events)\n"
        "    print(*workers.process_ids, flush=True)\n"
        "    list(events)\n"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        parent.kill()
    wait_until_gone(pids)


_SLOW = """
import time
from gradwire.demo.settings import Job
from gradwire.demo.worker import serve

def load():
    print("loading", flush=True)
    time.sleep(60)

serve(Job.from_json, load)
"""


def test_worker_ends_with_its_parent_while_it_loads():
    with subprocess.Popen(
        [sys.executable, "-c", _SLOW], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as worker:
        worker.stdin.write(JOB.to_json() + "\n")
        worker.stdin.flush()
        assert worker.stderr.readline() == "loading\n"  # what others print goes to the log
        worker.stdin.close()
        assert worker.wait(timeout=30) == 1
