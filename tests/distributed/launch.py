"""Run a test body in several real processes, joined by Gloo."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Collection
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TypeVar

import torch
import torch._dynamo  # each child would import it at its first optimizer step, for seconds
import torch.distributed as dist

T = TypeVar("T")
NEVER_S = 600.0
"""A group's time limit that ends no wait within a test: what ends then was told."""

_GRACE_S = 1.0
_POLL_S = 0.05
_STACKS_S = 5.0


class RanksFailedError(AssertionError):
    """Some ranks raised, died or are late; the message says where each of them was."""


def run_processes(
    world_size: int,
    body: Callable[[int], T],
    *,
    timeout_s: float = 60.0,
    group_timeout_s: float = 20.0,
    backend: str = "gloo",
    killed: Collection[int] = (),
) -> list[T | None]:
    """Run `body(rank)` in one process a rank, with a default group, and return the results.

    Processes are forked, so `body` may be a closure and what it reads is
    inherited; what it returns must be picklable. They meet in a file of a
    fresh folder, use one torch thread each, and never outlive the call.

    Args:
        world_size: Number of processes.
        body: Called with the rank once the default group is up.
        timeout_s: All of them must be done by then.
        group_timeout_s: Time limit of the default group.
        backend: Back end of the default group.
        killed: Ranks that are to end themselves by `kill_self`; they have no
            result.

    Raises:
        RanksFailedError: A rank raised, ended without a result, or is late.
    """
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="gradwire-test-") as folder:
        store = os.path.join(folder, "store")  # noqa: PTH118 - goes to C++ as text
        pipes = [context.Pipe(duplex=False) for _ in range(world_size)]
        stacks = [Path(folder, f"stacks{rank}") for rank in range(world_size)]

        def main(rank: int) -> None:
            _die_with_parent()
            torch.set_num_threads(1)
            faulthandler.register(signal.SIGUSR1, stacks[rank].open("w"))  # needs no lock of ours
            limit = timedelta(seconds=group_timeout_s)
            try:
                dist.init_process_group(
                    backend,
                    store=dist.FileStore(store, world_size),
                    rank=rank,
                    world_size=world_size,
                    timeout=limit,
                )
                message = pickle.dumps((body(rank), None))
            except BaseException:  # noqa: BLE001 - reported by the parent
                message = pickle.dumps((None, traceback.format_exc()))
            _save_coverage()  # before the parent knows, who then ends this process
            pipes[rank][1].send_bytes(message)
            os._exit(0)  # no clean-up that might hang or fail: the test is over

        processes = [
            context.Process(target=main, args=(r,), daemon=True) for r in range(world_size)
        ]
        try:
            with warnings.catch_warnings():
                # Python 3.12 warns of threads at a fork; the children use none of them.
                warnings.simplefilter("ignore", DeprecationWarning)
                for process in processes:
                    process.start()
            for _, writer in pipes:
                writer.close()
            results, failures = _collect([r for r, _ in pipes], processes, timeout_s, killed)
            for rank in sorted({*range(world_size)} - {*results, *failures}):
                where = _where(processes[rank], stacks[rank])
                limits = f"{timeout_s} s, or {_GRACE_S} s from another's failure"
                failures[rank] = f"not done within {limits}\n{where}"
            if failures:
                told = "\n".join(f"rank {r}: {text}" for r, text in failures.items())
                raise RanksFailedError(told)
            return [results[rank] for rank in range(world_size)]
        finally:
            for process in processes:
                if process.pid is not None:
                    process.kill()
                    process.join()
            for reader, _ in pipes:
                reader.close()


def kill_self() -> None:
    """End this process as a crash of its machine would."""
    os.kill(os.getpid(), signal.SIGKILL)


def _save_coverage() -> None:
    """Write what this process has covered, where that is measured: it ends without clean-up."""
    coverage = sys.modules.get("coverage")
    measured = coverage.Coverage.current() if coverage else None
    if measured is not None:
        measured.stop()
        measured.save()


def _die_with_parent() -> None:
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _collect(
    readers: list[Connection],
    processes: list[BaseProcess],
    timeout_s: float,
    killed: Collection[int],
) -> tuple[dict[int, T | None], dict[int, str]]:
    """Return results and failures by rank; late ranks are in neither."""
    results: dict[int, T | None] = {}
    failures: dict[int, str] = {}
    end = time.monotonic() + timeout_s
    while left := [r for r in range(len(readers)) if r not in results and r not in failures]:
        if time.monotonic() > end:
            break
        wait([readers[r] for r in left], timeout=_POLL_S)
        for rank in left:
            outcome = _outcome(readers[rank], processes[rank])
            if outcome is None:
                continue
            results[rank], failure = outcome
            if failure is not None and failure.startswith("exit code") and rank in killed:
                failure = None
            if failure is not None:
                failures[rank] = failure
                end = min(end, time.monotonic() + _GRACE_S)
    return {r: x for r, x in results.items() if r not in failures}, failures


def _where(process: BaseProcess, path: Path) -> str:
    """Return what each thread of a process is at."""
    assert process.pid is not None, "only started processes can be late"
    os.kill(process.pid, signal.SIGUSR1)
    end = time.monotonic() + _STACKS_S
    text, before = "", None
    while (not text or text != before) and time.monotonic() < end:
        time.sleep(_POLL_S)
        before, text = text, path.read_text() if path.exists() else ""
    return text or "it does not say where"


def _outcome(reader: Connection, process: BaseProcess) -> tuple[T | None, str | None] | None:
    """Result and failure of a process, or None while there is neither."""
    ended = process.exitcode is not None
    with contextlib.suppress(EOFError):  # raised where others do not hold the pipe open
        if reader.poll():
            outcome: tuple[T | None, str | None] = pickle.loads(reader.recv_bytes())  # noqa: S301
            return outcome
    return (None, f"exit code {process.exitcode}") if ended else None
