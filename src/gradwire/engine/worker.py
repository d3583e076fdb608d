"""The one thread that encodes, decodes and starts every exchange.

Reductions are generators that yield the transfer they wait for. The thread
advances whichever can go on, the most urgent first, and equal ones in the
order in which they became able to: while one bucket's bytes travel, the next
one is encoded.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch

from gradwire.comm.base import Pending, Steps
from gradwire.errors import SpecError


@dataclass(slots=True)
class _Task:
    steps: Steps[None]
    finish: Callable[[BaseException | None], None]
    priority: float
    waited_for: Pending | None = None


class Worker:
    """Drives reductions on a thread of its own.

    Example:
        >>> def nothing_to_send():
        ...     return
        ...     yield
        >>> outcome = queue.SimpleQueue()
        >>> worker = Worker("example")
        >>> worker.submit(nothing_to_send(), outcome.put)
        >>> outcome.get() is None
        True
        >>> worker.close()
    """

    def __init__(self, name: str) -> None:
        self._ready: queue.PriorityQueue[tuple[float, int, _Task | None]] = queue.PriorityQueue()
        self._serial = itertools.count()
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(
        self,
        steps: Steps[None],
        finish: Callable[[BaseException | None], None],
        priority: float = 0.0,
    ) -> None:
        """Run `steps` to their end, then call `finish` with None or what went wrong.

        Lower priorities go first. After `close` it is called at once: no thread
        is left to run them.
        """
        with self._lock:
            is_late = self._is_closed
            if not is_late:
                self._put(_Task(steps, finish, priority))
        if is_late:
            finish(SpecError("worker", "closed", "open"))

    def close(self) -> None:
        """End the thread once every task has ended. Can be called twice.

        Whoever calls it sees to it that no transfer stays without an outcome.
        """
        with self._lock:
            self._is_closed = True
            self._ready.put((float("inf"), next(self._serial), None))
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _put(self, task: _Task) -> None:
        self._ready.put((task.priority, next(self._serial), task))

    def _run(self) -> None:
        under_way, is_closing = 0, False
        with torch.no_grad():
            while under_way or not is_closing:
                _, _, task = self._ready.get()
                if task is None:
                    is_closing = True
                    continue
                under_way += task.waited_for is None
                under_way -= self._advance(task)
                del task  # an idle thread keeps no tensor alive

    def _advance(self, task: _Task) -> bool:
        """Run a task up to its next transfer, and return whether it has ended."""
        try:
            failure = task.waited_for.exception() if task.waited_for else None
            task.waited_for = task.steps.throw(failure) if failure else next(task.steps)
        except StopIteration:
            task.finish(None)
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits for the task
            task.finish(error)
        else:
            task.waited_for.add_done_callback(lambda _: self._put(task))
            return False
        task.waited_for = None  # whose callback holds the task: a circle, and buffers in it
        return True
