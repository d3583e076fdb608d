"""Ranks in network namespaces of one machine, joined by lines of a given rate.

    [rank 0] eth0 == port0 [hub: bridge] port1 == eth0 [rank 1] ...

The queue of `eth0` limits what a rank sends, that of its port what it receives.
Nothing of the machine's own network is touched, and nothing can be left behind:
the namespaces are held by file descriptors of this process only, so the kernel
frees them with all that is in them; workers are killed with their parent.
"""

from __future__ import annotations

import ctypes
import math
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from gradwire.errors import CommandError, SpecError

_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1
_POLL_S = 0.05
_MAX_RANKS = 250
_NO_IPV6 = "sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1"


def missing() -> str | None:
    """Return what this machine lacks for a `Network`, or None if it can have one.

    Example:
        >>> reason = missing()
        >>> reason is None or "network namespaces need" in reason
        True
    """
    lacking = [f"the program {name!r}" for name in ("ip", "tc", "sysctl") if not shutil.which(name)]
    if os.geteuid() != 0:
        lacking.insert(0, "root")
    if not lacking:
        try:
            os.close(_new_namespace())
        except OSError as error:
            lacking.append(f"a kernel that permits them ({error.strerror})")
    return f"network namespaces need {' and '.join(lacking)}" if lacking else None


