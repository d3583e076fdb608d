"""Latency on the lines: the kernel's netem, or gradwire's own delay line."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from gradwire.errors import CommandError
from gradwire.lab.launch import launched
from gradwire.lab.namespace import Namespace

LatencyBy = Literal["none", "netem", "delay line"]
"""What holds packets back: nothing, the kernel, or a process of the lab."""

PROGRAM = Path(__file__).parent / "native" / "gradwire_delay_line"
"""The delay line; built with the native library."""

_TAPS_ON_A_PATH = 2
"""From rank to hub, and from hub to rank."""


def has_netem(namespace: Namespace) -> bool:
    """Return whether the kernel can delay packets by itself."""
    try:
        namespace.command("tc qdisc add dev lo root netem delay 1ms")
    except CommandError:
        return False
    namespace.command("tc qdisc del dev lo root")
    return True


class DelayLine:
    """A process that holds every packet between pairs of TAP devices for a time.

    It makes `eth0` in each rank's namespace and its port in the hub. Packets
    of up to 64 KiB stay whole, so it costs per packet, not per frame: use it up
    to 1 Gbit/s and 4 ranks. It is killed with the thread that started it.

    Args:
        hub: The namespace with the bridge.
        ranks: The namespaces of the ranks, in order.
        latency_s: One way, from rank to rank.
        nice: Priority of its session; 0 leaves it.

    Raises:
        CommandError: It was not built, or did not start; says what to do.

    Example:
        Made by `Network`.
    """

    def __init__(
        self, hub: Namespace, ranks: Sequence[Namespace], latency_s: float, nice: int
    ) -> None:
        if not PROGRAM.exists():
            raise CommandError(
                "latency needs netem, which this kernel lacks, or gradwire's delay line, which"
                " was not built (no C++ compiler at installation?); without either, give"
                " gradwire.attach(link=Link(latency_s=...)) a line to imitate"
            )
        files = [namespace.fileno() for namespace in (hub, *ranks)]
        held_ns = round(latency_s / _TAPS_ON_A_PATH * 1e9)
        self._process = subprocess.Popen(  # noqa: S603 - a program of this package
            launched([str(PROGRAM), str(held_ns), *map(str, files)], nice),
            pass_fds=files,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        if self._process.stdout.readline().strip() != "ready":
            reason = self._process.stderr.read().strip()
            self.close()
            raise CommandError(f"the delay line did not start: {reason}")

    @property
    def process_id(self) -> int:
        """Number of its process."""
        return self._process.pid

    def close(self) -> None:
        """End it. Can be called twice."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
