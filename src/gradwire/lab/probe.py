"""Has lines measured, before anybody trusts their rates, and judges them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from gradwire.errors import CommandError
from gradwire.lab.flood import Target, command
from gradwire.lab.launch import launched
from gradwire.units import format_rate

MACHINE_LIMITED_BYTES_PER_S = 5e9 / 8
"""From here on two processor cores, not the line, may set the pace."""

_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class LineCheck:
    """What a line was set to and what it carried, both directions at once.

    Attributes:
        rank: Whose line.
        rate_bytes_per_s: As set.
        sent_bytes_per_s: As measured, in frames.
        received_bytes_per_s: Likewise.

    Example:
        >>> LineCheck(0, 12.5e6, 12.2e6, 12.3e6).complaint(0.1) is None
        True
        >>> LineCheck(1, 12.5e6, 9e6, 12.3e6).complaint(0.1)
        'rank 1 sends at 72 Mbit/s where 100 Mbit/s is set'
    """

    rank: int
    rate_bytes_per_s: float
    sent_bytes_per_s: float
    received_bytes_per_s: float

    @property
    def is_machine_limited(self) -> bool:
        """Whether the machine may be what makes it slower than set."""
        return self.rate_bytes_per_s >= MACHINE_LIMITED_BYTES_PER_S

    def complaint(self, tolerance: float) -> str | None:
        """Say which direction is off by more than a share of the rate, or None."""
        least = 0.0 if self.is_machine_limited else 1 - tolerance
        found = {"sends": self.sent_bytes_per_s, "receives": self.received_bytes_per_s}
        wrong = [
            f"{verb} at {format_rate(rate)}"
            for verb, rate in found.items()
            if not least <= rate / self.rate_bytes_per_s <= 1 + tolerance
        ]
        is_set = f"where {format_rate(self.rate_bytes_per_s)} is set"
        return f"rank {self.rank} {' and '.join(wrong)} {is_set}" if wrong else None


def check_lines(
    targets: Mapping[int, Target], tolerance: float, nice: int
) -> tuple[LineCheck, ...]:
    """Measure lines one after the other, those that are off again.

    Args:
        targets: Lines by rank.
        tolerance: Share of the rate by which a measurement may be off.
        nice: Priority of the measurement; 0 leaves it.

    Raises:
        CommandError: A line was off in all attempts, or could not be measured.
    """
    checks: dict[int, LineCheck] = {}
    left, complaints = dict(targets), [""]
    for _ in range(_ATTEMPTS):
        if not left:
            break
        checks |= _measured(left, nice)
        found = {rank: checks[rank].complaint(tolerance) for rank in left}
        left = {rank: target for rank, target in left.items() if found[rank]}
        complaints = [complaint for complaint in found.values() if complaint]
    if left:
        raise CommandError(
            f"{'; '.join(complaints)}; more than {tolerance:.0%} off in {_ATTEMPTS} measurements:"
            " wait until the machine has nothing else to do, set a lower rate, or pass verify=False"
        )
    return tuple(checks[rank] for rank in sorted(checks))


def _measured(targets: Mapping[int, Target], nice: int) -> dict[int, LineCheck]:
    lines = list(targets.values())
    done = subprocess.run(  # noqa: S603 - a program of this package
        launched(command(lines), nice),
        pass_fds={file for line in lines for file in (line.hub, line.inside)},
        env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        start_new_session=True,
        check=False,
    )
    if done.returncode != 0:
        raise CommandError(f"lines could not be measured: {done.stderr.strip()}")
    rates = zip(targets.items(), json.loads(done.stdout), strict=True)
    return {rank: LineCheck(rank, t.rate_bytes_per_s, *found) for (rank, t), found in rates}