class Network:
    """Ranks behind full-duplex lines of one rate; a context manager.

    Rates are those of Ethernet frames: with TCP at most 95.6 % of it is
    payload (1448 of 1514 bytes).

    Args:
        world_size: Number of ranks, at most 250.
        rate_bytes_per_s: Rate of each line, each way; infinity for no limit.

    Raises:
        CommandError: The machine lacks something, or a command failed.

    Example:
        >>> with Network(2, 12.5e6) as network:  # doctest: +SKIP
        ...     outputs = network.run(["python", "worker.py"])
    """

    def __init__(self, world_size: int, rate_bytes_per_s: float) -> None:
        if not 1 <= world_size <= _MAX_RANKS:
            raise SpecError("world_size", world_size, f"between 1 and {_MAX_RANKS}")
        if not rate_bytes_per_s > 0:
            raise SpecError("rate_bytes_per_s", rate_bytes_per_s, "above 0")
        self.world_size = world_size
        self.rate_bytes_per_s = rate_bytes_per_s
        self._hub = -1
        self._ranks: list[int] = []

    def __enter__(self) -> Self:
        """Build the namespaces and lines."""
        reason = missing()
        if reason is not None:
            raise CommandError(reason)
        try:
            self._hub = _new_namespace()
            self._ranks = [_new_namespace() for _ in range(self.world_size)]
            self._command(self._hub, _NO_IPV6)
            self._command(self._hub, "ip link add bridge type bridge stp_state 0 mcast_snooping 0")
            self._command(self._hub, "ip link set bridge up")
            for rank in range(self.world_size):
                self._connect(rank)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let go of the namespaces."""
        self._close()

    def address(self, rank: int) -> str:
        """Return a rank's IPv4 address."""
        return f"10.77.0.{rank + 1}"

    def run(
        self,
        command: Sequence[str],
        *,
        timeout_s: float = 600.0,
        environment: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Run a command on every rank and return what each wrote to standard output.

        The environment is that of `torchrun`, and has Gloo use the line.

        Args:
            command: Program and arguments, equal on all ranks.
            timeout_s: All of them must be done by then.
            environment: Variables to add.

        Raises:
            CommandError: A rank failed or was late; its last lines are in the
                message.
        """
        with tempfile.TemporaryDirectory(prefix="gradwire-netns-") as folder:
            files = [
                (Path(folder, f"{r}.out"), Path(folder, f"{r}.err")) for r in range(self.world_size)
            ]
            workers: list[subprocess.Popen[bytes]] = []
            try:
                for rank, (out, err) in enumerate(files):
                    variables = os.environ | self.variables(rank) | dict(environment or {})
                    with out.open("wb") as stdout, err.open("wb") as stderr:
                        workers.append(
                            subprocess.Popen(  # noqa: S603 - the caller's command
                                command,
                                env=variables,
                                stdout=stdout,
                                stderr=stderr,
                                preexec_fn=self.entering(rank),  # noqa: PLW1509 - no other way in
                            )
                        )
                _wait(workers, [err for _, err in files], timeout_s)
            finally:
                for worker in workers:
                    worker.kill()
                    worker.wait()
            return [out.read_text() for out, _ in files]

    def entering(self, rank: int) -> Callable[[], None]:
        """Return what a process of a rank does first (a `preexec_fn`)."""
        return _entering(self._ranks[rank])

    def variables(self, rank: int) -> dict[str, str]:
        """Return the environment of a rank: torchrun's, and Gloo on the line."""
        return {
            "MASTER_ADDR": self.address(0),
            "MASTER_PORT": "29500",
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(self.world_size),
            "GLOO_SOCKET_IFNAME": "eth0",
            "OMP_NUM_THREADS": "1",
        }

    def _connect(self, rank: int) -> None:
        port, inside = f"port{rank}", self._ranks[rank]
        target = f"/proc/{os.getpid()}/fd/{inside}"
        self._command(self._hub, f"ip link add {port} type veth peer name eth0 netns {target}")
        self._command(self._hub, f"ip link set {port} master bridge up")
        self._command(inside, _NO_IPV6)
        self._command(inside, "ip link set lo up")
        self._command(inside, "ip link set eth0 up")
        self._command(inside, f"ip addr add {self.address(rank)}/24 dev eth0")
        # A namespace cannot choose its congestion control, but a route can.
        route = f"10.77.0.0/24 dev eth0 src {self.address(rank)} congctl cubic"
        self._command(inside, f"ip route replace {route}")
        self._limit(inside, "eth0")
        self._limit(self._hub, port)

    def _limit(self, namespace: int, device: str) -> None:
        """Have HTB limit what leaves a device.

        TBF would cut large packets up, and starves one direction of two. HTB
        lets one packet overdraw its bucket, so packets are kept below 0.25 ms
        of the line (3 frames at least), the bucket at 0.1 ms, the queue at 50.
        """
        rate = self.rate_bytes_per_s
        if math.isinf(rate):
            return
        burst = int(min(max(rate * 0.1e-3, 3200), 65536))
        packet = int(min(max(rate * 0.25e-3, 4500), 65536))
        queue = int(min(max(rate * 0.05, 131072), 4 << 20))
        bits = f"{int(rate * 8)}bit"
        self._command(namespace, f"ip link set dev {device} gso_max_size {packet}")
        self._command(namespace, f"tc qdisc add dev {device} root handle 1: htb default 1")
        limits = f"rate {bits} burst {burst} cburst {burst} quantum 60000"
        self._command(namespace, f"tc class add dev {device} parent 1: classid 1:1 htb {limits}")
        self._command(namespace, f"tc qdisc add dev {device} parent 1:1 bfifo limit {queue}")

    @staticmethod
    def _command(namespace: int, line: str) -> None:
        done = subprocess.run(  # noqa: S603 - commands of this file
            line.split(),
            preexec_fn=_entering(namespace),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise CommandError(f"{line}: {done.stderr.strip()}")

    def _close(self) -> None:
        for namespace in [*self._ranks, self._hub]:
            if namespace >= 0:
                os.close(namespace)
        self._ranks, self._hub = [], -1


def _wait(
    workers: Sequence[subprocess.Popen[bytes]], errors: Sequence[Path], timeout_s: float
) -> None:
    end = time.monotonic() + timeout_s
    codes = [worker.poll() for worker in workers]
    while None in codes and not any(codes) and time.monotonic() < end:
        time.sleep(_POLL_S)
        codes = [worker.poll() for worker in workers]
    if any(code != 0 for code in codes):
        what = f"not done after {timeout_s:g} s" if not any(codes) else "failed"
        tails = [f"--- rank {r}\n{path.read_text()[-2000:]}" for r, path in enumerate(errors)]
        raise CommandError(f"{what}, exit codes {codes}\n" + "\n".join(tails))


def _check(returned: int, what: str) -> None:
    if returned != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _new_namespace() -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    here = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        _check(libc.unshare(_CLONE_NEWNET), "unshare")
        try:
            return os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        finally:
            _check(libc.setns(here, _CLONE_NEWNET), "setns")
    finally:
        os.close(here)


def _entering(namespace: int) -> Callable[[], None]:
    """Return what a child does first: die with its parent, and change namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()

    def enter() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        _check(libc.setns(namespace, _CLONE_NEWNET), "setns")

    return enter
