"""One rank of the demo: what `launch.Workers` starts."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import TextIO, TypeVar

from gradwire.demo.events import Event, Failed, to_line

Tell = Callable[[Event], None]
_J = TypeVar("_J")


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


def serve(read: Callable[[str], _J], run: Callable[[_J, int, str, Tell], None]) -> None:
    """Read the job from the parent, run it, tell the parent, exit.

    Args:
        read: Turns the parent's line into a job.
        run: Takes the job, this process's rank, the file by which the ranks
            meet, and what takes events.
    """
    pipe = _private_stdout()
    job = read(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def tell(event: Event) -> None:
        pipe.write(to_line(event))

    try:
        run(job, int(os.environ["RANK"]), os.environ["GRADWIRE_RENDEZVOUS"], tell)
    except Exception as error:  # noqa: BLE001 - told to the parent, whatever it is
        traceback.print_exc()
        tell(Failed(f"{type(error).__name__}: {error}".splitlines()[0]))
    sys.stderr.flush()
    # Not a plain return: the thread above holds standard input, and a failed
    # process group may wait for its peers while it is torn down.
    os._exit(0)


if __name__ == "__main__":
    from gradwire.demo.run import run_job
    from gradwire.demo.settings import Job

    serve(Job.from_json, run_job)
