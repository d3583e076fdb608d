import multiprocessing
import os
import threading
import time

import pytest
import torch
import torch.distributed as dist
from launch import RanksFailedError, kill_self, run_processes


def _sum_of_ranks(rank: int) -> float:
    x = torch.tensor([float(rank)])
    dist.all_reduce(x)
    return x.item()


def test_run_processes_returns_results_by_rank():
    assert run_processes(3, lambda rank: (rank, _sum_of_ranks(rank))) == [(0, 3), (1, 3), (2, 3)]


def test_run_processes_passes_the_traceback_of_the_rank_that_raised():
    def body(rank: int) -> None:
        if rank == 1:
            raise KeyError("lost")
        dist.barrier()

    with pytest.raises(RanksFailedError, match=r"rank 1: Traceback(.|\n)*KeyError: 'lost'"):
        run_processes(2, body)


def test_run_processes_reports_a_rank_that_died():
    with pytest.raises(RanksFailedError, match="rank 0: exit code -9"):
        run_processes(1, lambda _: kill_self())


def test_run_processes_reports_a_death_while_others_wait():
    with pytest.raises(RanksFailedError, match="rank 1: exit code -9"):
        run_processes(2, lambda rank: kill_self() if rank else time.sleep(50), timeout_s=40)


def test_run_processes_accepts_the_announced_death_of_a_rank():
    assert run_processes(2, lambda rank: kill_self() if rank else "alive", killed=[1]) == [
        "alive",
        None,
    ]


def test_run_processes_says_where_a_late_rank_is():
    def body(rank: int) -> None:
        if rank == 0:
            raise KeyError("lost")
        _sleep_on()

    with pytest.raises(RanksFailedError, match=r"rank 0: Traceback(.|\n)*rank 1: (.|\n)*_sleep_on"):
        run_processes(2, body)


def _sleep_on() -> None:
    time.sleep(60)


def test_run_processes_leaves_no_process_behind_when_late():
    def body(_: int) -> None:
        pids.put(os.getpid())
        time.sleep(60)

    pids = multiprocessing.get_context("fork").SimpleQueue()
    with pytest.raises(RanksFailedError, match=r"rank 0: not done within(.|\n)*rank 1: not done"):
        run_processes(2, body, timeout_s=1.0)
    for _ in range(2):
        with pytest.raises(ProcessLookupError):
            os.kill(pids.get(), 0)


def test_j6_run_processes_can_run_twice_at_once():
    results: list[list[float | None]] = []
    threads = [
        threading.Thread(target=lambda: results.append(run_processes(2, _sum_of_ranks)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[1.0, 1.0], [1.0, 1.0]]


def test_run_processes_can_train_after_this_process_has():
    def body(rank: int) -> float:
        w = torch.ones(2, requires_grad=True)
        (w * rank).sum().backward()
        assert w.grad is not None
        return w.grad[0].item()

    body(1)
    assert run_processes(2, body) == [0.0, 1.0]
