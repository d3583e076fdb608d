"""One bench at a time on a machine: two would measure each other."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gradwire.errors import CommandError


@contextlib.contextmanager
def only_bench() -> Iterator[None]:
    """Hold the machine's lock, which the kernel lets go of with the process.

    Raises:
        CommandError: Another bench runs; says which process.

    Example:
        >>> with only_bench():
        ...     print("alone")
        alone
    """
    path = Path(tempfile.gettempdir()) / "gradwire-bench.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = path.read_text(encoding="ascii").strip() or "unknown"
            raise CommandError(
                f"another bench runs on this machine (process {owner}): two would measure each"
                " other; wait for it or end it"
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)
