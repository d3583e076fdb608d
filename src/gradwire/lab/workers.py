"""The processes of a lab run: their output, their end, and faults in between."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import IO, Self

from gradwire.errors import CommandError, SpecError
from gradwire.lab.launch import launched
from gradwire.lab.namespace import Namespace

_POLL_S = 0.05
_PERIOD_S = 0.1
_TAIL = 2000


class Workers:
    """One process a rank, each in its namespace; a context manager that ends them.

    Each runs in a session of its own, so Ctrl-C reaches the harness only,
    which then ends them. A harness that is killed takes them along: the kernel
    kills each when the thread that started it is gone.

    Args:
        command: Program and arguments, equal on all ranks.
        environments: The whole environment of each rank.
        namespaces: Where each rank lives.
        nice: Priority of each session; 0 leaves it.

    Example:
        >>> with network.start(["python", "worker.py"]) as workers:  # doctest: +SKIP
        ...     workers.wait_for("step 10")
        ...     workers.pause(1)
        ...     time.sleep(2.0)
        ...     workers.resume(1)
        ...     outputs = workers.wait()
    """

    def __init__(
        self,
        command: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        namespaces: Sequence[Namespace],
        nice: int,
    ) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self._files: list[tuple[IO[bytes], IO[bytes]]] = []
        self._killed: set[int] = set()
        self._slowed: dict[int, _DutyCycle] = {}
        try:
            for environment, namespace in zip(environments, namespaces, strict=True):
                self._start(command, environment, namespace, nice)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
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
        """Process numbers, by rank; each leads a process group of that number."""
        return [p.pid for p in self._processes]

    def exit_codes(self) -> list[int | None]:
        """Return each rank's exit code: None while it runs, negative for a signal."""
        return [p.poll() for p in self._processes]

    def output(self, rank: int) -> str:
        """Return what a rank has written to standard output so far."""
        return _read(self._files[self._known(rank)][0])

    def errors(self, rank: int) -> str:
        """Return what a rank has written to standard error so far."""
        return _read(self._files[self._known(rank)][1])

    def wait_for(self, text: str, *, rank: int = 0, timeout_s: float = 120.0) -> None:
        """Wait until a rank has written some text to standard output (flushed).

        Raises:
            CommandError: A rank failed, all ended without it, or it took too long.
        """

        def is_done(codes: Sequence[int | None]) -> bool:
            return text in self.output(rank) or None not in codes

        self._poll(is_done, timeout_s, f"{text!r} from rank {rank}", ())
        if text not in self.output(rank):
            raise CommandError(f"all ranks ended before rank {rank} wrote {text!r}")

    def wait(self, timeout_s: float = 600.0, *, may_fail: Collection[int] = ()) -> list[str]:
        """Wait until all ranks have ended and return what each wrote to standard output.

        Args:
            timeout_s: All of them must be done by then.
            may_fail: Ranks whose exit code does not matter, besides those killed
                by `kill`.

        Raises:
            CommandError: A rank failed or was late; the last lines of all ranks'
                standard error are in the message.
        """
        self._poll(lambda codes: None not in codes, timeout_s, "their end", may_fail)
        return [_read(out) for out, _ in self._files]

    def kill(self, rank: int) -> None:
        """Kill a rank and the processes it started, as the crash of its machine would."""
        process = self._processes[self._known(rank)]
        self.normal_speed(rank)
        self._killed.add(rank)
        _signal(process, signal.SIGKILL)
        process.wait()

    def pause(self, rank: int) -> None:
        """Stop a rank; its connections stay open."""
        _signal(self._processes[self._known(rank)], signal.SIGSTOP)

    def resume(self, rank: int) -> None:
        """Let a paused rank go on."""
        _signal(self._processes[self._known(rank)], signal.SIGCONT)

    def slow(self, rank: int, factor: float) -> None:
        """Let a rank run for one part in `factor` of the time only, until `normal_speed`.

        It is stopped and continued ten times a second, as if its processor
        were shared. What computes takes `factor` times as long; what sleeps
        does not. For a slow line, lower the rank's rate instead.

        Args:
            rank: Which rank.
            factor: How much slower, above 1.

        Raises:
            SpecError: The factor is not above 1, or the rank is slow already.
        """
        process = self._processes[self._known(rank)]
        if not 1 < factor < float("inf"):
            raise SpecError("factor", factor, "above 1 and finite")
        if rank in self._slowed:
            raise SpecError("rank", rank, "at normal speed; call normal_speed(rank) first")
        self._slowed[rank] = _DutyCycle(process, factor)

    def normal_speed(self, rank: int) -> None:
        """Let a rank made slow run all the time again."""
        cycle = self._slowed.pop(self._known(rank), None)
        if cycle is not None:
            cycle.close()

    def close(self) -> None:
        """Kill what still runs, and what it started. Can be called twice."""
        for rank in list(self._slowed):
            self.normal_speed(rank)
        for process in self._processes:
            _signal(process, signal.SIGKILL)
        for process in self._processes:
            process.wait()
        for files in self._files:
            for file in files:
                file.close()

    def _start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        namespace: Namespace,
        nice: int,
    ) -> None:
        # Files without a name: they too are gone with this process.
        out, err = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115 - `close` does
        self._files.append((out, err))
        with namespace.entered():
            process = subprocess.Popen(  # noqa: S603 - the caller's command
                launched(command, nice),
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self._processes.append(process)

    def _known(self, rank: int) -> int:
        if not 0 <= rank < len(self._processes):
            raise SpecError("rank", rank, f"between 0 and {len(self._processes) - 1}")
        return rank

    def _poll(
        self,
        is_done: Callable[[Sequence[int | None]], bool],
        timeout_s: float,
        what: str,
        may_fail: Collection[int],
    ) -> None:
        end = time.monotonic() + timeout_s
        excused = self._killed.union(may_fail)
        while True:
            codes = self.exit_codes()
            if any(code for rank, code in enumerate(codes) if rank not in excused):
                raise CommandError(self._told(f"failed, exit codes {codes}"))
            if is_done(codes):
                return
            if time.monotonic() > end:
                raise CommandError(
                    self._told(f"not done after {timeout_s:g} s of waiting for {what}")
                )
            time.sleep(_POLL_S)

    def _told(self, what: str) -> str:
        tails = [f"--- rank {r}\n{_read(err)[-_TAIL:]}" for r, (_, err) in enumerate(self._files)]
        return what + "\n" + "\n".join(tails)


class _DutyCycle:
    """Stops a process for a part of each period, in a thread."""

    def __init__(self, process: subprocess.Popen[bytes], factor: float) -> None:
        self._process = process
        self._running_s = _PERIOD_S / factor
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="gradwire-lab-slow")
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.is_set():
            _signal(self._process, signal.SIGSTOP)
            self._is_over.wait(_PERIOD_S - self._running_s)
            _signal(self._process, signal.SIGCONT)
            self._is_over.wait(self._running_s)

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    if process.poll() is None:
        os.killpg(process.pid, number)


def _read(file: IO[bytes]) -> str:
    # Not from the file's position, which the worker moves.
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), size, 0).decode(errors="replace")
