"""Channels: numbers for the reductions of a step, equal on all ranks."""

from __future__ import annotations

from gradwire.comm.base import Mailbox
from gradwire.comm.channel import Channel, Scratch

_A_STEP = 1 << 20
_STEPS = 1 << 7
AGREEMENT = _A_STEP * _STEPS
"""Number of the channel on which ranks compare their step counts: beyond all others."""


class Channels:
    """Hands out channels in the order in which reductions start.

    The step is part of a channel's number, so ranks that count steps differently never
    take each other's gradients.

    Args:
        mailbox: Connects the ranks.
    """

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._scratch = Scratch()
        self._step = self._count = 0

    def begin(self, step: int) -> None:
        """Count anew, for this step."""
        self._step, self._count = step, 0

    def next(self, mailbox: Mailbox | None = None) -> Channel:
        """Return the step's next channel.

        Args:
            mailbox: Moves its bytes, such as one that counts them; by default the
                one that connects the ranks.
        """
        number = self._step % _STEPS * _A_STEP + self._count
        self._count += 1
        return Channel(mailbox or self._mailbox, number, self._scratch)

    def agreement(self) -> Channel:
        """Return the channel on which ranks compare their step counts."""
        return Channel(self._mailbox, AGREEMENT)
