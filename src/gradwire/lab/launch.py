"""Starts a command that dies with its parent, ahead of the rest of the machine.

A program of its own and not something done between fork and exec, which is not
safe in a process with threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_NOT_STARTED = 127


def launched(command: Sequence[str], nice: int) -> list[str]:
    """Return the command line that runs a command for the calling process.

    It is to be started with `start_new_session`. The kernel kills it when the
    thread that started it is gone.

    Args:
        command: Program and arguments.
        nice: Priority of its session; 0 leaves it.

    Example:
        >>> launched(["sleep", "1"], -20)[-3:]
        ['-20', 'sleep', '1']
    """
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(nice), *command]


def main(parent: int, nice: int, command: Sequence[str]) -> None:
    """Become a command."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the parent is gone")
    try:
        if nice:
            _prioritise(nice)
    except OSError as error:
        sys.exit(
            f"priority {nice} is not permitted ({error.strerror}):"
            " pass nice=0 or set GRADWIRE_LAB_NICE=0"
        )
    try:
        os.execvp(command[0], [*command])  # noqa: S606 - the caller's command
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error.strerror}\n")
        sys.exit(_NOT_STARTED)


def _prioritise(nice: int) -> None:
    """Raise this session above others.

    With autogroups the scheduler compares sessions by the nice value of the
    group, and that of a process counts only within its session; without them
    the latter is what counts.
    """
    os.setpriority(os.PRIO_PROCESS, 0, nice)
    group = Path("/proc/self/autogroup")
    if group.exists():
        group.write_text(str(nice), encoding="ascii")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
