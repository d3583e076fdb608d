"""Starts one process a rank, reads what they tell, and leaves none behind."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from gradwire.demo.events import Event, Failed, Finished, from_line
from gradwire.errors import GradwireError

STALL_S = 60.0
"""Silence of all workers after which a run is given up, besides ten slow steps."""

WORKER = (sys.executable, "-P", "-m", "gradwire.demo.worker")

_GRACE_S = 2.0
"""After a first failure: time for the others to fail too, so that the cause can be told."""


class Work(Protocol):
    """What the workers are given to do."""

    @property
    def ranks(self) -> int:
        """Number of workers."""

    def to_json(self) -> str:
        """Write the work in one line."""

    def slowest_step_s(self, cores: int) -> float:
        """Return about how long its slowest step takes."""


class Place(NamedTuple):
    """Where a worker runs.

    Attributes:
        variables: Added to its environment.
        entered: Makes a context in which its process is started.
    """

    variables: Mapping[str, str]
    entered: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext


class WorkerError(GradwireError, RuntimeError):
    """A worker process died, raised, or fell silent.

    Example:
        >>> str(WorkerError(1, "was killed by SIGKILL"))
        'the worker of rank 1 was killed by SIGKILL'
    """

    def __init__(self, rank: int, what: str) -> None:
        super().__init__(f"the worker of rank {rank} {what}")
        self.rank = rank


def available_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Workers:
    """The processes of one job; a context manager that ends them all.

    Each worker reads its job from its standard input, writes events to its
    standard output, and exits when its standard input closes: so it ends
    with its parent, however that ends.

    Args:
        job: What to do.
        command: What each process runs; it calls `worker.serve`.
        place: Says where the process of a rank runs; with all others if None.
    """

    def __init__(
        self,
        job: Work,
        command: Sequence[str] = WORKER,
        place: Callable[[int], Place] | None = None,
    ) -> None:
        self._job = job
        self._command = command
        self._place = place if place is not None else lambda _: Place({})
        self._folder = tempfile.TemporaryDirectory(prefix="gradwire-")
        self._processes: list[subprocess.Popen[str]] = []
        self._stall_s = STALL_S + 10 * job.slowest_step_s(available_cores())
        self._events: queue.Queue[tuple[int, Event | None]] = queue.Queue()

    def __enter__(self) -> Self:
        try:
            for rank in range(self._job.ranks):
                self._start(rank)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def process_ids(self) -> list[int]:
        """Process numbers, by rank."""
        return [p.pid for p in self._processes]

    def events(self) -> Iterator[tuple[int, Event]]:
        """Yield each event with the rank it comes from, until all have finished.

        Raises:
            WorkerError: A worker died, raised, or all fell silent.
        """
        left = self._job.ranks
        while left:
            try:
                rank, event = self._events.get(timeout=self._stall_s)
            except queue.Empty:
                silence = f"and all others told nothing for {self._stall_s:.0f} s"
                raise WorkerError(0, silence) from None
            if event is None or isinstance(event, Failed):
                raise self._cause(rank, event)
            left -= isinstance(event, Finished)
            yield rank, event

    def close(self) -> None:
        """Kill what still runs, and what it started. Can be called twice."""
        for process in self._processes:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        for process in self._processes:
            process.wait()
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(BrokenPipeError):
                    if stream is not None:
                        stream.close()
        self._folder.cleanup()

    def _log(self, rank: int) -> Path:
        return Path(self._folder.name) / f"rank{rank}.log"

    def _start(self, rank: int) -> None:
        place = self._place(rank)
        environment = os.environ | {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self._job.ranks),
            "OMP_NUM_THREADS": str(max(1, available_cores() // self._job.ranks)),
            "GRADWIRE_RENDEZVOUS": str(Path(self._folder.name) / "rendezvous"),
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
            **place.variables,
        }
        with self._log(rank).open("w", encoding="utf-8") as log, place.entered():
            process = subprocess.Popen(  # noqa: S603 - the command is a developer's, not a user's
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                start_new_session=True,
            )
        self._processes.append(process)
        assert process.stdin is not None
        process.stdin.write(self._job.to_json() + "\n")
        process.stdin.flush()
        threading.Thread(target=self._read, args=(rank, process), daemon=True).start()

    def _read(self, rank: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with contextlib.suppress(ValueError):  # closed by `close` while this thread reads
            for line in process.stdout:
                event = from_line(line)
                self._events.put((rank, event))
                if isinstance(event, Finished | Failed):
                    return
            self._events.put((rank, None))

    def _cause(self, rank: int, event: Event | None) -> WorkerError:
        """Find the failure that came first: others follow from it."""
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline and None in [p.poll() for p in self._processes]:
            time.sleep(0.05)
        for other, process in enumerate(self._processes):
            code = process.returncode
            if code is not None and code < 0:
                return WorkerError(other, f"was killed by {signal.Signals(-code).name}")
        if isinstance(event, Failed):
            return WorkerError(rank, f"failed: {event.message}")
        code, tail = self._processes[rank].returncode, self._tail(rank)
        return WorkerError(rank, f"ended early with exit code {code}{tail}")

    def _tail(self, rank: int) -> str:
        lines = self._log(rank).read_text(encoding="utf-8", errors="replace").splitlines()
        return f": {lines[-1].strip()}" if lines else ""
