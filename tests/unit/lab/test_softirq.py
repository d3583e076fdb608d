from __future__ import annotations

import os

import pytest

from gradwire.lab import softirq
from gradwire.lab.softirq import PacketThreads


@pytest.fixture
def priorities(monkeypatch):
    """Priorities of two threads that carry packets, one of them raised already."""
    found = {14: 0, 22: -20}

    def change(_which, pid, nice):
        if pid not in found:
            raise ProcessLookupError
        found[pid] = nice

    monkeypatch.setattr(softirq, "_packet_threads", lambda: list(found))
    monkeypatch.setattr(os, "getpriority", lambda _which, pid: found[pid])
    monkeypatch.setattr(os, "setpriority", change)
    return found


def test_threads_are_raised_and_get_back_what_they_had(priorities):
    threads = PacketThreads(-20)
    threads.raise_all()
    assert priorities == {14: -20, 22: -20}
    threads.restore()
    threads.restore()
    assert priorities == {14: 0, 22: -20}


def test_threads_stay_as_they_are_where_workers_do(priorities):
    threads = PacketThreads(0)
    threads.raise_all()
    assert priorities == {14: 0, 22: -20}


def test_thread_that_has_ended_is_no_error(priorities):
    threads = PacketThreads(-5)
    threads.raise_all()
    assert priorities.pop(14) == -5
    threads.restore()
    assert priorities == {22: -20}


def test_threads_are_found_by_name(tmp_path, monkeypatch):
    for pid, name in ((14, "ksoftirqd/0"), (15, "migration/0"), (782, "python")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text(name + "\n")
    monkeypatch.setattr(softirq, "Path", lambda _: tmp_path)
    assert softirq._packet_threads() == [14]
