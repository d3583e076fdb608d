"""Workers that do nothing, in the way that the first argument names."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from gradwire.demo.events import Finished, MethodStarted
from gradwire.demo.settings import Job
from gradwire.demo.worker import Tell, serve


def run(_job: Job, rank: int, rendezvous: str, tell: Tell) -> None:
    manner = sys.argv[1]
    assert not Path(rendezvous).exists()
    sys.stdout.write("what others print stays out of the events\n")
    tell(MethodStarted("ddp", rank))
    if manner == "finish":
        tell(Finished("2.13.0"))
    elif manner == "raise" and rank == 1:
        raise ValueError("no more\nthan one line")
    elif manner == "exit" and rank == 1:
        sys.stderr.write("Fatal: out of luck\n")
        sys.stderr.flush()
        os._exit(3)
    else:
        time.sleep(600)


if __name__ == "__main__":
    serve(Job.from_json, lambda: run)
