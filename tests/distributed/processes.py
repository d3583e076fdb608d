"""What tests of the lab do with processes: name a program, wait for a state, look at one."""

import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

LIMIT_S = 60.0


def python_command(code: str, *arguments: str) -> list[str]:
    """Return the command that runs some Python."""
    return [sys.executable, "-c", textwrap.dedent(code), *arguments]


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait until something holds; fail if that takes very long."""
    end = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def process_state(process_id: int) -> str:
    """Return a process's state as the kernel writes it: R, S, T, Z ..., or "gone"."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "gone"
