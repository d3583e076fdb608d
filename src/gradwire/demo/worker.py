"""One rank of the demo: what `launch.Workers` starts."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import TextIO, TypeVar

from gradwire.demo.events import Event, Failed, to_line
from gradwire.demo.settings import Job

Tell = Callable[[Event], None]
_J = TypeVar("_J")
_Run = Callable[[_J, int, str, Tell], None]


def _private_stdout() -> TextIO:
    """Keep the pipe to the parent for events: what others print goes to the log."""
    pipe = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return os.fdopen(pipe, "w", encoding="utf-8", buffering=1)


def _end_with_parent() -> None:
    """Exit at once when standard input closes: the parent has ended, however it did."""
    # Not sys.stdin.read(): it would hold a lock that processes forked meanwhile wait for.
    while os.read(0, 4096):
        pass
    os._exit(1)


def serve(read: Callable[[str], _J], load: Callable[[], _Run[_J]]) -> None:
    """Read the job from the parent, run it, tell the parent, exit.

    Args:
        read: Turns the parent's line into a job.
        load: Imports what runs it, which takes seconds in which the parent may
            end. That takes the job, this process's rank, the file by which
            the ranks meet, and what takes events.
    """
    pipe = _private_stdout()
    job = read(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def tell(event: Event) -> None:
        pipe.write(to_line(event))

    try:
        load()(job, int(os.environ["RANK"]), os.environ["GRADWIRE_RENDEZVOUS"], tell)
    except Exception as error:  # noqa: BLE001 - told to the parent, whatever it is
        traceback.print_exc()
        tell(Failed(f"{type(error).__name__}: {error}".splitlines()[0]))
    sys.stderr.flush()
    # Not a plain return: the thread above holds standard input, and a failed
    # process group may wait for its peers while it is torn down.
    os._exit(0)


def _load() -> _Run[Job]:
    from gradwire.demo.run import run_job  # noqa: PLC0415 - loads torch

    return run_job


if __name__ == "__main__":
    serve(Job.from_json, _load)
