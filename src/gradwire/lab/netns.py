"""Ranks in network namespaces of one machine, joined by lines of given rates.

    [rank 0] eth0 == port0 [hub: bridge] port1 == eth0 [rank 1] ...

The queue of `eth0` limits what a rank sends, that of its port what it receives.
Nothing of the machine's own network is touched, and nothing can be left behind:
the namespaces are held by file descriptors of this process only, so the kernel
frees them with all that is in them; workers are killed with their parent.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self

from gradwire.errors import CommandError, SpecError
from gradwire.lab.counters import InterfaceBytes
from gradwire.lab.latency import DelayLine, LatencyBy, has_netem
from gradwire.lab.launch import launched
from gradwire.lab.line import HUB_ADDRESS, Line
from gradwire.lab.namespace import Namespace, missing
from gradwire.lab.playback import Playback
from gradwire.lab.probe import LineCheck, check_lines
from gradwire.lab.script import RateChange, RateScript
from gradwire.lab.softirq import PacketThreads
from gradwire.lab.workers import Workers

__all__ = ["Network", "missing"]

_MAX_RANKS = 250
_MTU = (576, 9000)
_LEAST_RATE = 12_500.0
_FIRST_PORT = 29500
_RAISED = -20


class Network:
    """Ranks behind full-duplex lines; a context manager.

    Rates are those of Ethernet frames: with TCP and the usual MTU at most
    95.6 % of it is payload (1448 of 1514 bytes).

    Args:
        world_size: Number of ranks, at most 250.
        rate_bytes_per_s: Rate of each line, each way; one for all ranks or one a
            rank; infinity for no limit, else at least 12,500.
        latency_s: One way, from rank to rank.
        mtu: Bytes of payload and IP headers in a frame.
        nice: Priority of the workers' sessions, from -20 (above all else on the
            machine) to 0 (as it comes); the kernel's threads that carry packets
            get it as well, meanwhile. None takes it from the environment
            variable `GRADWIRE_LAB_NICE`, or else -20.
        verify: Measure all limited lines on entering and refuse wrong rates.

    Attributes:
        latency_by: What makes the latency: `"netem"`, the `"delay line"`, or
            `"none"`.
        checks: What `verify` last measured.

    Raises:
        SpecError: An argument is out of its range.
        CommandError: The machine lacks something, a command failed, or a line
            does not have its rate.

    Example:
        >>> with Network(2, 12.5e6) as network:  # doctest: +SKIP
        ...     outputs = network.run(["python", "worker.py"])
    """

    def __init__(
        self,
        world_size: int,
        rate_bytes_per_s: float | Sequence[float] = math.inf,
        *,
        latency_s: float = 0.0,
        mtu: int = 1500,
        nice: int | None = None,
        verify: bool = True,
    ) -> None:
        if not 1 <= world_size <= _MAX_RANKS:
            raise SpecError("world_size", world_size, f"between 1 and {_MAX_RANKS}")
        if not _MTU[0] <= mtu <= _MTU[1]:
            raise SpecError("mtu", mtu, f"between {_MTU[0]} and {_MTU[1]}")
        if not 0 <= latency_s < math.inf:
            raise SpecError("latency_s", latency_s, "at least 0 and finite")
        self.world_size = world_size
        self.latency_s = latency_s
        self.latency_by: LatencyBy = "none"
        self.mtu = mtu
        self.checks: tuple[LineCheck, ...] = ()
        self._rates = _rates(world_size, rate_bytes_per_s)
        self._nice = _priority(nice)
        self._packet_threads = PacketThreads(self._nice)
        self._verify = verify
        self._hub: Namespace | None = None
        self._lines: list[Line] = []
        self._delay_line: DelayLine | None = None
        self._started = 0

    def __enter__(self) -> Self:
        """Build the namespaces and lines."""
        reason = missing()
        if reason is not None:
            raise CommandError(reason)
        try:
            self._packet_threads.raise_all()
            self._build()
            if self._verify:
                self.verify()
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

    @property
    def rates_bytes_per_s(self) -> tuple[float, ...]:
        """The rates of the lines now, by rank."""
        return tuple(line.rate_bytes_per_s for line in self._lines) or self._rates

    def address(self, rank: int) -> str:
        """Return a rank's IPv4 address."""
        return self._line(rank).address

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
        with self.start(command, environment=environment) as workers:
            return workers.wait(timeout_s)

    def start(
        self, command: Sequence[str], *, environment: Mapping[str, str] | None = None
    ) -> Workers:
        """Start a command on every rank, and do not wait for it.

        Args:
            command: Program and arguments, equal on all ranks.
            environment: Variables to add to those of `torchrun`.

        Returns:
            The processes; a context manager that ends them. They end with the
            calling thread too, so start them from one that lives on.
        """
        ranks = range(self.world_size)
        port = _FIRST_PORT + self._started % 1000  # runs side by side do not meet
        self._started += 1
        return Workers(
            command,
            [os.environ | self.variables(r, port) | dict(environment or {}) for r in ranks],
            [self._line(r).inside for r in ranks],
            self._nice,
        )

    @contextlib.contextmanager
    def entered(self, rank: int) -> Iterator[None]:
        """Run the calling thread where a rank lives; what it starts stays there."""
        with self._line(rank).inside.entered():
            yield

    def launched(self, command: Sequence[str]) -> list[str]:
        """Return the command line that runs a command as a worker of this network.

        To be started within `entered`, with `start_new_session`: it dies with
        the thread that starts it, and has the workers' priority.
        """
        return launched(command, self._nice)

    def limit(self, rate_bytes_per_s: float, rank: int | None = None) -> None:
        """Set the rate of a line, or of all, while workers run.

        Connections live on; those that are open keep their packet size.

        Args:
            rate_bytes_per_s: Each way; infinity for no limit, else at least 12,500.
            rank: Whose line; None for all.
        """
        (rate,) = _rates(1, rate_bytes_per_s)
        for line in self._known(rank):
            line.limit(rate)

    def play(self, script: RateScript) -> Playback:
        """Return a context manager that makes a script's changes while its block runs.

        Raises:
            SpecError: The script names a rank that is not here.
        """
        for change in script.changes:
            _rates(1, change.rate_bytes_per_s)
            self._known(change.rank)
        return Playback(script, self._change)

    def cut(self, rank: int) -> None:
        """Take a rank's line down, as if its cable were pulled; packets are lost."""
        self._line(rank).cut()

    def restore(self, rank: int) -> None:
        """Take a rank's line up again; TCP goes on where it was."""
        self._line(rank).restore()

    def interface_bytes(self, rank: int) -> InterfaceBytes:
        """Return what a rank has sent and received over its line so far."""
        return self._line(rank).carried()

    def verify(self, tolerance: float = 0.1) -> tuple[LineCheck, ...]:
        """Measure every limited line, both directions at once, one after the other.

        Takes about half a second a line. Lines of 5 Gbit/s and more may be
        slower than set, as the machine limits them: that is reported, not
        refused.

        Args:
            tolerance: Share of the rate by which a measurement may be off.

        Raises:
            CommandError: A line is off by more, three times in a row; says which.
        """
        limited = [line for line in self._known(None) if math.isfinite(line.rate_bytes_per_s)]
        targets = {line.rank: line.target(self.latency_s) for line in limited}
        self.checks = check_lines(targets, tolerance, self._nice)
        return self.checks

    def _build(self) -> None:
        self._hub = hub = Namespace()
        for rank in range(self.world_size):
            self._lines.append(Line(hub, rank, self.mtu))
        hub.without_ipv6()
        hub.command("ip link add bridge type bridge stp_state 0 mcast_snooping 0")
        hub.command(f"ip link set bridge mtu {self.mtu} up")
        hub.command(f"ip addr add {HUB_ADDRESS}/24 dev bridge")
        if self.latency_s:
            self.latency_by = "netem" if has_netem(hub) else "delay line"
        if self.latency_by == "delay line":
            ranks = [line.inside for line in self._lines]
            self._delay_line = DelayLine(hub, ranks, self.latency_s, self._nice)
        netem_s = self.latency_s if self.latency_by == "netem" else 0.0
        for line, rate in zip(self._lines, self._rates, strict=True):
            line.connect(has_devices=self._delay_line is not None, netem_s=netem_s)
            line.limit(rate)

    def variables(self, rank: int, port: int = _FIRST_PORT) -> dict[str, str]:
        """Return the environment of a rank: torchrun's, and Gloo on its line."""
        return {
            "MASTER_ADDR": self.address(0),
            "MASTER_PORT": str(port),
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_WORLD_SIZE": "1",
            "GLOO_SOCKET_IFNAME": "eth0",
            "OMP_NUM_THREADS": "1",
        }

    def _line(self, rank: int) -> Line:
        return self._known(rank)[0]

    def _known(self, rank: int | None) -> list[Line]:
        if not self._lines:
            raise CommandError("the network is not there: use it inside `with Network(...)`")
        if rank is None:
            return self._lines
        if not 0 <= rank < self.world_size:
            raise SpecError("rank", rank, f"between 0 and {self.world_size - 1}")
        return [self._lines[rank]]

    def _change(self, change: RateChange) -> None:
        self.limit(change.rate_bytes_per_s, change.rank)

    def _close(self) -> None:
        if self._delay_line is not None:
            self._delay_line.close()
        for line in self._lines:
            line.inside.close()
        if self._hub is not None:
            self._hub.close()
        self._lines, self._hub, self._delay_line = [], None, None
        self._packet_threads.restore()


def _rates(world_size: int, given: float | Sequence[float]) -> tuple[float, ...]:
    rates = tuple(given) if isinstance(given, Sequence) else (given,) * world_size
    if len(rates) != world_size:
        raise SpecError("rate_bytes_per_s", given, f"one rate, or {world_size} of them")
    for rate in rates:
        if not rate >= _LEAST_RATE:
            raise SpecError("rate_bytes_per_s", rate, f"at least {_LEAST_RATE:.0f}")
    return rates


def _priority(nice: int | None) -> int:
    text = os.environ.get("GRADWIRE_LAB_NICE", str(_RAISED)) if nice is None else str(nice)
    if text not in {str(n) for n in range(_RAISED, 1)}:
        raise SpecError("nice", text, f"a whole number between {_RAISED} and 0")
    return int(text)
