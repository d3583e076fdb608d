"""Network namespaces that nothing can leave behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from gradwire.errors import CommandError

_CLONE_NEWNET = 0x40000000
_NEEDED = {
    "veth": "ip link add near type veth peer name far",
    "bridge": "ip link add bridge type bridge",
    "sch_htb": "tc qdisc add dev near root handle 1: htb default 1",
}


class Namespace:
    """A network namespace, held by a file descriptor of this process only.

    It has no name. The kernel frees it, with the devices and queues in it, as
    soon as this process and those started inside are gone, however they ended.

    Args:
        file: The file descriptor of one that exists; None makes a new one.

    Raises:
        OSError: The kernel does not permit it.

    Example:
        >>> with contextlib.closing(Namespace()) as namespace:  # doctest: +SKIP
        ...     print(namespace.command("ip -o link"))
    """

    def __init__(self, file: int | None = None) -> None:
        if file is not None:
            self._file = file
            return
        libc = ctypes.CDLL(None, use_errno=True)
        with _returning():
            _check(libc.unshare(_CLONE_NEWNET), "unshare")
            self._file = os.open("/proc/thread-self/ns/net", os.O_RDONLY)

    @property
    def path(self) -> str:
        """A path by which `ip` can name it."""
        return f"/proc/{os.getpid()}/fd/{self._file}"

    def fileno(self) -> int:
        """Return the file descriptor that holds it."""
        return self._file

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Run the calling thread inside; what it opens and starts stays there."""
        libc = ctypes.CDLL(None, use_errno=True)
        with _returning():
            _check(libc.setns(self._file, _CLONE_NEWNET), "setns")
            yield

    def command(self, line: str) -> str:
        """Run a command inside and return its output.

        Raises:
            CommandError: It failed; says what it wrote.
        """
        with self.entered():
            done = subprocess.run(  # noqa: S603 - commands of this package
                line.split(), capture_output=True, text=True, check=False
            )
        if done.returncode != 0:
            raise CommandError(f"{line}: {done.stderr.strip()}")
        return done.stdout

    def without_ipv6(self) -> None:
        """Keep devices from talking before anybody asked them to."""
        with self.entered():
            for which in ("all", "default"):
                switch = Path(f"/proc/sys/net/ipv6/conf/{which}/disable_ipv6")
                if switch.exists():
                    switch.write_text("1", encoding="ascii")

    def close(self) -> None:
        """Let go of it. Can be called twice."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


def missing() -> str | None:
    """Return what this machine lacks for a `Network`, or None if it can have one.

    Example:
        >>> reason = missing()
        >>> reason is None or "network namespaces need" in reason
        True
    """
    programs = [name for name in ("ip", "tc") if not shutil.which(name)]
    lacking = [f"the program {name!r} (install iproute2)" for name in programs]
    if os.geteuid() != 0:
        lacking.insert(0, "root")
    if not lacking:
        try:
            with contextlib.closing(Namespace()) as namespace:
                lacking = [f"{part} in the kernel" for part in _lacking(namespace)]
        except OSError as error:
            lacking = [f"a kernel that permits them ({error.strerror})"]
    return f"network namespaces need {' and '.join(lacking)}" if lacking else None


def _lacking(namespace: Namespace) -> Iterator[str]:
    for part, line in _NEEDED.items():
        try:
            namespace.command(line)
        except CommandError:
            yield part
            return  # what follows needs it


@contextlib.contextmanager
def _returning() -> Iterator[None]:
    """Bring the calling thread back to its network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        yield
    finally:
        _check(libc.setns(here, _CLONE_NEWNET), "setns")
        os.close(here)


def _check(returned: int, what: str) -> None:
    if returned != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
